"""`spark.read.format("tiered-kafka")`, and making it known to a Spark session."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from kts_source.options import check_for_batch, check_for_stream, parse_any_options
from kts_source.spark.batch_reader import TieredKafkaBatchReader
from kts_source.spark.data_source_api import DataSource, Travels
from kts_source.spark.schema import columns_of, spark_schema, typed_as
from kts_source.spark.stream_reader import TieredKafkaStreamReader
from kts_source.spark.worker_imports import explained_imports
from kts_source.spark.worker_tuning import forget_finders_of_sparks_archives

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from kts_source.options import ScanOptions


class TieredKafkaDataSource(DataSource, metaclass=Travels):
    """Kafka topics whose closed segments were moved to object storage, read straight from the
    objects.

    Name: `tiered-kafka`

    Register it once a session, or let Spark find `pyspark_tiered_kafka` on the path:

        spark.dataSource.register(TieredKafkaDataSource)
        df = (spark.read.format("tiered-kafka")
                .option("path", "s3://bucket").option("keyPrefix", "tiered/")
                .option("subscribe", "orders").load())

    Options: `docs/options.md`. A mistake fails at `load()`.

    Columns: `key binary, value binary, topic string, partition int, offset bigint, timestamp
    timestamp, timestampType int`, and with `includeHeaders=true` also `headers
    array<struct<key:string,value:binary>>`. A narrower `.schema("offset bigint, value binary")`,
    or option `columns`, decodes and copies only those columns.

    Plans once for a query: its retries read the same offsets; another query on the DataFrame plans
    anew, as in Spark's Kafka source.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # Here and not in schema(), which Spark does not call when the user gives a schema.
        self._scan_options = parse_any_options(dict(options))
        forget_finders_of_sparks_archives()

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "tiered-kafka"

    def schema(self) -> StructType:
        """The columns that the options ask for; of JSON without a schema, as a sample has them."""
        if any(one.needs_type for one in self._scan_options.formats):
            with explained_imports():
                from kts_source.planning.infer_types import with_types

            self._scan_options = with_types(self._scan_options)  # travels to `reader`
        return spark_schema(self._scan_options.columns, self._scan_options.formats)

    def reader(self, schema: StructType | pa.Schema) -> TieredKafkaBatchReader:
        """The reader of the columns of `schema`: Spark's, or Arrow's where Sail asks.

        Raises:
            InvalidOptionError: The user gave a schema that the table does not have, or an option
                that only a stream can have.
        """
        check_for_batch(self._scan_options)
        options = self._options_for(schema)
        if isinstance(schema, StructType):
            return TieredKafkaBatchReader(options)
        # Sail runs tasks in its own process; it hands the schema over as Arrow's.
        from kts_source.spark.sail_reader import SailBatchReader, takes_filters

        of_sail = SailBatchReader if takes_filters() else TieredKafkaBatchReader
        return of_sail(options, shares_process=True)

    def streamReader(self, schema: StructType) -> TieredKafkaStreamReader:  # noqa: N802  # Spark's name
        """The reader of a stream of the columns of `schema`.

        Raises:
            InvalidOptionError: The same, or an option that a stream cannot have.
        """
        check_for_stream(self._scan_options)
        return TieredKafkaStreamReader(self._options_for(schema))

    def _options_for(self, schema: StructType) -> ScanOptions:
        # As Spark, or the user, was told: a second sample could tell something else.
        formats = typed_as(schema, self._scan_options.formats)
        columns = columns_of(schema, formats)
        options = replace(self._scan_options, columns=columns, formats=formats)
        # The key files are the driver's: read here, because the reader travels to the workers.
        return replace(options, key_ring=options.key_ring.loaded())


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
