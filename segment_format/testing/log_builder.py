"""Builds a partition's log as a broker writes it, and the rows that readers must return.

builder = LogBuilder(codec="zstd")
builder.append([SimpleRecord(b"plain")])
builder.send(7, [SimpleRecord(b"in a transaction")])
builder.roll()
builder.abort(7)
log = builder.build()          # two segments; log.rows("read_committed") is the plain record
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from segment_format.testing.batches import (
    CREATE_TIME,
    DEFAULT_TIMESTAMP_MS,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    HeaderFields,
    SimpleRecord,
    assign_offsets,
    write_batch,
    write_control_batch,
    write_empty_batch,
    write_message_set,
)
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
    """One data record as a consumer sees it, with the fields of its batch.

    Attributes:
        offset: Absolute offset.
        timestamp: Milliseconds since 1970; -1 for no timestamp.
        timestamp_type: 0 CreateTime, 1 LogAppendTime, -1 no timestamp (magic 0).
        key: Bytes or None.
        value: Bytes or None.
        headers: Headers in order; empty if the record has no headers.
        producer_id: Id of the producer. `producer_id`, `producer_epoch` and `sequence` are -1 if
            the batch has no producer id.
        transactional: True if the batch is part of a transaction.
        codec: Name of the batch's codec.
        transaction: Index into `BuiltLog.transactions`; None if the record is not in a transaction.
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
    """A partition's closed segments and the rows that readers must return.

    Attributes:
        segments: Segments in offset order. Each segment ends where the next segment begins.
        all_rows: All data records in offset order, including records of aborted transactions.
        transactions: All transactions with data, in order of their first offsets.
        log_starts: For each segment, the log start offset at the time when the segment was closed.
    """

    segments: tuple[SegmentFiles, ...]
    all_rows: tuple[ExpectedRow, ...]
    transactions: tuple[Transaction, ...]
    log_starts: tuple[int, ...]

    def end_offset(self, segment_count: int | None = None) -> int:
        """Returns the offset after the first `segment_count` segments; None means all segments."""
        return self._prefix(segment_count)[-1].next_offset

    def last_stable_offset(self, segment_count: int | None = None) -> int:
        """Returns the last stable offset if only the first `segment_count` segments are tiered;
        None means all segments.

        The last stable offset is the first offset of the oldest transaction that has no marker in
        the tiered segments. If there is no such transaction, it is the offset after the tiered
        segments.
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
        """Returns the rows with offsets in [start, stop) that a reader must return if only the
        first `segment_count` segments are tiered.

        Args:
            isolation: `READ_COMMITTED` or `READ_UNCOMMITTED`.
            start: First offset, inclusive; None means the log start.
            stop: Exclusive end; None means the end of the tier.
            segment_count: Number of tiered segments; None means all.

        Raises:
            ValueError: The isolation level is unknown.
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
            raise ValueError("there is no end offset, because segment_count is 0")
        return prefix


