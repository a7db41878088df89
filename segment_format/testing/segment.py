"""Writes the files of closed segments in the form in which brokers write them.

    .index      8 bytes an entry: i32 offset - base offset, i32 file position
    .timeindex  12 bytes an entry: i64 timestamp, i32 offset - base offset
    .txnindex   34 bytes an entry: i16 version 0, i64 producer id, first offset, last offset, last
                stable offset
    .snapshot   i16 version 1, u32 CRC-32C from byte 6, i32 count, 46 bytes an entry
    epochs      text: "0", number of entries, then "epoch start_offset" a line

Source: `LogSegment`, `OffsetIndex`, `TimeIndex`, `TransactionIndex`, `ProducerStateManager`,
`ProducerAppendInfo`, `LeaderEpochCheckpointFile` of `org.apache.kafka.storage.internals`.
"""

from __future__ import annotations

import struct
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING

from segment_format.testing.batches import NO_TIMESTAMP, crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """One entry of a transaction index.

    Attributes:
        producer_id: Id of the transaction's producer.
        first_offset: Base offset of its first batch in the partition.
        last_offset: Offset of its abort marker.
        last_stable_offset: First offset of the oldest transaction that is still open after the
            abort marker. If none is open, the offset after the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """One entry of a producer snapshot.

    Attributes:
        last_sequence: Last sequence of the producer's last batch; -1 if it wrote only markers.
        last_offset: Last offset of the last batch; -1 if it wrote only markers.
        offset_delta: Last offset minus first offset of the last batch.
        timestamp: Milliseconds since 1970: the timestamp of the last marker, or the largest
            timestamp of the last batch if no marker follows the batch.
        coordinator_epoch: Coordinator epoch of the last marker; -1 if there is none.
        current_txn_first_offset: First offset of the open transaction; -1 if none is open.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def write_offset_index(entries: Iterable[tuple[int, int]], *, base_offset: int) -> bytes:
    """Returns the content of a `.index` file. `entries` are (absolute offset, file position)."""
    return b"".join(
        struct.pack(">ii", offset - base_offset, position) for offset, position in entries
    )


def write_time_index(entries: Iterable[tuple[int, int]], *, base_offset: int) -> bytes:
    """Returns the content of a `.timeindex` file. `entries` are (timestamp in ms, absolute
    offset).
    """
    return b"".join(struct.pack(">qi", time, offset - base_offset) for time, offset in entries)


def write_transaction_index(transactions: Iterable[AbortedTransaction]) -> bytes:
    """Returns the content of a `.txnindex` file."""
    return b"".join(struct.pack(">hqqqq", 0, *astuple(entry)) for entry in transactions)


def write_producer_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """Returns the content of a `.snapshot` file."""
    packed = [struct.pack(">qhiqiqiq", *astuple(entry)) for entry in entries]
    body = struct.pack(">i", len(packed)) + b"".join(packed)
    return struct.pack(">hI", 1, crc32c(body)) + body


def write_leader_epoch_checkpoint(epochs: Iterable[tuple[int, int]]) -> bytes:
    """Returns the content of a `leader-epoch-checkpoint` file. `epochs` are (epoch, start offset),
    in ascending order.
    """
    lines = [f"{epoch} {start}" for epoch, start in epochs]
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()


SEQUENCE_LIMIT = 1 << 31
"""Sequence numbers run from 0 to 2^31 - 1 and start again at 0."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction that wrote data to the partition.

    Attributes:
        first_offset: Base offset of its first batch.
        marker_offset: Offset of the marker that ended it; None while it is open.
        committed: True if it was committed; None while it is open.
    """

    producer_id: int
    first_offset: int
    marker_offset: int | None = None
    committed: bool | None = None


