"""Auto-registration: Spark imports every top-level `pyspark_*` module and registers its source."""

import contextlib

# One failing module of this kind would disable the discovery of everyone's sources.
with contextlib.suppress(Exception):
    from kts_source.spark.datasource import TieredKafkaDataSource as DefaultSource

__all__ = ["DefaultSource"]
