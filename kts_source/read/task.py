"""What travels to a task: byte ranges of objects and how to read them, and no credentials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kts_source.layout.remote_segment import IndexType

if TYPE_CHECKING:
    from kts_source.broker.broker_range import BrokerRange
    from kts_source.layout.remote_segment import SegmentObjects, StoredIndex
    from segment_format.index.leader_epoch_checkpoint import EpochEntry
    from segment_format.isolation import AbortedIntervals


# Measured per byte on one core: about 3 ns into Spark at 100-byte values, zstd 0.5 ns, AES 0.3 ns.
_DECOMPRESS_PERCENT = 15
_DECRYPT_PERCENT = 10


@dataclass(frozen=True, slots=True)
class SliceSurroundings:
    """Offsets around a slice, where transactions with rows in it may end or have begun.

    Attributes:
        range_stop: Batches of the segment from here on belong to another segment or a dead branch.
        read_from: First offset of the segment that the plan reads without a gap up to the slice.
        read_to: First offset after those that the plan reads without a gap after it.
        before: The segment before, with its producer snapshot, if the plan reads its end, too.
            Segments without a byte are passed over.
        before_start: First offset of the segment before, or 0 if the plan does not read what comes
            before it.
        before_stop: First offset after the segment before.
        before_is_cut: Whether it is served only up to an offset inside of it, so that its snapshot
            is of another offset.
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
    """A part of one segment: rows of the batches that begin between two cuts, within an offset
    range.

    Both neighbours of a cut take the first offset-index entry at or beyond it as the boundary. So
    slices tile a segment whatever the cuts are. Cut 0 is the segment's start; a cut at its size is
    its end.

    Attributes:
        segment_start: First offset of the segment, the base of its index entries.
        segment_stop: One past its last offset.
        cut_start: Nominal first byte, in positions of the original segment, inclusive.
        cut_stop: Nominal last byte, exclusive.
        start_offset: Rows below are left out.
        stop_offset: Rows at or above are left out.
        aborted: Intervals whose transactional batches are left out.
        lineage: Epochs that own the offset range; a batch of another epoch is an error. Empty =
            not checked.
        topic_id: The incarnation.
        surroundings: Where the transactions of the slice are compared with the log; `None` = only
            in the slice.
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
        """Whether no boundary has to be looked up."""
        return self.cut_start == 0 and self.cut_stop == self.objects.size_in_bytes

    @property
    def offset_index(self) -> StoredIndex:
        """Where boundaries are looked up."""
        return self.objects.indexes[IndexType.OFFSET]

    @property
    def nominal_bytes(self) -> int:
        """Original bytes between the cuts."""
        return self.cut_stop - self.cut_start

    @property
    def work(self) -> int:
        """Estimated work, in bytes of a plain segment. Most of it is decoding and the way into
        Spark; decompression and decryption add to that.
        """
        objects = self.objects
        percent = 100 + (_DECOMPRESS_PERCENT if objects.compression else 0)
        percent += 0 if objects.encryption is None else _DECRYPT_PERCENT
        return self.nominal_bytes * percent // 100


@dataclass(frozen=True, slots=True)
class ScanTask:
    """What one task reads, in this order.

    Attributes:
        slices: Parts of segments.
        ranges: Offsets that brokers serve.
    """

    slices: tuple[SegmentSlice, ...]
    ranges: tuple[BrokerRange, ...] = ()

    @property
    def nominal_bytes(self) -> int:
        """Original bytes of all slices, and about those of the ranges."""
        return sum(part.nominal_bytes for part in self.parts)

    @property
    def parts(self) -> tuple[SegmentSlice | BrokerRange, ...]:
        """Both, in the order in which they are read."""
        return (*self.slices, *self.ranges)

    @property
    def topic_partitions(self) -> tuple[str, ...]:
        """What is read, such as `orders-0`."""
        return tuple(dict.fromkeys(f"{part.topic}-{part.partition}" for part in self.parts))
