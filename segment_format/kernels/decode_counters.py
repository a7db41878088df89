"""What a decoder counts while it goes through a log."""

from __future__ import annotations

from dataclasses import dataclass


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

    batches: int
    records: int
    bytes: int
    batches_skipped_control: int
    batches_skipped_aborted: int
    batches_skipped_offset: int
    records_skipped_offset: int
    batches_skipped_timestamp: int = 0
    records_skipped_key: int = 0
