"""Reads a simulated topic from tier and broker disks. Compares the rows with the leader's log."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kts_source.errors import CorruptSegmentError, DataLossError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.planning.scan_plan import ScanPlan
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.store.joined_store import is_in_additional_store
from kts_source.tier import Tier
from tests.kts_source.planning.history import TOPIC, History, World
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.reading import ISOLATION_LEVELS, without_threads
from tests.kts_source.planning.replica import build, divergence
from tests.kts_source.planning.replica_disk import DiskWriter
from tests.kts_source.planning.row_checks import list_surviving_rows, require_same_rows

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Mapping, Sequence

    from kts_source.planning.partition_plan import PartitionPlan
    from tests.kts_source.planning.cluster import PartitionLife, Upload
    from tests.kts_source.planning.replica import Entry
    from tests.kts_source.planning.row_checks import Row


@contextlib.contextmanager
def in_one_thread() -> Iterator[None]:
    """Runs plans and reads in the current thread during a `with` block."""
    with without_threads():
        yield


def _is_complete(life: PartitionLife, local_starts: list[int]) -> bool:
    """Returns whether tier and disks together have all offsets that consumers can read from the
    leader. `local_starts` contains the first offset of each disk.
    """
    leader = life.leader
    spans = [
        (max(copy.base, leader.log_start), copy.stop)
        for copy in life.complete()
        if divergence(copy.log, leader.entries) >= copy.stop
    ]
    spans.append((max(local_starts), leader.end))
    end = leader.log_start
    for low, high in sorted(spans):
        if low > end:
            break
        end = max(end, high)
    return end >= leader.end


def _list_allowed_starts(life: PartitionLife) -> set[int]:
    """Returns the log starts that a scan may use.

    A scan may use the leader's log start. It may also use the higher log start of a follower or of
    an upload if the leader has the same records below it. After an unclean election, the leader may
    not know that these records were deleted.
    """
    leader = life.leader
    starts = {copy.log_start: divergence(copy.log, leader.entries) for copy in life.uploads} | {
        replica.log_start: divergence(replica.entries, leader.entries) for replica in life.replicas
    }
    later = {start for start, agreed in starts.items() if leader.log_start < start <= agreed}
    return {leader.log_start, *later}


def _write_disks(
    store: dict[str, bytes], topic_id: str, lives: Sequence[PartitionLife], source: random.Random
) -> list[list[int]]:
    """Writes the disks of the leaders and of some followers. Returns, for each partition, the first
    offset of each disk that contains the end of the leader's log.
    """
    brokers = [number for number in range(3) if source.random() < 0.4]
    local_starts: list[list[int]] = [[] for _ in lives]
    writers = [
        DiskWriter(store, TOPIC, topic_id, number, source.random() < 0.5) for number in range(3)
    ]
    for number, life in enumerate(lives):
        for writer, replica in zip(writers, life.replicas, strict=True):
            is_leader = replica is life.leader
            if not is_leader and writer.number not in brokers:
                continue
            agreed = divergence(replica.entries, life.leader.entries)
            mark = life.leader.end if is_leader else source.randint(0, agreed)
            start = writer.write(life, number, replica, mark, source)
            if agreed == life.leader.end:
                local_starts[number].append(start)
    for writer in writers:
        writer.close()
    return local_starts


def check_tail(history: History, seed: int, outcomes: Counter[str]) -> None:
    """Reads tier and disks at both isolation levels and asserts that the rows are correct. `seed`
    selects the state of the disks. Counts the results in `outcomes`.
    """
    source = random.Random(seed)
    world = World(history)
    topic_id, lives = list(world.incarnations.items())[-1]
    store = dict(world.store)
    local_starts = _write_disks(store, topic_id, lives, source)
    truths = [
        build(life.leader.entries, life.interval).build() if life.leader.entries else None
        for life in lives
    ]
    are_complete = all(map(_is_complete, lives, local_starts))
    spoiled = any(copy.spoiled for life in lives for copy in life.uploads)
    for isolation in ISOLATION_LEVELS:
        options = {
            "path": "/",
            "tailPath": "/0,/1,/2",
            "subscribe": TOPIC,
            "topicId": topic_id,
            "isolationLevel": isolation,
            "targetPartitionBytes": str(source.choice((1, 100, 300, 1 << 20))),
            "maxConcurrentRequests": "1",
        }
        if world.shape.local:
            options["layout"] = "local-tiered-storage"
        try:
            rows, partitions, facts = _read_rows(options, store)
        except DataLossError:
            assert not are_complete or spoiled, f"{options}: nothing is lost"
            outcomes["lost"] += 1
            continue
        except CorruptSegmentError:
            assert spoiled, f"{options}: no file is damaged"
            outcomes["spoiled"] += 1
            continue
        outcomes.update(facts)
        starts = {partition.partition: partition.surviving.log_start for partition in partitions}
        expected: list[Row] = []
        for number, (truth, life) in enumerate(zip(truths, lives, strict=True)):
            if truth is None:
                continue
            first = starts[number]
            assert first in _list_allowed_starts(life), f"{options}: log start {first}"
            expected += list_surviving_rows(number, truth, isolation, first)
        require_same_rows(options, rows, expected)
        outcomes[isolation] += 1
        outcomes["rows"] += len(rows)


def check_older_disks(history: History, seed: int, outcomes: Counter[str]) -> None:
    """Reads the tier together with a disk that was copied before the end of the history.

    Checks that the rows equal the leader's log up to the end of the scan. Does nothing if the
    leader's log does not continue the log on the disk.

    Raises:
        AssertionError: Rows are wrong.
    """
    source = random.Random(seed)
    copied_at = source.randrange(len(history.steps))
    world = World(History(history.shape, history.steps[:copied_at]))
    topic_id, lives = list(world.incarnations.items())[-1]
    disks: dict[str, bytes] = {}
    writer = DiskWriter(disks, TOPIC, topic_id, 0, source.random() < 0.5)
    disk_logs = []
    for number, life in enumerate(lives):
        writer.write(life, number, life.leader, life.leader.end, source)
        disk_logs.append(list(life.leader.entries))
    writer.close()
    for step in history.steps[copied_at:]:
        world.take(step)
    if not all(_continues(entries, life) for entries, life in zip(disk_logs, lives, strict=True)):
        outcomes["outlived"] += 1  # the planner need not detect it
        return
    store = {**world.store, **disks}
    for isolation in ISOLATION_LEVELS:
        options = {
            "path": "/",
            "tailPath": "/0",
            "subscribe": TOPIC,
            "topicId": topic_id,
            "isolationLevel": isolation,
            "maxConcurrentRequests": "1",
        }
        if world.shape.local:
            options["layout"] = "local-tiered-storage"
        try:
            rows, partitions, facts = _read_rows(options, store)
        except (DataLossError, CorruptSegmentError) as error:
            outcomes[type(error).__name__] += 1
            continue
        outcomes.update(facts)
        expected: list[Row] = []
        for partition in partitions:
            life = lives[partition.partition]
            stop = partition.surviving.stop
            copied = [copy.stop for copy in life.complete() if _is_on_branch(copy, life)]
            assert stop >= max([*copied, 0]) or stop == partition.surviving.log_start
            entries = [entry for entry in life.leader.entries if entry.base < stop]
            if entries:
                truth = build(entries, life.interval).build()
                expected += [
                    (partition.partition, row.offset, row.key, row.value, row.timestamp * 1000)
                    for row in truth.rows(isolation, start=partition.surviving.log_start)
                ]
        assert sorted(rows) == expected, (options, set(rows) ^ set(expected))
        outcomes[isolation] += 1


def _continues(entries: list[Entry], life: PartitionLife) -> bool:
    """Returns whether the leader's log contains all entries of the newest upload and all `entries`
    of a disk.
    """
    log = life.leader.entries
    if entries and divergence(entries, log) < entries[-1].stop:
        return False
    described = [copy for copy in life.uploads if life.is_described(copy)]
    newest = max(described, key=lambda copy: (copy.last_epoch, copy.stop), default=None)
    return newest is None or _is_on_branch(newest, life)


def _is_on_branch(copy: Upload, life: PartitionLife) -> bool:
    """Returns whether the leader's log has all entries of an upload."""
    return divergence(copy.log, life.leader.entries) >= copy.stop


