"""Transactions as batch headers tell them, against transaction indexes and producer snapshots.

Headers tell all of a transaction only where they were read from its beginning on: what began below
the first offset that was read is not judged. Compaction may have taken batches away, never the
marker of a transaction of which data is left; so an index may know of more than the headers, and
an entry may begin earlier, as long as no other marker of the producer lies between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kts_source.planning.lineage import MAX_OFFSET
from segment_format.record.control_record import ControlRecordType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from segment_format.index.producer_snapshot import ProducerStateEntry
    from segment_format.index.transaction_index import AbortedTxn
    from segment_format.kernels.batch_scanner import BatchTable


class Transactions:
    """Follows the transactions of a segment.

    Args:
        open_before: Producer id to first offset of the transactions known to be open at its begin.
    """

    def __init__(self, open_before: Mapping[int, int]) -> None:
        self._open = dict(open_before)
        self._own: dict[int, int] = {}
        self._seen_from = MAX_OFFSET
        self._markers: dict[int, int] = {}
        self._aborted: list[tuple[int, int | None, int]] = []
        self._aborted_at: dict[int, int] = {}
        self._last_data: dict[int, int] = {}

    @property
    def open(self) -> Mapping[int, int]:
        """The same after the batches seen so far."""
        return self._open

    @property
    def own(self) -> Mapping[int, int]:
        """What would be open if nothing had been known to be before."""
        return self._own

    def see(self, table: BatchTable, wanted: NDArray[np.bool_]) -> None:
        """Takes the wanted rows of the next batches into account."""
        if not wanted.any():
            return
        self._seen_from = min(self._seen_from, int(table.base_offsets[wanted].min()))
        first = 0
        for row in sorted(table.markers):
            if wanted[row]:
                self._see_data(table, wanted, first, row)
                self._see_marker(table, row)
                first = row + 1
        self._see_data(table, wanted, first, len(table))

    def _see_data(
        self, table: BatchTable, wanted: NDArray[np.bool_], first: int, stop: int
    ) -> None:
        """Rows [first, stop), between which no transaction ends."""
        rows = first + np.flatnonzero(wanted[first:stop] & ~table.are_control[first:stop])
        producers = table.producer_ids[rows]
        # Of each producer its last row.
        known, back = np.unique(producers[::-1], return_index=True)
        lasts = table.last_offsets[rows][::-1][back]
        for producer, last in zip(known.tolist(), lasts.tolist(), strict=True):
            if producer >= 0:
                self._last_data[producer] = last
        of_transactions = rows[table.are_transactional[rows]]
        known, at = np.unique(table.producer_ids[of_transactions], return_index=True)
        bases = table.base_offsets[of_transactions][at]
        for producer, base in zip(known.tolist(), bases.tolist(), strict=True):
            self._open.setdefault(producer, base)
            self._own.setdefault(producer, base)

    def _see_marker(self, table: BatchTable, row: int) -> None:
        producer, base = int(table.producer_ids[row]), int(table.base_offsets[row])
        first = self._open.pop(producer, None)
        self._own.pop(producer, None)
        if table.markers[row] is ControlRecordType.ABORT:
            self._aborted_at[base] = producer
            self._aborted.append((producer, first, base))
        self._markers[producer] = base

    def missing_in(self, index: Iterable[AbortedTxn]) -> str:
        """What a transaction index lacks of the abort markers seen in its segment, in words."""
        known = {txn.last_offset: txn for txn in index}
        for producer, first, marker in self._aborted:
            if first is None:  # without data, as far as one sees
                continue
            entry = known.get(marker)
            if entry is None or entry.producer_id != producer or entry.first_offset > first:
                return (
                    f"producer {producer} has data from offset {first} on, aborted by a marker at"
                    f" offset {marker}"
                )
        return ""

    def invented_by(self, index: Iterable[AbortedTxn]) -> str:
        """What a transaction index has without an abort marker in its segment, in words."""
        for txn in index:
            is_seen = txn.last_offset >= self._seen_from
            if is_seen and self._aborted_at.get(txn.last_offset) != txn.producer_id:
                return (
                    f"there is no abort marker of producer {txn.producer_id} at offset"
                    f" {txn.last_offset}"
                )
        return ""

    def against(self, snapshot: Iterable[ProducerStateEntry]) -> str:
        """Where the snapshot of the segment's end says something else, in words."""
        told = {}
        for entry in snapshot:
            first, producer = entry.current_txn_first_offset, entry.producer_id
            if first >= 0:
                told[producer] = first
                if self._markers.get(producer, -1) > first:
                    return (
                        f"the transaction of producer {producer} from offset {first} on has ended"
                    )
            seen = self._last_data.get(producer, -1)
            if 0 <= entry.last_offset < seen:
                return (
                    f"producer {producer} ends at offset {entry.last_offset}, but has a batch up to"
                    f" {seen}"
                )
        for producer, first in self._open.items():
            if told.get(producer, first + 1) > first:
                return f"the transaction of producer {producer} from offset {first} on is not in it"
        return ""
