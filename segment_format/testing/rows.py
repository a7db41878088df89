"""What a reader has to return for a log that was built here: the model to compare readers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from segment_format.testing.producer_state import Transaction
    from segment_format.testing.segment import SegmentFiles

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
