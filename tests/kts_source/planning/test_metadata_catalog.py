"""Scans by the metadata topic: live segments alone, whatever the topic lacks or says twice."""

from __future__ import annotations

import dataclasses
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.errors import (
    AccessDeniedError,
    BrokerAccessError,
    CorruptSegmentError,
    InvalidOptionError,
    TieredKafkaError,
    TopicNotFoundError,
)
from segment_format.kafka_uuid import uuid_to_text
from segment_format.manifest.custom_metadata import CustomMetadata
from tests.kts_source.broker.fake_broker import FakeCluster
from tests.kts_source.broker.fake_log import FakeLog
from tests.kts_source.broker.fake_node import FETCH, LIST_OFFSETS, Fault
from tests.kts_source.broker.fake_node import METADATA as METADATA_REQUEST
from tests.kts_source.planning.metadata_events import (
    DELETED,
    DELETING,
    FINISHED,
    METADATA,
    UnlistableStore,
    announced,
    copied,
    update,
)
from tests.kts_source.planning.metadata_world import World, five_segments
from tests.segment_format.metadata.writers import write_custom_metadata, write_metadata_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DENIED = 29


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        yield cluster


@pytest.fixture
def world(cluster: FakeCluster) -> World:
    return World(cluster, five_segments())


@pytest.mark.parametrize("local", [False, True])
def test_a_tier_that_may_not_be_listed(cluster: FakeCluster, local: bool) -> None:
    world = World(cluster, five_segments(), local=local, key_prefix="" if local else "tier/")
    world.write_metadata()
    store = UnlistableStore(world.store)
    plan = world.plan(store)
    assert world.from_tier(plan) == [0, 1, 2, 3]
    assert plan.partitions[0].brokers is not None
    assert plan.partitions[0].brokers.ranges == ((48, 60),)
    assert set(world.store) <= set(store.looked_up)
    assert [part.segment.stop_offset for part in plan.partitions[0].surviving.ranges] == [
        *(files.next_offset for files in world.closed)
    ]


def test_a_stored_plan_keeps_what_the_catalog_told(world: World, tmp_path: Path) -> None:
    world.records[1].clear()
    world.write_metadata()
    plan = world.plan()
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json())
    again = world.plan(planFile=str(file))
    assert again.partitions[0].catalog == plan.partitions[0].catalog is not None
    with pytest.raises(InvalidOptionError, match="'catalog'"):
        world.plan(planFile=str(file), catalog="listing")


def test_only_live_segments_are_read(world: World) -> None:
    first, second, third, fourth = world.segment_ids
    world.records[0] += copied(world.place, world.closed[0], first, FINISHED, DELETING)[2:]
    world.records[1] += copied(world.place, world.closed[1], second, DELETING, DELETED)[1:]
    del world.records[2][1:]  # a copy in progress, all objects of which are there
    plan = (world.write_metadata(), world.plan())[1]
    assert world.from_tier(plan) == [3]
    catalog = plan.partitions[0].catalog
    assert catalog is not None
    assert (catalog.live, catalog.copying, catalog.deleting, catalog.records) == (1, 1, 1, 10)
    text = plan.explain()
    assert "10 records of __remote_log_metadata-" in text
    assert "segments: 1 live, 1 being copied, 1 being deleted" in text
    assert [segment in text for segment in (first, second, third, fourth)] == [
        *(True, False, True, True)
    ]


@pytest.mark.parametrize("suffix", ["log", "indexes", "rsm-manifest"])
def test_a_named_object_that_is_missing_is_left_to_brokers(world: World, suffix: str) -> None:
    world.write_metadata()
    (key,) = [key for key in world.keys(1) if key.endswith(f".{suffix}")]
    del world.store[key]
    plan = world.plan()
    assert world.from_tier(plan) == [0, 2, 3]
    (orphan,) = plan.partitions[0].orphans
    assert world.segment_ids[1] in str(orphan)


def test_a_catalog_that_is_behind_the_tier(world: World) -> None:
    # The last copy is not written down yet, and nothing is of the second.
    world.records[3].clear()
    world.records[1].clear()
    world.write_metadata()
    assert world.from_tier(world.plan()) == [0, 2]