class ProducerStates:
    """Tracks the producers and transactions of one partition. The caller adds the batches and
    markers in offset order.
    """

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._open: dict[int, int] = {}
        self.transactions: list[Transaction] = []
        """Every transaction with data, in the order of their first offsets."""

    def epoch(self, producer_id: int) -> int | None:
        """Returns the newest epoch of a producer; None if the producer has not written to the
        partition.
        """
        entry = self._entries.get(producer_id)
        return None if entry is None else entry.producer_epoch

    def next_sequence(self, producer_id: int, producer_epoch: int) -> int:
        """Returns the sequence number of the producer's next record. It is 0 if `producer_epoch` is
        new.
        """
        entry = self._entries.get(producer_id)
        if entry is None or entry.producer_epoch != producer_epoch:
            return 0
        return (entry.last_sequence + 1) % SEQUENCE_LIMIT

    def open_transaction(self, producer_id: int) -> int | None:
        """Returns the producer's open transaction as an index into `transactions`. Returns None if
        the producer has no open transaction.
        """
        return self._open.get(producer_id)

    def add_data(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        last_sequence: int,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        transactional: bool,
    ) -> None:
        """Records a data batch. A transactional batch opens a transaction if the producer has no
        open transaction.

        Raises:
            ValueError: The batch is not transactional, but the producer has an open transaction.
        """
        entry = self._entries.get(producer_id)
        if producer_id in self._open and not transactional:
            raise ValueError(
                f"producer {producer_id} has an open transaction, so its batches must be "
                "transactional"
            )
        if transactional and producer_id not in self._open:
            self._open[producer_id] = len(self.transactions)
            self.transactions.append(Transaction(producer_id, base_offset))
        position = self._open.get(producer_id)
        self._entries[producer_id] = ProducerEntry(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            last_sequence=last_sequence,
            last_offset=last_offset,
            offset_delta=last_offset - base_offset,
            timestamp=max_timestamp,
            coordinator_epoch=-1 if entry is None else entry.coordinator_epoch,
            current_txn_first_offset=(
                -1 if position is None else self.transactions[position].first_offset
            ),
        )

    def add_marker(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        offset: int,
        timestamp: int,
        committed: bool,
    ) -> AbortedTransaction | None:
        """Records a marker. Returns the entry for the transaction index if the marker aborts a
        transaction with data; None otherwise.
        """
        entry = self._entries.get(producer_id)
        if entry is None or entry.producer_epoch != producer_epoch:
            entry = ProducerEntry(
                producer_id, producer_epoch, -1, -1, 0, timestamp, coordinator_epoch, -1
            )
        self._entries[producer_id] = replace(
            entry,
            timestamp=timestamp,
            coordinator_epoch=coordinator_epoch,
            current_txn_first_offset=-1,
        )
        position = self._open.pop(producer_id, None)
        if position is None:
            return None
        begun = self.transactions[position]
        self.transactions[position] = replace(begun, marker_offset=offset, committed=committed)
        if committed:
            return None
        others = [self.transactions[index].first_offset for index in self._open.values()]
        return AbortedTransaction(
            producer_id, begun.first_offset, offset, min(others, default=offset + 1)
        )

    def snapshot(self) -> tuple[ProducerEntry, ...]:
        """Returns the entries for a producer snapshot file, ordered by producer id."""
        return tuple(self._entries[producer_id] for producer_id in sorted(self._entries))


DEFAULT_INDEX_INTERVAL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """The files of one segment that a broker passes to a storage plugin.

    Attributes:
        next_offset: End of the segment, exclusive: the base offset of the next segment. There may
            be unused offsets between the last batch and this offset.
        log: The `.log` file.
        txnindex: The `.txnindex` file; None when no transaction was aborted in the segment.
        snapshot: Producer snapshot at the segment's end.
        leader_epoch_checkpoint: The `leader-epoch-checkpoint` file with the leader epochs from the
            log start to `next_offset`.
        max_timestamp_ms: Largest batch timestamp; -1 if no batch has one.
        epochs: Leader epochs and their first offsets in the segment, in ascending order.
    """

    base_offset: int
    next_offset: int
    log: bytes
    index: bytes
    timeindex: bytes
    txnindex: bytes | None
    snapshot: bytes
    leader_epoch_checkpoint: bytes
    max_timestamp_ms: int
    epochs: tuple[tuple[int, int], ...]

    @property
    def end_offset(self) -> int:
        """Last offset of the segment, inclusive, as in segment metadata."""
        return self.next_offset - 1


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """The fields of a log entry that are needed to build the indexes.

    Attributes:
        size: Size of the entry in bytes.
        last_offset: Last offset of the entry, inclusive.
        max_timestamp: Largest timestamp of the records, ms since 1970; -1 if no record has a
            timestamp.
    """

    size: int
    last_offset: int
    max_timestamp: int


