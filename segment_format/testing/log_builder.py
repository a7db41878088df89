"""A partition log written as a broker would: batches, transactions, rolls, side files, and truth.

builder = LogBuilder(codec="zstd")
builder.append([SimpleRecord(b"plain")])
builder.send(7, [SimpleRecord(b"in a transaction")])
builder.roll()
builder.abort(7)
log = builder.build()          # two segments; log.rows("read_committed") is the plain record

What a reader has to return for a log that was built here: the model to compare readers with.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segment_format.testing.batches import (
    CREATE_TIME,
    DEFAULT_TIMESTAMP_MS,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    SimpleRecord,
    assign_offsets,
    write_batch,
    write_control_batch,
    write_empty_batch,
)
from segment_format.testing.legacy import write_message_set
from segment_format.testing.segment import (
    DEFAULT_INDEX_INTERVAL_BYTES,
    SEQUENCE_LIMIT,
    PartitionWriter,
    ProducerStates,
    SegmentFiles,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from segment_format.testing.segment import Transaction


READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"


@dataclass(frozen=True, slots=True)
class ExpectedRow:
    """One data record as a consumer sees it, with the facts of its batch.

    Attributes:
        offset: Absolute offset.
        timestamp: Milliseconds; -1 for none.
        timestamp_type: 0 CreateTime, 1 LogAppendTime, -1 none (magic 0).
        key: Bytes or None.
        value: Bytes or None.
        headers: In order; empty for none.
        leader_epoch: Of the batch; -1 for none.
        producer_id: -1 for none.
        producer_epoch: -1 for none.
        sequence: -1 for none.
        transactional: Whether the batch belongs to a transaction.
        batch_base_offset: Base offset of the batch.
        codec: Name of the batch's codec.
        transaction: Position in the log's `transactions`; None outside of one.
    """

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    sequence: int
    transactional: bool
    batch_base_offset: int
    codec: str
    transaction: int | None = None


@dataclass(frozen=True, slots=True)
class BuiltLog:
    """A partition's closed segments and the truth about them.

    Attributes:
        segments: In offset order, each ending where the next one begins.
        all_rows: Every data record ever written, in offset order, whatever became of it.
        transactions: Every transaction with data, by first offset.
        log_starts: Per segment, the partition's log start offset when the segment was closed.
    """

    segments: tuple[SegmentFiles, ...]
    all_rows: tuple[ExpectedRow, ...]
    transactions: tuple[Transaction, ...]
    log_starts: tuple[int, ...]

    def end_offset(self, segment_count: int | None = None) -> int:
        """Exclusive end of the first `segment_count` segments (None: of all)."""
        return self._prefix(segment_count)[-1].next_offset

    def last_stable_offset(self, segment_count: int | None = None) -> int:
        """Where read_committed has to stop, if only the first `segment_count` segments are tiered.

        That is the first offset of the oldest transaction whose marker lies at or beyond the tier's
        end, else the end itself.
        """
        end = self.end_offset(segment_count)
        return min(
            (
                begun.first_offset
                for begun in self.transactions
                if begun.first_offset < end
                and (begun.marker_offset is None or begun.marker_offset >= end)
            ),
            default=end,
        )

    def rows(
        self,
        isolation: str = READ_COMMITTED,
        *,
        start: int | None = None,
        stop: int | None = None,
        segment_count: int | None = None,
    ) -> tuple[ExpectedRow, ...]:
        """The rows of offsets `[start, stop)` that a tier of the first segments proves.

        Args:
            isolation: `READ_COMMITTED` or `READ_UNCOMMITTED`.
            start: First offset; None means the log start.
            stop: Exclusive end; None means the end of the tier.
            segment_count: How many segments are tiered; None means all.

        Raises:
            ValueError: An isolation level of another name.
        """
        if isolation not in (READ_COMMITTED, READ_UNCOMMITTED):
            raise ValueError(f"unknown isolation level {isolation!r}")
        committed_only = isolation == READ_COMMITTED
        count = len(self._prefix(segment_count))
        first = max(start or 0, self.log_starts[count - 1], self.segments[0].base_offset)
        end = self.last_stable_offset(count) if committed_only else self.end_offset(count)
        if stop is not None:
            end = min(end, stop)
        return tuple(
            row
            for row in self.all_rows
            if first <= row.offset < end and not (committed_only and self._aborted(row))
        )

    def _aborted(self, row: ExpectedRow) -> bool:
        return row.transaction is not None and self.transactions[row.transaction].committed is False

    def _prefix(self, segment_count: int | None) -> tuple[SegmentFiles, ...]:
        prefix = self.segments[:segment_count]
        if not prefix:
            raise ValueError("a tier without segments has no end")
        return prefix


class LogBuilder:
    """Appends to one partition and cuts it into segments.

    Args:
        start_offset: Base offset of the first segment.
        leader_epoch: Epoch of the first appends.
        codec: Codec of batches that name none.
        index_interval_bytes: Kafka's `index.interval.bytes`.
        segment_bytes: Rolls by itself before an append that would make a segment larger; None rolls
            only when told.
    """

    def __init__(
        self,
        *,
        start_offset: int = 0,
        leader_epoch: int = 0,
        codec: str = "none",
        index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
        segment_bytes: int | None = None,
    ) -> None:
        self._codec = codec
        self._producers = ProducerStates()
        self._files = PartitionWriter(
            self._producers,
            start_offset=start_offset,
            leader_epoch=leader_epoch,
            index_interval_bytes=index_interval_bytes,
            segment_bytes=segment_bytes,
        )
        self._rows: list[ExpectedRow] = []

    @property
    def next_offset(self) -> int:
        """Offset that the next append gets."""
        return self._files.next_offset

    def set_leader_epoch(self, epoch: int) -> None:
        """A new leader: the following appends carry its epoch.

        Raises:
            ValueError: `epoch` is not higher than the one before.
        """
        self._files.begin_epoch(epoch)

    def skip_offsets(self, count: int) -> None:
        """A hole of `count` offsets between batches, as compaction leaves it."""
        self._files.next_offset += count

    def delete_records_before(self, offset: int) -> None:
        """The log start moves: later epoch checkpoints begin at it."""
        self._files.log_start = max(self._files.log_start, offset)

    @contextmanager
    def one_append(self) -> Iterator[None]:
        """Batches written inside count as one append, as a follower writes a whole fetch."""
        with self._files.one_append():
            yield

    def append(
        self,
        records: Sequence[SimpleRecord],
        *,
        codec: str | None = None,
        timestamp_type: int = CREATE_TIME,
        log_append_time: int = DEFAULT_TIMESTAMP_MS,
        producer_id: int = -1,
        producer_epoch: int = -1,
        transactional: bool = False,
        last_offset_delta: int | None = None,
        delete_horizon: int | None = None,
        base_offset: int | None = None,
    ) -> int:
        """One data batch; sequences of producers with an id count up by themselves.

        Args:
            records: The batch's records; own offsets make holes.
            codec: None takes the builder's.
            timestamp_type: `CREATE_TIME` or `LOG_APPEND_TIME`.
            log_append_time: Milliseconds, for `LOG_APPEND_TIME`.
            producer_id: -1 for none.
            producer_epoch: -1 takes the producer's newest, 0 for a new one.
            transactional: Opens the producer's transaction if none is open.
            last_offset_delta: See `write_batch`.
            delete_horizon: See `write_batch`.
            base_offset: None takes `next_offset`; a larger one leaves a hole.

        Returns:
            The batch's base offset.
        """
        codec = self._codec if codec is None else codec
        base = self._files.next_offset if base_offset is None else base_offset
        offsets = assign_offsets(records, base)
        last = max(offsets[-1] if offsets else base, base + (last_offset_delta or 0))
        sequence = -1
        if producer_id >= 0:
            producer_epoch = self._epoch_of(producer_id, producer_epoch)
            sequence = self._producers.next_sequence(producer_id, producer_epoch)
        appended = timestamp_type == LOG_APPEND_TIME
        newest = max((record.timestamp for record in records), default=NO_TIMESTAMP)
        if appended:
            newest = log_append_time
        data = write_batch(
            records,
            base_offset=base,
            codec=codec,
            leader_epoch=self._files.leader_epoch,
            timestamp_type=timestamp_type,
            max_timestamp=newest,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            transactional=transactional,
            last_offset_delta=last_offset_delta,
            delete_horizon=delete_horizon,
        )
        self._write(data, base, last, newest)
        if producer_id >= 0:
            self._producers.add_data(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                last_sequence=(sequence + last - base) % SEQUENCE_LIMIT,
                base_offset=base,
                last_offset=last,
                max_timestamp=newest,
                transactional=transactional,
            )
        position = self._producers.open_transaction(producer_id) if transactional else None
        self._rows += [
            ExpectedRow(
                offset=offset,
                timestamp=newest if appended else record.timestamp,
                timestamp_type=timestamp_type,
                key=record.key,
                value=record.value,
                headers=record.headers,
                leader_epoch=self._files.leader_epoch,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                sequence=-1 if sequence < 0 else (sequence + offset - base) % SEQUENCE_LIMIT,
                transactional=transactional,
                batch_base_offset=base,
                codec=codec,
                transaction=position,
            )
            for record, offset in zip(records, offsets, strict=True)
        ]
        return base

    def send(
        self,
        producer_id: int,
        records: Sequence[SimpleRecord],
        *,
        producer_epoch: int = -1,
        codec: str | None = None,
    ) -> int:
        """One transactional batch; the first one of a producer begins its transaction.

        Returns:
            The batch's base offset.
        """
        return self.append(
            records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=True,
        )

    def commit(
        self, producer_id: int, *, producer_epoch: int = -1, timestamp: int | None = None
    ) -> int:
        """A commit marker; returns its offset. Without an open transaction it changes nothing."""
        return self._end(producer_id, producer_epoch, timestamp, committed=True)

    def abort(
        self, producer_id: int, *, producer_epoch: int = -1, timestamp: int | None = None
    ) -> int:
        """An abort marker; returns its offset. Without an open transaction it changes nothing."""
        return self._end(producer_id, producer_epoch, timestamp, committed=False)

    def append_control(self, kind: str | int, *, timestamp: int = DEFAULT_TIMESTAMP_MS) -> int:
        """A control batch that ends no transaction, of a type other than abort and commit.

        Returns:
            Its offset.
        """
        data = write_control_batch(
            kind,
            base_offset=self._files.next_offset,
            timestamp=timestamp,
            leader_epoch=self._files.leader_epoch,
            transactional=False,
        )
        return self._write(data, self._files.next_offset, self._files.next_offset, timestamp)

    def append_empty_batch(
        self,
        offset_count: int,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        transactional: bool = False,
        control: bool = False,
        max_timestamp: int = DEFAULT_TIMESTAMP_MS,
    ) -> int:
        """A batch whose `offset_count` records compaction has removed.

        To the producer states it is like any batch: a transactional one opens a transaction. An
        empty control batch says nothing to them.

        Returns:
            The batch's base offset.
        """
        base = self._files.next_offset
        last = base + offset_count - 1
        sequence = -1
        if producer_id >= 0:
            producer_epoch = self._epoch_of(producer_id, producer_epoch)
            if not control:
                sequence = self._producers.next_sequence(producer_id, producer_epoch)
        data = write_empty_batch(
            base_offset=base,
            last_offset=last,
            max_timestamp=max_timestamp,
            leader_epoch=self._files.leader_epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            transactional=transactional,
            control=control,
        )
        self._write(data, base, last, max_timestamp)
        if producer_id >= 0 and not control:
            self._producers.add_data(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                last_sequence=(sequence + offset_count - 1) % SEQUENCE_LIMIT,
                base_offset=base,
                last_offset=last,
                max_timestamp=max_timestamp,
                transactional=transactional,
            )
        return base

    def append_message_set(
        self,
        records: Sequence[SimpleRecord],
        *,
        magic: int,
        codec: str = "none",
        timestamp_type: int = CREATE_TIME,
        log_append_time: int = DEFAULT_TIMESTAMP_MS,
    ) -> int:
        """A legacy message set: one entry a record, or one wrapper; returns its first offset."""
        offsets = assign_offsets(records, self._files.next_offset)
        appended = magic == 1 and timestamp_type == LOG_APPEND_TIME

        def time_of(record: SimpleRecord) -> int:
            if magic == 0:
                return NO_TIMESTAMP
            return log_append_time if appended else record.timestamp

        def write(some: Sequence[SimpleRecord], base: int, last: int) -> None:
            data = write_message_set(
                some,
                base_offset=base,
                magic=magic,
                codec=codec,
                timestamp_type=timestamp_type if magic == 1 else CREATE_TIME,
                log_append_time=log_append_time,
            )
            self._files.write(data, base, last, max(map(time_of, some)), legacy=True)
            self._rows += [
                ExpectedRow(
                    offset=offset,
                    timestamp=time_of(record),
                    timestamp_type=-1 if magic == 0 else timestamp_type,
                    key=record.key,
                    value=record.value,
                    headers=(),
                    leader_epoch=-1,
                    producer_id=-1,
                    producer_epoch=-1,
                    sequence=-1,
                    transactional=False,
                    batch_base_offset=base,
                    codec=codec,
                )
                for record, offset in zip(some, assign_offsets(some, base), strict=True)
            ]

        if codec == "none":
            for record, offset in zip(records, offsets, strict=True):
                write([record], offset, offset)
        else:
            write(records, offsets[0], offsets[-1])
        return offsets[0]

    def roll(self) -> SegmentFiles | None:
        """Closes the segment; the next one begins at `next_offset`.

        Returns:
            The segment's files, or None when nothing was written to it.

        Raises:
            ValueError: Inside `one_append`.
        """
        return self._files.roll()

    def build(self) -> BuiltLog:
        """Closes the last segment and returns all of them with the truth about their rows."""
        self.roll()
        return BuiltLog(
            tuple(self._files.segments),
            tuple(self._rows),
            tuple(self._producers.transactions),
            tuple(self._files.log_starts),
        )

    def _end(
        self, producer_id: int, producer_epoch: int, timestamp: int | None, *, committed: bool
    ) -> int:
        time = DEFAULT_TIMESTAMP_MS if timestamp is None else timestamp
        epoch = self._epoch_of(producer_id, producer_epoch)
        offset = self._files.next_offset
        data = write_control_batch(
            "commit" if committed else "abort",
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=epoch,
            timestamp=time,
            leader_epoch=self._files.leader_epoch,
        )
        self._write(data, offset, offset, time)
        aborted = self._producers.add_marker(
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=0,
            offset=offset,
            timestamp=time,
            committed=committed,
        )
        if aborted is not None:
            self._files.add_aborted(aborted)
        return offset

    def _write(self, data: bytes, base: int, last: int, max_timestamp: int) -> int:
        self._files.write(data, base, last, max_timestamp)
        return base

    def _epoch_of(self, producer_id: int, producer_epoch: int) -> int:
        return producer_epoch if producer_epoch >= 0 else self._producers.epoch(producer_id) or 0
