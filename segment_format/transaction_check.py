"""Memory of the check that compares aborted intervals with the markers of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from segment_format.errors import CorruptRecordError
from segment_format.index.transaction_replay import marker_of
from segment_format.kernels import contract as c
from segment_format.record.control_record import ControlRecordType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segment_format.isolation import AbortedIntervals
    from segment_format.record.records import DecodedBatch

_FIRST_ROOM: Final = 64


class ContradictedIntervalsError(CorruptRecordError):
    """The aborted intervals do not fit the markers of the log, so no rows can be decided."""


class TransactionCheck:
    """Follows the transactions of the batches that one or more decoders walk, in log order.

    Args:
        aborted: The intervals that the decoders leave out.
        start_offset: First offset wanted; markers below it are not compared.
        stop_offset: First offset not wanted any more.

    Attributes:
        state: Slots `TXN_…` of `segment_format.kernels.contract`, for the kernel.
    """

    def __init__(self, aborted: AbortedIntervals, *, start_offset: int, stop_offset: int) -> None:
        self._aborted = aborted
        self._start_offset = start_offset
        self._stop_offset = stop_offset
        self._met: NDArray[np.int64] = np.zeros(len(aborted) + 1, np.int64)
        self._table: NDArray[np.int64] = np.zeros(0, np.int64)
        self.state: NDArray[np.int64] = np.zeros(c.TXN_STATE_SIZE, np.int64)
        self.state[c.TXN_MET] = self._met.ctypes.data
        self._make_table(_FIRST_ROOM)

    def grow(self) -> None:
        """Doubles the room for producers."""
        before = self._table.reshape(-1, c.TXN_ENTRY_SIZE)
        self._make_table(2 * len(before))
        mask = int(self.state[c.TXN_MASK])
        table = self._table.reshape(-1, c.TXN_ENTRY_SIZE)
        for producer_id, kind in before[before[:, 1] != c.TXN_NO_ENTRY].tolist():
            number = (producer_id * c.TXN_MULTIPLIER % 2**64 >> 32) & mask
            while table[number, 1] != c.TXN_NO_ENTRY:
                number = (number + 1) & mask
            table[number] = producer_id, kind
            self.state[c.TXN_FREE] -= 1

    def _make_table(self, room: int) -> None:
        self._table = np.zeros(room * c.TXN_ENTRY_SIZE, np.int64)
        self.state[c.TXN_TABLE] = self._table.ctypes.data
        self.state[c.TXN_MASK] = room - 1
        self.state[c.TXN_FREE] = room // 2

    def undecided(self, next_offset: int) -> set[int]:
        """Returns the producers whose next marker after the batches walked must be a COMMIT.

        Records of them were returned, and an interval of theirs begins at `next_offset` or later,
        so a wrong first offset would go unnoticed here.
        """
        table = self._table.reshape(-1, c.TXN_ENTRY_SIZE)
        kept = set(table[table[:, 1] == c.TXN_KEPT, 0].tolist())
        later = self._aborted.first_offsets >= next_offset
        return kept & set(self._aborted.producer_ids[later].tolist())

    def finish(self, first_offset: int, next_offset: int) -> None:
        """Checks that each interval that ends in the batches walked ended at an ABORT marker.

        Args:
            first_offset: No batch before the first one walked has this offset or a larger one.
            next_offset: The same of the batches after the last one walked.

        Raises:
            ContradictedIntervalsError: One did not.
        """
        aborted = self._aborted
        start = max(self._start_offset, first_offset)
        stop = min(self._stop_offset, next_offset)
        for number, last in enumerate(aborted.last_offsets.tolist()):
            if start <= last < stop and not self._met[number]:
                raise ContradictedIntervalsError(
                    transaction_message(
                        int(aborted.producer_ids[number]),
                        f"the index has an abort marker at offset {last}, the log has none there",
                    ),
                    offset=last,
                )


def check_next_marker(batch: DecodedBatch, expected: set[int]) -> None:
    """Checks that a producer's next marker is a COMMIT; the producer is removed from `expected`.

    Raises:
        ContradictedIntervalsError: It is an ABORT.
    """
    marker = marker_of(batch)
    if marker is None or batch.producer_id not in expected:
        return
    expected.remove(batch.producer_id)
    if marker is ControlRecordType.ABORT:
        raise ContradictedIntervalsError(
            transaction_message(
                batch.producer_id,
                f"the log aborts a transaction at offset {batch.base_offset} that began before the"
                " first offset in the index",
            ),
            offset=batch.base_offset,
        )


def transaction_message(producer_id: int, contradiction: str) -> str:
    """Why an index of transactions cannot be used, and what to do."""
    return (
        f"the transaction indexes do not fit the log: producer {producer_id}: {contradiction}."
        " Restore the transaction index of the segment or of the segments after it from a copy, or"
        " read with isolationLevel=read_uncommitted"
    )
