"""The data source `tiered-kafka`: its registration, options and schema."""

from __future__ import annotations

import difflib
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kts_source.columns import ALL_COLUMNS
from kts_source.errors import InvalidOptionError
from kts_source.options import check_for_batch, check_for_stream, parse_any_options
from kts_source.options.value_formats import column_types, further_columns
from kts_source.spark.data_source_api import DataSource, Travels, types
from kts_source.spark.readers import TieredKafkaBatchReader, TieredKafkaStreamReader
from kts_source.spark.worker import explained_imports, forget_finders_of_sparks_archives

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from kts_source.options import ScanOptions
    from kts_source.options.value_formats import ColumnFormat


_HEADER: Final = types.StructType(
    [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
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
_WITHOUT_LIMITS: Final = ("4.0.", "4.1.")
"""Versions of Spark whose `Trigger.AvailableNow` asks a Python source for one batch."""


def spark_schema(columns: Sequence[str], formats: Sequence[ColumnFormat] = ()) -> types.StructType:
    """Returns the columns as Spark's types, all nullable as in Spark's Kafka source."""
    types_of = _types_with(formats)
    return types.StructType([types.StructField(name, types_of[name]) for name in columns])


def _types_with(formats: Sequence[ColumnFormat]) -> dict[str, types.DataType]:
    """Returns the type of every column of the table."""
    if not formats:
        return _TYPES
    from pyspark.sql.pandas.types import from_arrow_type

    decoded = {
        name: from_arrow_type(kind, prefer_timestamp_ntz=True)
        for name, kind in column_types(formats).items()
    }
    return _TYPES | decoded


def typed_as(
    schema: types.StructType | pa.Schema, formats: Sequence[ColumnFormat]
) -> tuple[ColumnFormat, ...]:
    """Returns formats with the types of a schema's columns for JSON without `value.schema`.

    Raises:
        InvalidOptionError: The schema lacks a column with a needed type, or has a type that
            JSON cannot be decoded to.
    """
    if not any(column_format.needs_type for column_format in formats):
        return tuple(formats)
    from pyspark.sql.pandas.types import to_arrow_schema

    if isinstance(schema, types.StructType):
        schema = to_arrow_schema(schema)
    return tuple(
        _typed_as(schema, column_format) if column_format.needs_type else column_format
        for column_format in formats
    )


def _typed_as(schema: pa.Schema, form: ColumnFormat) -> ColumnFormat:
    from segment_format.values.json.ddl import print_ddl

    if form.column not in schema.names:
        raise InvalidOptionError(
            f"option '{form.column}.format' = {form.format} needs option '{form.column}.schema', as"
            f" the schema has no column {form.column!r}"
        )
    try:
        # The schema has only the fields of `value.columns`.
        typed = replace(form, schema=print_ddl(schema.field(form.column).type), fields=None)
        _ = typed.type
    except ValueError as error:
        raise InvalidOptionError(f"column {form.column!r} of the schema: {error}") from None
    return typed


def columns_of(
    schema: types.StructType | pa.Schema, formats: Sequence[ColumnFormat] = ()
) -> tuple[str, ...]:
    """Returns the table's columns of a user's schema, in its order.

    Raises:
        InvalidOptionError: The table does not have a name or type of the schema, or a column is not
            nullable.
    """
    if not isinstance(schema, types.StructType):
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
                f"the schema has a column {field.name!r}, which the table does not have{hint}"
                f" (columns: {', '.join(names)})"
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
                f"column {name!r} is nullable; remove NOT NULL from the schema"
            )
        columns.append(name)
    if not columns:
        raise InvalidOptionError("the schema has no column")
    return tuple(columns)


class TieredKafkaDataSource(DataSource, metaclass=Travels):
    """Reads Kafka topics from tiered storage: closed segments come directly from the objects.

    Name: `tiered-kafka`

    Register it once per session, or let Spark find `pyspark_tiered_kafka` on the path:

        spark.dataSource.register(TieredKafkaDataSource)
        df = (spark.read.format("tiered-kafka")
                .option("path", "s3://bucket").option("keyPrefix", "tiered/")
                .option("subscribe", "orders").load())

    Options: `docs/options.md`. A mistake fails at `load()`.

    Columns: `key binary, value binary, topic string, partition int, offset bigint, timestamp
    timestamp, timestampType int`, and with `includeHeaders=true` also `headers
    array<struct<key:string,value:binary>>`. A narrower `.schema("offset bigint, value binary")`, or
    option `columns`, decodes and copies only those columns.

    Each query is planned once, so its retries read the same offsets. Another query on the DataFrame
    is planned again, as in Spark's Kafka source.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # Not in schema(), because Spark does not call it if the user gives a schema.
        self._scan_options = parse_any_options(dict(options))
        forget_finders_of_sparks_archives()

    @classmethod
    def name(cls) -> str:
        """Returns the format's name."""
        return "tiered-kafka"

    def schema(self) -> types.StructType:
        """Returns the selected columns; types of JSON without a schema are inferred from a
        sample.
        """
        if any(column_format.needs_type for column_format in self._scan_options.formats):
            with explained_imports():
                from kts_source.planning.infer_types import with_types

            self._scan_options = with_types(self._scan_options)  # `reader` reuses the types
        return spark_schema(self._scan_options.columns, self._scan_options.formats)

    def reader(self, schema: types.StructType | pa.Schema) -> TieredKafkaBatchReader:
        """Returns a batch reader of the columns of a schema, which on Sail is an Arrow schema.

        Raises:
            InvalidOptionError: The schema does not fit the table, or an option is for streams only.
        """
        check_for_batch(self._scan_options)
        options = self._options_for(schema)
        if isinstance(schema, types.StructType):
            return TieredKafkaBatchReader(options)
        from kts_source.spark.sail import sail_reader

        return sail_reader(options)

    def streamReader(self, schema: types.StructType) -> TieredKafkaStreamReader:  # noqa: N802  # Spark's name
        """Returns a stream reader of the columns of a schema.

        Raises:
            InvalidOptionError: The schema does not fit the table, or an option is for batches only.
        """
        check_for_stream(self._scan_options)
        return TieredKafkaStreamReader(self._options_for(schema))

    def _options_for(self, schema: types.StructType) -> ScanOptions:
        # Use the types of the schema: a second sample might have other types.
        formats = typed_as(schema, self._scan_options.formats)
        columns = columns_of(schema, formats)
        options = replace(self._scan_options, columns=columns, formats=formats)
        # The key files are on the driver, but the reader is pickled for the workers.
        return replace(options, key_ring=options.key_ring.loaded())


def register(spark: SparkSession) -> None:
    """Registers `format("tiered-kafka")`, whether or not Spark has discovered it.

    Spark imports `pyspark_tiered_kafka` if it is installed. Spark 4.0 then refuses to register the
    source again (`DATA_SOURCE_ALREADY_EXISTS`); later versions replace it.

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


def session_builder() -> SparkSession.Builder:
    """Returns a session builder with Python workers that run this process's interpreter.

    The environment may name another interpreter. By default Spark runs `python3`, which may not
    have this package.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return SparkSession.builder


def run_available_now(
    spark: SparkSession,
    options: Mapping[str, str],
    write: Callable[[DataFrame], DataStreamWriter],
    *,
    schema: str | None = None,
) -> StreamingQuery:
    """Streams all records that are tiered now, in batches limited by the options, and waits for the
    end.

    From Spark 4.2 on this is `trigger(availableNow=True)`. Spark 4.0 and 4.1 would run a single
    batch with it, so there the source fixes its end, and the query runs without a trigger until
    that end.

    Args:
        spark: The session; the source is registered with it.
        options: As for `spark.readStream.format("tiered-kafka")`.
        write: Returns a writer of the stream with a sink and a checkpoint, not started and without
            a trigger.
        schema: Wanted columns, as for `readStream.schema`.

    Returns:
        The ended query.

    Raises:
        StreamingQueryException: The query failed; the next run continues from its checkpoint.
    """
    has_no_limits = spark.version.startswith(_WITHOUT_LIMITS)
    reader = spark.readStream.format(TieredKafkaDataSource.name()).options(**options)
    if has_no_limits:
        reader = reader.option("stopAtEnd", "true")
    if schema is not None:
        reader = reader.schema(schema)
    writer = write(reader.load())
    if not has_no_limits:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query
    query = writer.start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return query
