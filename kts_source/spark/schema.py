"""The table's columns in Spark's types, and what a user-given schema may say."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql import types
from pyspark.sql.types import StructField, StructType

from kts_source.columns import ALL_COLUMNS
from kts_source.errors import InvalidOptionError
from kts_source.options.value_formats import column_types, further_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

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
