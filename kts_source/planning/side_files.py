"""Reads and checks the side files of segments: indexes, leader-epoch checkpoint and producer
snapshot. Reads batch headers instead if a side file is missing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Final, TypeVar

from kts_source.errors import CorruptSegmentError, TieredKafkaError
from kts_source.layout.remote_segment import IndexType, RemoteSegment, epochs_between
from kts_source.planning.estimate import ARCHIVE_CLASSES
from kts_source.read.segment_source import SegmentSpan
from kts_source.read.slice_boundaries import usable_offset_index
from kts_source.store.joined_store import mirror_of
from kts_source.texts import printable
from segment_format.errors import (
    CorruptIndexError,
    CorruptRecordError,
    SegmentFormatError,
    TruncatedBatchError,
)
from segment_format.index.checkpoints import EpochEntry, LeaderEpochCheckpoint
from segment_format.index.producer_snapshot import ProducerStateEntry, parse_producer_snapshot
from segment_format.index.rebuild import TransactionReplay
from segment_format.index.sparse_indexes import TimeIndex
from segment_format.index.transaction_index import AbortedTxn, parse_transaction_index
from segment_format.record.batch_header import MAGIC_2, RecordBatchHeader
from segment_format.record.control_record import marker_of
from segment_format.record.framing import iter_entries
from segment_format.record.records import DecodedBatch, EntryTimes, iter_batches, iter_record_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kts_source.planning.lineage import SegmentRange
    from kts_source.read.segment_source import SegmentSource
    from kts_source.store.joined_store import FallbackStore
    from segment_format.index.sparse_indexes import OffsetIndex

_Index = TypeVar("_Index")
_Read = TypeVar("_Read", bound="DecodedBatch | EntryTimes | _EntryEpoch")
log = logging.getLogger(__name__)

_MAX_CACHED_BYTES: Final = 64 << 10
"""Maximum bytes of an index to cache. A segment often contains several bounds or task borders."""
_MAX_CACHED: Final = 4


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of reading the transactions of a range from its batch headers.

    Attributes:
        aborted: Transactions that have an abort marker in the range.
        open_after: First offset of each transaction that is open at the end of the range, by
            producer id.
    """

    aborted: tuple[AbortedTxn, ...]
    open_after: Mapping[int, int]