def test_entries_that_were_deleted_from_the_topic(world: World) -> None:
    partitions = world.write_metadata()
    (mine,) = [part for part in partitions if part.log.batches]
    # The first batch has the first segment, and the begin of the second.
    mine.log = dataclasses.replace(mine.log, log_start=3)
    plan = world.plan()
    assert world.from_tier(plan) == [2, 3]
    (note,) = plan.notes
    assert "begins at offset 3, 1 updates are of segments that it does not name" in note


@pytest.mark.parametrize("number", [0, 1, 3])
def test_offsets_that_are_in_the_tier_and_not_named(world: World, number: int) -> None:
    world.records[number].clear()
    start, stop = 12 * number, 12 * number + 12
    world.write_metadata()
    (user,) = world.cluster.topics["t"][1]
    user.log = dataclasses.replace(user.log, local_start=48)
    plan = world.plan()
    catalog = plan.partitions[0].catalog
    assert catalog is not None
    assert catalog.not_named == ((start, stop),)
    assert f"t-0 [{start}, {stop})" in plan.notes[0]
    assert f"not in the catalog: offsets [{start}, {stop})" in plan.explain()


def test_a_topic_that_is_tiered_and_not_named(world: World) -> None:
    for records in world.records:
        records.clear()
    world.write_metadata()
    (user,) = world.cluster.topics["t"][1]
    user.log = dataclasses.replace(user.log, local_start=48)
    with pytest.raises(TopicNotFoundError, match="names no segment of topic id"):
        world.plan()
    world.plan(failOnDataLoss="false")


def test_a_wrong_key_prefix_does_not_move_the_scan_onto_the_brokers(world: World) -> None:
    world.write_metadata()
    (user,) = world.cluster.topics["t"][1]
    user.log = dataclasses.replace(user.log, local_start=48)
    with pytest.raises(TopicNotFoundError, match="check path, keyPrefix and layout"):
        world.plan(keyPrefix="other/")


def test_events_out_of_order_and_repeated(world: World) -> None:
    begun, finished = world.records[0]
    world.records[0] = [finished, begun, begun, finished, finished, begun]
    world.records[1] *= 2
    world.records[2].reverse()  # told before it was announced: it never was finished
    plan = (world.write_metadata(), world.plan())[1]
    assert world.from_tier(plan) == [0, 1, 3]
    assert "2 updates are of segments that it does not name" in plan.notes[0]


def test_entries_of_other_incarnations_and_topics(world: World) -> None:
    before = ("t", uuid_to_text(uuid.uuid4()), 0)
    neighbour = ("other", uuid_to_text(uuid.uuid4()), 0)
    more = [
        *copied(before, world.closed[0], uuid_to_text(uuid.uuid4()), FINISHED),
        # Another partition of the topic.
        *copied(("t", world.place[1], 1), world.closed[1], uuid_to_text(uuid.uuid4()), FINISHED),
        *copied(neighbour, world.closed[1], uuid_to_text(uuid.uuid4()), FINISHED),
        None,  # a tombstone
    ]
    plan = (world.write_metadata(*more), world.plan())[1]
    assert world.from_tier(plan) == [0, 1, 2, 3]
    catalog = plan.partitions[0].catalog
    assert catalog is not None
    assert catalog.live == 4


@pytest.mark.parametrize(
    "changed", [{"end_offset": 22}, {"segment_size_in_bytes": 5}, {"end_offset": 30}]
)
def test_objects_that_are_not_what_the_topic_says(world: World, changed: dict[str, int]) -> None:
    begun = announced(world.place, world.closed[1], world.segment_ids[1], **changed)
    world.records[1][0] = write_metadata_record(begun)
    world.write_metadata()
    assert world.from_tier(world.plan()) == [0, 2, 3]


@pytest.mark.parametrize("key_prefix", ["", "moved/"])
def test_keys_that_the_plugin_had_written_down(world: World, key_prefix: str) -> None:
    # The first segment was copied under another prefix, the second under another name.
    for number, custom in (
        (0, CustomMetadata(object_prefix="before/")),
        (1, CustomMetadata(remote_size=7, object_key="elsewhere/1")),
    ):
        event = update(
            world.place, world.segment_ids[number], FINISHED, write_custom_metadata(custom)
        )
        world.records[number][1] = write_metadata_record(event)
    for key in world.keys(0):
        world.store["before/" + key] = world.store.pop(key)
    for key in world.keys(1):
        suffix = key.rpartition(".")[2]
        world.store[f"{key_prefix}elsewhere/1.{suffix}"] = world.store.pop(key)
    for number in (2, 3):
        for key in world.keys(number):
            world.store[key_prefix + key] = world.store.pop(key)
    world.key_prefix = key_prefix
    plan = (world.write_metadata(), world.plan())[1]
    assert [span.segment.segment_id for span in plan.partitions[0].surviving.ranges] == [
        *world.segment_ids
    ]


