from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format.errors import InvalidManifestError
from segment_format.manifest.chunk_index import (
    Chunk,
    FixedChunkIndex,
    VariableChunkIndex,
)
from tests.segment_format.manifest.writers import encode_chunk_sizes, variable_index

Index = FixedChunkIndex | VariableChunkIndex

TABLES: list[tuple[Index, list[tuple[int, int, int, int, int]]]] = [
    (
        FixedChunkIndex(100, 250, 110, 30),
        [(0, 0, 100, 0, 110), (1, 100, 100, 110, 110), (2, 200, 50, 220, 30)],
    ),
    (
        variable_index(100, 250, [10, 20, 30]),
        [(0, 0, 100, 0, 10), (1, 100, 100, 10, 20), (2, 200, 50, 30, 30)],
    ),
    (
        FixedChunkIndex(101, 253, 111, 81),
        [(0, 0, 101, 0, 111), (1, 101, 101, 111, 111), (2, 202, 51, 222, 81)],
    ),
    (
        variable_index(101, 253, [33, 22, 5]),
        [(0, 0, 101, 0, 33), (1, 101, 101, 33, 22), (2, 202, 51, 55, 5)],
    ),
]
every_table = pytest.mark.parametrize(("index", "table"), TABLES)


@st.composite
def indexes(draw: st.DrawFn) -> Index:
    chunk_size = draw(st.integers(1, 2**31 - 1))
    count = draw(st.integers(0, min(40, (2**31 - 1) // chunk_size)))
    file_size = (
        0
        if not count
        else draw(st.integers((count - 1) * chunk_size + 1, min(count * chunk_size, 2**31 - 1)))
    )
    sizes = st.integers(0, 2**31 - 1) | st.integers(0, 50)
    if draw(st.booleans()):
        return FixedChunkIndex(chunk_size, file_size, draw(sizes), draw(sizes))
    return variable_index(
        chunk_size, file_size, draw(st.lists(sizes, min_size=count, max_size=count))
    )


def table_by_counting(index: Index) -> list[Chunk]:
    """Computes the chunk table by walking from the first chunk to the last."""
    table: list[Chunk] = []
    position = transformed = 0
    while position < index.original_file_size:
        size = min(index.original_chunk_size, index.original_file_size - position)
        is_last = position + size == index.original_file_size
        if isinstance(index, VariableChunkIndex):
            stored = int(index.transformed_sizes[len(table)])
        elif is_last:
            stored = index.final_transformed_chunk_size
        else:
            stored = index.transformed_chunk_size
        table.append(Chunk(len(table), position, size, transformed, stored))
        position += size
        transformed += stored
    return table


@every_table
def test_chunks_match_handwritten_table(
    index: Index, table: list[tuple[int, int, int, int, int]]
) -> None:
    chunks = [Chunk(*row) for row in table]
    assert list(index.chunks()) == chunks
    assert [index.chunk(number) for number in range(index.chunk_count)] == chunks
    assert index.transformed_size == chunks[-1].transformed_stop


def test_chunks_from_negative_position_raise() -> None:
    for index, _ in TABLES:
        with pytest.raises(ValueError, match="negative"):
            index.chunks(-1)


def test_chunks_of_range_contain_its_bytes() -> None:
    index = FixedChunkIndex(10, 100, 10, 10)

    def ids(start: int, stop: int | None = None) -> list[int]:
        return [chunk.id for chunk in index.chunks(start, stop)]

    assert ids(32, 35) == [3]
    assert ids(15, 35) == [1, 2, 3]
    assert ids(0, 81) == list(range(9))
    assert ids(0, 80) == list(range(8))
    assert ids(0, 111) == list(range(10))
    assert ids(95) == [9]
    assert ids(100) == []
    assert ids(1000) == []
    assert ids(10, 10) == []
    assert ids(20, 10) == []


def test_empty_file_has_no_chunks() -> None:
    for index in (
        FixedChunkIndex(100, 0, 100, 0),
        variable_index(100, 0, []),
        variable_index(100, 0, [0]),  # the plugin's index of an empty file
    ):
        assert index.chunk_count == 0
        assert index.transformed_size == 0
        assert index.chunks() == ()
        with pytest.raises(IndexError):
            index.chunk(0)


@settings(deadline=None)
@given(indexes(), st.data())
def test_chunks_of_any_index_match_table_computed_by_counting(
    index: Index, data: st.DataObject
) -> None:
    table = table_by_counting(index)
    assert list(index.chunks()) == table
    assert index.transformed_size == sum(chunk.transformed_size for chunk in table)

    start = data.draw(st.integers(0, index.original_file_size + 1))
    stop = data.draw(st.integers(0, index.original_file_size + 1))
    touching = [
        chunk
        for chunk in table
        if chunk.original_position < stop and chunk.original_stop > start and start < stop
    ]
    assert list(index.chunks(start, stop)) == touching


@settings(deadline=None)
@given(indexes())
def test_chunk_index_pickles(index: Index) -> None:
    copy = pickle.loads(pickle.dumps(index))
    assert copy == index
    assert hash(copy) == hash(index)
    assert copy.chunks() == index.chunks()


def test_chunk_indexes_with_different_sizes_are_unequal() -> None:
    assert FixedChunkIndex(100, 250, 110, 30) != FixedChunkIndex(100, 250, 110, 31)
    assert variable_index(100, 250, [1, 2, 3]) != variable_index(100, 250, [1, 3, 2])
    assert variable_index(100, 50, [50]) != FixedChunkIndex(100, 50, 100, 50)


@pytest.mark.parametrize(
    "numbers",
    [(0, 1, 1, 1), (-1, 1, 1, 1), (1, -1, 1, 1), (1, 1, -1, 1), (1, 1, 1, -1)]
    + [tuple(2**31 if index == big else 1 for index in range(4)) for big in range(4)],
)
def test_chunk_index_with_impossible_size_raises(numbers: tuple[int, int, int, int]) -> None:
    with pytest.raises(InvalidManifestError):
        FixedChunkIndex(*numbers)


@pytest.mark.parametrize(
    "sizes", [[], [1, 2], [1, 2, 3, 4], [1, -1, 1], [1, 2**31, 1], [1, 2**70, 1]]
)
def test_chunk_sizes_that_contradict_the_file_size_raise(sizes: list[int]) -> None:
    with pytest.raises(InvalidManifestError):
        variable_index(100, 250, sizes)


@pytest.mark.parametrize("sizes", [[1], [0, 0]])
def test_chunk_sizes_of_empty_file_raise(sizes: list[int]) -> None:
    with pytest.raises(InvalidManifestError):
        variable_index(100, 0, sizes)


def test_chunk_index_keeps_the_original_text_of_chunk_sizes() -> None:
    # The text of the same list differs between zstd versions.
    text = encode_chunk_sizes([10, 20, 30]).replace("=", "")
    assert VariableChunkIndex(100, 250, text).transformed_chunks == text
    assert variable_index(100, 250, [10, 20, 30]).transformed_chunks == text


@every_table
def test_object_size_that_differs_from_index_raises(
    index: Index, table: list[tuple[int, int, int, int, int]]
) -> None:
    total = sum(row[4] for row in table)
    index.check_object_size(total)
    for size in (total - 1, total + 1, 0):
        with pytest.raises(InvalidManifestError, match=f"{size} bytes.*{total}"):
            index.check_object_size(size)


def test_lazily_decoded_index_equals_decoded_index() -> None:
    table = variable_index(10, 35, [7, 0, 12, 3])
    deferred = VariableChunkIndex(10, 35, table.transformed_chunks, 22)
    assert (deferred.transformed_size, deferred.chunk_count) == (22, 4)
    copy = pickle.loads(pickle.dumps(deferred))
    assert copy.chunks() == deferred.chunks() == table.chunks()
    assert deferred == table


def test_lazily_decoded_index_with_wrong_size_or_text_raises() -> None:
    table = variable_index(10, 35, [7, 0, 12, 3])
    for size, text in ((23, table.transformed_chunks), (22, "no base64")):
        with pytest.raises(InvalidManifestError):
            VariableChunkIndex(10, 35, text, size).chunk(0)
