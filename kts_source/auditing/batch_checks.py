"""Checks the indexes and batches of a segment, for the audit levels `indexes` and `bytes`.

Batches are passed in tables (`BatchTable`). All batches of a table are checked at once with
vectorized operations. If the check finds a fault, the batches of the table are checked one by one
to find the first fault of each kind.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from kts_source.auditing.listing_checks import is_archived
from kts_source.auditing.metadata_checks import SideFileReader
from kts_source.errors import TieredKafkaError
from kts_source.layout.remote_segment import IndexType
from kts_source.planning.lineage import MAX_OFFSET, epoch_ranges
from kts_source.read.segment_source import SegmentSpan
from segment_format.errors import SegmentFormatError
from segment_format.index.sparse_indexes import OffsetIndex, TimeIndex
from segment_format.kernels.batch_scanner import BatchScanner
from segment_format.record.batch_header import HEADER_SIZE, MAGIC_2, RecordBatchHeader
from segment_format.record.control_record import ControlRecordType
from segment_format.record.framing import read_prefix
from segment_format.record.recovery import max_timestamps_from

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from kts_source.auditing.listing_checks import PartitionObjects
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.read.fetch import ReadAhead
    from kts_source.read.segment_source import SegmentSource
    from segment_format.index.producer_snapshot import ProducerStateEntry
    from segment_format.index.transaction_index import AbortedTxn
    from segment_format.kernels.batch_scanner import BatchTable


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """The values of one batch that the checks need, from one row of a `BatchTable`."""

    position: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    is_sound: bool
    max_timestamp: int


def rows_of(table: BatchTable) -> Iterator[BatchFacts]:
    """Yields the batches of a table one by one."""
    columns = (
        *(table.positions, table.base_offsets, table.last_offsets),
        *(table.leader_epochs, table.are_sound, table.max_timestamps),
    )
    for row in zip(*(column.tolist() for column in columns), strict=True):
        yield BatchFacts(*row)


def _span(segment: RemoteSegment, start: int, stop: int) -> SegmentSpan:
    location = segment.topic, segment.partition, segment.start_offset
    return SegmentSpan(*location, segment.objects, start, stop)


def _read(source: SegmentSource, segment: RemoteSegment, start: int, stop: int) -> bytes:
    windows = source.windows([_span(segment, start, stop)])
    return b"".join(bytes(window) for _, window in windows)


def segment_tables(
    segment: RemoteSegment,
    source: SegmentSource,
    read_ahead: ReadAhead,
    *,
    max_batch_bytes: int,
    start_offset: int = 0,
) -> Iterator[BatchTable]:
    """Yields all batches of a segment in log order. Each table contains several batches. Record
    counts do not include records below `start_offset`.

    Needs memory for the bytes that are read ahead (`read_ahead`), one window of bytes and one batch
    (at most `max_batch_bytes`).

    Raises:
        SegmentFormatError: A batch is invalid. All batches before it were yielded.
        TieredKafkaError: See `SegmentSource.windows`. All batches before the error were yielded.
    """
    size = segment.objects.size_in_bytes
    scanner = BatchScanner(size, max_batch_bytes=max_batch_bytes, start_offset=start_offset)
    try:
        with closing(source.windows([_span(segment, 0, size)], read_ahead=read_ahead)) as windows:
            for _, window in windows:
                yield from scanner.feed(window)
                del window  # its memory may be reused for the next
        scanner.finish()
    except (SegmentFormatError, TieredKafkaError):
        yield scanner.rest()
        raise
    yield scanner.rest()


_EMPTY: Final = np.empty(0, np.int64)


class SegmentIndexes(SideFileReader):
    """Compares the offset index and the time index of a segment with its batches. Reads the indexes
    from `source`.
    """

    def __init__(
        self, partition: PartitionObjects, segment: RemoteSegment, source: SegmentSource
    ) -> None:
        super().__init__(partition, segment, source)
        self.offsets = self._offset_index()
        self.times = self._time_index()
        # Row numbers of the first index entries that were not yet compared with a batch.
        self._next_offset = 0
        self._next_time = 0
        self._last_offset = -1
        self._has_time = False

    def _offset_index(self) -> OffsetIndex | None:
        name, kind, segment = "offset-index-invalid", IndexType.OFFSET, self.segment
        parse = partial(OffsetIndex.from_bytes, base_offset=segment.start_offset)
        index = self.parse(kind, name, parse)
        if index is not None and len(index):
            offset, position = int(index.offsets[-1]), int(index.positions[-1])
            size = segment.objects.size_in_bytes
            if offset > segment.end_offset or position >= size:
                text = (
                    f"the last entry is for offset {offset} at byte {position}, after the segment's"
                    f" end at offset {segment.stop_offset} or byte {size}"
                )
                self.report(name, kind, text)
                return None
        return index

    def _time_index(self) -> TimeIndex | None:
        name, kind, segment = "time-index-invalid", IndexType.TIMESTAMP, self.segment
        parse = partial(TimeIndex.from_bytes, base_offset=segment.start_offset)
        index = self.parse(kind, name, parse)
        if index is None or not len(index):
            return index
        offset, time_ms = int(index.offsets[-1]), int(index.timestamps[-1])
        if offset > segment.end_offset:
            text = f"the last entry is for offset {offset}, the segment ends at"
            self.report(name, kind, f"{text} {segment.stop_offset}")
            return None
        largest = self._largest_timestamp()
        if time_ms != largest:
            text = f"the last entry is {time_ms} ms, the segment's largest timestamp {largest} ms"
            self.report("time-index-disagrees", kind, text)
            return None
        return index

    def _largest_timestamp(self) -> int:
        """Returns the largest record timestamp of the segment in ms, or −1 if it is unknown.

        Layouts without manifests read a limited number of batch headers to describe a segment, so
        the description may lack the timestamp. In this case, all batch headers are read.
        """
        segment = self.segment
        if segment.max_timestamp_ms >= 0 or segment.end_is_exact:
            return segment.max_timestamp_ms
        if is_archived(segment.objects.log):
            return segment.max_timestamp_ms
        size, read = segment.objects.size_in_bytes, partial(_read, self._source, segment)
        return max(max_timestamps_from(read, size, 0, segment.start_offset), default=-1)

    def check_last_entry(self, max_batch_bytes: int) -> None:
        """Adds a finding if the last entry of the offset index does not point to the first byte of
        a batch, or if the offsets of entry and batch do not match. Reads one chunk of the log.
        """
        if self.offsets is None or not len(self.offsets):
            return
        segment = self.segment
        offset, position = int(self.offsets.offsets[-1]), int(self.offsets.positions[-1])
        stop = min(position + HEADER_SIZE, segment.objects.size_in_bytes)
        data = _read(self._source, segment, position, stop)
        try:
            entry = read_prefix(data)
            # The header of a compressed message of format 0 or 1 contains the offset of its last
            # record.
            base, max_base = entry.offset, segment.end_offset
            if entry.magic == MAGIC_2:
                base, max_base = RecordBatchHeader.from_bytes(data).base_offset, offset
        except SegmentFormatError as error:
            self._report_offset(f"entry for offset {offset} at byte {position}: {error.message}")
            return
        if not segment.start_offset <= base <= max_base or entry.size > max_batch_bytes:
            text = f"there is a batch of {entry.size} bytes from offset {base}"
            self._report_offset(f"entry for offset {offset} at byte {position}: {text}")

    def fits(self, table: BatchTable) -> bool:
        """Returns True if all index entries that point to a batch in `table` match this batch.

        `table` must contain the batches after those that were already compared, in ascending order
        of offsets.
        """
        positions, offsets = self._due_offsets(table)
        rows = np.searchsorted(table.positions, positions)
        if not np.array_equal(table.positions[rows], positions):
            return False
        if (table.base_offsets[rows] > offsets).any():
            return False
        timestamps, offsets = self._due_times(table)
        rows = np.searchsorted(table.last_offsets, offsets)
        if not np.array_equal(table.max_timestamps[rows], timestamps):
            return False
        return not (table.base_offsets[rows] > offsets).any()

    def _due_offsets(self, table: BatchTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the positions and the offsets of those entries of the offset index that were not
        compared yet and whose position is in `table` or before it.
        """
        if self.offsets is None or not len(table):
            return _EMPTY, _EMPTY
        positions = self.offsets.positions
        stop = int(np.searchsorted(positions, table.positions[-1], side="right"))
        due = slice(self._next_offset, max(stop, self._next_offset))
        return positions[due], self.offsets.offsets[due]

    def _due_times(self, table: BatchTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns the timestamps and the offsets of those entries of the time index that were not
        compared yet and whose offset is in `table` or below it.
        """
        if self.times is None or not len(table):
            return _EMPTY, _EMPTY
        offsets = self.times.offsets
        stop = int(np.searchsorted(offsets, table.last_offsets[-1], side="right"))
        due = slice(self._next_time, max(stop, self._next_time))
        return self.times.timestamps[due], offsets[due]

    def skip(self, table: BatchTable) -> None:
        """Marks the index entries that point into `table` as compared. Call it only if `fits`
        returned True for `table`.
        """
        if not len(table):
            return
        self._next_offset += len(self._due_offsets(table)[0])
        self._next_time += len(self._due_times(table)[0])
        self._last_offset = int(table.last_offsets[-1])
        self._has_time |= bool((table.max_timestamps >= 0).any())

    def check(self, batch: BatchFacts) -> None:
        """Compares `batch`, the next batch of the segment, with the index entries that point to it.
        Adds a finding for each entry that does not match.
        """
        self._check_offset(batch)
        self._check_time(batch)
        self._last_offset = batch.last_offset
        self._has_time |= batch.max_timestamp >= 0

    def _check_offset(self, batch: BatchFacts) -> None:
        index, number = self.offsets, self._next_offset
        if index is None or number >= len(index) or batch.position < index.positions[number]:
            return
        offset, position = int(index.offsets[number]), int(index.positions[number])
        if batch.position > position:
            self._report_offset(f"entry for offset {offset}: no batch begins at byte {position}")
        elif not self._last_offset < batch.base_offset <= offset:
            self._report_offset(
                f"entry for offset {offset} at byte {position}: there is a batch of offsets"
                f" [{batch.base_offset}, {batch.last_offset}]"
            )
        else:
            self._next_offset += 1

    def _report_offset(self, text: str) -> None:
        self.report("offset-index-disagrees", IndexType.OFFSET, text)
        self.offsets = None  # one finding per file is enough

    def _check_time(self, batch: BatchFacts) -> None:
        index = self.times
        while index is not None and self._next_time < len(index):
            number = self._next_time
            offset, time_ms = int(index.offsets[number]), int(index.timestamps[number])
            if offset > batch.last_offset:
                return
            if offset < batch.base_offset or batch.max_timestamp != time_ms:
                self._report_time(
                    f"entry of {time_ms} ms at offset {offset}: the batch of offsets"
                    f" [{batch.base_offset}, {batch.last_offset}] has a largest timestamp of"
                    f" {batch.max_timestamp} ms"
                )
                self.times = None
                return
            self._next_time += 1

    def _report_time(self, text: str) -> None:
        self.report("time-index-disagrees", IndexType.TIMESTAMP, text)

    def finish(self) -> None:
        """Reports index entries that match no batch. Also reports a time index without entries if
        batches have timestamps. Call this method after the last batch.
        """
        if self.times is not None and not len(self.times) and self._has_time:
            self._report_time("it has no entry")
        if self.offsets is not None and self._next_offset < len(self.offsets):
            position = int(self.offsets.positions[self._next_offset])
            self._report_offset(f"no batch begins at byte {position}")
        if self.times is not None and self._next_time < len(self.times):
            self._report_time(f"no batch holds offset {int(self.times.offsets[self._next_time])}")


class LogCheck:
    """Checks the batches of a segment, and keeps the first fault of each kind.

    Attributes:
        faults: The first fault of each kind, by kind. A fault has three values: its first offset,
            its end offset (exclusive) and a description.
        next_offset: One past the last offset of the batches that were checked so far.
    """

    def __init__(self, segment: RemoteSegment) -> None:
        self.faults: dict[str, tuple[int, int, str]] = {}
        self.next_offset = segment.start_offset
        self._segment = segment
        self._epochs = tuple(epoch_ranges(segment))
        self._has_batch = False

    def fits(self, table: BatchTable) -> bool:
        """Returns True if no batch in `table` has a fault. `table` must contain the next batches of
        the segment.
        """
        if not len(table):
            return True
        segment, bases, lasts = self._segment, table.base_offsets, table.last_offsets
        min_base = self.next_offset if self._has_batch else segment.start_offset
        if (
            not table.are_sound.all()
            or bases[0] < min_base
            or (bases[1:] <= lasts[:-1]).any()
            or (segment.end_is_exact and lasts[-1] > segment.end_offset)
        ):
            return False
        epochs = table.leader_epochs
        return not any(
            ((epochs != epoch) & (epochs != -1) & (low <= bases) & (bases < high)).any()
            for epoch, low, high in self._epochs
        )

    def skip(self, table: BatchTable) -> None:
        """Marks the batches in `table` as checked. Call it only if `fits` returned True for
        `table`.
        """
        if len(table):
            self._has_batch = True
            self.next_offset = max(self.next_offset, int(table.last_offsets[-1]) + 1)

    def check(self, batch: BatchFacts) -> None:
        """Checks the next batch of the segment and records its faults."""
        segment, base, last = self._segment, batch.base_offset, batch.last_offset
        if not batch.is_sound:
            self._add("crc", batch, f"the batch at byte {batch.position} of the segment")
        if base < segment.start_offset or (last > segment.end_offset and segment.end_is_exact):
            start, stop = segment.start_offset, segment.stop_offset
            text = f"a batch has offsets [{base}, {last}], the segment [{start}, {stop})"
            self.faults.setdefault("out-of-bounds", (start, stop, text))
            return  # do not compare the next batch with it
        if self._has_batch and base < self.next_offset:
            text = f"a batch begins at offset {base}, the batch before it ends at"
            self._add("offset-order", batch, f"{text} {self.next_offset - 1}")
        else:
            owner = next((e for e, low, high in self._epochs if low <= base < high), None)
            if owner is not None and batch.leader_epoch not in (-1, owner):
                text = f"a batch has epoch {batch.leader_epoch}, but epoch {owner} owns its offset"
                self._add("epoch", batch, text)
        self._has_batch = True
        self.next_offset = max(self.next_offset, last + 1)

    def _add(self, name: str, batch: BatchFacts, text: str) -> None:
        self.faults.setdefault(name, (batch.base_offset, batch.last_offset + 1, text))


def check_table(table: BatchTable, check: LogCheck, indexes: SegmentIndexes) -> None:
    """Checks the batches in `table`, which must be the next batches of the segment. First checks
    all of them at once. If there is a fault, checks them one by one to record the first fault of
    each kind.
    """
    if check.fits(table) and indexes.fits(table):
        check.skip(table)
        indexes.skip(table)
        return
    for batch in rows_of(table):
        check.check(batch)
        indexes.check(batch)


class Transactions:
    """Follows the transactions of a segment. Compares them with the transaction index and the
    producer snapshot of the segment.

    Transactions are found in batch headers. If a transaction began below the first offset that was
    read, it is not checked, because its first batch is unknown.

    Compaction may remove batches of a transaction, but it keeps the marker as long as the
    transaction has data. Therefore two differences are not faults:

    * The index has a transaction without remaining batches.
    * The first offset in the index is below the first remaining batch of the transaction. (But it
      is a fault if another marker of the producer is between the two offsets.)

    Args:
        open_before: Transactions that are open at the start of the segment, as a map from producer
            id to first offset.

    Attributes:
        open: Transactions that are open after the batches that were applied so far, as a map from
            producer id to first offset.
        own: Like `open`, but without the transactions of `open_before`.
    """

    def __init__(self, open_before: Mapping[int, int]) -> None:
        self.open = dict(open_before)
        self.own: dict[int, int] = {}
        self._seen_from = MAX_OFFSET
        self._markers: dict[int, int] = {}
        self._aborted: list[tuple[int, int | None, int]] = []
        self._aborted_at: dict[int, int] = {}
        self._last_data: dict[int, int] = {}

    def apply(self, table: BatchTable, wanted: NDArray[np.bool_]) -> None:
        """Updates the open transactions with the rows of `table` for which `wanted` is True."""
        if not wanted.any():
            return
        self._seen_from = min(self._seen_from, int(table.base_offsets[wanted].min()))
        first = 0
        for row in sorted(table.markers):
            if wanted[row]:
                self._apply_data(table, wanted, first, row)
                self._apply_marker(table, row)
                first = row + 1
        self._apply_data(table, wanted, first, len(table))

    def _apply_data(
        self, table: BatchTable, wanted: NDArray[np.bool_], first: int, stop: int
    ) -> None:
        """Updates the open transactions with the rows from `first` to `stop` (exclusive) for which
        `wanted` is True. None of these rows is a transaction marker.
        """
        rows = first + np.flatnonzero(wanted[first:stop] & ~table.are_control[first:stop])
        producers = table.producer_ids[rows]
        # Reversed, because `np.unique` returns the first row of each producer, and the last is
        # needed.
        unique, back = np.unique(producers[::-1], return_index=True)
        lasts = table.last_offsets[rows][::-1][back]
        for producer, last in zip(unique.tolist(), lasts.tolist(), strict=True):
            if producer >= 0:
                self._last_data[producer] = last
        transactional = rows[table.are_transactional[rows]]
        unique, first_rows = np.unique(table.producer_ids[transactional], return_index=True)
        bases = table.base_offsets[transactional][first_rows]
        for producer, base in zip(unique.tolist(), bases.tolist(), strict=True):
            self.open.setdefault(producer, base)
            self.own.setdefault(producer, base)

    def _apply_marker(self, table: BatchTable, row: int) -> None:
        producer, base = int(table.producer_ids[row]), int(table.base_offsets[row])
        first = self.open.pop(producer, None)
        self.own.pop(producer, None)
        if table.markers[row] is ControlRecordType.ABORT:
            self._aborted_at[base] = producer
            self._aborted.append((producer, first, base))
        self._markers[producer] = base

    def missing_in(self, index: Iterable[AbortedTxn]) -> str:
        """Describes the first aborted transaction of the segment that is missing in `index`, the
        entries of the transaction index. Returns "" if no transaction is missing.
        """
        entries = {txn.last_offset: txn for txn in index}
        for producer, first, marker in self._aborted:
            if first is None:  # no data of the transaction was read
                continue
            entry = entries.get(marker)
            if entry is None or entry.producer_id != producer or entry.first_offset > first:
                return (
                    f"producer {producer} has data from offset {first}, aborted by a marker at"
                    f" offset {marker}"
                )
        return ""

    def unmarked_in(self, index: Iterable[AbortedTxn]) -> str:
        """Describes the first entry of the transaction index that has no abort marker in the
        segment. Returns "" if every entry has an abort marker.
        """
        for txn in index:
            is_seen = txn.last_offset >= self._seen_from
            if is_seen and self._aborted_at.get(txn.last_offset) != txn.producer_id:
                return f"offset {txn.last_offset} has no abort marker of producer {txn.producer_id}"
        return ""

    def difference(self, snapshot: Iterable[ProducerStateEntry]) -> str:
        """Describes the first difference between the producer snapshot at the segment's end and the
        batches. Returns "" if they agree.
        """
        listed = {}
        for entry in snapshot:
            first, producer = entry.current_txn_first_offset, entry.producer_id
            if first >= 0:
                listed[producer] = first
                if self._markers.get(producer, -1) > first:
                    return f"the transaction of producer {producer} from offset {first} has ended"
            seen = self._last_data.get(producer, -1)
            if 0 <= entry.last_offset < seen:
                return (
                    f"producer {producer} ends at offset {entry.last_offset} in the snapshot, but"
                    f" has a batch up to offset {seen}"
                )
        for producer, first in self.open.items():
            if listed.get(producer, first + 1) > first:
                return f"it lacks the transaction of producer {producer} from offset {first}"
        return ""
