"""Transactions as batch headers tell them, against transaction indexes and producer snapshots.

Headers tell all of a transaction only where they were read from its beginning on: what began below
the first offset that was read is not judged. Compaction may have taken batches away, never the
marker of a transaction of which data is left; so an index may know of more than the headers, and
an entry may begin earlier, as long as no other marker of the producer lies between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kts_source.planning.lineage import MAX_OFFSET
from segment_format.record.control_record import ControlRecordType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kts_source.auditing.batches import BatchFacts
    from segment_format.index.producer_snapshot import ProducerStateEntry
    from segment_format.index.transaction_index import AbortedTxn


class Transactions:
    """Follows the transactions of a partition, from segment to segment."""

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self._seen_from = MAX_OFFSET
        self._markers: dict[int, int] = {}
        self._aborted: list[tuple[int, int | None, int]] = []
        self._aborted_at: dict[int, int] = {}
        self._last_data: dict[int, int] = {}

    def begin_segment(self) -> None:
        """Forgets what only the segment before needed."""
        self._markers, self._aborted, self._aborted_at, self._last_data = {}, [], {}, {}
        self._seen_from = MAX_OFFSET

    def see(self, batch: BatchFacts) -> None:
        """Takes the next batch into account."""
        producer = batch.producer_id
        self._seen_from = min(self._seen_from, batch.base_offset)
        if not batch.is_control:
            if producer >= 0:
                self._last_data[producer] = batch.last_offset
            if batch.is_transactional:
                self._open.setdefault(producer, batch.base_offset)
        elif batch.marker is not None:
            first = self._open.pop(producer, None)
            if batch.marker is ControlRecordType.ABORT:
                self._aborted_at[batch.base_offset] = producer
                self._aborted.append((producer, first, batch.base_offset))
            self._markers[producer] = batch.base_offset

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
