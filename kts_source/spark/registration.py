"""Making the format known to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kts_source.spark.datasource import TieredKafkaDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Makes `format("tiered-kafka")` known, whether or not Spark has found it by itself.

    Spark imports `pyspark_tiered_kafka` where it is installed. Spark 4.0 then refuses to register
    the source again (`DATA_SOURCE_ALREADY_EXISTS`); later ones replace what they found.

    Args:
        spark: The session; others of the same application are not affected.

    Raises:
        UnsupportedSparkError: This Spark has no Python data sources (on import of this function).
    """
    from pyspark.errors import AnalysisException

    try:
        spark.dataSource.register(TieredKafkaDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
