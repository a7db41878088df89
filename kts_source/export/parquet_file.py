"""Writes one Parquet file: batches in, row groups out, bounded memory."""

from __future__ import annotations

import contextlib
import datetime
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kts_source.export.files import ColumnStatistics
from kts_source.export.partitioning import column_at, leaves

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kts_source.export.partitioning import Leaf

ROW_GROUP_BYTES: Final = 48 << 20
"""A row group is written once its rows fill as much memory, however few they are."""
SORT_BYTES: Final = 64 << 20
"""Rows that are sorted in memory at a time, and so in one file."""

_REPEATING: Final = ("topic", "partition", "timestampType")
# Smaller than the defaults. Keys and values stay PLAIN: from DELTA_LENGTH_BYTE_ARRAY pages with
# nulls the vectorized reader of Spark 4.0.0 makes wrong bytes without an error (4.3 does not).
_PACKED: Final = ("offset", "timestamp")
_EPOCH: Final = datetime.datetime(1970, 1, 1)  # as text it gets its zone
_PER_MILLISECOND: Final = {"s": 1, "ms": 1, "us": 1000, "ns": 1_000_000}
"""Units as files hold them: Parquet has no seconds."""
_LONGEST_BOUND: Final = 128
"""Letters of a text that tables are told as a bound."""
_WRITE_BATCH_ROWS: Final = 4096
"""Rows that Arrow's writer encodes at a time: those of a batch that comes in."""


