"""Reads what a history left behind from tier and brokers, and compares with the leader's log.

The tier is as the simulation uploaded it, with all that it lost; a fake broker serves what the
leader has. So nothing may be missing, and nothing may be an error.
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pyarrow as pa

from kts_source.errors import BrokerError, DataLossError, ObjectNotFoundError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read import broker_rows
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.read.task_metrics import TaskMeter, TaskPlace
from kts_source.tier import Tier
from segment_format.kafka_uuid import uuid_from_text
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import FakeLog, empty_log, fake_log
from tests.kts_source.planning.history import TOPIC, History, World
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.metadata_events import (
    DELETED,
    DELETING,
    FINISHED,
    UnlistableStore,
    copied,
    create_metadata_topic,
)
from tests.kts_source.planning.reading import ISOLATION_LEVELS, without_threads
from tests.kts_source.planning.replica import build
from tests.kts_source.planning.row_checks import require_same_rows, surviving_rows

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Mapping

    from segment_format.testing import BuiltLog
    from tests.kts_source.planning.cluster import PartitionLife
    from tests.kts_source.planning.metadata_events import Place
    from tests.kts_source.planning.row_checks import Row


def served(life: PartitionLife, reach: int) -> tuple[FakePartition, BuiltLog | None]:
    """A partition as its leader has it, and the truth about it."""
    leader = life.leader
    if not leader.entries:
        return FakePartition(empty_log(), epoch=life.epoch), None
    truth = build(leader.entries, life.interval).build()
    start = leader.log_start
    epochs = leader.epochs(start, leader.end)
    if not epochs or epochs[-1][0] != life.epoch:  # a leader notes its epoch before it appends
        epochs = [*epochs, (life.epoch, leader.end)]
    log: FakeLog = fake_log(truth, log_start=start, epochs=epochs)
    log.reach = reach
    return FakePartition(log, epoch=life.epoch), truth


@contextlib.contextmanager
def in_one_thread() -> Iterator[None]:
    """Plans and reads in this thread alone; and any number of slices may be lost."""
    with (
        without_threads(),
        mock.patch.object(broker_rows, "_MAX_SAME_FAILURES", 1 << 30),
    ):
        yield


def check_hybrid(
    history: History,
    seed: int,
    outcomes: Counter[str],
    cluster: FakeCluster | None = None,
    *,
    by_metadata_topic: bool = False,
) -> None:
    """Reads tier and brokers at both isolation levels; `seed` decides what is lost when.

    Args:
        history: What happened to the topic.
        seed: See above.
        outcomes: Counts what was met.
        cluster: To be used again.
        by_metadata_topic: Whether nothing may be listed, and some entries of that topic are lost,
            repeated or out of order.

    Raises:
        AssertionError: Wrong rows.
    """
    if cluster is None:
        with FakeCluster() as opened:
            check_hybrid(history, seed, outcomes, opened, by_metadata_topic=by_metadata_topic)
        return
    source = random.Random(seed)
    world = World(history)
    topic_id, lives = list(world.incarnations.items())[-1]
    both = [served(life, source.choice((0, 0, 3, 100))) for life in lives]
    cluster.create(TOPIC, [part for part, _ in both], uuid_from_text(topic_id))
    if by_metadata_topic:
        _write_metadata(cluster, world, source)
    disks = _Disks([part for part, _ in both] if cluster.versions else [], source)
    truths = [(truth, life.leader.log_start) for (_, truth), life in zip(both, lives, strict=True)]
    _lose(world.store, source, source.choice((0.0, 0.0, 0.1)))
    for isolation in ISOLATION_LEVELS:
        store = dict(world.store)
        given = _options(source, world, cluster, isolation, by_metadata_topic=by_metadata_topic)
        if store:  # what is in no tier is on a disk
            disks.begin_somewhere()
        try:
            rows, facts = _rows(given, store, source, disks)
        except BrokerError as error:
            is_read_committed = given["isolationLevel"] == "read_committed"
            if not (cluster.versions and is_read_committed and "KAFKA-17801" in str(error)):
                raise
            outcomes["old brokers refused"] += 1
            continue
        outcomes.update(facts)
        if rows is None:
            continue
        expected: list[Row] = []
        for number, (truth, start) in enumerate(truths):
            if truth is not None:
                expected += surviving_rows(number, truth, isolation, start)
        require_same_rows(given, rows, expected)
        outcomes[isolation] += 1
        outcomes["rows"] += len(rows)


def _options(
    source: random.Random,
    world: World,
    cluster: FakeCluster,
    isolation: str,
    *,
    by_metadata_topic: bool,
) -> dict[str, str]:
    """Returns the options of a scan of tier and brokers, with small sizes of all kinds."""
    given = {
        "path": "/",
        "subscribe": TOPIC,
        "isolationLevel": isolation,
        "kafka.bootstrap.servers": cluster.bootstrap,
        "kafka.request.timeout.ms": "5000",
        "kafka.fetch.max.wait.ms": "10",
        "kafka.max.partition.fetch.bytes": str(source.choice((1, 150, 400, 1 << 20))),
        "targetPartitionBytes": str(source.choice((1, 100, 300, 1 << 20))),
        "maxConcurrentRequests": "1",
    }
    if by_metadata_topic:
        given["catalog"] = "metadata-topic"
    if world.shape.local:
        given["layout"] = "local-tiered-storage"
    if source.random() < 0.3:
        given["minPartitions"] = str(source.randint(1, 12))
    return given


class _Disks:
    """Where the disks of old brokers begin; what lies below is in their tier only.

    Args:
        parts: Their partitions.
        source: Decides.
    """

    def __init__(self, parts: list[FakePartition], source: random.Random) -> None:
        self._parts = parts
        self._source = source

    def begin_somewhere(self) -> None:
        """At the log start, or anywhere."""
        for part in self._parts:
            where = self._source.randint(part.log.log_start, max(part.log.log_start, part.log.end))
            part.log.local_start = self._source.choice((0, where))

    def move(self) -> None:
        """Further on, now and then."""
        for part in self._parts:
            log = part.log
            if self._source.random() < 0.2:
                log.local_start = max(log.local_start, self._source.randint(0, log.end))


def _rows(
    given: Mapping[str, str], store: dict[str, bytes], source: random.Random, disks: _Disks
) -> tuple[list[Row] | None, list[str]]:
    options = parse_options(given)
    assert options.brokers is not None
    tier = Tier(UnlistableStore(store) if options.by_metadata_topic else MemoryStore(store))
    plan = plan_scan(options, tier)
    disks.move()
    _lose(store, source, source.choice((0.0, 0.0, 0.1, 0.5, 1.0)), only=source.choice(("", ".log")))
    reader = SegmentSource(tier, options.key_ring)
    settings = ReadSettings.of(options)
    batches: list[pa.RecordBatch] = []
    facts: list[str] = []
    for task in plan.tasks:
        meter = TaskMeter(task, tier, TaskPlace())
        try:
            batches += read_task(task, reader, settings, meter=meter)
        except ObjectNotFoundError as error:
            # Where a part of a segment ends, only its offset index tells.
            is_index = (error.uri or "").endswith((".indexes", ".index"))
            if not is_index or all(part.is_whole for part in task.slices):
                raise
            return None, [*facts, "boundaries lost"]
        except DataLossError:
            # They are counted from the segment's start, which the log start has passed.
            starts = {part.partition: part.surviving.log_start for part in plan.partitions}
            inner = [part for part in task.slices if not part.is_whole]
            if not any(part.segment_start < starts[part.partition] for part in inner):
                raise
            return None, [*facts, "boundaries lost"]
        facts += ["slices"] * len(task.slices) + ["ranges"] * len(task.ranges)
        facts += ["fallbacks"] * meter.brokers.fallbacks
    if not batches:
        return [], facts
    table = pa.Table.from_batches(batches)
    columns: list[list[Any]] = [
        table["partition"].to_pylist(),
        table["offset"].to_pylist(),
        table["key"].to_pylist(),
        table["value"].to_pylist(),
        table["timestamp"].cast(pa.int64()).to_pylist(),
    ]
    return list(zip(*columns, strict=True)), facts


def _lose(store: dict[str, bytes], source: random.Random, share: float, only: str = "") -> None:
    """Takes some objects away, or damages logs."""
    for key in sorted(store) if share else ():
        if key.endswith(only) and source.random() < share:
            if key.endswith(".log") and source.random() < 0.3:
                data = bytearray(store[key])
                data[source.randrange(len(data))] ^= 1 << source.randrange(8)
                store[key] = bytes(data)
            else:
                del store[key]


def _write_metadata(cluster: FakeCluster, world: World, source: random.Random) -> None:
    """Writes down the copies and deletions of a history, more or less."""
    share = source.choice((0.0, 0.0, 0.05, 0.3))
    records: dict[Place, list[bytes | None]] = {}
    for topic_id, lives in world.incarnations.items():
        for number, life in enumerate(lives):
            place = (TOPIC, topic_id, number)
            records[place] = []
            for copy in life.uploads:
                ends = (FINISHED,) if copy.finished else source.choice(_UNFINISHED)
                for value in copied(place, copy.files, copy.segment_id, *ends):
                    chance = source.random()
                    if chance < share / 3:
                        continue
                    at = len(records[place])
                    if chance < 2 * share / 3:
                        at = source.randint(0, at)
                    records[place].insert(at, value)
                    if chance > 1 - share / 3:
                        records[place].append(value)
    for part in create_metadata_topic(cluster, records, source.choice((1, 3))):
        if part.log.batches and source.random() < share:
            part.log.log_start = source.randint(0, part.log.end)


_UNFINISHED: Final = ((), (DELETING,), (FINISHED, DELETING), (FINISHED, DELETING, DELETED))
