"""How rows are spread over folders or table partitions: `topic`, `date(timestamp)`.

A plain name is a column's value; `date(column)` is the UTC day of a timestamp column, as a column
`<column>_date`. A field of a decoded key or value, `value.user.id`, becomes a column
`value_user_id`.

Fields of columns that are structs, by their path: `value.user.id`.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from kts_source.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_LISTS: Final = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column of a Parquet file, which is one without fields or items.

    Attributes:
        path: As Parquet's writers name it: `value.tags.list.element`.
        is_inner: Whether it is a field of a column, or an item of one.
        repeats: Whether a row may have it several times.
    """

    path: str
    type: pa.DataType
    is_inner: bool
    repeats: bool


def leaves(schema: pa.Schema) -> Iterator[Leaf]:
    """The columns of a file of such rows, in its order."""
    for field in schema:
        yield from _leaves(field.name, field.type, is_inner=False, repeats=False)


def _leaves(path: str, kind: pa.DataType, *, is_inner: bool, repeats: bool) -> Iterator[Leaf]:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _leaves(f"{path}.{field.name}", field.type, is_inner=True, repeats=repeats)
    elif pa.types.is_map(kind):
        yield from _leaves(f"{path}.key_value.key", kind.key_type, is_inner=True, repeats=True)
        yield from _leaves(f"{path}.key_value.value", kind.item_type, is_inner=True, repeats=True)
    elif any(is_list(kind) for is_list in _LISTS):
        yield from _leaves(f"{path}.list.element", kind.value_type, is_inner=True, repeats=True)
    else:
        yield Leaf(path, kind, is_inner, repeats)


def type_at(schema: pa.Schema, path: str) -> pa.DataType | None:
    """The type of a column, or of a field of one; `None` where there is none."""
    if path in schema.names:
        return schema.field(path).type
    first, *rest = path.split(".")
    if first not in schema.names:
        return None
    kind = schema.field(first).type
    for name in rest:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(kind.get_field_index(name)).type
    return kind


def column_at(rows: pa.RecordBatch | pa.Table, path: str) -> pa.Array | pa.ChunkedArray:
    """A column, or a field of one, which is null where what holds it is.

    Args:
        rows: They have it: `type_at` knows its type.
        path: Names joined by dots.
    """
    if path in rows.schema.names:
        return rows.column(path)
    first, *rest = path.split(".")
    return pc.struct_field(rows.column(first), rest)


PartitionValue: TypeAlias = str | int | bool | datetime.date | None
ValuesIn: TypeAlias = Literal["path", "log", "file"]
"""Where readers find the partition values of a file: in its path, in the table's log (both without
a column in the file), or in the file itself, whose bounds tell them."""

CHECKED: Final = "checked"
AS_IS: Final = "as-is"
TEXT_PARTITIONS: Final = (CHECKED, AS_IS)