class LogBuilder:
    """Builds the log of one partition by appending batches, and splits it into segments.

    Args:
        start_offset: Base offset of the first segment.
        leader_epoch: Epoch of the first appends.
        codec: Codec of batches for which `append` gets no codec.
        index_interval_bytes: Kafka's `index.interval.bytes`.
        segment_bytes: Maximum size of a segment. If an append would exceed it, a new segment
            begins. None means that only `roll` and `build` close a segment.
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
        """Offset of the next append."""
        return self._files.next_offset

    def set_leader_epoch(self, epoch: int) -> None:
        """Sets the leader epoch of the following appends.

        Raises:
            ValueError: `epoch` is not higher than the previous leader epoch.
        """
        self._files.begin_epoch(epoch)

    def skip_offsets(self, count: int) -> None:
        """Skips the next `count` offsets, which leaves a hole, as compaction does."""
        self._files.next_offset += count

    def delete_records_before(self, offset: int) -> None:
        """Moves the log start offset to `offset`. Leader epoch checkpoints of segments that are
        closed later begin at this offset.
        """
        self._files.log_start = max(self._files.log_start, offset)

    @contextmanager
    def one_append(self) -> Iterator[None]:
        """Writes all batches of the `with` block as a single append. An append gets at most one
        entry in each index. A follower appends all batches of a fetch in this way.
        """
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
    ) -> int:
        """Appends a data batch and returns its base offset.

        Args:
            records: The batch's records. A record with an `offset` can leave a hole before it.
            codec: Name of the codec; None means the builder's codec.
            timestamp_type: `CREATE_TIME` or `LOG_APPEND_TIME`.
            log_append_time: Timestamp for `LOG_APPEND_TIME`, milliseconds since 1970.
            producer_id: Id of the producer, whose sequence numbers the batch continues. -1 means no
                producer id and no sequence numbers.
            producer_epoch: -1 means the producer's newest epoch, or 0 for a new producer.
            transactional: True if the batch belongs to a transaction. The batch opens a transaction
                if the producer has no open one.
            last_offset_delta: See `write_batch`.
            delete_horizon: See `write_batch`.
        """
        codec = self._codec if codec is None else codec
        base = self._files.next_offset
        offsets = assign_offsets(records, base)
        last = max(offsets[-1] if offsets else base, base + (last_offset_delta or 0))
        max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
        if timestamp_type == LOG_APPEND_TIME:
            max_timestamp = log_append_time
        facts = self._batch_facts(base, codec, producer_id, producer_epoch, transactional)
        facts = replace(facts, timestamp=max_timestamp, timestamp_type=timestamp_type)
        data = write_batch(
            records,
            base_offset=base,
            codec=codec,
            timestamp_type=timestamp_type,
            max_timestamp=max_timestamp,
            transactional=transactional,
            last_offset_delta=last_offset_delta,
            delete_horizon=delete_horizon,
            **_header_fields(facts),
        )
        transaction = self._write_data(data, facts, last)
        self._add_rows(replace(facts, transaction=transaction), records, offsets)
        return base

    def send(
        self,
        producer_id: int,
        records: Sequence[SimpleRecord],
        *,
        producer_epoch: int = -1,
        codec: str | None = None,
    ) -> int:
        """Appends a transactional batch and returns its base offset; see `append`."""
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
        """Appends a commit marker and returns its offset."""
        return self._end(producer_id, producer_epoch, timestamp, committed=True)

    def abort(
        self, producer_id: int, *, producer_epoch: int = -1, timestamp: int | None = None
    ) -> int:
        """Appends an abort marker and returns its offset."""
        return self._end(producer_id, producer_epoch, timestamp, committed=False)

    def append_control(self, kind: str | int) -> int:
        """Appends a control batch that is neither an abort nor a commit marker. Returns its
        offset.
        """
        offset = self._files.next_offset
        data = write_control_batch(
            kind,
            base_offset=offset,
            leader_epoch=self._files.leader_epoch,
            transactional=False,
        )
        self._files.write(data, offset, offset, DEFAULT_TIMESTAMP_MS)
        return offset

    def append_empty_batch(self, offset_count: int, *, producer_id: int = -1) -> int:
        """Appends a batch without records, as compaction leaves it. Returns its base offset."""
        base = self._files.next_offset
        last = base + offset_count - 1
        facts = self._batch_facts(base, "none", producer_id, -1, transactional=False)
        facts = replace(facts, timestamp=DEFAULT_TIMESTAMP_MS)
        data = write_empty_batch(
            base_offset=base,
            last_offset=last,
            max_timestamp=facts.timestamp,
            **_header_fields(facts),
        )
        self._write_data(data, facts, last)
        return base

    def append_message_set(
        self,
        records: Sequence[SimpleRecord],
        *,
        magic: int,
        codec: str = "none",
        timestamp_type: int = CREATE_TIME,
    ) -> int:
        """Appends messages of magic 0 or 1. Returns the offset of the first message.

        With codec `none`, each record is an entry. With another codec, a wrapper contains all
        records.
        """
        offsets = assign_offsets(records, self._files.next_offset)
        entries = [[number] for number in range(len(records))]
        if codec != "none":
            entries = [list(range(len(records)))]
        log_append_time = DEFAULT_TIMESTAMP_MS
        if magic == 0:
            timestamp_type, log_append_time = CREATE_TIME, NO_TIMESTAMP
        is_append_time = timestamp_type == LOG_APPEND_TIME
        for numbers in entries:
            some = [records[number] for number in numbers]
            base, last = offsets[numbers[0]], offsets[numbers[-1]]
            data = write_message_set(
                some,
                base_offset=base,
                magic=magic,
                codec=codec,
                timestamp_type=timestamp_type,
                log_append_time=log_append_time,
            )
            time = log_append_time
            if magic == 1 and not is_append_time:
                time = max(record.timestamp for record in some)
            self._files.write(data, base, last, time, legacy=True)
            facts = replace(
                self._batch_facts(base, codec, -1, -1, transactional=False),
                timestamp=time,
                timestamp_type=-1 if magic == 0 else timestamp_type,
                leader_epoch=-1,
            )
            self._add_rows(facts, some, assign_offsets(some, base))
        return offsets[0]

    def roll(self) -> SegmentFiles | None:
        """Closes the current segment and returns its files. Returns None if the segment is empty.

        Raises:
            ValueError: Called inside `one_append`.
        """
        return self._files.roll()

    def build(self) -> BuiltLog:
        """Closes the last segment and returns all segments with their expected rows."""
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
        self._files.write(data, offset, offset, time)
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

    def _batch_facts(
        self,
        base_offset: int,
        codec: str,
        producer_id: int,
        producer_epoch: int,
        transactional: bool,
    ) -> ExpectedRow:
        """Returns an `ExpectedRow` with the fields that all rows of the next batch share."""
        sequence = -1
        if producer_id >= 0:
            producer_epoch = self._epoch_of(producer_id, producer_epoch)
            sequence = self._producers.next_sequence(producer_id, producer_epoch)
        return ExpectedRow(
            base_offset,
            NO_TIMESTAMP,
            CREATE_TIME,
            None,
            None,
            (),
            self._files.leader_epoch,
            producer_id,
            producer_epoch,
            sequence,
            transactional,
            base_offset,
            codec,
        )

    def _write_data(self, data: bytes, facts: ExpectedRow, last: int) -> int | None:
        """Writes a data batch, whose last offset is `last`. Returns the index of the transaction in
        `BuiltLog.transactions`; None if the batch is not transactional.
        """
        base = facts.batch_base_offset
        self._files.write(data, base, last, facts.timestamp)
        if facts.producer_id < 0:
            return None
        self._producers.add_data(
            producer_id=facts.producer_id,
            producer_epoch=facts.producer_epoch,
            last_sequence=(facts.sequence + last - base) % SEQUENCE_LIMIT,
            base_offset=base,
            last_offset=last,
            max_timestamp=facts.timestamp,
            transactional=facts.transactional,
        )
        return self._producers.open_transaction(facts.producer_id) if facts.transactional else None

    def _add_rows(
        self, facts: ExpectedRow, records: Sequence[SimpleRecord], offsets: Sequence[int]
    ) -> None:
        for record, offset in zip(records, offsets, strict=True):
            delta = offset - facts.batch_base_offset
            sequence = -1 if facts.sequence < 0 else (facts.sequence + delta) % SEQUENCE_LIMIT
            is_own_time = facts.timestamp_type == CREATE_TIME
            self._rows.append(
                replace(
                    facts,
                    offset=offset,
                    timestamp=record.timestamp if is_own_time else facts.timestamp,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                    sequence=sequence,
                )
            )

    def _epoch_of(self, producer_id: int, producer_epoch: int) -> int:
        return producer_epoch if producer_epoch >= 0 else self._producers.epoch(producer_id) or 0


def _header_fields(facts: ExpectedRow) -> HeaderFields:
    return {
        "leader_epoch": facts.leader_epoch,
        "producer_id": facts.producer_id,
        "producer_epoch": facts.producer_epoch,
        "base_sequence": facts.sequence,
    }
