"""Counts the requests, bytes and listings of scans.

The tier has compressed chunks of 256 KiB, so positions in objects differ from positions in the log.
A segment has 16 to 23 MiB, so two or three requests read it.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from benchmarks.simulated import (
    BATCH_RECORDS,
    BATCHES_PER_CHUNK,
    CHUNK_BYTES,
    TOPIC,
    SimulatedTier,
    shape,
)
from kts_source.cache.caches import Caches, CacheSettings
from kts_source.cache.disk_cache import CacheLimits
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import Tier

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.store.object_store import ObjectStore

PARTITIONS = 2
SEGMENTS = 3
MIB = 1 << 20


class CountedTier(SimulatedTier):
    """A tier that records the reads of logs, and the order in which objects are read."""

    def __init__(self, partitions: int = PARTITIONS, segments: int = SEGMENTS) -> None:
        super().__init__(partitions, segments, latency_seconds=0, aborted_share=10**9)
        self.reads: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.keys: list[str] = []
        self._reads_lock = threading.Lock()

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> bytes:
        with self._reads_lock:
            self.keys.append(key)
            if key.endswith(".log"):
                self.reads[key].append((start, stop))
        return super().get_range(key, start, stop, version=version)

    @property
    def log_requests(self) -> int:
        return sum(map(len, self.reads.values()))

    @property
    def log_bytes(self) -> int:
        return sum(stop - start for reads in self.reads.values() for start, stop in reads)


NO_CACHES = Caches()


def planned(store: ObjectStore, caches: Caches = NO_CACHES, /, **options: str) -> ScanPlan:
    source_options = {"path": "simulated", "subscribe": TOPIC, **options}
    return plan_scan(parse_options(source_options), Tier(store, caches))


def rows(
    plan: ScanPlan,
    store: ObjectStore,
    *,
    batches: int | None = None,
    columns: str = "offset,value",
    caches: Caches = NO_CACHES,
) -> int:
    """Reads a plan and returns the number of rows. If `batches` is given, reads only this number of
    batches of the first task, like a query with LIMIT.
    """
    options = parse_options({"path": "simulated", "subscribe": TOPIC, "columns": columns})
    reader, settings = (
        SegmentSource(Tier(store, caches), options.key_ring),
        ReadSettings.of(options),
    )
    count = 0
    for task in plan.tasks if batches is None else plan.tasks[:1]:
        for number, batch in enumerate(read_task(task, reader, settings), 1):
            count += batch.num_rows
            if number == batches:
                break
    return count


def stored_bytes(segments: int = SEGMENTS) -> int:
    """Returns the stored bytes of the first `segments` segments of a partition."""
    return sum(sum(shape(number).stored_sizes) for number in range(segments))


def test_full_scan_sends_at_most_one_request_per_8_mib_and_3_per_segment() -> None:
    store = CountedTier()
    plan = planned(store, targetPartitionBytes="4g")
    before = store.counters
    assert rows(plan, store) == PARTITIONS * store.base_offset(SEGMENTS)
    done = store.counters - before
    stored = PARTITIONS * stored_bytes()
    assert stored > 100 * MIB
    segments = PARTITIONS * SEGMENTS
    assert done.requests == store.log_requests <= stored / (8 * MIB) + 3 * segments
    assert done.bytes == store.log_bytes == stored
    # The same limit holds for all requests, including the reads of manifests and side files.
    assert store.counters.requests <= stored / (8 * MIB) + 3 * segments


@pytest.mark.parametrize("target", ["3m", "8m", "20m"])
def test_each_split_of_a_segment_reads_at_most_one_additional_chunk(target: str) -> None:
    store = CountedTier()
    plan = planned(store, targetPartitionBytes=target)
    before = store.counters
    assert rows(plan, store) == PARTITIONS * store.base_offset(SEGMENTS)
    done = store.counters - before
    segments = PARTITIONS * SEGMENTS
    slices = sum(len(task.slices) for task in plan.tasks)
    cuts = slices - segments
    assert cuts >= (1 if target == "20m" else segments)
    chunk = max(max(shape(number).stored_sizes) for number in range(SEGMENTS))
    assert store.log_bytes <= 1.01 * (PARTITIONS * stored_bytes() + cuts * chunk)
    # Tasks also read the index of a split segment, because slices begin and end at batches.
    index_bytes = done.bytes - store.log_bytes
    assert index_bytes <= slices * 8 * BATCHES_PER_CHUNK * shape(SEGMENTS - 1).chunks
    allowed = store.log_bytes / (8 * MIB) + 3 * slices
    assert done.requests <= allowed


@pytest.mark.parametrize("target", ["5m", "4g"])
@pytest.mark.parametrize(
    "ends", [((0, 10, 3), (0, 20, 5)), ((0, 50, 1), (2, 7, 15)), ((1, 3, 0), (1, 4, 0))]
)
def test_scan_of_offset_window_reads_only_chunks_of_the_window(
    ends: tuple[tuple[int, int, int], tuple[int, int, int]], target: str
) -> None:
    store = CountedTier(1)
    chunk_records = BATCHES_PER_CHUNK * BATCH_RECORDS
    low, high = (
        store.base_offset(segment) + chunk * chunk_records + batch * BATCH_RECORDS + 1
        for segment, chunk, batch in ends
    )
    plan = planned(
        store,
        startingOffsets=json.dumps({TOPIC: {"0": low}}),
        endingOffsets=json.dumps({TOPIC: {"0": high}}),
        targetPartitionBytes=target,
    )
    assert rows(plan, store) == high - low
    needed, largest = 0, 0
    for number in range(SEGMENTS):
        for chunk, size in enumerate(shape(number).stored_sizes):
            first = store.base_offset(number) + chunk * chunk_records
            if first < high and first + chunk_records > low:
                needed += size
                largest = max(largest, size)
    # Each end of the window and each border between tasks inside a segment is a cut.
    slices = [task_slice for task in plan.tasks for task_slice in task.slices]
    cuts = 2 + len(slices) - len({task_slice.segment_id for task_slice in slices})
    assert needed <= store.log_bytes <= 1.01 * (needed + cuts * largest)


@pytest.mark.parametrize(("partitions", "segments"), [(1, 3), (4, 100), (2, 1500)])
def test_plan_lists_1000_objects_per_request(partitions: int, segments: int) -> None:
    store = CountedTier(partitions, segments)
    end = json.dumps({TOPIC: {f"{number}": 10 for number in range(partitions)}})
    planned(store, endingOffsets=end)
    objects = 3 * segments
    # One request for topic folders, one for partition folders, and one per page of a partition.
    assert store.counters.list_requests <= 2 + partitions * -(-objects // 1000)


def test_task_sends_no_listing() -> None:
    store = CountedTier()
    plan = planned(store, targetPartitionBytes="8m")
    before = store.counters.list_requests
    rows(plan, store)
    assert store.counters.list_requests == before


def test_second_scan_with_chunk_cache_reads_no_data(tmp_path: Path) -> None:
    limits = CacheLimits(None, None)
    settings = CacheSettings(index=limits, chunks=limits, folder=str(tmp_path))
    for number in range(2):
        store = CountedTier()
        caches = Caches(settings)
        plan = planned(store, caches, targetPartitionBytes="8m")
        assert rows(plan, store, caches=caches) == PARTITIONS * store.base_offset(SEGMENTS)
        assert (store.counters.requests == 0) == bool(number)
        assert (store.counters.bytes == 0) == bool(number)


@pytest.mark.parametrize("target", ["3m", "4g"])
@pytest.mark.parametrize(
    ("batches", "columns"),
    # Without keys, which have 1 KiB each, two batches contain more of the log than allowed here.
    [(1, "offset,value"), (1, "offset,key"), (2, "offset,key")],
)
def test_query_with_limit_reads_few_bytes(batches: int, columns: str, target: str) -> None:
    store = CountedTier()
    plan = planned(store, targetPartitionBytes=target)
    assert plan.tasks[0].slices[0].is_whole == (target == "4g")
    assert stored_bytes() > 3 * 16 * MIB
    before, planning = store.counters, len(store.keys)
    assert rows(plan, store, batches=batches, columns=columns) >= 10
    done = store.counters - before
    assert done.bytes <= 16 * MIB
    first = next(iter(store.reads.values()))[0]
    assert first[1] - first[0] <= max(MIB, CHUNK_BYTES)
    # The scan reads the log first and does not wait for the index, which has the slice's end.
    assert store.keys[planning] == next(iter(store.reads))
