"""Checks that listings that reuse the results of earlier listings equal full listings and send
fewer requests.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final
from unittest import mock

import pytest

from kts_source.layout.aiven import AivenLayout
from kts_source.layout.layout import TopicFolder
from kts_source.layout.local_tiered import LocalTieredLayout
from kts_source.options import parse_options
from kts_source.streaming import tier_look
from kts_source.streaming.offsets import INITIAL
from kts_source.streaming.tier_look import ListingMemory
from kts_source.streaming.tier_stream import TierStream
from kts_source.tier import Tier
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.streaming.running import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.store.object_store import ObjectInfo

PAGE: Final = 12
AGAIN: Final = 6
TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
FOLDER: Final = TopicFolder("t", TOPIC_ID, f"t-{TOPIC_ID}/")
INTERVAL_MS: Final = 60_000


class Paged(MemoryStore):
    """Store that lists objects in pages, and counts the pages."""

    lists_in_pages = True

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(objects)
        self.pages = 0

    def list_folders(self, prefix: str) -> list[str]:
        self.pages += 1
        return super().list_folders(prefix)

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        self.pages += 1
        for number, info in enumerate(super().list_objects(prefix, after=after)):
            if number and number % PAGE == 0:
                self.pages += 1
            yield info


class Scene:
    """A topic to which tests add segments, and from which they delete segments."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.store = Paged(self.objects)
        self.clock = Clock()
        self.memory = ListingMemory(AivenLayout(), INTERVAL_MS, self.clock)

    def add(self, number: int, partition: int = 0) -> None:
        for suffix in ("indexes", "log", "rsm-manifest"):
            self.objects[self.key(number, suffix, partition)] = b"x"

    def key(self, number: int, suffix: str, partition: int = 0) -> str:
        segment_id = TOPIC_ID[:-1] + "AQgw"[number % 4]
        return f"{FOLDER.folder}{partition}/{number:020d}-{segment_id}.{suffix}"

    def remove(self, number: int) -> None:
        for suffix in ("indexes", "log", "rsm-manifest"):
            del self.objects[self.key(number, suffix)]

    def count_requests(self) -> int:
        """Lists the partition, compares the result with a full listing, and returns the number of
        requests of the first listing.
        """
        before = self.store.pages
        listing = self.memory.list_partition(self.store, FOLDER, 0)
        pages = self.store.pages - before
        assert listing == AivenLayout().list_partition(MemoryStore(self.objects), FOLDER, 0)
        return pages


@pytest.fixture
def scene() -> Iterator[Scene]:
    with (
        mock.patch.object(tier_look, "PAGE", PAGE),
        mock.patch.object(tier_look, "_SEEN_AGAIN", AGAIN),
    ):
        yield Scene()


def test_listing_with_changes_at_both_ends_takes_two_requests(scene: Scene) -> None:
    for number in range(40):
        scene.add(number)
    assert scene.count_requests() == 10
    source = random.Random(7)
    low, high = 0, 40
    for _ in range(60):
        if source.random() < 0.6:
            scene.add(high)
            high += 1
        elif high - low > 12:
            scene.remove(low)
            low += 1
        assert scene.count_requests() == 2
        assert scene.memory.is_assumed(FOLDER, 0)


def test_listing_without_changes_returns_the_same_python_object(scene: Scene) -> None:
    for number in range(40):
        scene.add(number)
    first = scene.memory.list_partition(scene.store, FOLDER, 0)
    assert scene.memory.list_partition(scene.store, FOLDER, 0) is first


@pytest.mark.parametrize("number", [0, 1, 3, 38, 39])
@pytest.mark.parametrize("suffix", ["indexes", "log", "rsm-manifest"])
def test_listing_shows_deletions_near_the_ends_immediately(
    scene: Scene, number: int, suffix: str
) -> None:
    for segment in range(40):
        scene.add(segment)
    scene.count_requests()
    del scene.objects[scene.key(number, suffix)]
    scene.count_requests()


@pytest.mark.parametrize("number", [0, 1, 3, 38, 39])
def test_listing_shows_rewritten_objects_near_the_ends_immediately(
    scene: Scene, number: int
) -> None:
    for segment in range(40):
        scene.add(segment)
    scene.count_requests()
    scene.objects[scene.key(number, "log")] = b"longer"
    scene.count_requests()


