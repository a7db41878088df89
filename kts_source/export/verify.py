"""Compares the rows of a table with the offsets and row counts that its commits recorded.

Another writer can delete, overwrite or copy rows of an export, and the table still records the
offsets of these rows. Missing offsets alone do not prove a loss, because control batches, aborted
transactions, `where` and compaction leave gaps. So every commit records its number of rows, and
this module compares these numbers with the rows of the table. It also searches for offsets outside
the recorded ranges, and for offsets that are stored twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kts_source.columns import PARTITION, TOPIC
from kts_source.errors import DataLossError, ExportError, ObjectNotFoundError
from kts_source.export.parquet_file import count_rows, open_parquet
from kts_source.export.ranges import OffsetRange, held_range
from kts_source.export.task import OFFSET
from kts_source.texts import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt

    from kts_source.export.parquet_file import DataFile
    from kts_source.export.ranges import CommittedRanges
    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.export_table import Owner, RowCount, TableContents
    from kts_source.options import ScanOptions
    from kts_source.planning.partition_plan import PartitionPlan

_SCHEMA: Final = pa.schema([(TOPIC, pa.string()), (PARTITION, pa.int64()), (OFFSET, pa.int64())])
_ROWS: Final = 1 << 16
_CHUNK_BITS: Final = 16
_CHUNK: Final = 1 << _CHUNK_BITS
MAX_CHUNKS: Final = 1 << 14
"""Maximum number of bitmaps of 8 KiB in memory: 128 MiB."""
_FULL: Final = np.full(_CHUNK // 8, 255, np.uint8)
_ADVICE: Final = (
    "If this export has committed nothing since, restore the version of the table that had the"
    " rows. Otherwise append the missing rows of that version to the table, because restoring it"
    " would remove newer rows, or export into another table. Without verify=True the run continues"
    " after the recorded offsets and never writes these rows again"
)


class _ChunkKey(NamedTuple):
    owner: Owner
    number: int


@dataclass(slots=True)
class _Recorded:
    """Facts that the commits of a table recorded for one partition.

    Attributes:
        held: The range of offsets that the table has; `None` if the commits recorded no range for
            the current id of the topic.
        count: The number of rows; `None` if it was not recorded.
    """

    held: OffsetRange | None
    count: RowCount | None

    @property
    def has_restarts(self) -> bool:
        """True if the table may have rows of an earlier topic with the same name. Offsets are not
        compared then, because the offsets of the two topics overlap.
        """
        if self.held is None:
            return True
        return self.count is not None and self.count.restarts > 0


@dataclass(slots=True)
class _Tally:
    """Facts about the rows of one partition in the table.

    Attributes:
        low: Lowest offset.
        high: Highest offset.
    """

    rows: int = 0
    low: int = 1 << 63
    high: int = -1


def verify(
    contents: TableContents | None,
    committed: CommittedRanges,
    partitions: Iterable[PartitionPlan],
    options: ScanOptions,
    settings: ExportSettings,
) -> tuple[str, ...]:
    """Checks that a table has the rows that its commits wrote.

    Args:
        contents: The files of the table; `None` if the table does not exist.
        committed: The offset ranges that the table has.
        partitions: The planned partitions. Their topics are checked.
        options: Options of the source.
        settings: Settings of the export.

    Returns:
        Sentences for the report: the checks that were made, and those that were not possible.

    Raises:
        DataLossError: Rows or a file are missing.
        ExportError: Rows are stored twice, or have offsets that the table does not record.
    """
    recorded = {} if contents is None else _recorded_facts(contents, committed, partitions)
    if contents is None or not recorded:
        return ("verified nothing: the table has no rows of the planned partitions",)
    if settings.transform is not None or not set(_SCHEMA.names) <= set(options.columns):
        return _verify_totals(contents, recorded, settings)
    check = _Check(contents, recorded, settings.target)
    while check.run():
        pass
    return check.compare()


def _recorded_facts(
    contents: TableContents, committed: CommittedRanges, partitions: Iterable[PartitionPlan]
) -> dict[Owner, _Recorded]:
    numbers: dict[tuple[str, str], int] = {}
    for partition in partitions:
        topic = (partition.topic, partition.topic_id)
        numbers[topic] = max(numbers.get(topic, 0), partition.partition + 1)
    recorded: dict[Owner, _Recorded] = {}
    for (name, topic_id), count in numbers.items():
        for number in range(count):
            held = held_range(committed, name, topic_id, number)
            if held is not None:
                recorded[name, number] = _Recorded(held, contents.counts(name, number))
    return recorded


def _verify_totals(
    contents: TableContents, recorded: Mapping[Owner, _Recorded], settings: ExportSettings
) -> tuple[str, ...]:
    """Compares only the total number of rows, because the columns of the table do not identify the
    record of a row. Returns the sentences for `verify`. Raises `DataLossError` if rows or a file
    are missing.
    """
    why = "its transform decides" if settings.transform is not None else "its columns do not show"
    expected = sum(entry.count.rows for entry in recorded.values() if entry.count is not None)
    actual = 0
    for file in contents.files:
        try:
            actual += count_rows(contents.store, file)
        except ObjectNotFoundError:
            raise _missing_file(contents, file) from None
    if actual < expected:
        owner = next(iter(recorded))
        raise DataLossError(
            f"the table has {actual:,} rows, but its commits wrote {expected:,} rows of the"
            f" partitions {_names(list(recorded))}: {_cause_of_loss(contents)} {_ADVICE}",
            **_location(owner, None, settings.target),
        )
    return (
        f"verified that the table has at least the {expected:,} rows that its commits counted",
        f"not verified: {why} which record a row is, so its offsets were not compared",
    )


def _missing_file(contents: TableContents, file: DataFile) -> DataLossError:
    return DataLossError(
        "a data file of the table does not exist: another process deleted it, and its rows are"
        f" lost. {_ADVICE}",
        uri=contents.store.uri(file.key),
    )


def _cause_of_loss(contents: TableContents) -> str:
    removal = contents.removal()
    return f"{removal}." if removal else "another writer deleted or replaced rows."


def _names(owners: list[Owner]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in owners[:5])


def _location(owner: Owner, offset: int | None, uri: str) -> dict[str, Any]:
    return {"topic": owner[0], "partition": owner[1], "offset": offset, "uri": uri}


@dataclass(slots=True)
class _Check:
    """Reads the offsets of a table and stores them in bitmaps to find duplicates. If the bitmaps do
    not fit into memory, it reads the table several times. Each of these passes compares other
    offsets.

    Attributes:
        tallies: Number of rows and range of offsets of each partition, from the first pass.
        others: Number of rows of topics that are not checked.
        done: Chunks of offsets that earlier passes compared.
        passes: Number of completed passes.
    """

    contents: TableContents
    recorded: dict[Owner, _Recorded]
    target: str
    tallies: dict[Owner, _Tally] = field(default_factory=dict)
    others: int = 0
    done: set[_ChunkKey] = field(default_factory=set)
    passes: int = 0

    def run(self) -> bool:
        """Reads the table once (one pass). Returns True if some offsets were not compared yet. Then
        another pass is needed.
        """
        topics = pa.array(sorted({topic for topic, _ in self.recorded}), pa.string())
        chunks: dict[_ChunkKey, npt.NDArray[np.uint8]] = {}
        deferred: set[_ChunkKey] = set()
        used = 0
        for file in self.contents.files:
            for owner, offsets in self._offsets(file, topics):
                entry = self._entry(owner)
                if self.passes == 0:
                    self._tally(owner, entry, offsets, file)
                if entry.has_restarts or self.contents.is_shared:
                    continue
                for key, bits in self._chunks(owner, offsets, file):
                    if key in self.done or key in deferred:
                        continue
                    before = chunks.get(key)
                    if before is None:
                        if used >= MAX_CHUNKS:
                            deferred.add(key)
                            continue
                        used += 1
                        chunks[key] = bits
                        continue
                    if np.any(twice := before & bits):
                        position = int(np.unpackbits(twice).argmax())
                        offset = (key.number << _CHUNK_BITS) + position
                        raise self._duplicate(owner, offset, file)
                    merged = before | bits
                    is_full = bool((merged == _FULL).all())
                    chunks[key] = _FULL if is_full else merged
                    used -= is_full
        self.done |= chunks.keys()
        self.passes += 1
        return bool(deferred)

    def compare(self) -> tuple[str, ...]:
        """Compares the number of rows of each partition with the number that its commits recorded.
        Returns the sentences for `verify`.

        Raises:
            DataLossError: Rows are missing.
            ExportError: A partition has more rows than its commits wrote, and only this export
                writes to the table.
        """
        rows = 0
        for owner, entry in sorted(self.recorded.items()):
            tally = self.tallies.get(owner, _Tally())
            rows += tally.rows
            if entry.count is None:
                continue
            if tally.rows < entry.count.rows:
                raise self._missing_rows(owner, entry, entry.count.rows, tally)
            if tally.rows > entry.count.rows and not self.contents.is_shared:
                raise ExportError(
                    f"the table has {tally.rows:,} rows of this partition, but its commits wrote"
                    f" {entry.count.rows:,}: another writer added rows. Delete them, or export"
                    " into another table",
                    **_location(owner, None, self.target),
                )
        return self._lines(rows)

    def _lines(self, rows: int) -> tuple[str, ...]:
        lines = [
            f"verified {counted(rows, 'row')} of {counted(len(self.recorded), 'partition')} in"
            f" {counted(len(self.contents.files), 'file')}: no row is missing or stored twice"
        ]
        if self.contents.is_shared:
            lines.append(
                "not verified: other exports write to this table, and another writer has rewritten"
                " its files, so rows that are stored twice would not be noticed"
            )
        if restarted := [owner for owner, entry in self.recorded.items() if entry.has_restarts]:
            lines.append(
                "not verified: the table has rows of several topics of one name"
                f" ({_names(sorted(restarted))}), so only the number of their rows was compared"
            )
        if self.others:
            lines.append(f"not verified: {self.others:,} rows of other topics and writers")
        return tuple(lines)

    def _offsets(
        self, file: DataFile, topics: pa.Array
    ) -> Iterator[tuple[Owner, npt.NDArray[np.int64]]]:
        """Reads a file batch by batch. Yields topic and partition, and the offsets of the rows, for
        each partition in a batch.
        """
        try:
            for batch in _columns_of_file(self.contents, file):
                rows = pa.Table.from_batches([batch])
                rows = rows.filter(pc.is_in(rows[TOPIC], topics)).drop_null()
                if self.passes == 0:
                    self.others += batch.num_rows - rows.num_rows
                owners = rows.group_by([TOPIC, PARTITION]).aggregate([]).to_pylist()
                for owner in owners:
                    own = rows
                    if len(owners) > 1:
                        is_topic = pc.equal(rows[TOPIC], owner[TOPIC])
                        is_partition = pc.equal(rows[PARTITION], owner[PARTITION])
                        own = rows.filter(pc.and_(is_topic, is_partition))
                    yield (owner[TOPIC], owner[PARTITION]), own[OFFSET].to_numpy()
        except ObjectNotFoundError:
            raise _missing_file(self.contents, file) from None

    def _chunks(
        self, owner: Owner, offsets: npt.NDArray[np.int64], file: DataFile
    ) -> Iterator[tuple[_ChunkKey, npt.NDArray[np.uint8]]]:
        """Splits the offsets of a batch into chunks. Yields the key of each chunk, and a bitmap of
        the offsets in it. Raises `ExportError` if an offset is in the batch twice.
        """
        ordered = np.sort(offsets)
        if (twice := ordered[1:][ordered[1:] == ordered[:-1]]).size:
            raise self._duplicate(owner, int(twice[0]), file)
        numbers, starts = np.unique(ordered >> _CHUNK_BITS, return_index=True)
        for number, positions in zip(numbers, np.split(ordered, starts[1:]), strict=True):
            bits = np.zeros(_CHUNK, np.bool_)
            bits[positions & (_CHUNK - 1)] = True
            yield _ChunkKey(owner, int(number)), np.packbits(bits)

    def _entry(self, owner: Owner) -> _Recorded:
        if owner not in self.recorded:  # an earlier topic of this name had more partitions
            self.recorded[owner] = _Recorded(None, self.contents.counts(*owner))
        return self.recorded[owner]

    def _tally(
        self, owner: Owner, entry: _Recorded, offsets: npt.NDArray[np.int64], file: DataFile
    ) -> None:
        tally = self.tallies.setdefault(owner, _Tally())
        low, high = int(offsets.min()), int(offsets.max())
        tally.rows += len(offsets)
        tally.low, tally.high = min(tally.low, low), max(tally.high, high)
        held = entry.held
        if held is None or entry.has_restarts or self.contents.is_shared:
            return
        if low < held.start or high >= held.stop:
            offset = low if low < held.start else high
            raise ExportError(
                f"the table has a row with this offset, but it records only offsets [{held.start},"
                f" {held.stop}): another writer added the row, and the export would write it"
                " again. Delete the row, or export into another table",
                **_location(owner, offset, self.contents.store.uri(file.key)),
            )

    def _missing_rows(
        self, owner: Owner, entry: _Recorded, expected: int, tally: _Tally
    ) -> DataLossError:
        spans = "none of them"
        if tally.rows:
            spans = f"only {tally.rows:,} of them, with offsets from {tally.low} to {tally.high}"
        held = entry.held
        of_range = "" if held is None else f" of offsets [{held.start}, {held.stop})"
        return DataLossError(
            f"the commits of the table wrote {expected:,} rows{of_range}, but the table has"
            f" {spans}: {_cause_of_loss(self.contents)} {_ADVICE}",
            **_location(owner, None if held is None else held.start, self.target),
        )

    def _duplicate(self, owner: Owner, offset: int, file: DataFile) -> ExportError:
        return ExportError(
            "the table has more than one row with this offset: another writer copied a file or"
            " rows. Delete the copy, or export into another table",
            **_location(owner, offset, self.contents.store.uri(file.key)),
        )


def _columns_of_file(contents: TableContents, file: DataFile) -> Iterator[pa.RecordBatch]:
    """Yields batches with the topic, partition and offset of each row in a data file.

    Columns that the file lacks are filled with its partition values. Columns with an unexpected
    type are filled with nulls.
    """
    with open_parquet(contents.store, file) as parquet:
        stored = [name for name in _SCHEMA.names if name in parquet.schema_arrow.names]
        for batch in parquet.iter_batches(_ROWS, columns=stored, use_threads=False):
            arrays = []
            for column in _SCHEMA:
                if column.name in stored:
                    values = batch.column(column.name)
                else:
                    value = pa.scalar(file.values.get(column.name), pa.string())
                    values = pa.repeat(value, batch.num_rows)
                arrays.append(_cast_or_null(values, column.type))
            yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def _cast_or_null(values: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return values.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(len(values), kind)
