"""Auto-registration: Spark imports every top-level `pyspark_*` module and registers its `DefaultSource`."""

try:
    from kts_source.spark.datasource import TieredKafkaDataSource as DefaultSource  # noqa: F401
except Exception:  # noqa: BLE001, S110 - one failing module would disable discovery of everyone's sources
    pass