_FIELD = re.compile(r"(?P<date>date\(\s*(?P<of>[^()\s]+)\s*\))|(?P<name>[^()\s]+)", re.IGNORECASE)
_NUMBER: Final = re.compile(
    r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?[df]?"
    r"|[+-]?0x[\da-f]*\.?[\da-f]*(p[+-]?\d+)?[df]?|0b[01]+|[+-]?(nan|inf|infinity)",
    re.IGNORECASE,
)
_DATE: Final = re.compile(
    r"[+-]?(?P<first>\d{1,9})(?P<dash>[-/. ])(?P<month>\d{1,2})(?P=dash)(?P<last>\d{1,9})"
    r"([ T]\d.*)?",
    re.DOTALL,
)
_TIME: Final = re.compile(r"\d{1,2}:\d{1,2}(:\d{1,2}(\.\d+)?)?|\d{8}T\d.*")
_DAYS: Final = range(32)
_MONTHS: Final = range(13)
_NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
LOG_ALONE: Final = "kts-values=in-log-alone/"
_MAX_NAME_BYTES: Final = 255
"""Of one folder, on every common file system."""
_MAX_FOLDERS_BYTES: Final = 600
"""Of all folders of a file: with the target's prefix and the file's name, S3 takes 1,024."""
_MAX_BOUND_BYTES: Final = 4096
"""Arrow writes no bounds of longer texts."""


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One partition column.

    Attributes:
        source: The column it is computed from.
        is_date: Whether it is the UTC day of that column.
    """

    source: str
    is_date: bool

    @property
    def name(self) -> str:
        """Name of the partition column."""
        name = self.source.replace(".", "_") if self.is_inner else self.source
        return f"{name}_date" if self.is_date else name

    @property
    def is_inner(self) -> bool:
        """Whether it is computed from a field of the column `key` or `value`."""
        return self.source.startswith(("key.", "value."))

    @property
    def column(self) -> str:
        """The column that tells the value in tables whose files hold it.

        Fields become columns of their own there, too: where an Iceberg table is partitioned by the
        first field of a struct, its Java readers find a struct of nulls instead of null.
        """
        return self.name if self.is_inner else self.source

    def __str__(self) -> str:
        return f"date({self.source})" if self.is_date else self.source

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """The partition column's values.

        Raises:
            InvalidOptionError: The column is missing or of a type that cannot be partitioned by, or
                the rows have a column of the partition's name already.
        """
        if (self.is_date or self.is_inner) and self.name in batch.schema.names:
            raise InvalidOptionError(
                f"partition_by {self} makes a column {self.name!r}, and the rows written have one"
            )
        if type_at(batch.schema, self.source) is None:
            raise InvalidOptionError(
                f"partition_by names {self.source!r}, which is no column of the rows written"
                f" ({', '.join(batch.schema.names)})"
            )
        if self.is_inner and self.source in batch.schema.names:
            raise InvalidOptionError(
                f"partition_by {self} names a field, and the rows written have a column of that"
                " name: give it another one in the transform"
            )
        column = column_at(batch, self.source)
        kind = column.type
        if self.is_date:
            if not pa.types.is_timestamp(kind):
                raise InvalidOptionError(f"date({self.source}) needs a timestamp, not {kind}")
            # Without its zone a UTC timestamp is cast by its UTC day.
            return column.cast(pa.timestamp(kind.unit)).cast(pa.date32())
        if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_date(kind):
            return column
        raise InvalidOptionError(f"partition_by {self.source!r}: {kind} cannot be a partition")


def with_made_columns(
    schema: pa.Schema, fields: Sequence[PartitionField], kept: ValuesIn
) -> pa.Schema:
    """The columns of rows and those that a table has besides, made of them by partitioning."""
    made = [
        pa.field(field.name, pa.date32() if field.is_date else type_at(schema, field.source))
        for field in fields
        if field.name not in schema.names and (kept != "file" or field.is_inner)
    ]
    return pa.schema([*schema, *made])


def parse_partition_by(texts: Sequence[str]) -> tuple[PartitionField, ...]:
    """Partition columns as users write them.

    Raises:
        InvalidOptionError: Neither a column nor `date(column)`, or one twice.
    """
    fields: list[PartitionField] = []
    for text in texts:
        match = _FIELD.fullmatch(text.strip())
        if match is None:
            raise InvalidOptionError(f"partition_by {text!r} is neither a column nor date(column)")
        field = PartitionField(match["of"] or match["name"], match["date"] is not None)
        if field.name in {known.name for known in fields}:
            raise InvalidOptionError(f"partition_by names {field.name!r} twice")
        fields.append(field)
    return tuple(fields)


def partition_rule(fields: Sequence[PartitionField]) -> str:
    """The partition columns as a table keeps them of its exports."""
    return ",".join(str(field) for field in fields)


def split(
    batch: pa.RecordBatch, columns: Sequence[pa.Array]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each combination of the partition columns' values, in the order of first
    occurrence, behind the number of the first such row within the batch.
    """
    if not columns or batch.num_rows == 0:
        yield 0, batch
        return
    codes, combinations = pa.scalar(0, pa.int64()), 1
    for column in columns:
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        size = len(encoded.dictionary)
        if combinations * size >= 1 << 63:  # too many for a code: number those that occur
            codes = pc.dictionary_encode(codes).indices.cast(pa.int64())
            combinations = batch.num_rows
        codes = pc.add(pc.multiply(codes, size), encoded.indices.cast(pa.int64()))
        combinations *= size
    found = pc.unique(codes)
    if len(found) == 1:
        yield 0, batch
        return
    for code in found:
        mask = pc.equal(codes, code)
        yield mask.index(pa.scalar(True)).as_py(), batch.filter(mask)


