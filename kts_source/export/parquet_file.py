"""Parquet files of a table: writes them with bounded memory, and opens them in a store."""

from __future__ import annotations

import contextlib
import datetime
import io
from collections import Counter
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kts_source.errors import ExportError
from kts_source.export.partitioning import column_at, leaves
from kts_source.export.task import ColumnStatistics

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kts_source.export.partitioning import Leaf
    from kts_source.store.object_store import ObjectStore

ROW_GROUP_BYTES: Final = 48 << 20
"""A row group is written when its rows fill this number of bytes in memory."""
SORT_BYTES: Final = 64 << 20
"""Maximum bytes of rows that are sorted in memory. A sorted file has at most this size."""

_REPEATING: Final = ("topic", "partition", "timestampType")
# These encodings make files smaller than the defaults. Keys and values use PLAIN: if pages with
# DELTA_LENGTH_BYTE_ARRAY contain nulls, the vectorized reader of Spark 4.0.0 returns wrong bytes
# without an error (Spark 4.3 does not).
_PACKED: Final = ("offset", "timestamp")
_EPOCH: Final = datetime.datetime(1970, 1, 1)  # `_plain_bound` appends the zone
_PER_MILLISECOND: Final = {"s": 1, "ms": 1, "us": 1000, "ns": 1_000_000}
"""Maps an Arrow timestamp unit to the number of stored units per millisecond. Parquet stores
seconds as milliseconds.
"""
_MAX_BOUND: Final = 128
"""Maximum number of characters of a text that is used as a minimum or maximum."""
_WRITE_BATCH_ROWS: Final = 4096
"""Number of rows that Arrow's writer encodes at a time."""
_READ_AHEAD: Final = 1 << 20


