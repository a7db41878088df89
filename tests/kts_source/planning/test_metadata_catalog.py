"""Checks that scans with `catalog=metadata-topic` read exactly the live segments.

Records of the metadata topic can be missing, repeated or invalid.
"""

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
from segment_format.manifest.object_names import CustomMetadata
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
    copied,
    make_copy_started,
    make_update,
)
from tests.kts_source.planning.metadata_world import World, five_segments
from tests.segment_format.metadata.writers import write_metadata_record

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
def test_scan_with_metadata_topic_needs_no_listing(cluster: FakeCluster, local: bool) -> None:
    world = World(cluster, five_segments(), local=local, key_prefix="" if local else "tier/")
    world.write_metadata()
    store = UnlistableStore(world.store)
    plan = world.plan(store)
    assert world.from_tier(plan) == [0, 1, 2, 3]
    assert plan.partitions[0].brokers is not None
    assert plan.partitions[0].brokers.ranges == ((48, 60),)
    assert set(world.store) <= set(store.looked_up)
    assert [span.segment.stop_offset for span in plan.partitions[0].surviving.ranges] == [
        *(files.next_offset for files in world.closed)
    ]


def test_replayed_plan_keeps_its_catalog(world: World, tmp_path: Path) -> None:
    world.records[1].clear()
    world.write_metadata()
    plan = world.plan()
    plan_file = tmp_path / "plan.json"
    plan_file.write_text(plan.to_json())
    replayed = world.plan(planFile=str(plan_file))
    assert replayed.partitions[0].catalog == plan.partitions[0].catalog is not None
    with pytest.raises(InvalidOptionError, match="'catalog'"):
        world.plan(planFile=str(plan_file), catalog="listing")


def test_only_live_segments_of_the_metadata_topic_are_read_from_tier(world: World) -> None:
    first, second, third, fourth = world.segment_ids
    world.records[0] += copied(world.place, world.closed[0], first, FINISHED, DELETING)[2:]
    world.records[1] += copied(world.place, world.closed[1], second, DELETING, DELETED)[1:]
    del world.records[2][1:]  # a copy in progress; all its objects exist
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
def test_segment_with_missing_object_is_read_from_brokers(world: World, suffix: str) -> None:
    world.write_metadata()
    (key,) = [key for key in world.keys(1) if key.endswith(f".{suffix}")]
    del world.store[key]
    plan = world.plan()
    assert world.from_tier(plan) == [0, 2, 3]
    (orphan,) = plan.partitions[0].orphans
    assert world.segment_ids[1] in str(orphan)


def test_segments_without_metadata_records_are_read_from_brokers(world: World) -> None:
    # The metadata topic has no records of the second and of the last tiered segment.
    world.records[3].clear()
    world.records[1].clear()
    world.write_metadata()
    assert world.from_tier(world.plan()) == [0, 2]


def test_deleted_metadata_records_are_reported(world: World) -> None:
    partitions = world.write_metadata()
    (metadata_partition,) = [partition for partition in partitions if partition.log.batches]
    # The deleted batch has all records of the first segment and one of the second segment.
    metadata_partition.log = dataclasses.replace(metadata_partition.log, log_start=3)
    plan = world.plan()
    assert world.from_tier(plan) == [2, 3]
    (note,) = plan.notes
    assert "begins at offset 3, 1 updates are of segments that it does not name" in note


@pytest.mark.parametrize("number", [0, 1, 3])
def test_tiered_offsets_missing_in_metadata_topic_are_reported(world: World, number: int) -> None:
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


def test_tiered_topic_missing_in_metadata_topic_raises_topic_not_found_error(world: World) -> None:
    for records in world.records:
        records.clear()
    world.write_metadata()
    (user,) = world.cluster.topics["t"][1]
    user.log = dataclasses.replace(user.log, local_start=48)
    with pytest.raises(TopicNotFoundError, match="names no segment of topic id"):
        world.plan()
    world.plan(failOnDataLoss="false")


