"""Estimates the requests, bytes and cost of a plan before it runs.

The estimate depends only on the plan. For each slice, it counts the chunks that contain the slice,
grouped into requests like in `read.segment_source.request_groups`. If a slice is not a whole
segment, it also counts a read of the offset index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kts_source.read.segment_source import (
    ENOUGH_REQUEST_BYTES,
    FIRST_REQUEST_BYTES,
    MAX_REQUEST_BYTES,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt

    from kts_source.read.task import ScanTask, SegmentSlice

GIB: Final = 1 << 30
_CHUNKS_AT_ONCE: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Price:
    """Price of reading in one storage class, in US dollars.

    Attributes:
        per_million_requests: Price of one million GET requests.
        retrieval_per_gib: Fee of the storage class for each GiB that is read.
        egress_per_gib: Fee for each GiB that leaves the region; 0 for reads within the region.
    """

    per_million_requests: float
    retrieval_per_gib: float = 0.0
    egress_per_gib: float = 0.0


S3_PRICES: Final[Mapping[str, Price]] = {
    "STANDARD": Price(0.40),
    "INTELLIGENT_TIERING": Price(0.40),
    "STANDARD_IA": Price(1.00, 0.01),
    "ONEZONE_IA": Price(1.00, 0.01),
    "GLACIER_IR": Price(10.00, 0.03),
}
"""List prices of one large region for readers in this region. Pass your own table for other prices.
"""

S3_STORAGE: Final[Mapping[str, float]] = {
    "STANDARD": 0.023,
    "INTELLIGENT_TIERING": 0.023,
    "STANDARD_IA": 0.0125,
    "ONEZONE_IA": 0.01,
    "GLACIER_IR": 0.004,
    "GLACIER": 0.0036,
    "DEEP_ARCHIVE": 0.00099,
}
"""US dollars per GiB and month, at list prices of that region. Other classes cost as much as
`STANDARD`.
"""

DEFAULT_CLASS: Final = "STANDARD"

ARCHIVE_CLASSES: Final = frozenset({"GLACIER", "DEEP_ARCHIVE", "Archive"})
"""Storage classes whose objects must be restored before they can be read."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Requests and bytes of a plan.

    Attributes:
        requests: Number of GET requests for a range of bytes.
        bytes: Number of stored bytes that are read.
        by_class: Requests and bytes, by storage class.
    """

    requests: int
    bytes: int
    by_class: Mapping[str, tuple[int, int]]

    def cost(self, prices: Mapping[str, Price] = S3_PRICES) -> float:
        """Returns the cost of requests, retrieval and egress in US dollars, at prices by storage
        class. A class without a price costs as much as `STANDARD`.
        """
        total = 0.0
        for name, (requests, size) in self.by_class.items():
            price = prices.get(name) or prices[DEFAULT_CLASS]
            total += requests * price.per_million_requests / 1_000_000
            total += size / GIB * (price.retrieval_per_gib + price.egress_per_gib)
        return total


def monthly_cost(bytes_by_class: Mapping[str, int]) -> float:
    """Returns the cost of storing bytes of each storage class for a month in US dollars, at list
    prices.
    """
    return sum(
        size / GIB * S3_STORAGE.get(name, S3_STORAGE[DEFAULT_CLASS])
        for name, size in bytes_by_class.items()
    )


def estimate(tasks: Iterable[ScanTask]) -> Estimate:
    """Estimates the requests and bytes of tasks."""
    by_class: dict[str, tuple[int, int]] = {}
    slices = ((piece, n == 0) for task in tasks for n, piece in enumerate(task.slices))
    for piece, requests, size in counted_requests(slices):
        name = piece.objects.log.storage_class or DEFAULT_CLASS
        before = by_class.get(name, (0, 0))
        lookups = 0 if piece.is_whole else 1
        size += 0 if piece.is_whole else piece.offset_index.size
        by_class[name] = (before[0] + requests + lookups, before[1] + size)
    requests = sum(requests for requests, _ in by_class.values())
    return Estimate(requests, sum(size for _, size in by_class.values()), by_class)


def counted_requests(
    slices: Iterable[tuple[SegmentSlice, bool]],
) -> Iterator[tuple[SegmentSlice, int, int]]:
    """Yields each slice, with the number of its requests for chunks and the bytes of these
    requests. The flag in `slices` is true for the first slice of a task. A task begins with a small
    request.
    """
    batch: list[tuple[SegmentSlice, bool]] = []
    batch_stops: list[npt.NDArray[np.int64]] = []
    starts: list[int] = []
    chunks = 0
    for piece, is_first in slices:
        stops, start = _chunk_stops(piece)
        batch.append((piece, is_first))
        batch_stops.append(stops)
        starts.append(start)
        chunks += len(stops)
        if chunks >= _CHUNKS_AT_ONCE:
            yield from _count_batch(batch, batch_stops, starts)
            batch, batch_stops, starts, chunks = [], [], [], 0
    if batch:
        yield from _count_batch(batch, batch_stops, starts)


def _chunk_stops(piece: SegmentSlice) -> tuple[npt.NDArray[np.int64], int]:
    """Returns the end of each chunk of a slice, and the start of the first chunk, as byte positions
    in the stored log object.
    """
    index = piece.objects.chunk_index
    size = index.original_chunk_size
    first = piece.cut_start // size
    last = -(-min(piece.cut_stop, index.original_file_size) // size)
    if piece.cut_start >= piece.cut_stop or first >= last:
        return np.zeros(0, np.int64), 0
    stops = index.transformed_stops()
    return stops[first:last], int(stops[first - 1]) if first else 0


def _count_batch(
    batch: list[tuple[SegmentSlice, bool]],
    batch_stops: list[npt.NDArray[np.int64]],
    begun: list[int],
) -> Iterator[tuple[SegmentSlice, int, int]]:
    """Counts the requests of many slices at once with array operations. Yields the same values as
    `counted_requests`.

    A request begins at a chunk. It ends when it has enough bytes, or before a chunk that would
    exceed the maximum size. Each step finds the next request of every slice with a binary search
    over all chunks.
    """
    counts = np.array([len(stops) for stops in batch_stops])
    ends = np.cumsum(counts)
    sizes = [
        int(stops[-1]) - start if len(stops) else 0
        for stops, start in zip(batch_stops, begun, strict=True)
    ]
    # Put the chunks of all slices into one array with ascending positions. No request may cross the
    # border between two slices.
    shifts = np.cumsum([0, *sizes[:-1]]) - begun
    stops = np.concatenate(batch_stops) + np.repeat(shifts, counts)
    starts = np.concatenate([[0], stops[:-1]])
    requests = np.zeros(len(batch), np.int64)
    active = np.flatnonzero(counts)
    chunk = (ends - counts)[active]
    is_small = np.array([is_first for _, is_first in batch])[active]
    limits = np.where(is_small, FIRST_REQUEST_BYTES, MAX_REQUEST_BYTES)
    while len(active):
        requests[active] += 1
        enough = np.searchsorted(starts, starts[chunk] + ENOUGH_REQUEST_BYTES, "left")
        too_much = np.searchsorted(stops, starts[chunk] + limits, "right")
        chunk = np.maximum(np.minimum(enough, too_much), chunk + 1)
        is_left = chunk < ends[active]
        active, chunk = active[is_left], chunk[is_left]
        limits = np.full(len(active), MAX_REQUEST_BYTES)
    for (piece, _), count, size in zip(batch, requests.tolist(), sizes, strict=True):
        yield piece, count, size
