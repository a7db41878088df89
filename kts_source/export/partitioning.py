"""Partition columns such as `topic` or `date(timestamp)`, and fields of structs by path.

A plain name is the value of a column; `date(column)` is the UTC day of a timestamp column, as a
column `<column>_date`. A field of a decoded key or value, `value.user.id`, becomes a column
`value_user_id`.
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
    """A leaf column of a Parquet file: one without fields or items.

    Attributes:
        path: Parquet's name, such as `value.tags.list.element`.
        is_inner: True if it is a field or an item of a column.
        repeats: True if a row may have several values.
    """

    path: str
    type: pa.DataType
    is_inner: bool
    repeats: bool


def leaves(schema: pa.Schema) -> Iterator[Leaf]:
    """Yields the leaf columns of a file, in their order."""
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
    """Returns the type of a column or of a field in it; `None` if it does not exist."""
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
    """Returns an existing column, or a field of one; the field of a null struct is null."""
    if path in rows.schema.names:
        return rows.column(path)
    first, *rest = path.split(".")
    return pc.struct_field(rows.column(first), rest)


PartitionValue: TypeAlias = str | int | bool | datetime.date | None
ValuesIn: TypeAlias = Literal["path", "log", "file"]
"""Location of the partition values of a file: its path, the table's log (in both cases the file has
no such column), or the file itself, where readers use its bounds.
"""

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
NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
LOG_ALONE: Final = "kts-values=in-log-alone/"
_MAX_NAME_BYTES: Final = 255
"""Limit of all common file systems for a folder name."""
_MAX_FOLDERS_BYTES: Final = 600
"""Limit for all folder names of a file: S3 keys have at most 1,024 bytes, including prefix and file
name.
"""
_MAX_BOUND_BYTES: Final = 4096
"""Arrow writes no bounds of longer texts."""


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A partition column.

    Attributes:
        source: Path of the column or field that it is computed from.
        is_date: True if it is the UTC day of `source`.
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
        """True if it is computed from a field of the column `key` or `value`."""
        return self.source.startswith(("key.", "value."))

    @property
    def column(self) -> str:
        """Name of the column that has the value, if files contain it.

        A field of a struct is copied to a separate column. Otherwise, if an Iceberg table is
        partitioned by the first field of a struct, Java readers return a struct of nulls instead of
        null.
        """
        return self.name if self.is_inner else self.source

    def __str__(self) -> str:
        return f"date({self.source})" if self.is_date else self.source

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """Computes the values of the partition column.

        Raises:
            InvalidOptionError: The source is missing or has a type that cannot be partitioned by,
                or the rows already have a column with the name of the partition column.
        """
        if (self.is_date or self.is_inner) and self.name in batch.schema.names:
            raise InvalidOptionError(
                f"partition_by {self} makes a column {self.name!r}, and the rows already have one."
                " Rename it in the transform"
            )
        if type_at(batch.schema, self.source) is None:
            raise InvalidOptionError(
                f"partition_by names {self.source!r}, which is not a column. The rows have"
                f" {', '.join(batch.schema.names)}"
            )
        if self.is_inner and self.source in batch.schema.names:
            raise InvalidOptionError(
                f"partition_by {self} names a field, and the rows have a column of that name:"
                " rename it in the transform"
            )
        column = column_at(batch, self.source)
        kind = column.type
        if self.is_date:
            if not pa.types.is_timestamp(kind):
                raise InvalidOptionError(f"date({self.source}) needs a timestamp, not {kind}")
            # Dropping the zone of a UTC timestamp keeps its UTC day.
            return column.cast(pa.timestamp(kind.unit)).cast(pa.date32())
        if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_date(kind):
            return column
        raise InvalidOptionError(
            f"partition_by {self.source!r}: {kind} cannot be a partition. Name a column of texts,"
            " integers or dates"
        )


def with_made_columns(
    schema: pa.Schema, fields: Sequence[PartitionField], kept: ValuesIn
) -> pa.Schema:
    """Returns the columns of a table: the columns of the rows and computed partition columns."""
    made = [
        pa.field(field.name, pa.date32() if field.is_date else type_at(schema, field.source))
        for field in fields
        if field.name not in schema.names and (kept != "file" or field.is_inner)
    ]
    return pa.schema([*schema, *made])


def parse_partition_by(texts: Sequence[str]) -> tuple[PartitionField, ...]:
    """Parses partition columns as users write them.

    Raises:
        InvalidOptionError: A text is neither a column nor `date(column)`, or occurs twice.
    """
    fields: list[PartitionField] = []
    for text in texts:
        match = _FIELD.fullmatch(text.strip())
        if match is None:
            raise InvalidOptionError(f"partition_by {text!r} must be a column or date(column)")
        field = PartitionField(match["of"] or match["name"], match["date"] is not None)
        if field.name in {other.name for other in fields}:
            raise InvalidOptionError(f"partition_by names {field.name!r} twice")
        fields.append(field)
    return tuple(fields)


def partition_rule(fields: Sequence[PartitionField]) -> str:
    """Returns the partition columns as tables store them in the rules of an export."""
    return ",".join(str(field) for field in fields)


def split(
    batch: pa.RecordBatch, columns: Sequence[pa.Array]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields, for each combination of partition values in order of first occurrence, the number of
    its first row in the batch, and its rows.
    """
    if not columns or batch.num_rows == 0:
        yield 0, batch
        return
    codes, combinations = pa.scalar(0, pa.int64()), 1
    for column in columns:
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        size = len(encoded.dictionary)
        if combinations * size >= 1 << 63:  # overflow: renumber the combinations that occur
            codes = pc.dictionary_encode(codes).indices.cast(pa.int64())
            combinations = batch.num_rows
        codes = pc.add(pc.multiply(codes, size), encoded.indices.cast(pa.int64()))
        combinations *= size
    distinct = pc.unique(codes)
    if len(distinct) == 1:
        yield 0, batch
        return
    for code in distinct:
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
    """Returns the partition values of a row.

    `any_text` accepts texts in folder names that readers parse as numbers, dates and the like.

    Raises:
        ValueError: Readers would read another value or null.
    """
    values: list[PartitionValue] = []
    for field, column in zip(fields, columns, strict=True):
        try:
            value: PartitionValue = column[row].as_py()
        except (OverflowError, ValueError):
            raise ValueError(f"{field} is a day outside the years 1 to 9999") from None
        if reason := _why_unreadable(field, value_text(value), kept):
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
            f"the folder names have {size} bytes together; the limit is {_MAX_FOLDERS_BYTES}"
        )
    return tuple(values)


