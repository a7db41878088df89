"""Defines the tasks of a plan: byte ranges of segments and offset ranges of brokers. Tasks contain
no credentials.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kts_source.layout.remote_segment import IndexType
from kts_source.texts import format_bytes, some

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kts_source.broker.broker_range import BrokerRange
    from kts_source.layout.remote_segment import SegmentObjects, StoredIndex
    from segment_format.index.checkpoints import EpochEntry
    from segment_format.isolation import AbortedIntervals


# Measured on one core: passing values of 100 bytes to Spark takes 3 ns per byte, decompression with
# zstd 0.5 ns per byte, decryption with AES 0.3 ns per byte.
_DECOMPRESS_PERCENT = 15
_DECRYPT_PERCENT = 10


@dataclass(frozen=True, slots=True)
class SliceSurroundings:
    """The offsets directly before and after a slice that its plan also reads. A task searches them
    for the start or end of transactions that have rows in the slice.

    Attributes:
        range_stop: End of the segment's offsets that belong to the log. Later batches of the
            segment belong to an abandoned branch, or are read from another segment.
        read_from: The plan reads all offsets of the segment from this offset up to the slice.
        read_to: The plan reads all offsets from the slice up to this offset (exclusive).
        before: Objects of the previous non-empty segment, including its producer snapshot; `None`
            if the plan does not read the offsets directly before the offsets of this segment.
        before_start: First offset that the plan reads from the previous segment; 0 if the plan does
            not read the offset directly before it.
        before_stop: End of the offsets that the plan reads from the previous segment.
        before_is_cut: True if the last offsets of the previous segment are not in the log, or are
            read from another segment. Its producer snapshot then describes a later offset than
            `before_stop`.
    """

    range_stop: int
    read_from: int
    read_to: int
    before: SegmentObjects | None = None
    before_start: int = 0
    before_stop: int = 0
    before_is_cut: bool = False


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """The part of a segment that one task reads. It consists of the batches that begin between two
    byte positions ("cuts"). Only rows of these batches in a range of offsets are returned.

    A cut need not be the start of a batch. Both slices at a cut move it to the first offset-index
    entry at or after it. So slices cover a segment without gaps and overlaps for any cuts. The
    first cut of a segment is 0, the last is its size.

    Attributes:
        segment_start: Base offset of the segment. The offsets in its indexes are relative to it.
        cut_start: First cut, as a byte position in the original segment, inclusive.
        cut_stop: Second cut, exclusive.
        start_offset: Rows below this offset are skipped.
        stop_offset: Rows at or above this offset are skipped.
        aborted: Intervals of aborted transactions. Transactional batches in them are skipped.
        lineage: Leader epochs of the offsets, each with its first offset; a batch with another
            epoch is an error. Empty = epochs are not checked.
        surroundings: Offsets around the slice that are needed to compare its transactions with the
            log; `None` if they are not compared.
    """

    topic: str
    partition: int
    segment_id: str
    segment_start: int
    segment_stop: int
    objects: SegmentObjects
    cut_start: int
    cut_stop: int
    start_offset: int
    stop_offset: int
    aborted: AbortedIntervals
    lineage: tuple[EpochEntry, ...]
    topic_id: str = ""
    surroundings: SliceSurroundings | None = None

    @property
    def is_whole(self) -> bool:
        """True if the slice has all bytes of the segment. Then no boundary must be looked up."""
        return self.cut_start == 0 and self.cut_stop == self.objects.size_in_bytes

    @property
    def offset_index(self) -> StoredIndex:
        """Location of the segment's offset index. It is used to look up where batches begin."""
        return self.objects.indexes[IndexType.OFFSET]

    @property
    def nominal_bytes(self) -> int:
        """Number of original bytes between the cuts."""
        return self.cut_stop - self.cut_start

    @property
    def work(self) -> int:
        """Estimated work to read the slice: the number of bytes of an uncompressed and unencrypted
        segment that take about as long to read.
        """
        objects = self.objects
        percent = 100 + (_DECOMPRESS_PERCENT if objects.compression else 0)
        percent += 0 if objects.encryption is None else _DECRYPT_PERCENT
        return self.nominal_bytes * percent // 100


@dataclass(frozen=True, slots=True, repr=False)
class ScanTask:
    """Defines what one task reads: first the slices, then the broker ranges."""

    slices: tuple[SegmentSlice, ...]
    ranges: tuple[BrokerRange, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[SegmentSlice | BrokerRange]) -> ScanTask:
        """Returns a task that reads the slices and broker ranges in `parts`."""
        slices = tuple(part for part in parts if isinstance(part, SegmentSlice))
        return cls(slices, tuple(part for part in parts if not isinstance(part, SegmentSlice)))

    @property
    def nominal_bytes(self) -> int:
        """Original bytes of the slices, plus an estimate for the broker ranges."""
        return sum(task_part.nominal_bytes for task_part in self.parts)

    @property
    def parts(self) -> tuple[SegmentSlice | BrokerRange, ...]:
        """All slices and broker ranges, in the order in which they are read."""
        return (*self.slices, *self.ranges)

    def __repr__(self) -> str:
        ranges = (
            f"{each.topic}-{each.partition} [{each.start_offset}, {each.stop_offset})"
            for each in self.parts
        )
        return f"ScanTask({some(ranges)}; {format_bytes(self.nominal_bytes)})"

    @property
    def topic_partitions(self) -> tuple[str, ...]:
        """Names of the partitions, such as `orders-0`."""
        return tuple(
            dict.fromkeys(f"{task_part.topic}-{task_part.partition}" for task_part in self.parts)
        )