def _read_rows(
    option_texts: Mapping[str, str], store: dict[str, bytes]
) -> tuple[list[Row], tuple[PartitionPlan, ...], list[str]]:
    """Plans and reads a scan. Returns the rows, the partitions of the plan, and "disk" or "tier"
    for each slice.
    """
    options = parse_options(option_texts)
    tier = Tier(MemoryStore(store))
    plan = plan_scan(options, tier)
    assert ScanPlan.from_json(plan.to_json()).to_json() == plan.to_json()
    reader = SegmentSource(tier, options.key_ring)
    settings = ReadSettings.of(options)
    batches: list[pa.RecordBatch] = []
    facts = []
    for task in plan.tasks:
        batches += read_task(task, reader, settings)
        facts += [
            "disk" if is_in_additional_store(task_slice.objects.log.key) else "tier"
            for task_slice in task.slices
        ]
    if not batches:
        return [], plan.partitions, facts
    table = pa.Table.from_batches(batches)
    columns: list[list[Any]] = [
        table["partition"].to_pylist(),
        table["offset"].to_pylist(),
        table["key"].to_pylist(),
        table["value"].to_pylist(),
        table["timestamp"].cast(pa.int64()).to_pylist(),
    ]
    return list(zip(*columns, strict=True)), plan.partitions, facts
