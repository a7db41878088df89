"""Which of the pending segments make the next micro-batch.

Those whose newest record is oldest come first, whatever their partition: so event time moves on
evenly over partitions, and watermarks drop fewer rows. Within a partition segments keep their
order.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class PendingSegment:
    """Offsets [start, stop) of one segment that are still to be read.

    Attributes:
        size: Their original bytes; of a part of a segment its share by offsets.
        order: What is smallest comes first.
    """

    start: int
    stop: int
    size: int
    order: tuple[int, int]


def dated(max_timestamp_ms: int) -> tuple[int, int]:
    """The order of a segment with this largest timestamp; −1 when unknown."""
    return 0, max_timestamp_ms


def undated(number: int, lag: int) -> tuple[int, int]:
    """The order of what only brokers have: behind all segments, in turns, most behind first.

    Args:
        number: Of the turn.
        lag: How many offsets of the partition are still to be read.
    """
    return 1 + number, -lag


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What a micro-batch holds at most; `None` = no limit. The one that is reached first counts.

    Attributes:
        offsets: Cut inside a segment.
        size: Original bytes of whole segments, of which there is one at least.
        segments: Or parts of them.
    """

    offsets: int | None = None
    size: int | None = None
    segments: int | None = None


NO_LIMITS = BatchLimits()

Pending: TypeAlias = "Mapping[Place, Iterator[PendingSegment]]"


def admit(pending: Pending, limits: BatchLimits) -> dict[Place, int]:
    """Where a micro-batch ends in each partition of which it takes something, exclusive.

    No more segments are asked for than are needed.

    Args:
        pending: Segments by partition, ascending.
        limits: Of the batch.
    """
    heads: list[tuple[tuple[int, int], Place, PendingSegment]] = []

    def advance(place: Place) -> None:
        segment = next(pending[place], None)
        if segment is not None:
            heapq.heappush(heads, (segment.order, place, segment))

    for place in pending:
        advance(place)
    ends: dict[Place, int] = {}
    offsets = size = segments = 0
    while heads:
        _, place, segment = heapq.heappop(heads)
        if limits.segments is not None and segments == limits.segments:
            break
        if limits.size is not None and segments and size + segment.size > limits.size:
            break
        count = segment.stop - segment.start
        if limits.offsets is not None and offsets + count >= limits.offsets:
            stop = segment.start + limits.offsets - offsets
            if stop > segment.start:
                ends[place] = stop
            break
        ends[place] = segment.stop
        offsets, size, segments = offsets + count, size + segment.size, segments + 1
        advance(place)
    return ends