class ParquetFile:
    """Writes one Parquet file.

    Args:
        sink: Open binary file that receives the bytes. `close` closes it.
        schema: Schema of the rows in the file. Does not include partition columns that are not
            stored in the file.
        compression: Compression codec of the pages.
        row_group_rows: Maximum number of rows of a row group.
        sort_by: Columns by which the rows of the file are sorted. If there are any, all rows stay
            in memory until `close` or `flush`.
        bounded: Columns for which the file contains minimum and maximum, in addition to the columns
            that `_is_bounded` selects.
        constants: Text columns that have the same text in all rows: maps the name of the column to
            this text.
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
        # A sorted file is written with the columns of the batches, without replacement by
        # constants.
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
        # Use dictionaries for columns with repeating values, and for texts from transforms and
        # decoders.
        repeating = [
            leaf.path
            for leaf in leaves(schema)
            if pa.types.is_string(leaf.type) or (leaf.path in _REPEATING and not leaf.is_inner)
        ]
        try:
            self._writer = pq.ParquetWriter(
                sink,
                _as_dictionaries(schema, self._constants),
                compression=compression.upper(),
                use_dictionary=[name for name in repeating if name not in packed],
                column_encoding=dict.fromkeys(packed, "DELTA_BINARY_PACKED") or None,
                write_statistics=[
                    leaf.path
                    for leaf in leaves(schema)
                    if leaf.path in bounded or _is_bounded(leaf)
                ],
                metadata_collector=self._collected,
                store_schema=False,
                write_batch_size=_WRITE_BATCH_ROWS,
            )
        except BaseException:
            with contextlib.suppress(Exception):
                sink.close()
            raise

    @property
    def is_full_to_sort(self) -> bool:
        """True if the file is sorted and its rows in memory have reached the memory limit."""
        return bool(self._sort_by) and self.held_bytes >= SORT_BYTES

    @property
    def written_bytes(self) -> int:
        """Bytes that were written to the sink so far, without the rows in memory."""
        return int(self._sink.tell())

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds rows. Writes a row group if enough rows are in memory and the file is not sorted."""
        rows = batch.num_rows
        self._held.append(batch)
        self._held_rows += rows
        self.held_bytes += batch.nbytes
        self.rows += rows
        full = self.held_bytes >= ROW_GROUP_BYTES or self._held_rows >= self._row_group_rows
        if full and not self._sort_by:
            self.flush()

    def flush(self) -> None:
        """Writes all rows in memory as row groups."""
        if not self._held:
            return
        table = pa.Table.from_batches(self._held, self._schema)
        self._held, self._held_rows, self.held_bytes = [], 0, 0
        if self._sort_by:
            table = table.combine_chunks()  # releases the batches
            self._write_sorted(table)
        else:
            self._writer.write_table(self._with_constants(table), self._row_group_rows)

    def _with_constants(self, table: pa.Table) -> pa.Table:
        """Replaces the columns in `constants` by dictionary columns with one entry. Arrow's writer
        would otherwise hash the text of each row.
        """
        for name, text in self._constants.items():
            index = table.schema.get_field_index(name)
            table = table.set_column(index, name, _constant(text, table.num_rows))
        return table

    def _write_sorted(self, table: pa.Table) -> None:
        """Sorts the rows and writes them. Copies only one row group at a time, because a sorted
        copy of all rows would double the memory.
        """
        keys = {str(n): column_at(table, name) for n, name in enumerate(self._sort_by)}
        order = pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys])
        groups = -(-table.nbytes // ROW_GROUP_BYTES)
        rows = min(self._row_group_rows, -(-table.num_rows // max(1, groups)))
        for start in range(0, table.num_rows, rows):
            self._writer.write_table(table.take(order.slice(start, rows)), rows)

    def close(self) -> tuple[int, dict[str, ColumnStatistics]]:
        """Completes the file. Returns two values: its size in bytes, and the statistics of its
        columns (see `statistics_of`).
        """
        self.flush()
        self._writer.close()
        size = int(self._sink.tell())
        self._sink.close()
        return size, statistics_of(self._collected[0], self._schema)

    def abandon(self) -> None:
        """Closes the sink without completing the file."""
        self._held = []
        for closing in (self._writer.close, self._sink.close):
            with contextlib.suppress(Exception):  # the original error is reported
                closing()


def _as_dictionaries(schema: pa.Schema, names: Collection[str]) -> pa.Schema:
    """Returns the schema with dictionary types for the text columns in `names`. Arrow's writer
    needs these types for dictionary columns. In the file, the columns are plain texts.
    """
    for name in names:
        field = pa.field(name, pa.dictionary(pa.int8(), pa.string()))
        schema = schema.set(schema.get_field_index(name), field)
    return schema


def _constant(text: str, rows: int) -> pa.DictionaryArray:
    """Returns a column with the same text in every row. Does not use `pa.array`, because that would
    import pandas.
    """
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
    """Returns minimum, maximum and number of nulls over all row groups, for each column with bounds
    (see `_is_bounded`). The keys are the paths of the columns.
    """
    statistics: dict[str, ColumnStatistics] = {}
    columns = list(leaves(schema))
    uses = Counter(leaf.path for leaf in columns)  # a column a.b next to a field b of a column a
    for index, leaf in enumerate(columns):
        if not _is_bounded(leaf) or uses[leaf.path] > 1:
            continue
        lows, highs, nulls = [], [], 0
        for group in range(metadata.num_row_groups):
            bounds = metadata.row_group(group).column(index).statistics
            if bounds is None:
                break
            nulls += bounds.null_count
            if bounds.has_min_max:
                # Arrow's `min` of timestamps would import pandas, and covers only the years 1 to
                # 9999.
                is_raw = pa.types.is_temporal(leaf.type)
                lows.append(bounds.min_raw if is_raw else bounds.min)
                highs.append(bounds.max_raw if is_raw else bounds.max)
            elif bounds.null_count < metadata.row_group(group).num_rows:
                break  # Arrow writes no bounds of long texts
        else:
            statistics[leaf.path] = ColumnStatistics(
                _plain_bound(min(lows), leaf.type, up=False) if lows else None,
                _plain_bound(max(highs), leaf.type, up=True) if highs else None,
                nulls,
            )
    return statistics


def _is_bounded(leaf: Leaf) -> bool:
    """Returns True if the file contains the minimum and maximum of a column.

    Returns True for integers, dates and timestamps. Returns True for texts and decimals only if
    they are fields of a struct, such as a decoded key or value. Returns False for floating-point
    numbers, because Parquet ignores NaN, and Spark sorts NaN above all numbers. Returns False for
    items of lists and maps.
    """
    if leaf.repeats:
        return False
    is_more = pa.types.is_string(leaf.type) or pa.types.is_decimal(leaf.type)
    return _has_bounds(leaf.type) or (leaf.is_inner and is_more)


def _plain_bound(value: Any, kind: pa.DataType, *, up: bool) -> int | str | None:  # noqa: ANN401
    if pa.types.is_decimal(kind):
        return None  # JSON has no exact decimals
    if pa.types.is_string(kind):
        return value if len(value) <= _MAX_BOUND else None
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


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a table.

    Attributes:
        key: Object key of the file, relative to the target's root.
        size: Size of the file in bytes.
        values: Values of the partition columns that are not stored in the file: maps the name of
            the column to the value as text.
    """

    key: str
    size: int
    values: Mapping[str, str | None]


class _ObjectFile(io.RawIOBase):
    """A seekable file object that reads a data file from a store."""

    def __init__(self, store: ObjectStore, file: DataFile) -> None:
        self._store = store
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}
        self._position = origin[whence] + offset
        return self._position

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401  # any writable buffer
        stop = max(self._position, min(self._position + len(buffer), self._file.size))
        data = self._store.get_range(self._file.key, self._position, stop)
        buffer[: len(data)] = data
        self._position = stop
        return len(data)


def open_parquet(
    store: ObjectStore, file: DataFile, *, is_dead_letters: bool = False
) -> pq.ParquetFile:
    """Opens a data file of a table, or a file of dead letters.

    Raises:
        ExportError: The file is not a valid Parquet file.
    """
    try:
        return pq.ParquetFile(io.BufferedReader(_ObjectFile(store, file), _READ_AHEAD))
    except pa.ArrowInvalid as error:
        name = "the table"
        advice = "restore it from a backup, or export into another table"
        if is_dead_letters:
            name = "dead letters"
            advice = (
                "restore it from a backup. If there is none, move it away and accept its loss with"
                " replay=True and failOnDataLoss=false"
            )
        raise ExportError(
            f"a file of {name} cannot be read as Parquet: {str(error).rstrip('.')}. Another writer"
            f" replaced or damaged it; {advice}",
            uri=store.uri(file.key),
        ) from None


def count_rows(store: ObjectStore, file: DataFile) -> int:
    """Returns the number of rows in a data file, according to its footer."""
    with open_parquet(store, file) as parquet:
        rows: int = parquet.metadata.num_rows
        return rows
