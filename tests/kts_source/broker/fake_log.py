"""The log of one partition as a broker keeps it: batches, transactions, epochs, and its bounds."""

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
    """One batch: offsets [base, stop) and its bytes."""

    base: int
    stop: int
    epoch: int
    max_timestamp: int
    data: bytes


@dataclass(slots=True)
class FakeLog:
    """What the leader of a partition has.

    Attributes:
        batches: All of them, by offset, also those below the log start.
        transactions: Those with data, by first offset.
        epochs: Leader epochs and their first offsets.
        dates: Offset to timestamp in ms, for ListOffsets.
        log_start: First offset that a consumer may see.
        local_start: First offset on the leader's own disk; below the log start it is that.
        reach: How many offsets beyond the returned bytes count when aborted transactions are
            looked up: a real broker looks up the end in its offset index, which is sparse.
        holes: Offsets [start, stop) whose segment the brokers' own tier has lost.
    """

    batches: Sequence[StoredBatch]
    transactions: Sequence[Transaction] = ()
    epochs: Sequence[tuple[int, int]] = ((0, 0),)
    dates: dict[int, int] = field(default_factory=dict)
    log_start: int = 0
    reach: int = 0
    local_start: int = 0
    holes: Sequence[tuple[int, int]] = ()

    def serves(self, offset: int) -> bool:
        """Whether a fetch at an offset is in range."""
        lost = any(start <= offset < stop for start, stop in self.holes)
        return self.log_start <= offset <= self.end and not lost

    @property
    def end(self) -> int:
        """The high watermark."""
        return self.batches[-1].stop if self.batches else 0

    @property
    def stable(self) -> int:
        """The last stable offset."""
        open_ = (one.first_offset for one in self.transactions if one.marker_offset is None)
        return min(open_, default=self.end)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The greatest known epoch that is not above one, and its end."""
        known = [(one, start) for one, start in self.epochs if one <= epoch]
        if not known:
            # Below the first known epoch the leader echoes (`LeaderEpochFileCache.endOffsetFor`).
            return (epoch, self.epochs[0][1]) if self.epochs else (-1, -1)
        later = [start for one, start in self.epochs if one > epoch]
        return known[-1][0], later[0] if later else self.end

    def first_dated(self, timestamp_ms: int) -> int:
        """The first offset dated at or after a time; −1 where there is none."""
        return next(
            (
                offset
                for offset, date in sorted(self.dates.items())
                if date >= timestamp_ms and offset >= self.log_start
            ),
            -1,
        )

    def read(
        self, at: int, most_bytes: int, *, committed: bool
    ) -> tuple[bytes, list[tuple[int, int]] | None]:
        """Bytes from the batch that holds an offset on, cut where they are too many, but the first
        batch whole; and the aborted transactions with data there.
        """
        limit = self.stable if committed else self.end
        parts: list[bytes] = []
        size, upper = 0, at
        for batch in self.batches:
            if batch.stop <= at:
                continue
            if batch.base >= limit or (parts and size >= most_bytes):
                break
            if parts and not self.serves(batch.base):
                break
            piece = batch.data if not parts else batch.data[: most_bytes - size]
            parts.append(piece)
            size += len(piece)
            upper = batch.stop
        if not committed:
            return b"".join(parts), None
        # `LocalLog.addAbortedTransactions`: an empty answer lists none.
        listed = [
            (one.producer_id, one.first_offset)
            for one in self.transactions
            if parts
            and one.committed is False
            and one.marker_offset is not None
            and one.marker_offset >= at
            and one.first_offset < upper + self.reach
        ]
        return b"".join(parts), listed


def fake_log(
    log: BuiltLog, *, log_start: int = 0, epochs: Sequence[tuple[int, int]] | None = None
) -> FakeLog:
    """The log that a `LogBuilder` wrote, all segments of it."""
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
        found: list[tuple[int, int]] = []
        for batch in batches:
            if not found or found[-1][0] != batch.epoch:
                found.append((batch.epoch, batch.base))
        epochs = found
    dates = {row.offset: row.timestamp for row in log.all_rows}
    return FakeLog(batches, log.transactions, epochs, dates, log_start)


def empty_log() -> FakeLog:
    """Nothing was ever written."""
    return FakeLog(())


def with_log_start(log: FakeLog, offset: int) -> FakeLog:
    """The same after DeleteRecords."""
    return replace(log, log_start=offset)