def test_custom_metadata_of_another_plugin(world: World) -> None:
    event = update(world.place, world.segment_ids[2], FINISHED, b"\xff\xff")
    world.records[2][1] = write_metadata_record(event)
    world.write_metadata()
    assert world.from_tier(world.plan()) == [0, 1, 2, 3]


def test_a_store_that_hides_what_is_not_there(world: World) -> None:
    world.write_metadata()
    for key in world.keys(2):
        del world.store[key]
    plan = world.plan(UnlistableStore(world.store, hides=True))
    assert world.from_tier(plan) == [0, 1, 3]
    world.store.clear()
    with pytest.raises(AccessDeniedError, match="refused"):
        world.plan(UnlistableStore(world.store, hides=True))


@pytest.mark.parametrize("is_there", [False, True])
def test_an_object_that_is_refused_when_it_is_read(world: World, is_there: bool) -> None:
    # Looked up and then deleted, on a store that hides what is not there; or there, and encrypted
    # with a key of the store's that may not be used.
    world.write_metadata()
    refused = set(world.keys(2))

    class Refusing(UnlistableStore):
        def get_range(
            self, key: str, start: int, stop: int, *, version: str | None = None
        ) -> bytes:
            if key in refused:
                if not is_there:
                    world.store.pop(key, None)
                raise AccessDeniedError("refused to read", uri=self.uri(key))
            return super().get_range(key, start, stop, version=version)

    store = Refusing(world.store, hides=True)
    if is_there:
        with pytest.raises(AccessDeniedError, match="refused to read"):
            world.plan(store)
    else:
        assert world.from_tier(world.plan(store)) == [0, 1, 3]


@pytest.mark.parametrize("kind", [METADATA_REQUEST, LIST_OFFSETS, FETCH])
def test_without_rights_to_the_topic(world: World, kind: str) -> None:
    world.write_metadata()

    def deny(answer: Any) -> None:  # noqa: ANN401
        if kind == FETCH:  # planning fetches nothing else here
            answer.responses[0].partitions[0].error_code = _DENIED
            return
        for topic in answer.topics:
            for one in (topic,) if kind == METADATA_REQUEST else topic.partitions:
                if topic.name == METADATA:
                    one.error_code = _DENIED

    world.cluster.faults[kind].extend([Fault(edit=deny)] * 50)
    with pytest.raises(BrokerAccessError, match="operations Describe and Read on the topic __rem"):
        world.plan()


def test_a_cluster_without_the_topic(world: World) -> None:
    with pytest.raises(TopicNotFoundError, match="does not tier, or keeps its metadata elsewhere"):
        world.plan()


def test_a_record_that_cannot_be_read(world: World) -> None:
    world.write_metadata(b"\x01\x09\x00")
    with pytest.raises(CorruptSegmentError, match="record type 9") as caught:
        world.plan()
    assert (caught.value.topic, caught.value.offset) == (METADATA, 8)


def test_a_read_that_stops_before_the_high_watermark(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = world.write_metadata()
    (mine,) = [part for part in partitions if part.log.batches]
    whole = mine.log.end
    mine.log = _Short(**{f.name: getattr(mine.log, f.name) for f in dataclasses.fields(FakeLog)})
    monkeypatch.setattr("kts_source.broker.fetch_range._PATIENCE_SECONDS", 0.2)
    with pytest.raises(TieredKafkaError, match="returned no batch") as caught:
        world.plan()
    assert caught.value.topic == METADATA
    assert caught.value.offset is not None
    assert caught.value.offset < whole


class _Short(FakeLog):
    """A log whose last batch never comes."""

    def read(
        self, at: int, most_bytes: int, *, committed: bool
    ) -> tuple[bytes, list[tuple[int, int]] | None]:
        if at >= self.batches[-1].base:
            return b"", None
        shorter = FakeLog(self.batches[:-1])
        return shorter.read(at, most_bytes, committed=committed)