class ParquetFile:
    """A file that is being written.

    Args:
        sink: Where the bytes go; closed by `close`.
        schema: Of the rows, without partition columns that are dropped.
        compression: Codec of the pages.
        row_group_rows: Rows of a row group, at most.
        sort_by: Columns to sort by; all rows are then held until `close`.
        bounded: Columns that get bounds whatever their type.
        constants: Columns of text to the one text that all of their rows hold.
    """

    def __init__(
        self,
        sink: Any,  # noqa: ANN401  # a binary file
        schema: pa.Schema,
        *,
        compression: str,
        row_group_rows: int = 1 << 16,
        sort_by: Sequence[str] = (),
        bounded: Collection[str] = (),
        constants: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._sink = sink
        self._schema = schema
        # Sorting takes them as they come.
        self._constants = {} if sort_by else dict(constants)
        self._row_group_rows = row_group_rows
        self._sort_by = sort_by
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self.held_bytes = 0
        self.rows = 0
        self._collected: list[Any] = []
        packed = [
            field.name for field in schema if field.name in _PACKED and _has_bounds(field.type)
        ]
        # Columns known to repeat, and texts that a transform or a decoder made.
        repeating = [
            leaf.path
            for leaf in leaves(schema)
            if pa.types.is_string(leaf.type) or (leaf.path in _REPEATING and not leaf.is_inner)
        ]
        self._writer = pq.ParquetWriter(
            sink,
            _as_dictionaries(schema, self._constants),
            compression=compression.upper(),
            use_dictionary=[name for name in repeating if name not in packed],
            column_encoding=dict.fromkeys(packed, "DELTA_BINARY_PACKED") or None,
            write_statistics=[
                leaf.path for leaf in leaves(schema) if leaf.path in bounded or _is_bounded(leaf)
            ],
            metadata_collector=self._collected,
            store_schema=False,
            write_batch_size=_WRITE_BATCH_ROWS,
        )

    @property
    def is_full_to_sort(self) -> bool:
        """Whether no more rows should be held for sorting."""
        return bool(self._sort_by) and self.held_bytes >= SORT_BYTES

    @property
    def written_bytes(self) -> int:
        """Bytes written so far; what is held is not among them."""
        return int(self._sink.tell())

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes rows; writes a row group when enough are held."""
        rows = batch.num_rows
        self._held.append(batch)
        self._held_rows += rows
        self.held_bytes += batch.nbytes
        self.rows += rows
        full = self.held_bytes >= ROW_GROUP_BYTES or self._held_rows >= self._row_group_rows
        if full and not self._sort_by:
            self.flush()

    def flush(self) -> None:
        """Writes what is held, in row groups."""
        if not self._held:
            return
        table = pa.Table.from_batches(self._held, self._schema)
        self._held, self._held_rows, self.held_bytes = [], 0, 0
        if self._sort_by:
            table = table.combine_chunks()  # lets go of what was held
            self._write_sorted(table)
        else:
            self._writer.write_table(self._with_constants(table), self._row_group_rows)

    def _with_constants(self, table: pa.Table) -> pa.Table:
        """Constant texts as dictionaries of one entry: the writer then looks at no text again."""
        for name, text in self._constants.items():
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, _constant(text, table.num_rows))
        return table

    def _write_sorted(self, table: pa.Table) -> None:
        """One row group after another: a sorted copy of all rows would need their memory again."""
        keys = {str(n): column_at(table, name) for n, name in enumerate(self._sort_by)}
        order = pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys])
        groups = -(-table.nbytes // ROW_GROUP_BYTES)
        rows = min(self._row_group_rows, -(-table.num_rows // max(1, groups)))
        for start in range(0, table.num_rows, rows):
            self._writer.write_table(table.take(order.slice(start, rows)), rows)

    def close(self) -> tuple[int, dict[str, ColumnStatistics]]:
        """Completes the file; returns its size and its columns' bounds."""
        self.flush()
        self._writer.close()
        size = int(self._sink.tell())
        self._sink.close()
        return size, statistics_of(self._collected[0], self._schema)

    def abandon(self) -> None:
        """Gives the file up; what is there of it is garbage."""
        self._held = []
        for closing in (self._writer.close, self._sink.close):
            with contextlib.suppress(Exception):  # it failed before; that error counts
                closing()


def _as_dictionaries(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """The schema as the writer is given it; in the file these columns are text as before."""
    for name in names:
        field = pa.field(name, pa.dictionary(pa.int8(), pa.string()))
        schema = schema.set(schema.get_field_index(name), field)
    return schema


def _constant(text: str, rows: int) -> pa.DictionaryArray:
    """One text in every row; `pa.array` would bring in pandas."""
    data = text.encode()
    ends = pa.py_buffer(np.array([0, len(data)], np.int32))
    texts = pa.StringArray.from_buffers(1, ends, pa.py_buffer(data))
    zeros = pa.py_buffer(np.zeros(rows, np.int8))
    indices = pa.Array.from_buffers(pa.int8(), rows, [None, zeros])
    return pa.DictionaryArray.from_arrays(indices, texts)


def _has_bounds(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind)
    )


def statistics_of(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, ColumnStatistics]:
    """Bounds of whole-number, date and timestamp columns over all row groups, and of such fields of
    structs and texts in them, by their paths.
    """
    found: dict[str, ColumnStatistics] = {}
    known = list(leaves(schema))
    twice = Counter(leaf.path for leaf in known)  # a column named a.b beside a field b of a
    for index, leaf in enumerate(known):
        if not _is_bounded(leaf) or twice[leaf.path] > 1:
            continue
        lows, highs, nulls = [], [], 0
        for group in range(metadata.num_row_groups):
            bounds = metadata.row_group(group).column(index).statistics
            if bounds is None:
                break
            nulls += bounds.null_count
            if bounds.has_min_max:
                # Times as such would bring in pandas, and have years from 1 to 9999 only.
                is_raw = pa.types.is_temporal(leaf.type)
                lows.append(bounds.min_raw if is_raw else bounds.min)
                highs.append(bounds.max_raw if is_raw else bounds.max)
            elif bounds.null_count < metadata.row_group(group).num_rows:
                break  # of some rows nothing is known: texts may be too long
        else:
            found[leaf.path] = ColumnStatistics(
                _plain(min(lows), leaf.type, up=False) if lows else None,
                _plain(max(highs), leaf.type, up=True) if highs else None,
                nulls,
            )
    return found


def _is_bounded(leaf: Leaf) -> bool:
    """Whether a column's bounds are kept.

    Not of floating point: Parquet's leave NaN out, which Spark finds above all numbers. Texts and
    decimals are fields of decoded values.
    """
    if leaf.repeats:
        return False
    is_more = pa.types.is_string(leaf.type) or pa.types.is_decimal(leaf.type)
    return _has_bounds(leaf.type) or (leaf.is_inner and is_more)


def _plain(value: Any, kind: pa.DataType, *, up: bool) -> int | str | None:  # noqa: ANN401  # int or text
    if pa.types.is_decimal(kind):
        return None  # JSON has no exact one
    if pa.types.is_string(kind):
        return value if len(value) <= _LONGEST_BOUND else None
    if pa.types.is_date32(kind):
        try:
            return (_EPOCH + datetime.timedelta(days=value)).date().isoformat()
        except OverflowError:
            return None
    if pa.types.is_timestamp(kind):
        divisor = _PER_MILLISECOND[kind.unit]
        milliseconds = -(-value // divisor) if up else value // divisor
        try:
            time = _EPOCH + datetime.timedelta(milliseconds=milliseconds)
        except OverflowError:
            return None
        text = time.isoformat(timespec="milliseconds")
        return text if kind.tz is None else f"{text}Z"
    return int(value)
