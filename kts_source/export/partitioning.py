"""Partition columns such as `topic` or `date(timestamp)`, and paths of fields in structs.

There are three kinds of partition columns:

* A plain name partitions by the values of a column.
* `date(column)` partitions by the UTC day of a timestamp column. The partition column is named
  `<column>_date`. `day`, `month` and `hour` are further units. `date(column, Europe/Berlin) as day`
  uses another time zone, and names the partition column `day`.
* A field of a decoded key or value is copied to a partition column. For the field `value.user.id`,
  the partition column is named `value_user_id`. `value.user.id as user` names it `user`. A plain
  column can also be copied: `topic as source`.
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
from kts_source.predicate.literals import time_zone

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
    """A leaf column of a Parquet file: a column, field or item that has no fields or items itself.

    Attributes:
        path: Path of the leaf in Parquet, such as `value.tags.list.element`.
        is_inner: True if the leaf is a field or an item inside a column.
        repeats: True if a row may have several values of the leaf.
    """

    path: str
    type: pa.DataType
    is_inner: bool
    repeats: bool


def leaves(schema: pa.Schema) -> Iterator[Leaf]:
    """Yields the leaf columns of a file, in the order of the file."""
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
    """Returns the type of a column, or of a field inside a column. Returns `None` if `path` does
    not exist.
    """
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
    """Returns a column, or a field inside a column. `path` must exist. If a struct is null, its
    fields are null.
    """
    if path in rows.schema.names:
        return rows.column(path)
    first, *rest = path.split(".")
    return pc.struct_field(rows.column(first), rest)


PartitionValue: TypeAlias = str | int | bool | datetime.date | None
ValuesIn: TypeAlias = Literal["path", "log", "file"]
"""Where a table format stores the partition values of a file: in the file's path, in the table's
log, or in the file itself. In the first two cases, the file lacks the partition columns. In the
third case, readers use the bounds of these columns.
"""

CHECKED: Final = "checked"
AS_IS: Final = "as-is"
TEXT_PARTITIONS: Final = (CHECKED, AS_IS)

_FIELD: Final = re.compile(
    r"(?P<unit>date|day|month|hour)\(\s*(?P<of>[^()\s,]+)\s*(,\s*(?P<zone>[^()\s,]+)\s*)?\)"
    r"(\s+as\s+(?P<alias>\w+))?|(?P<name>[^()\s]+)(\s+as\s+(?P<own>\w+))?",
    re.IGNORECASE,
)
_UTC: Final = "UTC"
_TRANSFORMS: Final = {"date": "day", "day": "day", "month": "month", "hour": "hour"}
"""Transforms of Iceberg by unit of a partition column."""
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
"""Maximum bytes of a folder name in all common file systems."""
_MAX_FOLDERS_BYTES: Final = 600
"""Limit for all folder names of a file: S3 keys have at most 1,024 bytes, including prefix and file
name.
"""
_MAX_BOUND_BYTES: Final = 4096
"""Maximum bytes of a text for which Arrow writes minimum and maximum."""


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A partition column, and the column or field from which it is computed.

    Attributes:
        source: Path of the column or field from which the partition column is computed.
        unit: `date` or `day`: the partition column is the day of `source`. `month`: the first day
            of its month. `hour`: its hour as a text such as `2025-01-31-09`. Empty: the value
            itself.
        zone: Time zone of the unit.
        alias: Name of the partition column; by default it is made of `source` and `unit`.
    """

    source: str
    unit: str = ""
    zone: str = _UTC
    alias: str = ""

    @property
    def name(self) -> str:
        """Name of the partition column."""
        name = self.source.replace(".", "_") if self.is_inner else self.source
        return self.alias or (f"{name}_{self.unit}" if self.unit else name)

    @property
    def is_inner(self) -> bool:
        """True if the source is a field inside the column `key` or `value`."""
        return self.source.startswith(("key.", "value."))

    @property
    def needs_own_column(self) -> bool:
        """True if files that contain the partition values need a separate column for them, because
        Iceberg cannot compute them from a column of the rows.
        """
        return self.is_inner or self.zone != _UTC or bool(self.alias and not self.unit)

    @property
    def transform(self) -> str:
        """Iceberg's transform that computes the partition value from `column`."""
        return _TRANSFORMS.get("" if self.needs_own_column else self.unit, "identity")

    @property
    def column(self) -> str:
        """Name of the column that contains the source value in a file. Only used if files contain
        the partition values.

        A field of a struct is copied to a separate column: if an Iceberg table is partitioned by
        the first field of a struct, Java readers return a struct of nulls instead of a null struct.
        """
        return self.name if self.needs_own_column else self.source

    def __str__(self) -> str:
        alias = f" as {self.alias}" if self.alias else ""
        if not self.unit:
            return f"{self.source}{alias}"
        zone = "" if self.zone == _UTC else f", {self.zone}"
        return f"{self.unit}({self.source}{zone}){alias}"

    def type_in(self, schema: pa.Schema) -> pa.DataType | None:
        """Returns the type of the partition column for rows with the columns `schema`."""
        if not self.unit:
            return type_at(schema, self.source)
        return pa.string() if self.unit == "hour" else pa.date32()

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """Computes the partition column for the rows of a batch.

        Raises:
            InvalidOptionError: The source is missing or has a type that cannot be partitioned by,
                or the rows already have a column with the name of the partition column.
        """
        if (self.unit or self.needs_own_column) and self.name in batch.schema.names:
            raise InvalidOptionError(
                f"partition_by {self} adds a column {self.name!r}, but the rows already have one of"
                " this name. Rename that column in the transform"
            )
        if type_at(batch.schema, self.source) is None:
            raise InvalidOptionError(
                f"partition_by names {self.source!r}, which is not a column. The rows have"
                f" {', '.join(batch.schema.names)}. For a unit of time, write day(timestamp)"
            )
        if self.is_inner and self.source in batch.schema.names:
            raise InvalidOptionError(
                f"partition_by {self} refers to the field {self.source!r}, but the rows also have a"
                f" column named {self.source!r}: rename that column in the transform"
            )
        column = column_at(batch, self.source)
        kind = column.type
        if self.unit:
            if not pa.types.is_timestamp(kind):
                raise InvalidOptionError(
                    f"partition_by {self}: {self.source} has type {kind}, but a unit of time needs"
                    " a timestamp. Partition by the column itself"
                )
            return self._times(column.cast(pa.timestamp(kind.unit)))
        if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_date(kind):
            return column
        raise InvalidOptionError(
            f"partition_by {self.source!r}: a table cannot be partitioned by type {kind}. Use a"
            " column of texts, integers or dates"
        )

    def _times(self, utc: pa.Array) -> pa.Array:
        """Returns the partition column for timestamps in UTC without time zone."""
        local = utc
        if self.zone != _UTC:
            zoned = pa.timestamp(utc.type.unit, self.zone)
            local = pc.local_timestamp(pc.assume_timezone(utc, _UTC).cast(zoned))
        if self.unit == "hour":
            return pc.strftime(pc.floor_temporal(local, unit="hour"), format="%Y-%m-%d-%H")
        if self.unit == "month":
            local = pc.floor_temporal(local, unit="month")
        return local.cast(pa.date32())


