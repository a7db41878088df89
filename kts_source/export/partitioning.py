"""How rows are spread over folders or table partitions: `topic`, `date(timestamp)`.

A plain name is a column's value; `date(column)` is the UTC day of a timestamp column, as a column
`<column>_date`.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from kts_source.errors import ExportError, InvalidOptionError
from kts_source.export.job import OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PartitionValue: TypeAlias = str | int | bool | datetime.date | None

_FIELD = re.compile(r"(?P<date>date\(\s*(?P<of>[^()\s]+)\s*\))|(?P<name>[^()\s]+)", re.IGNORECASE)
_NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


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
        return f"{self.source}_date" if self.is_date else self.source

    def __str__(self) -> str:
        return f"date({self.source})" if self.is_date else self.source

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """The partition column's values.

        Raises:
            InvalidOptionError: The column is missing or of a type that cannot be partitioned by.
        """
        if self.source not in batch.schema.names:
            raise InvalidOptionError(
                f"partition_by names {self.source!r}, which is no column of the rows written"
                f" ({', '.join(batch.schema.names)})"
            )
        column = batch.column(self.source)
        kind = column.type
        if self.is_date:
            if not pa.types.is_timestamp(kind):
                raise InvalidOptionError(f"date({self.source}) needs a timestamp, not {kind}")
            # Without its zone a UTC timestamp is cast by its UTC day.
            return column.cast(pa.timestamp(kind.unit)).cast(pa.date32())
        if pa.types.is_string(kind) or pa.types.is_integer(kind) or pa.types.is_date(kind):
            return column
        raise InvalidOptionError(f"partition_by {self.source!r}: {kind} cannot be a partition")


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


def split(
    batch: pa.RecordBatch, fields: Sequence[PartitionField]
) -> Iterator[tuple[tuple[PartitionValue, ...], pa.RecordBatch]]:
    """The rows of each combination of partition values, in the order of first occurrence.

    Raises:
        InvalidOptionError: See `PartitionField.values`.
        ExportError: A row of a day that no partition can be named after.
    """
    if not fields or batch.num_rows == 0:
        yield (), batch
        return
    columns = [field.values(batch) for field in fields]
    codes = None
    for column in columns:
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        size = len(encoded.dictionary)
        indices = encoded.indices.cast(pa.int64())
        if codes is None:
            codes = indices
        elif size > 1:
            codes = pc.add(pc.multiply(codes, size), indices)
    found = pc.unique(codes)
    for code in found:
        if len(found) == 1:
            rows, part = 0, batch
        else:
            mask = pc.equal(codes, code)
            rows, part = mask.index(pa.scalar(True)).as_py(), batch.filter(mask)
        try:
            values = tuple(column[rows].as_py() for column in columns)
        except OverflowError:
            days = ", ".join(str(field) for field in fields if field.is_date)
            raise ExportError(
                f"partition_by {days}: a record is dated outside the years 1 to 9999, and no format"
                " of tables names such a day. Leave such records out with option where, or"
                " partition by something else",
                offset=part.column(OFFSET)[0].as_py() if OFFSET in part.schema.names else None,
            ) from None
        yield values, part


def value_text(value: PartitionValue) -> str | None:
    """A partition value as Hive, Delta and folder names spell it; `None` for null."""
    if value is None:
        return None
    if isinstance(value, datetime.date):
        return value.isoformat()
    return str(value)


def folder(fields: Sequence[PartitionField], values: Sequence[Any]) -> str:
    """`name=value/…/`, escaped; empty without partition columns."""
    parts = []
    for field, value in zip(fields, values, strict=True):
        text = value_text(value)
        parts.append(f"{field.name}={_NULL_FOLDER if text is None else quote(text, safe=' ')}/")
    return "".join(parts)