class IndexBuilder:
    """Builds the offset, time and transaction index of one segment as a broker does.

    An append adds an entry to the offset index if more than `interval_bytes` were appended since
    the previous entry. The entry contains the last offset and the position of the append. At the
    same time, an entry is added to the time index if the largest timestamp has increased. Closing
    the segment adds a last entry to the time index.
    """

    def __init__(
        self, base_offset: int, interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES
    ) -> None:
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._size = 0
        self._since_entry = 0
        self._offsets: list[tuple[int, int]] = []
        self._times: list[tuple[int, int]] = []
        self._aborted: list[AbortedTransaction] = []
        self._newest = (NO_TIMESTAMP, base_offset)

    @property
    def size(self) -> int:
        """Number of bytes that were appended to the segment's log so far."""
        return self._size

    @property
    def max_timestamp(self) -> int:
        """Largest timestamp so far, in ms since 1970; -1 if no batch has a timestamp."""
        return self._newest[0]

    def add_append(self, batches: list[BatchFacts]) -> None:
        """Adds the batches of one append to the indexes. The batches must be in the order of the
        log.
        """
        for batch in batches:
            if batch.max_timestamp > self._newest[0]:
                self._newest = (batch.max_timestamp, batch.last_offset)
        if self._since_entry > self._interval_bytes:
            self._offsets.append((batches[-1].last_offset, self._size))
            self._add_time()
            self._since_entry = 0
        written = sum(batch.size for batch in batches)
        self._size += written
        self._since_entry += written

    def add_aborted(self, entry: AbortedTransaction) -> None:
        """Adds an entry to the transaction index. The abort marker of the transaction must be in
        this segment.
        """
        self._aborted.append(entry)

    def close(self) -> tuple[bytes, bytes, bytes | None]:
        """Returns the contents of `.index`, `.timeindex` and `.txnindex`. The content of
        `.txnindex` is None if no transaction was aborted in the segment.
        """
        self._add_time()
        return (
            write_offset_index(self._offsets, base_offset=self._base_offset),
            write_time_index(self._times, base_offset=self._base_offset),
            write_transaction_index(self._aborted) if self._aborted else None,
        )

    def _add_time(self) -> None:
        last = self._times[-1][0] if self._times else NO_TIMESTAMP
        if self._newest[0] > last:
            self._times.append(self._newest)