def test_listing_after_copy_in_progress_completes_takes_two_requests(scene: Scene) -> None:
    for number in range(40):
        scene.add(number)
    del scene.objects[scene.key(39, "rsm-manifest")]
    scene.count_requests()
    scene.add(39)
    assert scene.count_requests() == 2


def test_listing_shows_changes_in_the_middle_after_the_interval(scene: Scene) -> None:
    for number in range(40):
        scene.add(number)
    scene.count_requests()
    del scene.objects[scene.key(20, "log")]
    assert len(scene.memory.list_partition(scene.store, FOLDER, 0).segments) == 40
    scene.clock.seconds += INTERVAL_MS / 1000 - 1
    assert len(scene.memory.list_partition(scene.store, FOLDER, 0).segments) == 40
    scene.clock.seconds += 1
    assert scene.count_requests() == 10
    assert not scene.memory.is_assumed(FOLDER, 0)


def test_listing_whose_memory_was_cleared_sends_requests_of_full_listing(scene: Scene) -> None:
    for number in range(40):
        scene.add(number)
    scene.count_requests()
    scene.add(40)
    assert scene.count_requests() == 2
    scene.memory.forget(FOLDER, 0)
    assert scene.count_requests() == 11


def test_listing_of_deleted_partition_is_empty(scene: Scene) -> None:
    for number in range(40):
        scene.add(number)
    scene.count_requests()
    scene.objects.clear()
    scene.count_requests()
    scene.add(50)
    scene.count_requests()


def test_many_small_partitions_are_listed_with_shared_requests(scene: Scene) -> None:
    for partition in range(40):
        scene.add(0, partition)
    full_store = MemoryStore(scene.objects)

    def look() -> int:
        before = scene.store.pages
        partitions = scene.memory.partitions(scene.store, FOLDER)
        assert partitions == AivenLayout().partitions(full_store, FOLDER)
        for partition in partitions:
            expected = AivenLayout().list_partition(full_store, FOLDER, partition)
            assert scene.memory.list_partition(scene.store, FOLDER, partition) == expected
        return scene.store.pages - before

    with mock.patch.object(tier_look, "_GAIN_IN_A_ROW", 3):
        assert look() == 1 + 40
        assert look() == 1 + 10
        scene.add(1, 7)
        del scene.objects[scene.key(0, "log", 9)]
        assert look() == 1 + 11, "122 objects"
        scene.add(0, 40)
        assert look() == 1 + 41, "a partition that was never listed"
        assert look() == 1 + 11


def test_partitions_of_local_layout_are_listed_with_one_request_each(scene: Scene) -> None:
    root = "kafka-tiered-storage/"
    folder = TopicFolder("t", TOPIC_ID, root)
    for partition in range(40):
        name = f"{root}t-{partition}-{TOPIC_ID}/{0:020d}-{TOPIC_ID}"
        for suffix in ("log", "index", "timeindex", "leader_epoch_checkpoint", "snapshot"):
            scene.objects[f"{name}.{suffix}"] = b"x"
    memory = ListingMemory(LocalTieredLayout(), INTERVAL_MS, scene.clock)
    for _ in range(3):
        before = scene.store.pages
        for partition in memory.partitions(scene.store, folder):
            assert len(memory.list_partition(scene.store, folder, partition).segments) == 1
        assert scene.store.pages - before == 1 + 40


@pytest.mark.usefixtures("scene")
def test_completed_copy_in_the_middle_of_a_long_listing_is_noticed() -> None:
    log = LogBuilder()
    for _ in range(40):
        log.append([SimpleRecord(b"value")] * 3)
        log.roll()
    clock, objects = Clock(), dict[str, bytes]()
    segments = list(log.build().segments)
    late_segment = segments.pop(20)
    writer = AivenTierWriter(objects, topic="t", topic_id=TOPIC_ID)
    for segment in segments:
        writer.write_segment(segment, event_timestamp_ms=int(clock.seconds * 1000))
    options = parse_options({"path": "s3://nowhere", "subscribe": "t"})
    with mock.patch.object(tier_look, "open_tier", return_value=Tier(Paged(objects))):
        stream = TierStream(options, clock)
    position = stream.next(INITIAL)
    for _ in range(2):
        assert position.topics["t"].offsets == {0: late_segment.base_offset}
        clock.seconds += 11
        assert stream.next(position) is position
    writer.write_segment(late_segment, event_timestamp_ms=int(clock.seconds * 1000))
    clock.seconds += 11
    assert stream.next(position).topics["t"].offsets == {0: 120}
    stream.close()
