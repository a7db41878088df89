"""Computes the last stable offset from producer snapshots, for tests of `read_committed`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from segment_format.isolation import OpenTransaction

if TYPE_CHECKING:
    from collections.abc import Iterable

    from segment_format.index.producer_snapshot import ProducerStateEntry


def open_transactions(
    snapshot_entries: Iterable[ProducerStateEntry], *, below: int
) -> tuple[OpenTransaction, ...]:
    """Returns the open transactions in a snapshot that began below offset `below`, oldest first."""
    transactions = [
        OpenTransaction(entry.producer_id, entry.current_txn_first_offset)
        for entry in snapshot_entries
        if 0 <= entry.current_txn_first_offset < below
    ]
    return tuple(sorted(transactions, key=lambda txn: (txn.first_offset, txn.producer_id)))


def last_stable_offset(undecided: Iterable[OpenTransaction], *, end_offset: int) -> int:
    """Returns the first offset of the oldest undecided transaction, or `end_offset` if there is
    none.
    """
    return min((txn.first_offset for txn in undecided), default=end_offset)
