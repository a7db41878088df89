"""How many requests slices take, of many at a time: those that `request_groups` would make.

A request begins at a chunk and ends before the first chunk that is too far away. All slices go from
request to request side by side, with one look-up of many chunks for each step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kts_source.read.segment_source import (
    ENOUGH_REQUEST_BYTES,
    FIRST_REQUEST_BYTES,
    MAX_REQUEST_BYTES,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from kts_source.read.task import SegmentSlice

_CHUNKS_AT_A_TIME: Final = 1 << 18


def counted_requests(
    slices: Iterable[tuple[SegmentSlice, bool]],
) -> Iterator[tuple[SegmentSlice, int, int]]:
    """Each slice with its number of requests for chunks and their bytes.

    Args:
        slices: Each with whether it is the first of its task, whose first request is small.
    """
    batch: list[tuple[SegmentSlice, bool]] = []
    found: list[npt.NDArray[np.int64]] = []
    begun: list[int] = []
    chunks = 0
    for part, is_first in slices:
        stops, start = _stops(part)
        batch.append((part, is_first))
        found.append(stops)
        begun.append(start)
        chunks += len(stops)
        if chunks >= _CHUNKS_AT_A_TIME:
            yield from _counted(batch, found, begun)
            batch, found, begun, chunks = [], [], [], 0
    if batch:
        yield from _counted(batch, found, begun)


def _stops(part: SegmentSlice) -> tuple[npt.NDArray[np.int64], int]:
    """Where the chunks of a slice end in its object, and where the first one begins."""
    index = part.objects.chunk_index
    size = index.original_chunk_size
    first = part.cut_start // size
    last = -(-min(part.cut_stop, index.original_file_size) // size)
    if part.cut_start >= part.cut_stop or first >= last:
        return np.zeros(0, np.int64), 0
    stops = index.transformed_stops()
    return stops[first:last], int(stops[first - 1]) if first else 0


def _counted(
    batch: list[tuple[SegmentSlice, bool]], found: list[npt.NDArray[np.int64]], begun: list[int]
) -> Iterator[tuple[SegmentSlice, int, int]]:
    counts = np.array([len(stops) for stops in found])
    ends = np.cumsum(counts)
    sizes = [
        int(stops[-1]) - start if len(stops) else 0
        for stops, start in zip(found, begun, strict=True)
    ]
    # One line of chunks, slice behind slice: positions ascend, and no request leaves its slice.
    shifts = np.cumsum([0, *sizes[:-1]]) - begun
    stops = np.concatenate(found) + np.repeat(shifts, counts)
    starts = np.concatenate([[0], stops[:-1]])
    requests = np.zeros(len(batch), np.int64)
    going = np.flatnonzero(counts)
    at = (ends - counts)[going]
    small = np.array([is_first for _, is_first in batch])[going]
    limits = np.where(small, FIRST_REQUEST_BYTES, MAX_REQUEST_BYTES)
    while len(going):
        requests[going] += 1
        enough = np.searchsorted(starts, starts[at] + ENOUGH_REQUEST_BYTES, "left")
        too_much = np.searchsorted(stops, starts[at] + limits, "right")
        at = np.maximum(np.minimum(enough, too_much), at + 1)
        left = at < ends[going]
        going, at = going[left], at[left]
        limits = np.full(len(going), MAX_REQUEST_BYTES)
    for (part, _), count, size in zip(batch, requests.tolist(), sizes, strict=True):
        yield part, count, size