def test_wrong_key_prefix_raises_topic_not_found_error(world: World) -> None:
    world.write_metadata()
    (user,) = world.cluster.topics["t"][1]
    user.log = dataclasses.replace(user.log, local_start=48)
    with pytest.raises(TopicNotFoundError, match="check path, keyPrefix and layout"):
        world.plan(keyPrefix="other/")


@pytest.mark.parametrize(("local_start", "level"), [(0, "INFO"), (48, "WARNING")])
def test_topic_without_objects_is_a_warning_only_if_brokers_lack_offsets(
    world: World, caplog: pytest.LogCaptureFixture, local_start: int, level: str
) -> None:
    world.write_metadata()
    (user,) = world.cluster.topics["t"][1]
    user.log = dataclasses.replace(user.log, local_start=local_start)
    with caplog.at_level("INFO"):
        plan = world.plan(keyPrefix="other/", failOnDataLoss="false")
    (line,) = [each for each in caplog.records if "no object of topic id" in each.message]
    assert line.levelname == level
    assert line.message in plan.notes


def test_repeated_and_unordered_metadata_records_are_accepted(world: World) -> None:
    started, finished = world.records[0]
    world.records[0] = [finished, started, started, finished, finished, started]
    world.records[1] *= 2
    world.records[2].reverse()  # finished before it started: not a finished copy
    plan = (world.write_metadata(), world.plan())[1]
    assert world.from_tier(plan) == [0, 1, 3]
    assert "2 updates are of segments that it does not name" in plan.notes[0]


def test_compacted_metadata_topic_with_keys_loses_no_rows(world: World) -> None:
    # KIP-1266 drafts keys and compaction. Then a tombstone remains of one segment, and of another
    # an update without the record that announced the segment.
    world.records[0] = [None]
    del world.records[1][0]
    world.write_metadata(key=b"key")
    plan = world.plan()
    assert world.from_tier(plan) == [2, 3]
    assert "1 updates are of segments that it does not name" in plan.notes[0]


def test_metadata_records_of_other_incarnations_and_topics_are_ignored(world: World) -> None:
    older_incarnation = ("t", uuid_to_text(uuid.uuid4()), 0)
    other_topic = ("other", uuid_to_text(uuid.uuid4()), 0)
    others = [
        *copied(older_incarnation, world.closed[0], uuid_to_text(uuid.uuid4()), FINISHED),
        # A segment of another partition of the same topic.
        *copied(("t", world.place[1], 1), world.closed[1], uuid_to_text(uuid.uuid4()), FINISHED),
        *copied(other_topic, world.closed[1], uuid_to_text(uuid.uuid4()), FINISHED),
        None,  # a tombstone
    ]
    plan = (world.write_metadata(*others), world.plan())[1]
    assert world.from_tier(plan) == [0, 1, 2, 3]
    catalog = plan.partitions[0].catalog
    assert catalog is not None
    assert catalog.live == 4


@pytest.mark.parametrize(
    "changed", [{"end_offset": 22}, {"segment_size_in_bytes": 5}, {"end_offset": 30}]
)
def test_segment_with_objects_contradicting_metadata_topic_is_read_from_brokers(
    world: World, changed: dict[str, int]
) -> None:
    started = make_copy_started(world.place, world.closed[1], world.segment_ids[1], **changed)
    world.records[1][0] = write_metadata_record(started)
    world.write_metadata()
    assert world.from_tier(world.plan()) == [0, 2, 3]


@pytest.mark.parametrize("key_prefix", ["", "moved/"])
def test_custom_metadata_determines_object_keys(world: World, key_prefix: str) -> None:
    # The first segment has another key prefix than the tier, and the second has other names.
    for number, custom in (
        (0, CustomMetadata(object_prefix="before/")),
        (1, CustomMetadata(remote_size=7, object_key="elsewhere/1")),
    ):
        event = make_update(world.place, world.segment_ids[number], FINISHED, custom.to_bytes())
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


