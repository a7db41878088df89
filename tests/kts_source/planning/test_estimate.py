"""Requests counted of many slices at once are those that the reader makes of each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kts_source.planning import estimate
from kts_source.planning.estimate import counted_requests
from kts_source.read.segment_source import request_groups
from segment_format.manifest.chunk_index import ChunkIndex, FixedChunkIndex
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
    part = SimpleNamespace(
        objects=SimpleNamespace(chunk_index=index), cut_start=start, cut_stop=stop
    )
    return part, draw(st.booleans())


def whole(*sizes: int) -> tuple[Any, bool]:
    """The first slice of a task: all of a segment with chunks of these sizes."""
    index = variable_index(1, len(sizes), list(sizes))
    part = SimpleNamespace(
        objects=SimpleNamespace(chunk_index=index), cut_start=0, cut_stop=len(sizes)
    )
    return part, True


@example([whole(MIB - 1, 1, 5 * MIB, 3 * MIB, 7 * MIB, 9 * MIB, 0)], 50)  # all limits to the byte
@example([whole(MIB - 1, 2, 5 * MIB, 3 * MIB - 1, 7 * MIB, 9 * MIB + 1)], 50)  # and beyond
@settings(max_examples=400, deadline=None)
@given(st.lists(slices(), max_size=12), st.sampled_from([1, 50, 1 << 18]))
def test_request_count_equals_reader_groups(parts: list[tuple[Any, bool]], at_a_time: int) -> None:
    before = estimate._CHUNKS_AT_ONCE
    estimate._CHUNKS_AT_ONCE = at_a_time  # type: ignore[misc]
    try:
        found = [(n, size) for _, n, size in counted_requests(cast("Any", parts))]
    finally:
        estimate._CHUNKS_AT_ONCE = before  # type: ignore[misc]
    expected = []
    for part, is_first in parts:
        chunks = part.objects.chunk_index.chunks(part.cut_start, part.cut_stop)
        groups = list(request_groups(chunks, is_first))
        sizes = [g[-1].transformed_stop - g[0].transformed_position for g in groups]
        expected.append((len(groups), sum(sizes)))
    assert found == expected


@given(indexes())
def test_chunk_stops_equal_chunk_index(index: ChunkIndex) -> None:
    assert index.transformed_stops().tolist() == [c.transformed_stop for c in index.chunks()]