class SideFiles:
    """Reads the side files of segments. Not thread-safe.

    Args:
        max_batch_bytes: Maximum size of a record batch.

    Attributes:
        bounds: First offset and end of the wanted offsets. All side files of a segment that
            contains one of these two offsets are read together, because all are needed.
    """

    def __init__(self, source: SegmentSource, *, max_batch_bytes: int) -> None:
        self._source = source
        self._max_batch_bytes = max_batch_bytes
        self._offset_indexes: dict[tuple[str, str | None], OffsetIndex | None] = {}
        self._time_indexes: dict[tuple[str, str | None], TimeIndex | None] = {}
        self.bounds: tuple[int, ...] = ()

    @property
    def mirror(self) -> FallbackStore | None:
        """The tier with its mirror; `None` if there is no mirror."""
        return mirror_of(self._source.store)

    def leader_epochs(self, segment: RemoteSegment) -> LeaderEpochCheckpoint:
        """Returns the leader-epoch checkpoint that was uploaded with a segment.

        Raises:
            CorruptSegmentError: The checkpoint is missing, invalid, or contradicts the segment's
                manifest.
        """
        try:
            return self._checked_epochs(segment)
        except CorruptSegmentError as error:
            mirrored = self._mirrored(segment, error)
            if mirrored is None:
                raise
        return self._checked_epochs(mirrored)

    def _checked_epochs(self, segment: RemoteSegment) -> LeaderEpochCheckpoint:
        data = self._read(segment, IndexType.LEADER_EPOCH)
        try:
            checkpoint = LeaderEpochCheckpoint.from_bytes(data or b"")
            check_own_epochs(checkpoint.entries, segment)
        except SegmentFormatError as error:
            raise self._located(error, segment, "leader-epoch checkpoint") from error
        return checkpoint

    def offset_index(self, segment: RemoteSegment) -> OffsetIndex | None:
        """Returns the offset index, or `None` if it is empty or invalid."""
        key = segment.objects.log.key, segment.objects.log.version
        if key in self._offset_indexes:
            return self._offset_indexes[key]
        data = self._read(segment, IndexType.OFFSET)
        index = usable_offset_index(data, segment.start_offset, segment.objects.size_in_bytes)
        _cache(self._offset_indexes, key, index, data)
        return index

    def time_index(self, segment: RemoteSegment) -> TimeIndex | None:
        """Returns the time index; `None` if it does not exist or contradicts the segment.

        A time index has no checksum, so callers must compare an entry with the log before they use
        it.
        """
        key = segment.objects.log.key, segment.objects.log.version
        if key in self._time_indexes:
            return self._time_indexes[key]
        data = self._read(segment, IndexType.TIMESTAMP)
        index = None
        try:
            index = TimeIndex.from_bytes(data, base_offset=segment.start_offset) if data else None
            if index is not None:
                check_time_index(index, segment)
        except SegmentFormatError as error:
            log.warning("%s", self._located(error, segment, "time index"))
            index = None
        _cache(self._time_indexes, key, index, data)
        return index

    def snapshot(self, segment: RemoteSegment) -> tuple[ProducerStateEntry, ...] | None:
        """Returns the producer states at the segment's end; `None` if the producer snapshot is
        missing or invalid.
        """
        data = self._read(segment, IndexType.PRODUCER_SNAPSHOT)
        try:
            return parse_producer_snapshot(data) if data else None
        except SegmentFormatError as error:
            log.warning("%s", self._located(error, segment, "producer snapshot"))
            return None

    def aborted(self, segment: RemoteSegment) -> tuple[AbortedTxn, ...] | None:
        """Reads the transaction index of a segment, and returns the transactions whose abort marker
        is in the segment. Returns `None` if the index is invalid or belongs to another segment.
        """
        data = self._read(segment, IndexType.TRANSACTION)
        try:
            entries = parse_transaction_index(data) if data else ()
            for txn in entries:
                check_transaction(txn, segment)
        except SegmentFormatError as error:
            log.warning("%s", self._located(error, segment, "transaction index"))
            return None
        return entries

    def contradicted(
        self, segment: RemoteSegment, error: SegmentFormatError
    ) -> CorruptSegmentError:
        """Returns the error about a transaction index that the log or a producer snapshot
        contradicts.
        """
        return self._located(error, segment, "transaction index")

    def replay(self, span: SegmentRange, open_before: Mapping[int, int]) -> Replay:
        """Reads the batches of a range, and returns the transactions that are aborted in the range
        or open at its end. `open_before` has the transactions that are open at its start.
        """
        return replay_batches(self.batches(span.segment, 0), span, open_before)

    def first_ends(
        self, span: SegmentRange, open_before: Mapping[int, int]
    ) -> tuple[AbortedTxn, ...]:
        """Returns the transactions in `open_before` that are aborted in a range. `open_before` has
        the transactions that are open at its start. Reads the log until their last marker.
        """
        return first_ends(self._whole_entries(span.segment, 0, _control_batches), span, open_before)

    def has_records(self, span: SegmentRange, producer_id: int, start: int, stop: int) -> bool:
        """Returns whether a range has transactional records of a producer at offsets [start, stop).

        Reads the log up to the first such record.
        """
        stop = min(stop, span.stop)
        for entry in self._whole_entries(span.segment, 0, _epochs):
            if entry.base_offset >= stop:
                break
            if entry.producer_id == producer_id and entry.last_offset >= max(start, span.start):
                return True
        return False

    def batches(self, segment: RemoteSegment, position: int) -> Iterator[DecodedBatch]:
        """Yields the decoded batches of a segment from a byte position on."""
        return self._whole_entries(
            segment, position, partial(iter_batches, max_batch_bytes=self._max_batch_bytes)
        )

    def batch_epochs(self, segment: RemoteSegment) -> Iterator[tuple[int, int]]:
        """Yields base offset and leader epoch of the first batch of a segment, and of all batches
        after the last entry of its offset index. The epoch is −1 in message formats 0 and 1.
        """
        first = islice(self._whole_entries(segment, 0, _epochs), 1)
        index = self.offset_index(segment)
        position = int(index.positions[-1]) if index is not None else 0
        for entry in chain(first, self._whole_entries(segment, position, _epochs)):
            yield entry.base_offset, entry.epoch

    def last_batch_stop(self, segment: RemoteSegment) -> int | None:
        """Returns one past the last offset of a segment's last batch; `None` if the segment has no
        batch, or its log cannot be read. In the second case, a later read of its rows reports the
        error.
        """
        is_archived = segment.objects.log.storage_class in ARCHIVE_CLASSES
        if is_archived or not segment.objects.size_in_bytes:
            return None
        stop = None
        try:
            index = self.offset_index(segment)
            position = int(index.positions[-1]) if index is not None else 0
            for entry in self._whole_entries(segment, position, _epochs):
                stop = entry.last_offset + 1
        except (SegmentFormatError, TieredKafkaError) as error:
            log.warning("%s", printable(str(error)))
            return None
        return stop

    def record_times(
        self, segment: RemoteSegment, position: int, *, dated_from_ms: int
    ) -> Iterator[tuple[int, int]]:
        """Yields offset and timestamp (ms since 1970) of each record of a segment, from a byte
        position on. Skips batches whose largest timestamp is below `dated_from_ms`.
        """
        read = partial(
            iter_record_times, dated_from_ms=dated_from_ms, max_batch_bytes=self._max_batch_bytes
        )
        for entry in self._whole_entries(segment, position, read):
            try:
                yield from entry.times
            except SegmentFormatError as error:
                # The position in the log is unknown here; the offset identifies the batch.
                raise self._located(error, segment, "record batch", None) from error

    def _whole_entries(
        self, segment: RemoteSegment, position: int, read: Callable[[bytes], Iterator[_Read]]
    ) -> Iterator[_Read]:
        """Yields the entries of a segment's log from a byte position on. Yields an entry only after
        the next entry was read and has higher offsets, because no checksum covers the base offset
        of a batch. If the log is invalid, continues in the mirror.
        """
        read_to = -1
        try:
            for entry in self._confirmed_entries(segment, position, read):
                yield entry
                read_to = entry.last_offset
        except CorruptSegmentError as error:
            mirrored = self._mirrored(segment, error)
            if mirrored is None:
                raise
        else:
            return
        for entry in self._confirmed_entries(mirrored, position, read):
            if entry.last_offset > read_to:
                yield entry

    def _mirrored(self, segment: RemoteSegment, error: TieredKafkaError) -> RemoteSegment | None:
        objects = self._source.mirrored(segment.objects, error, with_indexes=True)
        return None if objects is None else replace(segment, objects=objects)

    def _confirmed_entries(
        self, segment: RemoteSegment, position: int, read: Callable[[bytes], Iterator[_Read]]
    ) -> Iterator[_Read]:
        waiting: _Read | None = None
        for entry in self._entries(segment, position, read):
            if waiting is not None:
                yield waiting
            waiting = entry
        if waiting is not None:
            yield waiting

    def _entries(
        self, segment: RemoteSegment, position: int, read: Callable[[bytes], Iterator[_Read]]
    ) -> Iterator[_Read]:
        """Yields the entries of a segment's log from a byte position on. Checks that their offsets
        ascend and are inside the segment.
        """
        least = segment.start_offset
        pending = b""
        entry_position = position
        # Read only one chunk first, because it nearly always contains the wanted entry.
        chunk = segment.objects.chunk_index.original_chunk_size
        borders = (position, position // chunk * chunk + chunk, segment.objects.size_in_bytes)
        fields = segment.topic, segment.partition, segment.start_offset, segment.objects
        spans = (SegmentSpan(*fields, low, high) for low, high in pairwise(borders))
        try:
            for _, window in self._source.windows(spans):
                pending += window
                complete = _whole_entries(pending)
                for entry in read(pending[:complete]):
                    _require_order(entry, least, segment.stop_offset)
                    least = entry.last_offset + 1
                    yield entry
                pending = pending[complete:]
                entry_position += complete
            yield from read(pending)  # an incomplete entry: this raises
        except SegmentFormatError as error:
            raise self._located(error, segment, "record batch", entry_position) from error

    def _read(self, segment: RemoteSegment, kind: IndexType) -> bytes | None:
        if kind not in segment.objects.indexes:  # usually a transaction index
            return None
        is_cut = any(segment.start_offset < o < segment.stop_offset for o in self.bounds)
        return self._source.index(segment.objects, kind, is_cut=is_cut)

    def _located(
        self, error: SegmentFormatError, segment: RemoteSegment, what: str, base: int | None = 0
    ) -> CorruptSegmentError:
        return CorruptSegmentError(
            f"{what}: {error.message}",
            topic=segment.topic,
            partition=segment.partition,
            offset=segment.start_offset if error.offset is None else error.offset,
            uri=self._source.store.uri(segment.objects.log.key),
            position=None if error.position is None or base is None else base + error.position,
        )


def check_own_epochs(entries: Sequence[EpochEntry], segment: RemoteSegment) -> None:
    """Raises `CorruptIndexError` if the leader epochs in a segment's manifest differ from
    `entries`, the entries of the segment's checkpoint. Ignores offsets below the first entry of the
    manifest or of the checkpoint.
    """
    if not entries or not segment.leader_epochs:
        return
    # The log start may have moved between the writes of the two files.
    low = max(segment.start_offset, entries[0].start_offset, segment.leader_epochs[0].start_offset)
    here = epochs_between(entries, low, segment.end_offset)
    own = epochs_between(segment.leader_epochs, low, segment.end_offset)
    if low <= segment.end_offset and here != own:
        raise CorruptIndexError(
            f"the checkpoint has {epochs_text(here)} for offsets [{low}, {segment.stop_offset}),"
            f" but the segment's manifest has {epochs_text(own)}: one of the two is damaged"
        )


def epochs_text(entries: Iterable[EpochEntry]) -> str:
    """Returns a text for a message that lists epochs and their first offsets."""
    texts = (f"epoch {entry.epoch} from {entry.start_offset}" for entry in entries)
    return ", ".join(texts) or "no epoch"


def check_transaction(txn: AbortedTxn, segment: RemoteSegment) -> None:
    """Raises `CorruptIndexError` if the abort marker of a transaction-index entry is not in the
    segment, or if the entry has a last stable offset of more than one above the marker.
    """
    if not segment.start_offset <= txn.last_offset <= segment.end_offset:
        raise CorruptIndexError(
            f"an entry has its abort marker at offset {txn.last_offset}, which is not in the"
            f" segment's offsets [{segment.start_offset}, {segment.stop_offset})"
        )
    if txn.last_stable_offset > txn.last_offset + 1:
        raise CorruptIndexError(
            f"an entry has last stable offset {txn.last_stable_offset}, which is above its abort"
            f" marker at offset {txn.last_offset}"
        )


def check_time_index(index: TimeIndex, segment: RemoteSegment) -> None:
    """Raises `CorruptIndexError` if the last entry of a time index has an offset after the segment,
    or a timestamp other than the largest timestamp of the segment.
    """
    if not len(index):
        return
    offset, last_ms = int(index.offsets[-1]), int(index.timestamps[-1])
    if offset > segment.end_offset:
        raise CorruptIndexError(
            f"the last entry has offset {offset}, but the last offset of the segment is"
            f" {segment.end_offset}"
        )
    if segment.max_timestamp_ms >= 0 and last_ms != segment.max_timestamp_ms:
        raise CorruptIndexError(
            f"the last entry has timestamp {last_ms} ms, but the largest timestamp of the segment"
            f" is {segment.max_timestamp_ms} ms"
        )


def _cache(
    cache: dict[tuple[str, str | None], _Index],
    key: tuple[str, str | None],
    index: _Index,
    data: bytes | None,
) -> None:
    if len(data or b"") > _MAX_CACHED_BYTES:
        return
    if len(cache) == _MAX_CACHED:
        del cache[next(iter(cache))]
    cache[key] = index


def replay_batches(
    batches: Iterable[DecodedBatch], span: SegmentRange, open_before: Mapping[int, int]
) -> Replay:
    """Returns the transactions that are aborted in a range or open at its end. `batches` are those
    of the range's segment, ascending by offset. `open_before` has the first offset of each
    transaction that is open at the start of the range, by producer id.
    """
    state = TransactionReplay(open_before)
    for batch in batches:
        if batch.last_offset < span.start:
            continue
        if batch.base_offset >= span.stop:
            break
        state.apply(batch, marker_of(batch))
    return Replay(tuple(state.aborted), state.open)


def first_ends(
    batches: Iterable[DecodedBatch | _EntryEpoch],
    span: SegmentRange,
    open_before: Mapping[int, int],
) -> tuple[AbortedTxn, ...]:
    """Returns the transactions in `open_before` that are aborted in a range. Uses only the control
    batches in `batches`, the ascending entries of the range's segment. `open_before` has the first
    offset of each transaction that is open at the start of the range, by producer id.
    """
    waiting = set(open_before)
    state = TransactionReplay(open_before)
    if not waiting:
        return ()
    for batch in batches:
        if batch.base_offset >= span.stop:
            break
        if (
            isinstance(batch, DecodedBatch)
            and batch.last_offset >= span.start
            and batch.producer_id in waiting
        ):
            marker = marker_of(batch)
            state.apply(batch, marker)
            if marker is not None:
                waiting.remove(batch.producer_id)
                if not waiting:
                    break
    return tuple(state.aborted)


@dataclass(frozen=True, slots=True)
class _EntryEpoch:
    """Position, offsets, leader epoch and producer of an entry of a log.

    The epoch is −1 in message formats 0 and 1. The producer id is −1 if the entry has no
    transactional records.
    """

    position: int
    base_offset: int
    last_offset: int
    epoch: int
    producer_id: int = -1


def _epochs(data: bytes) -> Iterator[_EntryEpoch]:
    """Yields position, offsets, leader epoch and producer of each complete entry in `data`."""
    for entry in iter_entries(data):
        if entry.magic == MAGIC_2:
            header = RecordBatchHeader.from_bytes(data, entry.position)
            epoch = header.partition_leader_epoch
            has_records = header.record_count and not header.is_control_batch
            producer_id = header.producer_id if header.is_transactional and has_records else -1
            yield _EntryEpoch(
                entry.position, header.base_offset, header.last_offset, epoch, producer_id
            )
        else:
            yield _EntryEpoch(entry.position, entry.offset, entry.offset, -1)


def _control_batches(data: bytes) -> Iterator[DecodedBatch | _EntryEpoch]:
    """Yields each complete entry in `data`: control batches decoded, and only the headers of other
    entries.
    """
    for entry in iter_entries(data):
        if entry.magic != MAGIC_2:
            yield _EntryEpoch(entry.position, entry.offset, entry.offset, -1)
            continue
        header = RecordBatchHeader.from_bytes(data, entry.position)
        if header.is_control_batch:
            for batch in iter_batches(data[entry.position : entry.stop]):
                yield replace(batch, position=entry.position)
        else:
            epoch = header.partition_leader_epoch
            yield _EntryEpoch(entry.position, header.base_offset, header.last_offset, epoch)


def _require_order(entry: DecodedBatch | EntryTimes | _EntryEpoch, least: int, stop: int) -> None:
    """Raises `CorruptRecordError` if the offsets of an entry do not ascend, or are outside [least,
    stop).
    """
    first, last = entry.base_offset, entry.last_offset
    if not least <= first <= last < stop:
        raise CorruptRecordError(
            f"an entry has offsets {first} to {last}, but the next offsets must be in"
            f" [{least}, {stop})",
            position=entry.position,
            offset=first if least <= first < stop else least,
        )


def _whole_entries(data: bytes) -> int:
    """Returns the size of the complete entries at the start of `data`. Returns the size of `data`
    if an entry is invalid, so that the caller reads the entry and gets the error.
    """
    stop = 0
    try:
        for entry in iter_entries(data):
            stop = entry.stop
    except TruncatedBatchError:
        return stop
    except SegmentFormatError:
        return len(data)
    return stop
