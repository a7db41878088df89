"""Defines the data source `tiered-kafka`: its registration, options and schema."""

from __future__ import annotations

import difflib
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

from kts_source.columns import ALL_COLUMNS
from kts_source.errors import InvalidOptionError
from kts_source.options import (
    check_for_batch,
    check_for_stream,
    option_texts,
    parse_any_options,
)
from kts_source.options.value_formats import column_types, further_columns
from kts_source.spark.data_source_api import (
    DataSource,
    UnpickledByLoad,
    types,
    without_replacement_warning,
)
from kts_source.spark.readers import (
    RefusedStreamReader,
    TieredKafkaBatchReader,
    TieredKafkaStreamReader,
)
from kts_source.spark.worker import explained_imports, forget_archive_finders

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from kts_source.options import Options, ScanOptions
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
_WRITER: Final = "pyspark.sql.worker.write_into_data_source"
"""Module of the processes in which Spark creates writers. Their options are those of the target, so
errors about them would be misleading.
"""
_WITHOUT_LIMITS: Final = ("4.0.", "4.1.")
"""Versions of Spark whose `Trigger.AvailableNow` requests only one batch from a Python source."""


def spark_schema(columns: Sequence[str], formats: Sequence[ColumnFormat] = ()) -> types.StructType:
    """Returns the Spark schema of `columns`. A column with a format in `formats` has its decoded
    type. All columns are nullable, as in Spark's Kafka source.
    """
    types_of = _types_with(formats)
    return types.StructType([types.StructField(name, types_of[name]) for name in columns])


def _types_with(formats: Sequence[ColumnFormat]) -> dict[str, types.DataType]:
    """Returns the Spark type of each column that the data source supports, with keys and values
    decoded by `formats`.
    """
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
    """Returns `formats`, with a type for each JSON format that lacks option `key.schema` or
    `value.schema`: the type of the column in the user's `schema`.

    Raises:
        InvalidOptionError: The schema lacks a column that needs a type, or the column has a type to
            which JSON cannot be decoded.
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
            f"option '{form.column}.format' = {form.format} needs option '{form.column}.schema',"
            f" because the schema has no column {form.column!r}"
        )
    try:
        # The schema already has only the fields that option `value.columns` selects.
        typed = replace(form, schema=print_ddl(schema.field(form.column).type), fields=None)
        _ = typed.type
    except ValueError as error:
        raise InvalidOptionError(f"column {form.column!r} of the schema: {error}") from None
    return typed


def columns_of(
    schema: types.StructType | pa.Schema, formats: Sequence[ColumnFormat] = ()
) -> tuple[str, ...]:
    """Returns the names of the columns in a user's schema, in the order of the schema.

    Raises:
        InvalidOptionError: The schema has an unknown column, a column with a wrong type, a repeated
            column, or a column that is not nullable.
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
            raise InvalidOptionError(
                f"the schema has column {field.name!r}; write its name as {name!r}"
            )
        if name in columns:
            raise InvalidOptionError(f"the schema has column {name!r} more than once: remove one")
        expected = types_of[name]
        if field.dataType != expected:
            is_text = (expected, field.dataType) == (types.BinaryType(), types.StringType())
            hint = f", or set {name}.format=utf8" if is_text else ""
            raise InvalidOptionError(
                f"column {name!r} has type {expected.simpleString()}, but the schema has type"
                f" {field.dataType.simpleString()}: use the type of the column{hint}"
            )
        if not field.nullable:
            raise InvalidOptionError(
                f"column {name!r} is nullable; remove NOT NULL from the schema"
            )
        columns.append(name)
    if not columns:
        raise InvalidOptionError("the schema has no columns: add at least one")
    return tuple(columns)


