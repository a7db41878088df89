"""Ready transforms, and what they say of rows they cannot transform."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kts_source.errors import InvalidOptionError, TieredKafkaError
from kts_source.texts import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from segment_format.values.json.decoder import JsonDecoder

_DECODED: Final = (
    pa.bool_(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
)
"""What both decoders read from the same texts. Of times, dates and bytes they know others."""
DEFAULT_KEPT: Final = ("key", "topic", "partition", "offset", "timestamp")


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row that cannot be transformed.

    Attributes:
        row: Its number in the batch.
        reason: For people.
    """

    row: int
    reason: str


@dataclass(frozen=True, slots=True)
class Transformed:
    """What became of a batch.

    Attributes:
        rows: Those that could be transformed, in order; `None` for none, better no rows with all
            columns: a table can be begun with those.
        rejected: The others.
    """

    rows: pa.RecordBatch | None
    rejected: tuple[Rejected, ...]


@runtime_checkable
class RowTransform(Protocol):
    """A transform that tells good rows from bad ones."""

    @property
    def fingerprint(self) -> str:
        """A text that changes when the result does."""
        ...

    def apply(self, batch: pa.RecordBatch) -> Transformed:
        """Transforms what can be transformed."""
        ...


@dataclass(frozen=True)
class JsonColumns:
    """The members of JSON objects as columns: what option `value.format` = `json` decodes, without
    a struct around it.

    Members that the schema does not name are left out; missing ones and tombstones are null. A
    value that is no JSON object, or does not fit the schema, is rejected.

    Attributes:
        schema: Columns to make.
        column: Which column holds the JSON text.
        keep: Columns of the record to keep, in front.
    """

    schema: pa.Schema
    column: str = "value"
    keep: tuple[str, ...] = DEFAULT_KEPT

    def __post_init__(self) -> None:
        check_columns(self.schema, self.keep)

    @property
    def fingerprint(self) -> str:
        """See `RowTransform.fingerprint`."""
        return f"json({self.column}->{schema_text(self.schema)};keep={','.join(self.keep)})"

    def apply(self, batch: pa.RecordBatch) -> Transformed:
        """See `RowTransform.apply`."""
        values = column_of(batch, self.column).cast(pa.binary())
        return assemble(batch, self.keep, *decode_json_objects(values, self.schema))


def decode_json_objects(values: pa.Array, schema: pa.Schema) -> tuple[pa.Table, list[Rejected]]:
    """Decodes JSON objects as typed values are, where the schema's types are such.

    Of what that decoder refuses, `parse_json_objects` decides row by row, which tables begun by
    earlier versions know: NaN and text that is not UTF-8 are among the good ones there. What it
    rejects and the decoder takes is right, too: whole numbers written as `1.0`, the last of two
    members of one name.

    Args:
        values: Binary; a null gives nulls.
        schema: Columns to make.

    Returns:
        The rows of those that could be decoded, in order, and the others.
    """
    decoder = json_decoder(schema)
    if decoder is None:
        return parse_json_objects(pc.fill_null(values, b"{}"), schema)
    decoded = decoder.decode(values)
    columns = [
        pc.struct_field(decoded.array, [number]).cast(field.type)
        for number, field in enumerate(schema)
    ]
    table = pa.Table.from_arrays(columns, schema=schema)
    # The text null is no object.
    doubtful = pc.and_(pc.is_null(decoded.array), pc.is_valid(values)).to_numpy(
        zero_copy_only=False
    )
    if not doubtful.any():
        return table, []
    rows = np.flatnonzero(doubtful)
    parsed, rejected = parse_json_objects(values.take(pa.array(rows)), schema)
    places = np.concatenate(
        [np.flatnonzero(~doubtful), np.delete(rows, [found.row for found in rejected])]
    )
    made = pa.concat_tables([table.filter(pa.array(~doubtful)), parsed])
    return made.take(pa.array(np.argsort(places))), [
        Rejected(int(rows[found.row]), found.reason) for found in rejected
    ]


@lru_cache(8)
def json_decoder(schema: pa.Schema) -> JsonDecoder | None:
    """Of structs of these columns; `None` where some type means something else to it."""
    if not all(_is_decoded(field) for field in schema):
        return None
    from segment_format.values.json.decoder import JsonDecoder

    try:
        return JsonDecoder(pa.struct(list(schema)))
    except ValueError:  # too deep, or of too many fields
        return None


