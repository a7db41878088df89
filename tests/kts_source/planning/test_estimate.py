"""Compares the estimated number and size of requests for slices with the requests that the reader
makes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kts_source.planning import estimate
from kts_source.planning.estimate import counted_requests
from kts_source.read.segment_source import request_groups
from segment_format.manifest.chunk_index import ChunkIndex, FixedChunkIndex
from tests.quick import examples
from tests.segment_format.manifest.writers import variable_index

MIB = 1 << 20
SIZES = st.one_of(
    st.integers(0, 40 * MIB),
    st.sampled_from([0, 1, MIB - 1, MIB, MIB + 1, 8 * MIB, 16 * MIB, 16 * MIB + 1, 4 * MIB]),
)


@st.composite
def indexes(draw: st.DrawFn) -> ChunkIndex:
    chunk = draw(st.sampled_from([1, 7, 1000]))
    count = draw(st.integers(0, 40))
    size = count * chunk - (draw(st.integers(0, chunk - 1)) if count else 0)
    if draw(st.booleans()):
        sizes = draw(st.lists(SIZES, min_size=count, max_size=count))
        return variable_index(chunk, size, sizes)
    return FixedChunkIndex(chunk, size, draw(SIZES), draw(SIZES))


@st.composite
def slices(draw: st.DrawFn) -> tuple[Any, bool]:
    index = draw(indexes())
    start = draw(st.integers(0, index.original_file_size))
    stop = draw(st.integers(start, index.original_file_size))
    if draw(st.booleans()):
        start, stop = 0, index.original_file_size
    task_slice = SimpleNamespace(
        objects=SimpleNamespace(chunk_index=index), cut_start=start, cut_stop=stop
    )
    return task_slice, draw(st.booleans())


def make_full_slice(*sizes: int) -> tuple[Any, bool]:
    """Returns a slice of a complete segment whose chunks have the sizes `sizes` in bytes, and
    `True`, because the slice is the first of its task.
    """
    index = variable_index(1, len(sizes), list(sizes))
    task_slice = SimpleNamespace(
        objects=SimpleNamespace(chunk_index=index), cut_start=0, cut_stop=len(sizes)
    )
    return task_slice, True


# The sizes of the requests are exactly at all limits.
@example([make_full_slice(MIB - 1, 1, 5 * MIB, 3 * MIB, 7 * MIB, 9 * MIB, 0)], 50)
# The sizes of the requests are one byte above or below the limits.
@example([make_full_slice(MIB - 1, 2, 5 * MIB, 3 * MIB - 1, 7 * MIB, 9 * MIB + 1)], 50)
@settings(max_examples=examples(400), deadline=None)
@given(st.lists(slices(), max_size=12), st.sampled_from([1, 50, 1 << 18]))
def test_estimated_requests_equal_the_requests_of_the_reader(
    drawn_slices: list[tuple[Any, bool]], chunks_at_once: int
) -> None:
    default = estimate._CHUNKS_AT_ONCE
    estimate._CHUNKS_AT_ONCE = chunks_at_once  # type: ignore[misc]
    try:
        counts = [(n, size) for _, n, size in counted_requests(cast("Any", drawn_slices))]
    finally:
        estimate._CHUNKS_AT_ONCE = default  # type: ignore[misc]
    expected = []
    for task_slice, is_first in drawn_slices:
        chunks = task_slice.objects.chunk_index.chunks(task_slice.cut_start, task_slice.cut_stop)
        groups = list(request_groups(chunks, is_first))
        sizes = [g[-1].transformed_stop - g[0].transformed_position for g in groups]
        expected.append((len(groups), sum(sizes)))
    assert counts == expected


@given(indexes())
def test_chunk_index_returns_transformed_stops_of_all_chunks(index: ChunkIndex) -> None:
    assert index.transformed_stops().tolist() == [c.transformed_stop for c in index.chunks()]
