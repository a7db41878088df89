"""How many requests slices take, of many at a time: those that `request_groups` would make.

A request begins at a chunk and ends before the first chunk that is too far away, which for every
chunk of every slice is looked up at once. Then all slices go from request to request side by side.
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
    bounds: list[npt.NDArray[np.int64]] = []
    chunks = 0
    for part, is_first in slices:
        batch.append((part, is_first))
        bounds.append(_bounds(part))
        chunks += len(bounds[-1]) - 1
        if chunks >= _CHUNKS_AT_A_TIME:
            yield from _counted(batch, bounds)
            batch, bounds, chunks = [], [], 0
    yield from _counted(batch, bounds)


def _bounds(part: SegmentSlice) -> npt.NDArray[np.int64]:
    """Where the chunks of a slice begin in its object, and where the last one ends."""
    index = part.objects.chunk_index
    size = index.original_chunk_size
    first = part.cut_start // size
    last = -(-min(part.cut_stop, index.original_file_size) // size)
    if part.cut_start >= part.cut_stop or first >= last:
        return np.zeros(1, np.int64)
    stops = index.transformed_stops()
    found = np.empty(last - first + 1, np.int64)
    found[0] = stops[first - 1] if first else 0
    found[1:] = stops[first:last]
    return found


def _counted(
    batch: list[tuple[SegmentSlice, bool]], bounds: list[npt.NDArray[np.int64]]
) -> Iterator[tuple[SegmentSlice, int, int]]:
    if not batch:
        return
    sizes = [int(found[-1] - found[0]) for found in bounds]
    # One line of chunks, slice behind slice: positions ascend, and no request leaves its slice.
    shifts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    starts = np.concatenate([b[:-1] - b[0] + at for b, at in zip(bounds, shifts, strict=True)])
    stops = np.concatenate([b[1:] - b[0] + at for b, at in zip(bounds, shifts, strict=True)])
    counts = np.array([len(found) - 1 for found in bounds])
    ends = np.cumsum(counts)
    begins = ends - counts
    following = _following(starts, stops, starts, MAX_REQUEST_BYTES)
    following = np.maximum(following, np.arange(1, len(starts) + 1))
    requests = np.zeros(len(batch), np.int64)
    # The first request of each slice, then those behind it.
    filled = np.flatnonzero(counts)
    first = following[begins[filled]]
    small = np.array([is_first for _, is_first in batch])[filled]
    at = begins[filled]
    limited = _following(starts, stops, starts[at], FIRST_REQUEST_BYTES)
    at = np.where(small, np.maximum(limited, at + 1), first)
    requests[filled] += 1
    going = at < ends[filled]
    while going.any():
        filled, at = filled[going], at[going]
        requests[filled] += 1
        at = following[at]
        going = at < ends[filled]
    for (part, _), count, size in zip(batch, requests.tolist(), sizes, strict=True):
        yield part, count, size


def _following(
    starts: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
    begun: npt.NDArray[np.int64],
    limit: int,
) -> npt.NDArray[np.int64]:
    """The chunk at which the request behind one that began at a position begins, at the latest."""
    enough = np.searchsorted(starts, begun + ENOUGH_REQUEST_BYTES, "left")
    too_much = np.searchsorted(stops, begun + limit, "right")
    return np.minimum(enough, too_much)
