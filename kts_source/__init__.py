"""`spark.read.format("tiered-kafka")`: Kafka's cold tier as a table, read straight from object
storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kts_source.spark.datasource import TieredKafkaDataSource

__all__ = ["TieredKafkaDataSource"]


def __getattr__(name: str) -> object:
    # Lazy, so that planning and reading work where pyspark is not installed.
    if name == "TieredKafkaDataSource":
        from kts_source.spark.datasource import TieredKafkaDataSource

        return TieredKafkaDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