def _is_decoded(field: pa.Field) -> bool:
    kind = field.type
    if pa.types.is_struct(kind):
        return field.nullable and kind.num_fields > 0 and all(_is_decoded(one) for one in kind)
    if pa.types.is_list(kind):
        return field.nullable and _is_decoded(kind.value_field)
    return field.nullable and kind in _DECODED


def parse_json_objects(values: pa.Array, schema: pa.Schema) -> tuple[pa.Table, list[Rejected]]:
    """Parses JSON texts without nulls: all at once where all are good, else by halves down to the
    bad ones.

    Returns:
        The rows of those that could be parsed, and the others.
    """
    texts = [bytes(text) for text in values.cast(pa.binary()).to_pylist()]
    tables = [schema.empty_table()]
    rejected: list[Rejected] = []

    def parse(start: int, stop: int) -> None:
        try:
            tables.append(_parse_lines(texts[start:stop], schema))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if stop - start == 1:
                rejected.append(Rejected(start, one_line(str(error))))
                return
            middle = (start + stop) // 2
            parse(start, middle)
            parse(middle, stop)

    if texts:
        parse(0, len(texts))
    return pa.concat_tables(tables), rejected


def _parse_lines(texts: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """One object per text, or an error.

    Every text begins with `{` and ends with `}`. Two of them cannot run into one object, since no
    object holds `}`, a line break and `{` in a row, so as many objects as texts means one each.
    """
    import pyarrow.json

    stripped = [text.strip(b" \t\r\n") for text in texts]
    if not all(text.startswith(b"{") and text.endswith(b"}") for text in stripped):
        raise pa.ArrowInvalid("not a JSON object")
    data = b"\n".join(stripped)
    table = pyarrow.json.read_json(
        pa.BufferReader(data),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore"
        ),
    )
    if table.num_rows != len(texts):
        raise pa.ArrowInvalid("not exactly one JSON object")
    return table.select(schema.names).cast(schema)


def assemble(
    batch: pa.RecordBatch, keep: Sequence[str], made: pa.Table, rejected: Sequence[Rejected]
) -> Transformed:
    """Kept columns of the rows that are not rejected, and the columns made of them."""
    kept = [column_of(batch, name) for name in keep]
    if bad := {found.row for found in rejected}:
        good = pa.array([row for row in range(batch.num_rows) if row not in bad], pa.int64())
        kept = [column.take(good) for column in kept]
    arrays = [*kept, *(column.combine_chunks() for column in made.columns)]
    names = [*keep, *made.column_names]
    return Transformed(pa.RecordBatch.from_arrays(arrays, names=names), tuple(rejected))


def column_of(batch: pa.RecordBatch, name: str) -> pa.Array:
    """A column by name.

    Raises:
        InvalidOptionError: The source was asked for other columns.
    """
    if name not in batch.schema.names:
        raise InvalidOptionError(
            f"the transform needs column {name!r}, which the source does not give"
            f" ({', '.join(batch.schema.names)})"
        )
    return batch.column(name)


def check_columns(schema: pa.Schema, keep: Sequence[str]) -> None:
    """Raises InvalidOptionError for a schema without columns, or with names that are taken."""
    names = [*keep, *schema.names]
    if not schema.names:
        raise InvalidOptionError("the schema has no column")
    if twice := {name for name in names if names.count(name) > 1}:
        raise InvalidOptionError(f"columns {', '.join(sorted(twice))} would be there twice")


def schema_text(schema: pa.Schema) -> str:
    """Names and types in one line."""
    return ",".join(f"{field.name}:{field.type}" for field in schema)


def decode_rows(
    values: pa.Array,
    schema: pa.Schema,
    decode: Callable[[bytes], dict[str, object]],
) -> tuple[pa.Table, list[Rejected]]:
    """Decodes values one by one; a null gives nulls.

    Members that the schema does not name are left out. `decode` raises whatever it likes on a value
    that it cannot decode.

    Returns:
        The rows of those that could be decoded, and the others.
    """
    good: list[dict[str, object]] = []
    rejected: list[Rejected] = []
    for number, value in enumerate(values.to_pylist()):
        try:
            members = {} if value is None else decode(value)
            row = {name: members.get(name) for name in schema.names}
            pa.Table.from_pylist([row], schema)
        except TieredKafkaError:
            raise  # not the row's fault
        except Exception as error:  # noqa: BLE001  # decoders raise anything on hostile bytes
            rejected.append(Rejected(number, one_line(f"{type(error).__name__}: {error}")))
        else:
            good.append(row)
    return pa.Table.from_pylist(good, schema), rejected