class TieredKafkaDataSource(DataSource, metaclass=UnpickledByLoad):
    """Reads Kafka topics from tiered storage. Closed segments are read directly from the objects in
    the store.

    Name: `tiered-kafka`

    Register it once per session, unless Spark finds the module `pyspark_tiered_kafka` on the Python
    path:

        spark.dataSource.register(TieredKafkaDataSource)
        df = (spark.read.format("tiered-kafka")
                .option("path", "s3://bucket").option("keyPrefix", "tiered/")
                .option("subscribe", "orders").load())

    Options: see `docs/options.md`. Invalid options raise an error at `load()`.

    Columns: `key binary, value binary, topic string, partition int, offset bigint, timestamp
    timestamp, timestampType int`, and with `includeHeaders=true` also `headers
    array<struct<key:string,value:binary>>`. To decode only some columns, select them by
    `.schema("offset bigint, value binary")` or option `columns`.

    Each query is planned once, so a retried task reads the offsets of the first attempt. A second
    query on a DataFrame is planned again, as in Spark's Kafka source.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        if _WRITER in sys.modules:
            raise _read_only()
        if "provider" in options:
            raise InvalidOptionError(
                "a table in Spark's catalog loses the options of its format. Use CREATE TEMPORARY"
                " VIEW … USING `tiered-kafka` OPTIONS (…) instead of CREATE TABLE"
            )
        # Parse the options here, because Spark does not call schema() if the user sets a schema.
        self._scan_options = parse_any_options(dict(options))
        forget_archive_finders()

    @classmethod
    def name(cls) -> str:
        """Returns the name of the format."""
        return "tiered-kafka"

    def schema(self) -> types.StructType:
        """Returns the schema of the selected columns. If no option contains the schema of a JSON
        column, infers its type from a sample of the records.
        """
        if any(column_format.needs_type for column_format in self._scan_options.formats):
            with explained_imports():
                from kts_source.planning.infer_types import with_types

            self._scan_options = with_types(self._scan_options)  # `reader` reuses the types
        return spark_schema(self._scan_options.columns, self._scan_options.formats)

    def reader(self, schema: types.StructType | pa.Schema) -> TieredKafkaBatchReader:
        """Returns a batch reader for the columns of a schema. Sail passes an Arrow schema, Spark a
        StructType.

        Raises:
            InvalidOptionError: `columns_of` rejects the schema, or an option is only for streams.
        """
        check_for_batch(self._scan_options)
        options = self._options_for(schema)
        if isinstance(schema, types.StructType):
            return TieredKafkaBatchReader(options)
        from kts_source.spark.sail import sail_reader

        return sail_reader(options)

    def streamReader(  # noqa: N802  # Spark's name
        self, schema: types.StructType
    ) -> TieredKafkaStreamReader | RefusedStreamReader:
        """Returns a stream reader for the columns of a schema. If `columns_of` rejects the schema,
        or if an option is only for batch queries, the methods of the reader raise the error.

        If this method raised it, the traceback would end with an `UnboundLocalError` of Spark.
        """
        try:
            check_for_stream(self._scan_options)
            options = self._options_for(schema)
        except InvalidOptionError as error:
            return RefusedStreamReader(error)
        return TieredKafkaStreamReader(options)

    def writer(self, schema: types.StructType, overwrite: bool) -> NoReturn:
        """Raises `InvalidOptionError`, because the format is read-only."""
        raise _read_only()

    def streamWriter(self, schema: types.StructType, overwrite: bool) -> NoReturn:  # noqa: N802  # Spark's name
        """Raises `InvalidOptionError`, because the format is read-only."""
        raise _read_only()

    def _options_for(self, schema: types.StructType) -> ScanOptions:
        # Use the types of the schema, because a second sample might lead to other types.
        formats = typed_as(schema, self._scan_options.formats)
        columns = columns_of(schema, formats)
        options = replace(self._scan_options, columns=columns, formats=formats)
        # Load the keys now, because the key files are on the driver, and the reader is pickled for
        # the workers.
        return replace(options, key_ring=options.key_ring.loaded())


def _read_only() -> InvalidOptionError:
    return InvalidOptionError(
        "the format 'tiered-kafka' is read-only. To write records to a table, call"
        " kts_source.backfill or run kts export, or write the DataFrame with another format"
    )


def register(spark: SparkSession) -> None:
    """Registers the format `tiered-kafka` in a session. Does not fail if it is already registered.

    Spark registers the format automatically if the module `pyspark_tiered_kafka` is installed.
    Spark 4.0 then refuses a second registration (`DATA_SOURCE_ALREADY_EXISTS`); this function
    ignores the error. Later versions replace the registration and log a warning; this function
    hides the warning. Only the second registration passes `spark.executorEnv.*` to Python.

    Args:
        spark: The session. Other sessions of the same application are not changed.

    Raises:
        MissingExtraError: Spark is not installed. Raised when this function is imported.
        UnsupportedSparkError: This version of Spark does not support Python data sources. Raised
            when this function is imported.
    """
    from pyspark.errors import AnalysisException

    with without_replacement_warning(spark):
        try:
            spark.dataSource.register(TieredKafkaDataSource)
        except AnalysisException as error:
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise


def session_builder() -> SparkSession.Builder:
    """Returns a session builder whose Python workers run the interpreter of this process, unless
    the environment variable `PYSPARK_PYTHON` names another interpreter.

    By default, Spark runs `python3`. This package may not be installed in that interpreter.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return SparkSession.builder


def run_available_now(
    spark: SparkSession,
    options: Options,
    write: Callable[[DataFrame], DataStreamWriter],
    *,
    schema: str | None = None,
) -> StreamingQuery:
    """Runs a streaming query over all records that are in the tier now, and waits until the query
    has ended. The options limit the size of its batches.

    With Spark 4.2 or later, it uses `trigger(availableNow=True)`. With this trigger, Spark 4.0 and
    4.1 would read everything in a single batch. So with these versions the source ends at the
    current end of the tier, and the query runs without a trigger until it reaches that end.

    Args:
        spark: The session. The format must be registered in it.
        options: Options of `spark.readStream.format("tiered-kafka")`.
        write: Receives the stream, and returns a writer with a sink and a checkpoint. It must not
            start the writer or set a trigger.
        schema: The wanted columns as a DDL text, as for `readStream.schema`.

    Returns:
        The query, which has ended.

    Raises:
        StreamingQueryException: The query failed. The next run continues from its checkpoint.
    """
    has_no_limits = spark.version.startswith(_WITHOUT_LIMITS)
    reader = spark.readStream.format(TieredKafkaDataSource.name()).options(**option_texts(options))
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
