"""Tests the compact mapping of side files that are in one object."""

from __future__ import annotations

import pickle

import pytest

from kts_source.layout.remote_segment import IndexType, ObjectRef, StoredIndex, StoredIndexes

SOURCE = ObjectRef("topic/0/segment.indexes", 100, "v1")
RANGES = [
    (IndexType.OFFSET, 0, 10),
    (IndexType.TIMESTAMP, 10, 10),
    (IndexType.LEADER_EPOCH, 10, 1 << 40),
]
AS_DICT = {kind: StoredIndex(SOURCE, start, stop) for kind, start, stop in RANGES}


def test_stored_indexes_equal_a_dict_of_the_same_side_files() -> None:
    indexes = StoredIndexes(SOURCE, RANGES)
    assert indexes == AS_DICT
    assert list(indexes.items()) == list(AS_DICT.items())
    assert len(indexes) == len(AS_DICT)
    assert repr(indexes) == repr(AS_DICT)


def test_stored_indexes_lack_other_side_files() -> None:
    indexes = StoredIndexes(SOURCE, RANGES)
    assert IndexType.TRANSACTION not in indexes
    assert indexes.get(IndexType.PRODUCER_SNAPSHOT) is None
    assert StoredIndexes(SOURCE, []) == {}


def test_stored_indexes_survive_pickling() -> None:
    assert pickle.loads(pickle.dumps(StoredIndexes(SOURCE, RANGES))) == AS_DICT


@pytest.mark.parametrize("position", ["1", 1.5, None, 1 << 63])
def test_stored_indexes_refuse_a_position_that_is_no_integer(position: object) -> None:
    ranges: list[tuple[IndexType, int, int]] = [(IndexType.OFFSET, 0, position)]  # type: ignore[list-item]
    with pytest.raises(ValueError, match="positions of side files"):
        StoredIndexes(SOURCE, ranges)