def with_made_columns(
    schema: pa.Schema, fields: Sequence[PartitionField], kept: ValuesIn
) -> pa.Schema:
    """Returns the columns of a table: the columns of the rows, and the partition columns that are
    not columns of the rows.
    """
    made = [
        pa.field(field.name, field.type_in(schema))
        for field in fields
        if field.name not in schema.names and (kept != "file" or field.needs_own_column)
    ]
    return pa.schema([*schema, *made])


def parse_partition_by(texts: Sequence[str]) -> tuple[PartitionField, ...]:
    """Parses the texts of argument `partition_by`.

    Raises:
        InvalidOptionError: A text is neither a column or field nor `date`, `day`, `month` or `hour`
            of one; a time zone is unknown; or two texts define the same partition column.
    """
    fields: list[PartitionField] = []
    for text in texts:
        match = _FIELD.fullmatch(text.strip())
        if match is None:
            raise InvalidOptionError(
                f"partition_by {text!r} must be a column, or date, day, month or hour of a column,"
                " such as hour(timestamp), date(timestamp, Europe/Berlin) as day or"
                " value.country as country"
            )
        zone = _zone(text, match["zone"] or _UTC)
        unit = (match["unit"] or "").lower()
        alias = match["alias"] or match["own"] or ""
        field = PartitionField(match["of"] or match["name"], unit, zone, alias)
        if field.name in {other.name for other in fields}:
            raise InvalidOptionError(f"partition_by names {field.name!r} twice: remove one")
        fields.append(field)
    return tuple(fields)


def _zone(text: str, zone: str) -> str:
    """Returns the time zone that `text` names. Every name of UTC becomes `UTC`."""
    try:
        return _UTC if time_zone(zone) is datetime.UTC else zone
    except ValueError:
        raise InvalidOptionError(
            f"partition_by {text!r} names the time zone {zone!r}, which this machine does not know:"
            " use a name such as Europe/Berlin"
        ) from None


