"""Reads a simulated topic from tier and brokers and compares the rows with the leader's log.

Objects of the tier are lost or damaged. A fake broker has the leader's complete log, so no row may
be missing.
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
from tests.kts_source.planning.row_checks import list_surviving_rows, require_same_rows

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Mapping

    from segment_format.testing import BuiltLog
    from tests.kts_source.planning.cluster import PartitionLife
    from tests.kts_source.planning.metadata_events import Place
    from tests.kts_source.planning.row_checks import Row


def served(life: PartitionLife, reach: int) -> tuple[FakePartition, BuiltLog | None]:
    """Returns the partition for the fake broker, and the log that readers must return. The log is
    `None` if it has no entries.

    A response of the broker also lists aborted transactions that begin up to `reach` offsets after
    the end of the response.
    """
    leader = life.leader
    if not leader.entries:
        return FakePartition(empty_log(), epoch=life.epoch), None
    truth = build(leader.entries, life.interval).build()
    start = leader.log_start
    epochs = leader.epochs(start, leader.end)
    if not epochs or epochs[-1][0] != life.epoch:  # a leader records its epoch before it appends
        epochs = [*epochs, (life.epoch, leader.end)]
    log: FakeLog = fake_log(truth, log_start=start, epochs=epochs)
    log.reach = reach
    return FakePartition(log, epoch=life.epoch), truth


@contextlib.contextmanager
def in_one_thread() -> Iterator[None]:
    """Inside the `with` block, plans and reads run in the current thread, and any number of slices
    may fail.
    """
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
    """Reads tier and brokers at both isolation levels and asserts that the rows are those of the
    leader's log. Counts the results in `outcomes`.

    By default, creates a new fake cluster. If `by_metadata_topic` is true, the tier cannot be
    listed, and the scan uses the metadata topic, some of whose records are lost, repeated or out of
    order.
    """
    if cluster is None:
        with FakeCluster() as opened:
            check_hybrid(history, seed, outcomes, opened, by_metadata_topic=by_metadata_topic)
        return
    source = random.Random(seed)
    world = World(history)
    disks, truths = _serve(world, source, cluster, by_metadata_topic=by_metadata_topic)
    _lose(world.store, source, source.choice((0.0, 0.0, 0.1)))
    for isolation in ISOLATION_LEVELS:
        store = dict(world.store)
        options = _make_options(
            source, world, cluster, isolation, by_metadata_topic=by_metadata_topic
        )
        if store:  # without a tier, all records are on broker disks
            disks.randomize_starts()
        try:
            rows, facts = _read_rows(options, store, source, disks)
        except BrokerError as error:
            is_read_committed = options["isolationLevel"] == "read_committed"
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
                expected += list_surviving_rows(number, truth, isolation, start)
        require_same_rows(options, rows, expected)
        outcomes[isolation] += 1
        outcomes["rows"] += len(rows)


def _serve(
    world: World, source: random.Random, cluster: FakeCluster, *, by_metadata_topic: bool
) -> tuple[_Disks, list[tuple[BuiltLog | None, int]]]:
    """Creates the newest incarnation of the simulated topic in a fake cluster.

    Returns the disks of the brokers, and a list with one pair for each partition. The pair contains
    the expected log (`None` if it has no entries) and its log start.
    """
    topic_id, lives = list(world.incarnations.items())[-1]
    served_partitions = [served(life, source.choice((0, 0, 3, 100))) for life in lives]
    partitions = [partition for partition, _ in served_partitions]
    cluster.create(TOPIC, partitions, uuid_from_text(topic_id))
    if by_metadata_topic:
        _write_metadata(cluster, world, source)
    truths = [
        (truth, life.leader.log_start)
        for (_, truth), life in zip(served_partitions, lives, strict=True)
    ]
    return _Disks(partitions if cluster.versions else [], source), truths


def _make_options(
    source: random.Random,
    world: World,
    cluster: FakeCluster,
    isolation: str,
    *,
    by_metadata_topic: bool,
) -> dict[str, str]:
    """Returns options of a scan of tier and brokers, with random sizes of requests and tasks."""
    options = {
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
        options["catalog"] = "metadata-topic"
    if world.shape.local:
        options["layout"] = "local-tiered-storage"
    if source.random() < 0.3:
        options["minPartitions"] = str(source.randint(1, 12))
    return options


class _Disks:
    """The disks of fake brokers, which have only offsets from the local log start on. Changes the
    local log starts of `partitions` at random.
    """

    def __init__(self, partitions: list[FakePartition], source: random.Random) -> None:
        self._partitions = partitions
        self._source = source

    def randomize_starts(self) -> None:
        """Sets each local log start to 0 or to a random offset."""
        for partition in self._partitions:
            local_start = self._source.randint(
                partition.log.log_start, max(partition.log.log_start, partition.log.end)
            )
            partition.log.local_start = self._source.choice((0, local_start))

    def move(self) -> None:
        """Randomly moves local log starts forward."""
        for partition in self._partitions:
            log = partition.log
            if self._source.random() < 0.2:
                log.local_start = max(log.local_start, self._source.randint(0, log.end))


def _read_rows(
    option_texts: Mapping[str, str], store: dict[str, bytes], source: random.Random, disks: _Disks
) -> tuple[list[Row] | None, list[str]]:
    options = parse_options(option_texts)
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
            # Only the offset index contains the position where a partial slice ends, so the slice
            # cannot be read from brokers.
            is_index = (error.uri or "").endswith((".indexes", ".index"))
            if not is_index or all(task_slice.is_whole for task_slice in task.slices):
                raise
            return None, [*facts, "boundaries lost"]
        except DataLossError:
            # The position of the slice is relative to the segment start. If the segment starts
            # below the log start, brokers cannot return its first records.
            starts = {
                partition.partition: partition.surviving.log_start for partition in plan.partitions
            }
            inner = [task_slice for task_slice in task.slices if not task_slice.is_whole]
            if not any(
                task_slice.segment_start < starts[task_slice.partition] for task_slice in inner
            ):
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
    """Deletes random objects whose keys end with `only`, but flips a bit in some logs instead of
    deleting them. `share` is the probability for each object.
    """
    for key in sorted(store) if share else ():
        if key.endswith(only) and source.random() < share:
            if key.endswith(".log") and source.random() < 0.3:
                data = bytearray(store[key])
                data[source.randrange(len(data))] ^= 1 << source.randrange(8)
                store[key] = bytes(data)
            else:
                del store[key]


def _write_metadata(cluster: FakeCluster, world: World, source: random.Random) -> None:
    """Writes metadata records of all copies and deletions of a history.

    Some records are lost, repeated or out of order.
    """
    share = source.choice((0.0, 0.0, 0.05, 0.3))
    records: dict[Place, list[bytes | None]] = {}
    for topic_id, lives in world.incarnations.items():
        for number, life in enumerate(lives):
            key = (TOPIC, topic_id, number)
            records[key] = []
            for copy in life.uploads:
                ends = (FINISHED,) if copy.finished else source.choice(_UNFINISHED)
                for value in copied(key, copy.files, copy.segment_id, *ends):
                    chance = source.random()
                    if chance < share / 3:
                        continue
                    position = len(records[key])
                    if chance < 2 * share / 3:
                        position = source.randint(0, position)
                    records[key].insert(position, value)
                    if chance > 1 - share / 3:
                        records[key].append(value)
    for partition in create_metadata_topic(cluster, records, source.choice((1, 3))):
        if partition.log.batches and source.random() < share:
            partition.log.log_start = source.randint(0, partition.log.end)


_UNFINISHED: Final = ((), (DELETING,), (FINISHED, DELETING), (FINISHED, DELETING, DELETED))
