"""Defines the intervals of aborted transactions. They determine the batches that `read_committed`
skips.

An entry of a transaction index is `(p, first, last)`: producer, base offset of the transaction's
first batch, and offset of its abort marker. A transactional batch of producer `p` with base offset
`b` was aborted if and only if there is an entry with `first ≤ b < last`. No batch is partly inside
an interval. So the base offset of a batch decides, and batches can be read in any order.

Source: `CompletedFetch`, `TransactionIndex` in Kafka (KIP-98).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from segment_format._cursor import ArrayValue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from segment_format.index.transaction_index import AbortedTxn


@dataclass(frozen=True, slots=True, eq=False)
class AbortedIntervals(ArrayValue):
    """Offset intervals of aborted transactions: three int64 arrays, sorted by (producer id, first
    offset).

    Intervals of one producer do not overlap. So an offset can only be in the last interval that
    begins at or before the offset.

    Attributes:
        first_offsets: Base offset of the first batch of each transaction.
        last_offsets: Offset of the abort marker of each transaction. It is greater than the offsets
            of the transaction's records.
    """

    producer_ids: NDArray[np.int64]
    first_offsets: NDArray[np.int64]
    last_offsets: NDArray[np.int64]

    @classmethod
    def from_txns(
        cls, txns: Iterable[AbortedTxn], *, start_offset: int, stop_offset: int
    ) -> AbortedIntervals:
        """Returns the intervals that can affect offsets `[start_offset, stop_offset)`.

        Args:
            txns: Entries of any number of transaction indexes, in any order. Entries may repeat.
                Overlapping intervals of one producer are merged.
            start_offset: Entries whose marker is below this offset are skipped.
            stop_offset: Entries that begin at or after this offset are skipped.
        """
        merged: list[list[int]] = []
        kept = sorted(
            {
                (txn.producer_id, txn.first_offset, txn.last_offset)
                for txn in txns
                if txn.last_offset >= start_offset and txn.first_offset < stop_offset
            }
        )
        for producer_id, first, last in kept:
            if merged and merged[-1][0] == producer_id and first <= merged[-1][2]:
                merged[-1][2] = max(merged[-1][2], last)
            else:
                merged.append([producer_id, first, last])
        rows = np.array(merged, dtype=np.int64).reshape(-1, 3)
        return cls(*(np.ascontiguousarray(column) for column in rows.T))

    def __len__(self) -> int:
        return len(self.producer_ids)

    def __reduce__(self) -> tuple[object, ...]:
        if not len(self):  # most slices of a plan
            return _no_aborted, ()
        return AbortedIntervals, (self.producer_ids, self.first_offsets, self.last_offsets)

    def is_aborted(self, producer_id: int, base_offset: int) -> bool:
        """Returns whether a producer's transactional batch with this base offset was aborted.

        Tests use this readable twin of the check in `kernels/decode_window.py`.
        """
        return self.end_of(producer_id, base_offset) is not None

    def end_of(self, producer_id: int, base_offset: int) -> int | None:
        """Returns the offset of the abort marker that ends the transaction of a producer's batch.
        Returns `None` if the batch was not aborted.
        """
        low = int(np.searchsorted(self.producer_ids, producer_id, side="left"))
        high = int(np.searchsorted(self.producer_ids, producer_id, side="right"))
        index = low + int(
            np.searchsorted(self.first_offsets[low:high], base_offset, side="right") - 1
        )
        if index < low or base_offset >= int(self.last_offsets[index]):
            return None
        return int(self.last_offsets[index])

    def overlapping(
        self, start_offset: int, stop_offset: int, *, next_until: int | None = None
    ) -> AbortedIntervals:
        """Returns the intervals that overlap the offsets `[start_offset, stop_offset)`, with their
        original bounds.

        If `next_until` is given, also returns the first interval of each producer that begins in
        `[stop_offset, next_until)`.
        """
        if not len(self):
            return self
        first_offsets = self.first_offsets
        keep = (self.last_offsets >= start_offset) & (first_offsets < stop_offset)
        if next_until is not None and next_until > stop_offset:
            later = first_offsets >= stop_offset
            is_next = later.copy()
            is_next[1:] &= ~(later[:-1] & (self.producer_ids[1:] == self.producer_ids[:-1]))
            keep |= is_next & (first_offsets < next_until)
        rows = keep.nonzero()[0]
        if not len(rows):
            return NO_ABORTED
        return AbortedIntervals(
            self.producer_ids[rows], self.first_offsets[rows], self.last_offsets[rows]
        )


NO_ABORTED = AbortedIntervals.from_txns((), start_offset=0, stop_offset=0)
"""No aborted intervals, for `read_uncommitted`."""


def _no_aborted() -> AbortedIntervals:
    return NO_ABORTED


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that was neither committed nor aborted so far.

    Attributes:
        first_offset: Base offset of the transaction's first batch in the partition.
    """

    producer_id: int
    first_offset: int
