"""Reads Kafka's tiered storage as a table, without brokers.

    import kts_source

    orders = kts_source.scan("s3://bucket", keyPrefix="tiered/", subscribe="orders")
    orders.where("partition = 0").show()

Functions:

    scan               rows for Arrow, pandas, Polars, DuckDB and Ray
    register           the format "tiered-kafka" in a Spark session
    backfill           writes topics to a Parquet, Delta or Iceberg table
    find, index_keys   all records of some keys, with a certificate
    describe           partitions and offsets of a tier
    plan, explain      what a read would fetch, skip and cost
    audit, report      checks a tier; draws it as an HTML page
    run_available_now  runs a streaming query up to the current end of the tier

`help(kts_source.scan)` explains a function. Modules: `errors`, `export`, `metrics`, `secret` and
`streaming`. `__version__` is the version of the installed package.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kts_source import errors as errors
    from kts_source import export as export
    from kts_source import metrics as metrics
    from kts_source import secret as secret
    from kts_source import streaming as streaming
    from kts_source.auditing.report import AuditReport
    from kts_source.engines.scan import Scan, scan
    from kts_source.finding.certificate import Certificate
    from kts_source.finding.find import find
    from kts_source.finding.key_index import index_keys
    from kts_source.finding.search import Search
    from kts_source.planning.describe import describe
    from kts_source.planning.planner import plan
    from kts_source.planning.scan_plan import explain
    from kts_source.reporting.page import TierReport, report
    from kts_source.spark.audit import audit
    from kts_source.spark.backfill import backfill
    from kts_source.spark.datasource import TieredKafkaDataSource, register, run_available_now

    __version__: str

__all__ = [
    "AuditReport",
    "Certificate",
    "Scan",
    "Search",
    "TierReport",
    "TieredKafkaDataSource",
    "audit",
    "backfill",
    "describe",
    "explain",
    "find",
    "index_keys",
    "plan",
    "register",
    "report",
    "run_available_now",
    "scan",
]

_MODULES: Final = ("errors", "export", "metrics", "secret", "streaming")
_SPARK_ONLY: Final = "kts_source.spark.datasource"
_HOMES: Final = {
    "AuditReport": "kts_source.auditing.report",
    "Certificate": "kts_source.finding.certificate",
    "Scan": "kts_source.engines.scan",
    "Search": "kts_source.finding.search",
    "TierReport": "kts_source.reporting.page",
    "TieredKafkaDataSource": _SPARK_ONLY,
    "audit": "kts_source.spark.audit",
    "backfill": "kts_source.spark.backfill",
    "describe": "kts_source.planning.describe",
    "explain": "kts_source.planning.scan_plan",
    "find": "kts_source.finding.find",
    "index_keys": "kts_source.finding.key_index",
    "plan": "kts_source.planning.planner",
    "register": _SPARK_ONLY,
    "report": "kts_source.reporting.page",
    "run_available_now": _SPARK_ONLY,
    "scan": "kts_source.engines.scan",
}


def __dir__() -> list[str]:
    # Without pyspark, `help(kts_source)` would fail at the names that need it.
    has_spark = importlib.util.find_spec("pyspark") is not None
    public = [name for name, home in _HOMES.items() if has_spark or home != _SPARK_ONLY]
    return [*public, *_MODULES, "__version__", *(name for name in globals() if name[:2] == "__")]


def __getattr__(name: str) -> object:
    # Lazy: planning and reading work without pyspark, and the import is fast.
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name == "__version__":
        return importlib.import_module("kts_source.libraries").package_version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
