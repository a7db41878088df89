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


def test_stored_indexes_keep_small_and_large_positions() -> None:
    for stop in (0, (1 << 31) - 1, 1 << 31, (1 << 63) - 1):
        ranges = [(IndexType.OFFSET, 0, 7), (IndexType.TRANSACTION, 7, stop)]
        assert StoredIndexes(SOURCE, ranges).ranges() == ranges


@pytest.mark.parametrize(
    ("log", "key"),
    [
        ("topic/0/segment.log", "topic/0/segment.indexes"),
        ("topic/0/segment.log", "topic.b/0/segment.indexes"),
        ("a.b/segment", "a.c/segment"),
        ("segment", "segment"),
        ("segment", "segment."),
    ],
)
def test_stored_indexes_with_a_log_keep_the_key_of_their_object(log: str, key: str) -> None:
    source = ObjectRef(key, 100, "v1", "STANDARD_IA")
    indexes = StoredIndexes(source, RANGES, ObjectRef(log, 5, "v2"))
    assert indexes.source == source
    assert indexes == StoredIndexes(source, RANGES)
    assert pickle.loads(pickle.dumps(indexes)).source == source


@pytest.mark.parametrize("position", ["1", 1.5, None, 1 << 63])
def test_stored_indexes_refuse_a_position_that_is_no_integer(position: object) -> None:
    ranges: list[tuple[IndexType, int, int]] = [(IndexType.OFFSET, 0, position)]  # type: ignore[list-item]
    with pytest.raises(ValueError, match="positions of side files"):
        StoredIndexes(SOURCE, ranges)