def partition_values(
    fields: Sequence[PartitionField],
    columns: Sequence[pa.Array],
    row: int,
    kept: ValuesIn,
    *,
    any_text: bool = False,
) -> tuple[PartitionValue, ...]:
    """The partition values of one row.

    Args:
        fields: The partition columns.
        columns: Their values in all rows.
        row: Number of the row.
        kept: Where readers find the values.
        any_text: Whether folders may have texts that readers take for numbers, dates and the like.

    Raises:
        ValueError: Readers would find another value, or none.
    """
    values: list[PartitionValue] = []
    for field, column in zip(fields, columns, strict=True):
        try:
            value: PartitionValue = column[row].as_py()
        except (OverflowError, ValueError):
            raise ValueError(f"{field} is a day outside the years 1 to 9999") from None
        if reason := _unreadable(field, value_text(value), kept):
            raise ValueError(f"{field.name} is {reason}")
        kind = inferred_type(value) if kept == "path" and isinstance(value, str) else None
        if kind is not None and not any_text:
            raise ValueError(
                f"{field.name} is the text {value!r}, which readers of a Parquet folder take for"
                f" {kind}. Export into a Delta or Iceberg table, or set text_partitions={AS_IS!r}"
                " and give readers the type of the column"
            )
        values.append(value)
    size = len(folder(fields, values).encode())
    if kept == "path" and size > _MAX_FOLDERS_BYTES:
        raise ValueError(
            f"the folders' names have {size} bytes together, and {_MAX_FOLDERS_BYTES} are the most"
        )
    return tuple(values)


def _unreadable(field: PartitionField, text: str | None, kept: ValuesIn) -> str | None:
    """Why readers would not find the value; `None` = they do."""
    if text is None:
        return None
    if kept == "file":
        size = len(text.encode())
        too_long = size > _MAX_BOUND_BYTES
        return f"a text of {size} bytes, and {_MAX_BOUND_BYTES} are the most" if too_long else None
    if not text:
        return "the empty text, which readers take for null"
    if kept == "path":
        if text == _NULL_FOLDER:
            return f"the text {text!r}, which readers take for null"
        size = len(folder((field,), (text,)).encode()) - 1
        if size > _MAX_NAME_BYTES:
            return f"a text whose folder has a name of {size} bytes; {_MAX_NAME_BYTES} are the most"
    return None


def inferred_type(text: str) -> str | None:
    """Returns what a reader of folders may take a text for; `None` if all read it as text.

    Folders do not say types, so readers guess them: pyarrow guesses numbers; Spark, DuckDB and
    Polars guess dates and times, too, and Polars booleans. The rules here are those of all of them.
    """
    trimmed = text.strip()
    if _NUMBER.fullmatch(trimmed):
        return "a number"
    if trimmed.lower() in ("true", "false"):
        return "a boolean"
    match = _DATE.fullmatch(trimmed)
    is_date = match is not None and (
        int(match["month"]) in _MONTHS
        and (int(match["first"]) in _DAYS or int(match["last"]) in _DAYS)
    )
    is_other = trimmed.lower().lstrip("+-") == "epoch" or _TIME.fullmatch(trimmed)
    return "a date or time" if is_date or is_other else None


def value_text(value: PartitionValue) -> str | None:
    """A partition value as Hive, Delta and folder names spell it; `None` for null."""
    return None if value is None else str(value)  # dates as in ISO 8601


def folder(fields: Sequence[PartitionField], values: Sequence[Any]) -> str:
    """`name=value/…/`, escaped; empty without partition columns."""
    parts = []
    for field, value in zip(fields, values, strict=True):
        text = value_text(value)
        escaped = _NULL_FOLDER if text is None else _escaped(text)
        parts.append(f"{_escaped(field.name)}={escaped}/")
    return "".join(parts)


def log_folder(fields: Sequence[PartitionField], values: Sequence[Any]) -> str:
    """Returns the folder of a file whose partition values are in the table's log.

    Polars takes the values from the path, not from the log. If no folder can name them, it returns
    a folder of a column that the table lacks: Polars then raises an error instead of reading nulls.
    """
    folders = [folder((field,), (value,)) for field, value in zip(fields, values, strict=True)]
    sizes = [len(name.encode()) for name in folders]
    is_too_long = sum(sizes) > _MAX_FOLDERS_BYTES or max(sizes, default=0) > _MAX_NAME_BYTES + 1
    if is_too_long or _NULL_FOLDER in values:
        return LOG_ALONE
    return "".join(folders)


def _escaped(text: str) -> str:
    """As Spark escapes it, which reads `%C3%A9` as two letters: beyond ASCII texts stay."""
    return "".join(letter if ord(letter) > 127 else quote(letter, safe=" ") for letter in text)