def partition_rule(fields: Sequence[PartitionField]) -> str:
    """Returns the partition columns as a text. Tables store it as one of the settings that
    determine their rows.
    """
    return ",".join(str(field) for field in fields)


def split(
    batch: pa.RecordBatch, columns: Sequence[pa.Array]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Splits a batch by its partition values. For each combination of values, in the order of their
    first rows, yields the number of its first row and a batch with its rows.
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
    """Returns the partition values of row number `row`. `columns` are the partition columns, and
    `kept` is the location of the partition values, see `WriteTarget.values_in`.

    If `any_text` is True, folder names may contain texts that readers parse as numbers, dates,
    times or booleans.

    Raises:
        ValueError: Readers of the table would get another value, or null, for a partition value; or
            the folder names are too long.
    """
    values: list[PartitionValue] = []
    for field, column in zip(fields, columns, strict=True):
        try:
            value: PartitionValue = column[row].as_py()
        except (OverflowError, ValueError):
            raise ValueError(f"{field} is not in the years 1 to 9999") from None
        if reason := _why_unreadable(field, value_text(value), kept):
            raise ValueError(f"{field.name} is {reason}")
        kind = inferred_type(value) if kept == "path" and isinstance(value, str) else None
        if kind is not None and not any_text:
            raise ValueError(
                f"{field.name} is the text {value!r}, which readers of a Parquet folder parse as"
                f" {kind}. Export into a Delta or Iceberg table, or set text_partitions={AS_IS!r}"
                " and set the type of the column in readers"
            )
        values.append(value)
    size = len(folder(fields, values).encode())
    if kept == "path" and size > _MAX_FOLDERS_BYTES:
        raise ValueError(
            f"the folder names have {size} bytes in total; the limit is {_MAX_FOLDERS_BYTES}"
        )
    return tuple(values)


def _why_unreadable(field: PartitionField, text: str | None, kept: ValuesIn) -> str | None:
    """Returns the reason why readers would get another value than this partition value. Returns
    `None` if they get the same value.
    """
    if text is None:
        return None
    if kept == "file":
        size = len(text.encode())
        is_too_long = size > _MAX_BOUND_BYTES
        return f"a text of {size} bytes; the limit is {_MAX_BOUND_BYTES}" if is_too_long else None
    if not text:
        return "the empty text, which readers parse as null"
    if kept == "path":
        if text == NULL_FOLDER:
            return f"the text {text!r}, which readers parse as null"
        size = len(folder((field,), (text,)).encode()) - 1
        if size > _MAX_NAME_BYTES:
            return f"a text whose folder name has {size} bytes; the limit is {_MAX_NAME_BYTES}"
    return None


def inferred_type(text: str) -> str | None:
    """Returns the type that some readers infer from a partition value in a folder name. Returns
    `None` if all readers infer a text.

    Folder names contain no types, so readers infer them. pyarrow infers numbers. Spark, DuckDB and
    Polars also infer dates and times, and Polars also infers booleans. This function combines the
    rules of all these readers.
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
    """Returns a partition value as text, in the form that is used in Hive folder names and in
    Delta's log. Returns `None` for null.
    """
    return None if value is None else str(value)  # dates as in ISO 8601


def folder(fields: Sequence[PartitionField], values: Sequence[Any]) -> str:
    """Returns the folder of a file: one folder `name=value/` for each partition column, with
    escaped names and values. Returns "" if there are no partition columns.
    """
    folders = []
    for field, value in zip(fields, values, strict=True):
        text = value_text(value)
        escaped = NULL_FOLDER if text is None else _escaped(text)
        folders.append(f"{_escaped(field.name)}={escaped}/")
    return "".join(folders)


def log_folder(fields: Sequence[PartitionField], values: Sequence[Any]) -> str:
    """Returns the folder of a file, for tables whose log contains the partition values.

    Polars reads partition values from the path, not from the log. If the values cannot be folder
    names, returns a folder name with a column that the table does not have. Then Polars raises an
    error instead of reading nulls.
    """
    folders = [folder((field,), (value,)) for field, value in zip(fields, values, strict=True)]
    sizes = [len(name.encode()) for name in folders]
    is_too_long = sum(sizes) > _MAX_FOLDERS_BYTES or max(sizes, default=0) > _MAX_NAME_BYTES + 1
    if is_too_long or NULL_FOLDER in values:
        return LOG_ALONE
    return "".join(folders)


def _escaped(text: str) -> str:
    """Escapes special ASCII characters in a folder name, as Spark does. Other characters are not
    escaped. For example, Spark would read `%C3%A9` as two letters instead of one.
    """
    return "".join(letter if ord(letter) > 127 else quote(letter, safe=" ") for letter in text)
