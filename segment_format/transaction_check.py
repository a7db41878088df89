"""Checks that the aborted transactions in transaction indexes agree with the transaction markers in
the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from segment_format.errors import CorruptRecordError
from segment_format.kernels import contract as c
from segment_format.record.control_record import ControlRecordType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segment_format.isolation import AbortedIntervals

_MIN_CAPACITY: Final = 64


class ContradictedIntervalsError(CorruptRecordError):
    """The offset intervals of aborted transactions contradict the markers of the log."""


class TransactionCheck:
    """Tracks the transactions in the batches that decoders read, and compares them with the aborted
    intervals. The decoders must read the batches in log order.

    Args:
        aborted: Offset intervals of aborted transactions. The decoders skip the records in them.
        start_offset: First offset of the read range, inclusive; markers below it are not compared.
        stop_offset: End of the read range, exclusive.

    Attributes:
        state: State that the kernel updates. The slots `TXN_…` of `segment_format.kernels.contract`
            define its layout.
    """

    def __init__(self, aborted: AbortedIntervals, *, start_offset: int, stop_offset: int) -> None:
        self._start_offset = start_offset
        self._stop_offset = stop_offset
        self._table: NDArray[np.int64] = np.zeros(0, np.int64)
        self.state: NDArray[np.int64] = np.zeros(c.TXN_STATE_SIZE, np.int64)
        self.use(aborted)
        self._make_table(_MIN_CAPACITY)

    def use(self, aborted: AbortedIntervals) -> None:
        """Sets the aborted intervals for the next batches. Keeps the state of open transactions."""
        self._aborted = aborted
        self._met: NDArray[np.int64] = np.zeros(len(aborted) + 1, np.int64)
        self.state[c.TXN_MET] = self._met.ctypes.data

    def grow(self) -> None:
        """Doubles the number of producers that the state can contain."""
        before = self._table.reshape(-1, c.TXN_ENTRY_SIZE)
        self._make_table(2 * len(before))
        mask = int(self.state[c.TXN_MASK])
        table = self._table.reshape(-1, c.TXN_ENTRY_SIZE)
        for entry in before[before[:, 1] != c.TXN_NO_ENTRY].tolist():
            number = (entry[0] * c.TXN_MULTIPLIER % 2**64 >> 32) & mask
            while table[number, 1] != c.TXN_NO_ENTRY:
                number = (number + 1) & mask
            table[number] = entry
            self.state[c.TXN_FREE] -= 1

    def _make_table(self, capacity: int) -> None:
        self._table = np.zeros(capacity * c.TXN_ENTRY_SIZE, np.int64)
        self.state[c.TXN_TABLE] = self._table.ctypes.data
        self.state[c.TXN_MASK] = capacity - 1
        self.state[c.TXN_FREE] = capacity // 2

    def next_markers(self, next_offset: int, *, only_doubtful: bool) -> dict[int, int | None]:
        """Returns the marker that each producer must write next, after the batches that were read.

        Keys are producer ids. A value is the offset at which an ABORT marker must be, or `None` if
        the next marker must be a COMMIT.

        Args:
            next_offset: First offset after the batches that were read.
            only_doubtful: If True, returns only producers whose last records were decoded as
                committed, but that have an aborted interval ending at `next_offset` or later: if
                the start of this interval is too high, these records were aborted. Pass True if
                another `TransactionCheck` reads the later batches, because it detects all other
                contradictions.
        """
        table = self._table.reshape(-1, c.TXN_ENTRY_SIZE)
        aborted = self._aborted
        kept = table[table[:, 1] == c.TXN_KEPT, 0].tolist()
        if only_doubtful:
            later = aborted.producer_ids[aborted.last_offsets >= next_offset]
            return dict.fromkeys(set(kept) & set(later.tolist()))
        expected: dict[int, int | None] = dict.fromkeys(kept)
        for producer_id in table[table[:, 1] == c.TXN_LEFT_OUT, 0].tolist():
            ends = aborted.last_offsets[
                (aborted.producer_ids == producer_id) & (aborted.last_offsets >= next_offset)
            ]
            if len(ends):  # `finish` raises for a missing marker
                expected[producer_id] = int(ends.min())
        return expected

    def stray_aborts(self) -> dict[int, int]:
        """Returns, by producer id, the offset of a producer's first marker, if it is an ABORT
        marker outside all aborted intervals.

        The batches that were read contain no data of the producer before the marker. If earlier
        batches contain such data, the intervals are wrong.
        """
        table = self._table.reshape(-1, c.TXN_ENTRY_SIZE)
        rows = table[(table[:, 1] != c.TXN_NO_ENTRY) & (table[:, 2] >= 0)]
        return {producer_id: offset for producer_id, _, offset in rows.tolist()}

    def finish(self, first_offset: int, next_offset: int) -> None:
        """Checks the aborted intervals that end in the batches that were read. The log must have an
        ABORT marker at the end of each of these intervals.

        Args:
            first_offset: First offset of the batches that were read.
            next_offset: First offset after these batches.

        Raises:
            ContradictedIntervalsError: An interval ended without an ABORT marker.
        """
        aborted = self._aborted
        start = max(self._start_offset, first_offset)
        stop = min(self._stop_offset, next_offset)
        for number, last in enumerate(aborted.last_offsets.tolist()):
            if start <= last < stop and not self._met[number]:
                raise ContradictedIntervalsError(
                    transaction_message(
                        int(aborted.producer_ids[number]),
                        f"the index has an abort marker at offset {last}, but the log does not",
                    ),
                    offset=last,
                )


def check_next_marker(
    producer_id: int, marker: ControlRecordType, offset: int, expected: dict[int, int | None]
) -> None:
    """Compares `marker` (ABORT or COMMIT) with the producer's entry in `expected`, a result of
    `TransactionCheck.next_markers`. Removes the entry. Does nothing if `expected` does not contain
    the producer.

    Raises:
        ContradictedIntervalsError: The markers differ.
    """
    if producer_id not in expected:
        return
    end = expected.pop(producer_id)
    if end == (offset if marker is ControlRecordType.ABORT else None):
        return
    if marker is ControlRecordType.ABORT and end is None:
        text = (
            f"the log aborts a transaction at offset {offset} that began before the first offset"
            " in the index"
        )
    else:
        text = (
            f"the log has a marker of type {marker.name} at offset {offset}, but the index has an"
            f" abort marker at offset {end}"
        )
    raise ContradictedIntervalsError(transaction_message(producer_id, text), offset=offset)


def check_markers_found(expected: dict[int, int | None], stop_offset: int) -> None:
    """Raises `ContradictedIntervalsError` if `expected` still has an ABORT marker below
    `stop_offset`, the first offset that was not searched for markers. `expected` is a result of
    `TransactionCheck.next_markers`, from which `check_next_marker` removed the markers that were
    found.
    """
    for producer_id, end in expected.items():
        if end is not None and end < stop_offset:
            text = f"the index has an abort marker at offset {end}, but the log does not"
            raise ContradictedIntervalsError(transaction_message(producer_id, text), offset=end)


def unindexed_abort(producer_id: int, offset: int) -> ContradictedIntervalsError:
    """Returns the error for an ABORT marker of a transaction that has data, but no entry in the
    transaction index.
    """
    text = f"the log aborts a transaction at offset {offset} that is missing in the index"
    return ContradictedIntervalsError(transaction_message(producer_id, text), offset=offset)


def transaction_message(producer_id: int, contradiction: str) -> str:
    """Returns the text of an error about contradicting transaction indexes, with advice for the
    user.
    """
    return (
        f"the transaction indexes do not fit the log: producer {producer_id}: {contradiction}."
        " Restore the transaction index of the segment or of the segments after it from a copy, or"
        " read with isolationLevel=read_uncommitted"
    )
