"""Scans by the metadata topic: live segments alone, whatever the topic lacks or says twice."""

from __future__ import annotations

import dataclasses
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kts_source.errors import (
    AccessDeniedError,
    BrokerAccessError,
    CorruptSegmentError,
    TieredKafkaError,
    TopicNotFoundError,
)
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import Tier
from segment_format.kafka_uuid import uuid_from_text, uuid_to_text
from segment_format.manifest.custom_metadata import CustomMetadata, write_custom_metadata
from segment_format.metadata.record_writer import write_metadata_record
from segment_format.testing import AivenTierWriter, LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import FakeLog, fake_log
from tests.kts_source.broker.fake_node import FETCH, LIST_OFFSETS, Fault
from tests.kts_source.broker.fake_node import METADATA as METADATA_REQUEST
from tests.kts_source.planning.metadata_events import (
    DELETED,
    DELETING,
    FINISHED,
    METADATA,
    Place,
    UnlistableStore,
    announced,
    copied,
    create_metadata_topic,
    update,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.planning.scan_plan import ScanPlan
    from segment_format.testing import BuiltLog, SegmentFiles

_DENIED = 29


@dataclass(slots=True)
class World:
    """A topic of four closed segments and a tail on a broker, all four copied to a tier.

    Attributes:
        records: What brokers wrote of each segment's copy.
    """

    cluster: FakeCluster
    log: BuiltLog
    local: bool = False
    key_prefix: str = ""
    store: dict[str, bytes] = field(default_factory=dict)
    records: list[list[bytes | None]] = field(default_factory=list)
    segment_ids: list[str] = field(default_factory=list)
    place: Place = ("t", "", 0)

    def __post_init__(self) -> None:
        """Copies the closed segments."""
        writer: LocalTierWriter | AivenTierWriter = (
            LocalTierWriter(self.store, topic="t")
            if self.local
            else AivenTierWriter(self.store, topic="t", key_prefix=self.key_prefix)
        )
        self.place = ("t", writer.topic_id, 0)
        for files in self.closed:
            segment_id = writer.write_segment(files).segment_id
            self.segment_ids.append(segment_id)
            self.records.append([*copied(self.place, files, segment_id, FINISHED)])
        user = FakePartition(fake_log(self.log))
        self.cluster.create("t", [user], uuid_from_text(writer.topic_id))

    @property
    def closed(self) -> tuple[SegmentFiles, ...]:
        """The segments in the tier."""
        return self.log.segments[:-1]

    def keys(self, number: int) -> list[str]:
        """The objects of one segment."""
        return [key for key in self.store if self.segment_ids[number] in key]

    def write_metadata(self, *more: bytes | None) -> list[FakePartition]:
        """Creates the metadata topic with `records` and more behind them."""
        values = [value for of in self.records for value in of]
        return create_metadata_topic(self.cluster, {self.place: [*values, *more]})

    def plan(self, store: UnlistableStore | None = None, **more: str) -> ScanPlan:
        """The plan of a scan of a tier that may not be listed."""
        given = {
            "path": "/",
            "keyPrefix": self.key_prefix,
            "subscribe": "t",
            "catalog": "metadata-topic",
            "kafka.bootstrap.servers": self.cluster.bootstrap,
            "kafka.request.timeout.ms": "5000",
            "kafka.fetch.max.wait.ms": "10",
            **({"layout": "local-tiered-storage"} if self.local else {}),
            **more,
        }
        options = parse_options(given)
        tier = Tier(store or UnlistableStore(self.store))
        plan = plan_scan(options, tier)
        source, settings = SegmentSource(tier, options.key_ring), ReadSettings.of(options)
        batches = [batch for task in plan.tasks for batch in read_task(task, source, settings)]
        rows = pa.Table.from_batches(batches).select(["offset", "value"]).to_pylist()
        expected = [{"offset": row.offset, "value": row.value} for row in self.log.all_rows]
        assert rows == expected
        return plan

    def from_tier(self, plan: ScanPlan) -> list[int]:
        """Which of the closed segments a plan reads from the tier."""
        used = {span.segment.segment_id for span in plan.partitions[0].surviving.ranges}
        return [number for number, name in enumerate(self.segment_ids) if name in used]


def _log() -> BuiltLog:
    builder = LogBuilder()
    for segment in range(5):
        for number in range(6):
            builder.append([SimpleRecord(b"%d-%d" % (segment, number))] * 2)
        if segment < 4:
            builder.roll()
    return builder.build()


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        yield cluster


@pytest.fixture
def world(cluster: FakeCluster) -> World:
    return World(cluster, _log())


@pytest.mark.parametrize("local", [False, True])
def test_a_tier_that_may_not_be_listed(cluster: FakeCluster, local: bool) -> None:
    world = World(cluster, _log(), local=local, key_prefix="" if local else "tier/")
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


def test_offsets_that_are_in_the_tier_and_not_named(world: World) -> None:
    world.records[1].clear()
    world.write_metadata()
    (user,) = world.cluster.topics["t"][1]
    user.log = dataclasses.replace(user.log, local_start=48)
    plan = world.plan()
    catalog = plan.partitions[0].catalog
    assert catalog is not None
    assert catalog.not_named == ((12, 24),)
    assert "t-0 [12, 24)" in plan.notes[0]
    assert "not in the catalog: offsets [12, 24)" in plan.explain()


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
    with pytest.raises(TieredKafkaError, match="gave no batch") as caught:
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