def _why_unreadable(field: PartitionField, text: str | None, kept: ValuesIn) -> str | None:
    """Returns why readers would read another value; `None` if they read the same value."""
    if text is None:
        return None
    if kept == "file":
        size = len(text.encode())
        is_too_long = size > _MAX_BOUND_BYTES
        return f"a text of {size} bytes; the limit is {_MAX_BOUND_BYTES}" if is_too_long else None
    if not text:
        return "the empty text, which readers take for null"
    if kept == "path":
        if text == NULL_FOLDER:
            return f"the text {text!r}, which readers take for null"
        size = len(folder((field,), (text,)).encode()) - 1
        if size > _MAX_NAME_BYTES:
            return f"a text whose folder name has {size} bytes; the limit is {_MAX_NAME_BYTES}"
    return None


def inferred_type(text: str) -> str | None:
    """Returns the type that a reader may infer from a folder name; `None` if all readers infer
    text.

    Folder names have no types, so readers infer them: pyarrow infers numbers; Spark, DuckDB and
    Polars infer dates and times, too, and Polars booleans. This combines all their rules.
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
    """Returns a partition value as Hive, Delta and folder names spell it; `None` for null."""
    return None if value is None else str(value)  # dates as in ISO 8601


def folder(fields: Sequence[PartitionField], values: Sequence[Any]) -> str:
    """Returns `name=value/…/`, escaped; empty without partition columns."""
    folders = []
    for field, value in zip(fields, values, strict=True):
        text = value_text(value)
        escaped = NULL_FOLDER if text is None else _escaped(text)
        folders.append(f"{_escaped(field.name)}={escaped}/")
    return "".join(folders)


def log_folder(fields: Sequence[PartitionField], values: Sequence[Any]) -> str:
    """Returns the folder of a file for partition values in the table's log.

    Polars reads the values from the path, not from the log. If the values cannot be folder names,
    this returns a folder of a column that the table lacks, so that Polars raises an error instead
    of reading nulls.
    """
    folders = [folder((field,), (value,)) for field, value in zip(fields, values, strict=True)]
    sizes = [len(name.encode()) for name in folders]
    is_too_long = sum(sizes) > _MAX_FOLDERS_BYTES or max(sizes, default=0) > _MAX_NAME_BYTES + 1
    if is_too_long or NULL_FOLDER in values:
        return LOG_ALONE
    return "".join(folders)


def _escaped(text: str) -> str:
    """Escapes ASCII only, as Spark does: it reads `%C3%A9` as two letters."""
    return "".join(letter if ord(letter) > 127 else quote(letter, safe=" ") for letter in text)