class PartitionWriter:
    """Splits log entries into segments, and builds the files of each segment.

    Attributes:
        next_offset: Offset of the next entry. A caller may increase it to leave a hole.
        log_start: The partition's log start offset. A caller may increase it, as DeleteRecords
            does.
        log_starts: For each closed segment, the value of `log_start` at the time when the segment
            was closed.

    Args:
        producers: Producers of the partition, for the snapshots.
        start_offset: Base offset of the first segment.
        leader_epoch: Leader epoch of the log before the first call of `begin_epoch`.
        index_interval_bytes: Kafka's `index.interval.bytes`.
        segment_bytes: Maximum size of a segment. If an append would exceed it, a new segment
            begins. None means that only `roll` closes a segment.
    """

    def __init__(
        self,
        producers: ProducerStates,
        *,
        start_offset: int,
        leader_epoch: int,
        index_interval_bytes: int,
        segment_bytes: int | None,
    ) -> None:
        self._producers = producers
        self._interval = index_interval_bytes
        self._segment_bytes = segment_bytes
        self.next_offset = start_offset
        self.log_start = start_offset
        self.segments: list[SegmentFiles] = []
        self.log_starts: list[int] = []
        self._base = start_offset
        self._parts: list[bytes] = []
        self._indexes = IndexBuilder(start_offset, index_interval_bytes)
        self._group: list[BatchFacts] | None = None
        self._lineage = [(leader_epoch, start_offset)]
        self._has_epochs = False

    def begin_epoch(self, epoch: int) -> None:
        """Begins a leader epoch at `next_offset`. The epoch is recorded only if an entry is written
        in it.

        Raises:
            ValueError: `epoch` is not higher than the previous leader epoch.
        """
        if epoch <= self.leader_epoch:
            raise ValueError(
                f"leader epoch {epoch} follows {self.leader_epoch}, but epochs must increase"
            )
        if self._lineage[-1][1] == self.next_offset:
            self._lineage.pop()
        self._lineage.append((epoch, self.next_offset))

    @property
    def leader_epoch(self) -> int:
        """Epoch of the current leader."""
        return self._lineage[-1][0]

    def write(
        self, data: bytes, base: int, last: int, max_timestamp: int, *, legacy: bool = False
    ) -> None:
        """Writes an entry with the offsets `base` to `last`, inclusive. `legacy` must be true for
        entries of magic 0 and 1, which have no leader epoch.
        """
        limit = self._segment_bytes
        full = limit is not None and self._indexes.size + len(data) > limit
        if full and self._parts and not self._group:
            self.roll()
        self._parts.append(data)
        facts = BatchFacts(len(data), last, max_timestamp)
        if self._group is None:
            self._indexes.add_append([facts])
        else:
            self._group.append(facts)
        self.next_offset = last + 1
        if not legacy:
            self._has_epochs = True
        elif not self._has_epochs:
            # Legacy entries have no leader epoch, so epochs begin with the first leader that writes
            # magic 2.
            self._lineage = [(self.leader_epoch, self.next_offset)]

    def add_aborted(self, entry: AbortedTransaction) -> None:
        """Adds an entry to the transaction index. The last written entry of the log must be the
        abort marker of the transaction.
        """
        self._indexes.add_aborted(entry)

    @contextmanager
    def one_append(self) -> Iterator[None]:
        """Writes all entries of the `with` block as a single append. An append gets at most one
        entry in each index.
        """
        self._group = []
        try:
            yield
        finally:
            group, self._group = self._group, None
            if group:
                self._indexes.add_append(group)

    def roll(self) -> SegmentFiles | None:
        """Closes the current segment and returns its files. Returns None if the segment is empty.

        Raises:
            ValueError: Called inside `one_append`.
        """
        if self._group:
            raise ValueError("a segment cannot be closed inside `one_append`")
        if not self._parts:
            return None
        index, timeindex, txnindex = self._indexes.close()
        segment = SegmentFiles(
            base_offset=self._base,
            next_offset=self.next_offset,
            log=b"".join(self._parts),
            index=index,
            timeindex=timeindex,
            txnindex=txnindex,
            snapshot=write_producer_snapshot(self._producers.snapshot()),
            leader_epoch_checkpoint=write_leader_epoch_checkpoint(
                self._epochs_from(self.log_start)
            ),
            max_timestamp_ms=self._indexes.max_timestamp,
            epochs=tuple(self._epochs_from(self._base)),
        )
        self.segments.append(segment)
        self.log_starts.append(self.log_start)
        self._base = self.next_offset
        self._parts = []
        self._indexes = IndexBuilder(self._base, self._interval)
        return segment

    def _epochs_from(self, offset: int) -> list[tuple[int, int]]:
        """Returns (leader epoch, start offset) of each epoch that has offsets at or above `offset`.
        As in Kafka's epoch cache, the first of these epochs starts at `offset`.
        """
        end = self.next_offset
        kept = [(epoch, start) for epoch, start in self._lineage if offset < start < end]
        before = [epoch for epoch, start in self._lineage if start <= offset]
        return [(before[-1], offset), *kept] if before else kept
