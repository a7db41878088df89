"""Checks that adjacent side files are read with one request, which returns the same bytes as
separate requests.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

import pytest

from kts_source.cache.disk_cache import CacheLimits, DiskCache
from kts_source.cache.packs import MAX_PACK_BYTES, SideFilePack
from kts_source.errors import ObjectNotFoundError
from kts_source.layout.aiven import AivenLayout
from kts_source.layout.local_tiered import LocalTieredLayout
from kts_source.layout.remote_segment import IndexType, ObjectRef, SegmentObjects, StoredIndex
from kts_source.read.segment_source import MAX_TOGETHER_BYTES, read_side_file
from kts_source.store.local_store import LocalStore
from kts_source.tier import Tier
from segment_format.manifest.chunk_index import FixedChunkIndex
from tests.golden_data import KEY_PREFIX, LOCAL_TIER, TIER, TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kts_source.layout.layout import Layout
    from kts_source.store.object_store import ObjectStore

OFFSET, SNAPSHOT, EPOCH, TRANSACTION = (
    IndexType.OFFSET,
    IndexType.PRODUCER_SNAPSHOT,
    IndexType.LEADER_EPOCH,
    IndexType.TRANSACTION,
)


def segments(
    layout: Layout, store: ObjectStore, prefix: str, topic: str | None
) -> Iterator[SegmentObjects]:
    for folder in layout.topic_folders(store, prefix, topic):
        for partition in layout.partitions(store, folder):
            for entry in layout.list_partition(store, folder, partition).segments:
                yield layout.describe(store, entry).objects


def check_all_kinds(store: LocalStore, objects: SegmentObjects) -> int:
    """Checks that each side file of a segment is read with the right bytes. Returns the number of
    requests that the reads sent.
    """
    reads = partial(read_side_file, Tier(store), SideFilePack())
    kinds = [kind for kind, section in objects.indexes.items() if section.size]
    random.Random(objects.log.key).shuffle(kinds)
    before = store.counters.requests
    contents = {kind: reads(objects, kind) for kind in kinds}
    took = store.counters.requests - before
    for kind, data in contents.items():
        section = objects.indexes[kind]
        assert data == store.get_range(section.source.key, section.start, section.stop)
        assert reads(objects, kind) == data
    return took


@pytest.mark.parametrize("topic", TOPICS)
def test_side_files_of_golden_segments_are_read_with_at_most_four_requests(topic: str) -> None:
    store = LocalStore(TIER)
    for objects in segments(AivenLayout(), store, KEY_PREFIX, topic):
        # The offset index and the time index take one request each. The other files take one, or
        # two if the transaction index is read first.
        assert check_all_kinds(store, objects) <= 4


def test_side_files_in_separate_objects_are_read_with_one_request_each() -> None:
    store = LocalStore(LOCAL_TIER / "tier")
    segments_found = list(segments(LocalTieredLayout(), store, "", None))
    assert segments_found
    for objects in segments_found:
        kinds = sum(section.size > 0 for section in objects.indexes.values())
        assert check_all_kinds(store, objects) == kinds


class Ranges(LocalStore):
    """A store that returns zeros and records the requested ranges."""

    def __init__(self) -> None:
        super().__init__(TIER)
        self.asked: list[tuple[int, int]] = []
        self.gone = False

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> bytes:
        self.asked.append((start, stop))
        if self.gone:
            raise ObjectNotFoundError("gone")
        return bytes(stop - start)


def make_objects(name: str = "a", **sections: tuple[int, int]) -> SegmentObjects:
    source = ObjectRef(f"{name}.indexes", 1 << 30, "1", None)
    indexes = {
        IndexType[kind.upper()]: StoredIndex(source, start, stop)
        for kind, (start, stop) in sections.items()
    }
    log = ObjectRef(f"{name}.log", 100, "1", None)
    return SegmentObjects(log, FixedChunkIndex(100, 100, 100, 100), False, None, indexes)


def test_snapshot_checkpoint_and_transaction_index_are_read_with_one_request() -> None:
    store = Ranges()
    reads = partial(read_side_file, Tier(store), SideFilePack())
    objects = make_objects(
        offset=(0, 10), producer_snapshot=(10, 25), leader_epoch=(25, 40), transaction=(40, 60)
    )
    assert [len(reads(objects, kind)) for kind in (EPOCH, SNAPSHOT, TRANSACTION)] == [
        15,
        15,
        20,
    ]
    assert len(reads(objects, SNAPSHOT)) == 15
    assert store.asked == [(10, 60)]


def test_transaction_index_that_is_read_first_is_read_separately() -> None:
    store = Ranges()
    objects = make_objects(leader_epoch=(25, 40), transaction=(40, 60))
    assert len(read_side_file(Tier(store), SideFilePack(), objects, TRANSACTION)) == 20
    assert store.asked == [(40, 60)]


def test_large_or_distant_side_files_are_read_with_separate_requests() -> None:
    store = Ranges()
    large = make_objects(
        producer_snapshot=(0, MAX_TOGETHER_BYTES), leader_epoch=(1 << 16, (1 << 16) + 9)
    )
    distant = make_objects(
        "b", producer_snapshot=(0, 10), leader_epoch=(11, 20), transaction=(20, 30)
    )
    reads = partial(read_side_file, Tier(store), SideFilePack())
    assert len(reads(large, EPOCH)) == 9
    assert len(reads(large, SNAPSHOT)) == MAX_TOGETHER_BYTES
    assert len(reads(distant, SNAPSHOT)) == 10
    assert len(reads(distant, TRANSACTION)) == 10
    assert store.asked == [(1 << 16, (1 << 16) + 9), (0, MAX_TOGETHER_BYTES), (0, 10), (20, 30)]


def test_each_side_file_is_read_separately_without_a_side_file_pack() -> None:
    store = Ranges()
    objects = all_five()
    for kind, section in objects.indexes.items():
        assert len(read_side_file(Tier(store), None, objects, kind, is_cut=True)) == section.size
    assert store.asked == [(section.start, section.stop) for section in objects.indexes.values()]


def test_failed_read_adds_nothing_to_the_side_file_pack() -> None:
    store = Ranges()
    reads = partial(read_side_file, Tier(store), SideFilePack())
    objects = make_objects(leader_epoch=(0, 9), transaction=(9, 20))
    store.gone = True
    with pytest.raises(ObjectNotFoundError):
        reads(objects, EPOCH)
    store.gone = False
    assert len(reads(objects, TRANSACTION)) == 11
    assert store.asked == [(0, 20), (9, 20)]


def all_five() -> SegmentObjects:
    return make_objects(
        offset=(0, 10),
        timestamp=(10, 30),
        producer_snapshot=(30, 45),
        leader_epoch=(45, 60),
        transaction=(60, 80),
    )


@pytest.mark.parametrize("first", list(IndexType))
def test_all_side_files_of_a_partly_read_segment_are_read_together(first: IndexType) -> None:
    store = Ranges()
    reads = partial(read_side_file, Tier(store), SideFilePack())
    objects = all_five()
    assert len(reads(objects, first, is_cut=True)) == objects.indexes[first].size
    for kind, section in objects.indexes.items():
        assert len(reads(objects, kind)) == section.size
    assert store.asked == [(0, 80)]


def test_time_index_and_offset_index_are_read_with_one_request() -> None:
    store = Ranges()
    reads = partial(read_side_file, Tier(store), SideFilePack())
    objects = all_five()
    assert len(reads(objects, IndexType.TIMESTAMP)) == 20
    assert len(reads(objects, IndexType.OFFSET)) == 10
    assert store.asked == [(0, 80)]


def test_offset_index_of_fully_read_segment_is_read_separately() -> None:
    store = Ranges()
    assert len(read_side_file(Tier(store), SideFilePack(), all_five(), OFFSET)) == 10
    assert store.asked == [(0, 10)]


def test_each_side_file_is_read_separately_if_the_side_file_pack_is_full() -> None:
    store = Ranges()
    pack = SideFilePack()
    pack.add(ObjectRef("full", 1, "1"), 0, bytes(MAX_PACK_BYTES - 20))
    reads = partial(read_side_file, Tier(store), pack)
    objects = all_five()
    assert len(reads(objects, SNAPSHOT)) == 15
    assert len(reads(objects, EPOCH)) == 15
    assert store.asked == [(30, 45), (45, 60)]


@pytest.mark.parametrize("topic", TOPICS)
def test_side_files_of_golden_segment_are_read_with_one_request_and_cached(
    topic: str, tmp_path: Path
) -> None:
    store = LocalStore(TIER)
    cache = DiskCache(tmp_path / "cache", CacheLimits(None, None))
    for objects in segments(AivenLayout(), store, KEY_PREFIX, topic):
        for reader in range(2):
            pack = SideFilePack(cache, objects.log.key)
            reads = partial(read_side_file, Tier(store), pack)
            before = store.counters.requests
            kinds = [kind for kind, section in objects.indexes.items() if section.size]
            random.Random(objects.log.key).shuffle(kinds)
            contents = {kind: reads(objects, kind, is_cut=True) for kind in kinds}
            assert store.counters.requests - before == (0 if reader else 1)
            pack.save()
            for kind, data in contents.items():
                section = objects.indexes[kind]
                assert data == store.get_range(section.source.key, section.start, section.stop)
