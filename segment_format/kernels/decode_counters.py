"""What a decoder counts while it goes through a log."""

from __future__ import annotations

import operator
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class DecodeCounters:
    """What a decoder has met so far.

    Attributes:
        batches: Entries stepped over or decoded.
        records: Records that became rows.
        bytes: Bytes of those entries as stored.
        batches_skipped_control: Control batches.
        batches_skipped_aborted: Batches of aborted transactions.
        batches_skipped_offset: Entries that end before the first offset wanted.
        records_skipped_offset: Records outside the offsets wanted, inside decoded batches.
        batches_skipped_timestamp: Batches without a timestamp wanted, by their header.
        records_skipped_key: Records of the offsets wanted whose key is not looked for.
    """

    batches: int = 0
    records: int = 0
    bytes: int = 0
    batches_skipped_control: int = 0
    batches_skipped_aborted: int = 0
    batches_skipped_offset: int = 0
    records_skipped_offset: int = 0
    batches_skipped_timestamp: int = 0
    records_skipped_key: int = 0

    def __add__(self, other: DecodeCounters) -> DecodeCounters:
        """Of both together."""
        return DecodeCounters(*map(operator.add, astuple(self), astuple(other)))
