"""Simulates the log of a partition as a broker stores it.

The log consists of batches, transactions, leader epochs and offset bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from segment_format.record.batch_header import RecordBatchHeader
from segment_format.record.framing import iter_entries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segment_format.testing import BuiltLog
    from segment_format.testing.segment import Transaction


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """The bytes of a batch with the offsets [base, stop)."""

    base: int
    stop: int
    epoch: int
    max_timestamp: int
    data: bytes


@dataclass(slots=True)
class FakeLog:
    """The log of a partition's leader.

    Attributes:
        batches: All batches, sorted by offset, including batches below the log start.
        transactions: Transactions that contain data, sorted by first offset.
        epochs: Leader epochs and their first offsets.
        dates: Maps an offset to its timestamp in ms, for ListOffsets.
        log_start: First offset that consumers can read.
        local_start: First offset on the leader's disk. A value below `log_start` means `log_start`.
        reach: Number of offsets after the returned bytes. Responses also list the aborted
            transactions of these offsets, because real brokers round the end of a response up to
            the next entry of their sparse offset index.
        holes: Offset ranges [start, stop) of segments that the brokers lost in their tier.
    """

    batches: Sequence[StoredBatch]
    transactions: Sequence[Transaction] = ()
    epochs: Sequence[tuple[int, int]] = ((0, 0),)
    dates: dict[int, int] = field(default_factory=dict)
    log_start: int = 0
    reach: int = 0
    local_start: int = 0
    holes: Sequence[tuple[int, int]] = ()

    def append(self, data: bytes, epoch: int) -> None:
        """Appends a batch that a producer sent, like the leader of leader epoch `epoch`."""
        base, header = self.end, RecordBatchHeader.from_bytes(data)
        stored = base.to_bytes(8, "big") + data[8:12] + epoch.to_bytes(4, "big") + data[16:]
        batch = StoredBatch(
            base, base + header.last_offset_delta + 1, epoch, header.max_timestamp, stored
        )
        self.batches = [*self.batches, batch]

    def serves(self, offset: int) -> bool:
        """Returns true if a fetch at `offset` succeeds."""
        is_in_hole = any(start <= offset < stop for start, stop in self.holes)
        return self.log_start <= offset <= self.end and not is_in_hole

    @property
    def end(self) -> int:
        """Returns the high watermark."""
        return self.batches[-1].stop if self.batches else 0

    @property
    def stable(self) -> int:
        """Returns the last stable offset."""
        open_ = (
            transaction.first_offset
            for transaction in self.transactions
            if transaction.marker_offset is None
        )
        return min(open_, default=self.end)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Returns the latest leader epoch of the log that is at most `epoch`, and its end
        offset.
        """
        earlier = [candidate for candidate, _ in self.epochs if candidate <= epoch]
        if not earlier:
            # For an epoch before its first one, the leader returns the requested epoch
            # (`LeaderEpochFileCache.endOffsetFor`).
            return (epoch, self.epochs[0][1]) if self.epochs else (-1, -1)
        later_starts = [start for candidate, start in self.epochs if candidate > epoch]
        return earlier[-1], later_starts[0] if later_starts else self.end

    def first_dated(self, timestamp_ms: int) -> int:
        """Returns the first offset whose timestamp is at or after `timestamp_ms`, or −1."""
        return next(
            (
                offset
                for offset, date in sorted(self.dates.items())
                if date >= timestamp_ms and offset >= self.log_start
            ),
            -1,
        )

    def read(
        self, offset: int, max_bytes: int, *, committed: bool
    ) -> tuple[bytes, list[tuple[int, int]] | None]:
        """Returns log bytes, and the aborted transactions that a fetch response lists.

        The bytes begin with the batch that contains `offset`. They end after `max_bytes`, but the
        first batch is always complete. If `committed` is false, returns `None` instead of the
        aborted transactions.
        """
        limit = self.stable if committed else self.end
        parts: list[bytes] = []
        size, upper = 0, offset
        for batch in self.batches:
            if batch.stop <= offset:
                continue
            if batch.base >= limit or (parts and size >= max_bytes):
                break
            if parts and not self.serves(batch.base):
                break
            piece = batch.data if not parts else batch.data[: max_bytes - size]
            parts.append(piece)
            size += len(piece)
            upper = batch.stop
        if not committed:
            return b"".join(parts), None
        # As in `LocalLog.addAbortedTransactions`, a response without bytes lists no transactions.
        listed = [
            (transaction.producer_id, transaction.first_offset)
            for transaction in self.transactions
            if parts
            and transaction.committed is False
            and transaction.marker_offset is not None
            and transaction.marker_offset >= offset
            and transaction.first_offset < upper + self.reach
        ]
        return b"".join(parts), listed


def fake_log(
    log: BuiltLog, *, log_start: int = 0, epochs: Sequence[tuple[int, int]] | None = None
) -> FakeLog:
    """Returns a `FakeLog` with the batches, transactions and timestamps of all segments of `log`.

    If `epochs` is `None`, uses the leader epochs of the batches.
    """
    batches: list[StoredBatch] = []
    for files in log.segments:
        for entry in iter_entries(memoryview(files.log)):
            header = RecordBatchHeader.from_bytes(files.log, entry.position)
            batches.append(
                StoredBatch(
                    header.base_offset,
                    header.last_offset + 1,
                    header.partition_leader_epoch,
                    header.max_timestamp,
                    bytes(files.log[entry.position : entry.stop]),
                )
            )
    if epochs is None:
        epoch_starts: list[tuple[int, int]] = []
        for batch in batches:
            if not epoch_starts or epoch_starts[-1][0] != batch.epoch:
                epoch_starts.append((batch.epoch, batch.base))
        epochs = epoch_starts
    dates = {row.offset: row.timestamp for row in log.all_rows}
    return FakeLog(batches, log.transactions, epochs, dates, log_start)


def empty_log() -> FakeLog:
    """Returns a log without batches."""
    return FakeLog(())


def with_log_start(log: FakeLog, offset: int) -> FakeLog:
    """Returns a copy of `log` with the log start `offset`, as after DeleteRecords."""
    return replace(log, log_start=offset)
