"""`spark.read.format("tiered-kafka")`, and making it known to a Spark session.

The table's columns in Spark's types, and what a user-given schema may say.
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import types
from pyspark.sql.types import StructField, StructType

from kts_source.columns import ALL_COLUMNS
from kts_source.errors import InvalidOptionError
from kts_source.options import check_for_batch, check_for_stream, parse_any_options
from kts_source.options.value_formats import column_types, further_columns
from kts_source.spark.data_source_api import DataSource, Travels
from kts_source.spark.readers import TieredKafkaBatchReader, TieredKafkaStreamReader
from kts_source.spark.worker import explained_imports, forget_finders_of_sparks_archives

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from kts_source.options import ScanOptions
    from kts_source.options.value_formats import ColumnFormat


_HEADER: Final = StructType(
    [StructField("key", types.StringType()), StructField("value", types.BinaryType())]
)
_COLUMNS: Final[dict[types.DataType, str]] = {
    types.BinaryType(): "key value",
    types.StringType(): "topic codec segmentId",
    types.IntegerType(): "partition timestampType leaderEpoch producerEpoch sequence",
    types.LongType(): "offset producerId batchBaseOffset",
    types.TimestampType(): "timestamp",
    types.BooleanType(): "isTransactional",
    types.ArrayType(_HEADER): "headers",
}
_TYPES: Final = {name: kind for kind, names in _COLUMNS.items() for name in names.split()}


def spark_schema(columns: Sequence[str], formats: Sequence[ColumnFormat] = ()) -> StructType:
    """The columns in Spark's types, all nullable, as Spark's Kafka source has them.

    Args:
        columns: Names.
        formats: How keys and values are decoded.
    """
    types_of = _types_with(formats)
    return StructType([StructField(name, types_of[name]) for name in columns])


def _types_with(formats: Sequence[ColumnFormat]) -> dict[str, types.DataType]:
    """Every column of the table and its type."""
    if not formats:
        return _TYPES
    from pyspark.sql.pandas.types import from_arrow_type

    decoded = {
        name: from_arrow_type(kind, prefer_timestamp_ntz=True)
        for name, kind in column_types(formats).items()
    }
    return _TYPES | decoded


def typed_as(
    schema: StructType | pa.Schema, formats: Sequence[ColumnFormat]
) -> tuple[ColumnFormat, ...]:
    """Formats with the types of a schema's columns, where they have none of their own: JSON without
    `value.schema`.

    Args:
        schema: What the user gave, or Spark took from `spark_schema`.
        formats: How keys and values are decoded.

    Raises:
        InvalidOptionError: The schema does not have a column whose type it has to say, or a type
            that JSON is not read to.
    """
    if not any(one.needs_type for one in formats):
        return tuple(formats)
    from pyspark.sql.pandas.types import to_arrow_schema

    if isinstance(schema, StructType):
        schema = to_arrow_schema(schema)
    return tuple(_typed_as(schema, one) if one.needs_type else one for one in formats)


def _typed_as(schema: pa.Schema, form: ColumnFormat) -> ColumnFormat:
    from segment_format.values.json.ddl import print_ddl

    if form.column not in schema.names:
        raise InvalidOptionError(
            f"option '{form.column}.format' = {form.format} needs option '{form.column}.schema', as"
            f" the schema has no column {form.column!r}"
        )
    try:
        # It has the fields of `value.columns` alone.
        known = replace(form, schema=print_ddl(schema.field(form.column).type), fields=None)
        _ = known.type
    except ValueError as error:
        raise InvalidOptionError(f"column {form.column!r} of the schema: {error}") from None
    return known


def columns_of(
    schema: StructType | pa.Schema, formats: Sequence[ColumnFormat] = ()
) -> tuple[str, ...]:
    """The table's columns that a user-given schema asks for, in its order.

    Sail hands over the schema as Arrow's.

    Args:
        schema: What the user gave, or Spark took from `spark_schema`.
        formats: How keys and values are decoded.

    Raises:
        InvalidOptionError: A name or a type that the table does not have, or a promise of no
            nulls.
    """
    if not isinstance(schema, StructType):
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    types_of = _types_with(formats)
    every = (*ALL_COLUMNS, *further_columns(formats))
    by_lower = {name.lower(): name for name in every}
    columns = []
    for field in schema.fields:
        name = by_lower.get(field.name.lower())
        if name is None:
            names = (f"{column} {types_of[column].simpleString()}" for column in every)
            close = difflib.get_close_matches(field.name, every, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise InvalidOptionError(
                f"the schema has a column {field.name!r}, which the table has not{hint} (columns:"
                f" {', '.join(names)})"
            )
        if field.name != name:
            raise InvalidOptionError(f"the schema spells column {name!r} as {field.name!r}")
        if name in columns:
            raise InvalidOptionError(f"the schema has column {name!r} twice")
        expected = types_of[name]
        if field.dataType != expected:
            raise InvalidOptionError(
                f"column {name!r} is {expected.simpleString()}, not {field.dataType.simpleString()}"
            )
        if not field.nullable:
            raise InvalidOptionError(
                f"column {name!r} is nullable; leave NOT NULL out of the schema"
            )
        columns.append(name)
    if not columns:
        raise InvalidOptionError("the schema has no column")
    return tuple(columns)


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
