"""What a broker remembers of each producer of a partition, as far as snapshots and indexes show it.

Source: `ProducerStateManager`, `ProducerAppendInfo`, `ProducerStateEntry` of
`org.apache.kafka.storage.internals.log`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from segment_format.testing.side_files import AbortedTransaction, ProducerEntry

SEQUENCE_LIMIT = 1 << 31
"""Sequence numbers run from 0 to 2^31 - 1 and start again at 0."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transaction that wrote data to the partition.

    Attributes:
        producer_id: Whose transaction.
        first_offset: Base offset of its first batch.
        marker_offset: Offset of the marker that ended it; None while it is open.
        committed: How it ended; None while it is open.
    """

    producer_id: int
    first_offset: int
    marker_offset: int | None = None
    committed: bool | None = None


class ProducerStates:
    """The producers of one partition and its transactions, fed batch by batch in offset order."""

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._open: dict[int, int] = {}
        self.transactions: list[Transaction] = []
        """Every transaction with data, in the order of their first offsets."""

    def epoch(self, producer_id: int) -> int | None:
        """The newest epoch of a producer; None for one never seen."""
        entry = self._entries.get(producer_id)
        return None if entry is None else entry.producer_epoch

    def next_sequence(self, producer_id: int, producer_epoch: int) -> int:
        """The sequence number that the producer's next record has: 0 in a new epoch."""
        entry = self._entries.get(producer_id)
        if entry is None or entry.producer_epoch != producer_epoch:
            return 0
        return (entry.last_sequence + 1) % SEQUENCE_LIMIT

    def open_transaction(self, producer_id: int) -> int | None:
        """Position in `transactions` of the producer's open transaction, if it has one."""
        return self._open.get(producer_id)

    def add_data(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        last_sequence: int,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        transactional: bool,
    ) -> None:
        """A data batch of a producer with an id; opens a transaction where none is open.

        Raises:
            ValueError: Plain data of a producer in the middle of a transaction.
        """
        known = self._entries.get(producer_id)
        if producer_id in self._open and not transactional:
            raise ValueError(f"producer {producer_id} has a transaction open")
        if transactional and producer_id not in self._open:
            self._open[producer_id] = len(self.transactions)
            self.transactions.append(Transaction(producer_id, base_offset))
        position = self._open.get(producer_id)
        self._entries[producer_id] = ProducerEntry(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            last_sequence=last_sequence,
            last_offset=last_offset,
            offset_delta=last_offset - base_offset,
            timestamp=max_timestamp,
            coordinator_epoch=-1 if known is None else known.coordinator_epoch,
            current_txn_first_offset=(
                -1 if position is None else self.transactions[position].first_offset
            ),
        )

    def add_marker(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        offset: int,
        timestamp: int,
        committed: bool,
    ) -> AbortedTransaction | None:
        """An abort or commit marker; one without an open transaction changes no outcome.

        Returns:
            The transaction-index entry that the marker causes: an abort of a transaction with data.
        """
        known = self._entries.get(producer_id)
        if known is None or known.producer_epoch != producer_epoch:
            known = ProducerEntry(
                producer_id, producer_epoch, -1, -1, 0, timestamp, coordinator_epoch, -1
            )
        self._entries[producer_id] = replace(
            known,
            timestamp=timestamp,
            coordinator_epoch=coordinator_epoch,
            current_txn_first_offset=-1,
        )
        position = self._open.pop(producer_id, None)
        if position is None:
            return None
        begun = self.transactions[position]
        self.transactions[position] = replace(begun, marker_offset=offset, committed=committed)
        if committed:
            return None
        others = [self.transactions[index].first_offset for index in self._open.values()]
        return AbortedTransaction(
            producer_id, begun.first_offset, offset, min(others, default=offset + 1)
        )

    def snapshot(self) -> tuple[ProducerEntry, ...]:
        """The entries a snapshot taken now would hold, by producer id."""
        return tuple(self._entries[producer_id] for producer_id in sorted(self._entries))