def test_custom_metadata_of_other_plugin_is_ignored(world: World) -> None:
    event = make_update(world.place, world.segment_ids[2], FINISHED, b"\xff\xff")
    world.records[2][1] = write_metadata_record(event)
    world.write_metadata()
    assert world.from_tier(world.plan()) == [0, 1, 2, 3]


def test_missing_object_is_skipped_if_store_denies_access_to_missing_keys(world: World) -> None:
    world.write_metadata()
    for key in world.keys(2):
        del world.store[key]
    plan = world.plan(UnlistableStore(world.store, hides=True))
    assert world.from_tier(plan) == [0, 1, 3]
    world.store.clear()
    with pytest.raises(AccessDeniedError, match="refused"):
        world.plan(UnlistableStore(world.store, hides=True))


@pytest.mark.parametrize("exists", [False, True])
def test_denied_read_of_object_raises_error_unless_object_was_deleted(
    world: World, exists: bool
) -> None:
    # If `exists` is false, the object is deleted after its lookup, and the store denies access to
    # missing keys. If it is true, the client may not use the key that encrypts the object.
    world.write_metadata()
    denied_keys = set(world.keys(2))

    class Refusing(UnlistableStore):
        def get_range(
            self, key: str, start: int, stop: int, *, version: str | None = None
        ) -> bytes:
            if key in denied_keys:
                if not exists:
                    world.store.pop(key, None)
                raise AccessDeniedError("reading the object is refused", uri=self.uri(key))
            return super().get_range(key, start, stop, version=version)

    store = Refusing(world.store, hides=True)
    if exists:
        with pytest.raises(AccessDeniedError, match="reading the object is refused"):
            world.plan(store)
    else:
        assert world.from_tier(world.plan(store)) == [0, 1, 3]


@pytest.mark.parametrize("kind", [METADATA_REQUEST, LIST_OFFSETS, FETCH])
def test_missing_permission_for_metadata_topic_raises_broker_access_error(
    world: World, kind: str
) -> None:
    world.write_metadata()

    def deny(answer: Any) -> None:  # noqa: ANN401
        if kind == FETCH:  # planning sends no other fetch requests here
            answer.responses[0].partitions[0].error_code = _DENIED
            return
        for topic in answer.topics:
            for entry in (topic,) if kind == METADATA_REQUEST else topic.partitions:
                if topic.name == METADATA:
                    entry.error_code = _DENIED

    world.cluster.faults[kind].extend([Fault(edit=deny)] * 50)
    with pytest.raises(BrokerAccessError, match="operations Describe and Read on the topic __rem"):
        world.plan()


def test_cluster_without_metadata_topic_raises_topic_not_found_error(world: World) -> None:
    with pytest.raises(TopicNotFoundError, match="may have no tiered storage"):
        world.plan()


def test_unreadable_metadata_record_raises_corrupt_segment_error(world: World) -> None:
    world.write_metadata(b"\x01\x09\x00")
    with pytest.raises(CorruptSegmentError, match="record type 9") as error:
        world.plan()
    assert (error.value.topic, error.value.offset) == (METADATA, 8)


def test_metadata_read_that_stops_before_high_watermark_raises_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = world.write_metadata()
    (metadata_partition,) = [partition for partition in partitions if partition.log.batches]
    end = metadata_partition.log.end
    metadata_partition.log = _LogWithoutLastBatch(
        **{f.name: getattr(metadata_partition.log, f.name) for f in dataclasses.fields(FakeLog)}
    )
    monkeypatch.setattr("kts_source.broker.fetch_range._PATIENCE_SECONDS", 0.2)
    with pytest.raises(TieredKafkaError, match="returned no batch") as error:
        world.plan()
    assert error.value.topic == METADATA
    assert error.value.offset is not None
    assert error.value.offset < end


class _LogWithoutLastBatch(FakeLog):
    """A log that never returns its last batch."""

    def read(
        self, at: int, max_bytes: int, *, committed: bool
    ) -> tuple[bytes, list[tuple[int, int]] | None]:
        if at >= self.batches[-1].base:
            return b"", None
        shorter = FakeLog(self.batches[:-1])
        return shorter.read(at, max_bytes, committed=committed)
