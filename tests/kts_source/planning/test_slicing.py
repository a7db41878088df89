"""Checks that tasks are balanced by bytes, keep the order of the log, and respect limits."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kts_source
from benchmarks.simulated import TOPIC, SimulatedTier
from kts_source.errors import PlanTooLargeError
from kts_source.layout.remote_segment import (
    IndexType,
    ObjectRef,
    SegmentObjects,
    StoredIndex,
)
from kts_source.options import parse_options
from kts_source.planning import slicing
from kts_source.planning.slicing import cut, pack, target_bytes
from kts_source.read.task import SegmentSlice
from segment_format.isolation import NO_ABORTED
from segment_format.manifest.chunk_index import FixedChunkIndex
from segment_format.manifest.encryption import Encryption, WrappedDataKey
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.golden_data import TOPICS, tier_options
from tests.kts_source.planning.scanning import run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.read.task import ScanTask

CHUNK = 1000
CLOSED = Encryption(WrappedDataKey("key", b"x" * 16), b"")


def make_segment(
    size: int,
    *,
    number: int = 0,
    partition: int = 0,
    offsets: int = 100,
    borders: int = 1 << 20,
    compressed: bool = False,
    encrypted: bool = False,
) -> SegmentSlice:
    """Returns a slice that covers a complete segment of `size` bytes.

    The offset index of the segment has `borders` entries.
    """
    log = ObjectRef(f"{partition}/{number}.log", size, "1")
    index = ObjectRef(f"{partition}/{number}.indexes", 8 * borders, "1")
    last = size % CHUNK or CHUNK
    return SegmentSlice(
        topic="t",
        partition=partition,
        segment_id=f"{partition}/{number}",
        segment_start=number * 1_000_000,
        segment_stop=number * 1_000_000 + offsets,
        objects=SegmentObjects(
            log,
            FixedChunkIndex(CHUNK, size, CHUNK, last),
            compressed,
            CLOSED if encrypted else None,
            {IndexType.OFFSET: StoredIndex(index, 0, 8 * borders)},
        ),
        cut_start=0,
        cut_stop=size,
        start_offset=number * 1_000_000,
        stop_offset=number * 1_000_000 + offsets,
        aborted=NO_ABORTED,
        lineage=(),
    )


def pack_slices(slices: Sequence[SegmentSlice], **options: str) -> list[ScanTask]:
    parsed = parse_options({"path": "/", "subscribe": "t", **options})
    target = target_bytes(slices, parsed)
    pieces = (piece for segment_slice in slices for piece in cut(segment_slice, target))
    return list(pack(pieces, target, parsed))


def sum_work(task: ScanTask) -> int:
    return sum(task_slice.work for task_slice in task.slices)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9 * CHUNK), st.integers(0, 40)), min_size=1, max_size=40),
    st.integers(1, 20_000),
    st.integers(1, 5),
)
def test_tasks_contain_all_bytes_in_order_within_limits(
    sizes: list[tuple[int, int]], target: int, max_segments: int
) -> None:
    segments = [
        make_segment(size, number=n, borders=borders) for n, (size, borders) in enumerate(sizes)
    ]
    tasks = pack_slices(
        segments, targetPartitionBytes=f"{target}", maxSegmentsPerTask=f"{max_segments}"
    )
    slices = [task_slice for task in tasks for task_slice in task.slices]
    assert sum(task_slice.nominal_bytes for task_slice in slices) == sum(size for size, _ in sizes)
    for previous, following in itertools.pairwise(slices):
        if previous.segment_id == following.segment_id:
            assert previous.cut_stop == following.cut_start
        else:
            assert previous.cut_stop == previous.objects.size_in_bytes
            next_start = previous.segment_start + 1_000_000
            assert (following.cut_start, following.start_offset) == (0, next_start)
    counted = Counter(task_slice.segment_id for task_slice in slices)
    for segment in segments:  # a slice without its own border would be empty
        assert counted[segment.segment_id] <= segment.offset_index.size // 8 + 1
    for task in tasks:
        assert len(task.slices) <= max_segments
        assert len(task.slices) == 1 or sum_work(task) <= target
    for task, next_task in itertools.pairwise(tasks):  # no task could include the next slice
        full = len(task.slices) == max_segments
        assert full or sum_work(task) + next_task.slices[0].work > target


@pytest.mark.parametrize("min_partitions", [2, 7, 16, 100])
def test_option_min_partitions_splits_segments_by_bytes_instead_of_offsets(
    min_partitions: int,
) -> None:
    # Both segments have the same size, but the second has a thousand times as many offsets.
    few, many = make_segment(400_000, offsets=10), make_segment(400_000, number=1, offsets=10_000)
    tasks = pack_slices([few, many], minPartitions=f"{min_partitions}")
    assert min_partitions <= len(tasks) <= min_partitions + 2
    sizes = [task.nominal_bytes for task in tasks]
    assert max(sizes) <= 800_000 / min_partitions + CHUNK
    halves = [
        sum(
            task_slice.nominal_bytes
            for task in tasks
            for task_slice in task.slices
            if task_slice.segment_id == name
        )
        for name in (few.segment_id, many.segment_id)
    ]
    assert halves == [400_000, 400_000]
    counted = Counter(task_slice.segment_id for task in tasks for task_slice in task.slices)
    assert counted[few.segment_id] == counted[many.segment_id]


def test_task_count_increases_with_compression_and_with_encryption() -> None:
    plain = [make_segment(100, number=n) for n in range(600)]
    compressed = [make_segment(100, number=n, compressed=True) for n in range(600)]
    both = [make_segment(100, number=n, compressed=True, encrypted=True) for n in range(600)]
    limits = {"targetPartitionBytes": "10000", "maxSegmentsPerTask": "1000"}
    tasks = [len(pack_slices(slices, **limits)) for slices in (plain, compressed, both)]
    assert tasks[0] == 6
    assert tasks == sorted(set(tasks))


def test_small_segments_share_tasks_of_up_to_64_slices() -> None:
    slices = [make_segment(10, number=n % 50, partition=n // 50) for n in range(150)]
    tasks = pack_slices(slices)
    assert [len(task.slices) for task in tasks] == [64, 64, 22]
    assert {task_slice.partition for task_slice in tasks[0].slices} == {0, 1}
    assert len(pack_slices(slices, maxSegmentsPerTask="1000")) == 1


def is_in_order(plan: ScanPlan) -> bool:
    """Returns whether topics, partitions, offsets and bytes of all slices ascend."""
    positions = [
        (task_slice.topic, task_slice.partition, task_slice.start_offset, task_slice.cut_start)
        for task in plan.tasks
        for task_slice in task.slices
    ]
    return positions == sorted(positions)


@pytest.mark.parametrize("options", [{}, {"targetPartitionBytes": "30k"}, {"minPartitions": "20"}])
def test_slices_of_plans_for_golden_topics_are_in_order(options: dict[str, str]) -> None:
    plan = kts_source.plan(tier_options(TOPICS, failOnDataLoss="false", **options))
    assert is_in_order(plan)
    if "minPartitions" in options:
        assert len(plan.tasks) >= 20
    if not options:
        assert (
            max(len({task_slice.partition for task_slice in task.slices}) for task in plan.tasks)
            > 1
        )
        assert max(len({task_slice.topic for task_slice in task.slices}) for task in plan.tasks) > 1


def test_large_topic_is_split_evenly() -> None:
    tier = SimulatedTier(3, 20, latency_seconds=0)
    options = {"path": "simulated", "subscribe": TOPIC, "isolationLevel": "read_uncommitted"}
    plan = kts_source.plan({**options, "targetPartitionBytes": "10m"}, tier)
    assert is_in_order(plan)
    assert max(sum_work(task) for task in plan.tasks) <= (10 << 20) + (1 << 20)
    task_bytes = [task.nominal_bytes for task in plan.tasks]
    assert max(task_bytes) <= 2 * min(task_bytes)
    larger_plan = kts_source.plan({**options, "minPartitions": "500"}, tier)
    assert 500 <= len(larger_plan.tasks) <= 600
    assert sum(task.nominal_bytes for task in larger_plan.tasks) == plan.nominal_bytes


def test_split_of_partial_slice_keeps_its_offsets() -> None:
    partial = replace(make_segment(9000), cut_start=2500, start_offset=30, stop_offset=60)
    slices = list(cut(partial, 2000))
    assert [(piece.cut_start, piece.cut_stop) for piece in slices] == [
        (2500, 4000),
        (4000, 6000),
        (6000, 7000),
        (7000, 9000),
    ]
    assert {(piece.start_offset, piece.stop_offset) for piece in slices} == {(30, 60)}


def write_log(folder: Path, log: LogBuilder) -> dict[str, str]:
    writer = AivenTierWriter(folder, topic="t", topic_id="lZ6vvmajTWKDBUTV6SQAtQ")
    for segment in log.build().segments:
        writer.write_segment(segment)
    return {"path": str(folder), "subscribe": "t", "cache": "false"}


def count_rows(options: dict[str, str]) -> list[int]:
    """Reads a plan, checks that offsets ascend, and returns the row count of each task."""
    plan = kts_source.plan(options)
    tables = [run(replace(plan, tasks=(task,)), options) for task in plan.tasks]
    offsets = [offset for table in tables for offset in table["offset"].to_pylist()]
    assert offsets == sorted(set(offsets))
    return [table.num_rows for table in tables]


@pytest.mark.parametrize("limit", [1, 10, 100, 100_000])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_sparse_records_are_split_into_tasks_by_bytes(
    codec: str, limit: int, tmp_path: Path
) -> None:
    """After compaction, millions of offsets between two records are unused. The plan has at most
    one task for each record, and few tasks in total.
    """
    log = LogBuilder()
    for number in range(20):
        log.append([SimpleRecord(b"v%d" % number * 9)], codec=codec)
        log.skip_offsets(1_000_000)
        if number == 9:
            log.roll()
    size = sum(len(segment.log) for segment in log.build().segments)
    options = write_log(tmp_path, log)
    counts = count_rows({**options, "maxRecordsPerPartition": f"{limit}"})
    assert sum(counts) == 20
    assert len(counts) <= min(size // limit + 2, 20)


@pytest.mark.parametrize("limit", [3, 64])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_max_records_per_partition_limits_rows_of_each_task_with_any_codec(
    codec: str, limit: int, tmp_path: Path
) -> None:
    log = LogBuilder()
    for _ in range(2):
        log.append([SimpleRecord(None, None)] * 150, codec=codec)
    counts = count_rows({**write_log(tmp_path, log), "maxRecordsPerPartition": f"{limit}"})
    assert sum(counts) == 300
    assert max(counts) == limit
    assert len(counts) == -(-300 // limit)


@pytest.mark.parametrize("limit", [1, 10, 1000])
def test_max_records_per_partition_limits_rows_near_gaps_between_offsets(
    limit: int, tmp_path: Path
) -> None:
    """The offset index shows where the records before, between and after the gaps are stored."""
    log = LogBuilder()
    for _ in range(4):
        for _ in range(5):
            log.append([SimpleRecord(b"v" * 2000)] * 5)
        log.skip_offsets(500_000_000)
    log.append([SimpleRecord(b"v")])
    counts = count_rows({**write_log(tmp_path, log), "maxRecordsPerPartition": f"{limit}"})
    assert sum(counts) == 101
    assert len(counts) <= -(-101 // limit) + 8
    assert max(counts) <= max(limit, 10)  # two batches without an index entry between them


@pytest.mark.parametrize("name", ["minPartitions", "targetPartitionBytes"])
@pytest.mark.parametrize("value", ["1", "2147483647"])
def test_scan_with_extreme_task_sizes_returns_all_rows(
    name: str, value: str, tmp_path: Path
) -> None:
    log = LogBuilder()
    for _ in range(40):
        log.append([SimpleRecord(b"v" * 500)] * 10)
    options = write_log(tmp_path, log)
    counts = count_rows({**options, name: value})
    assert sum(counts) == 400
    few = (name, value) in (("minPartitions", "1"), ("targetPartitionBytes", "2147483647"))
    assert (len(counts) == 1) == few
    assert len(counts) <= 42


def test_plan_with_too_many_slices_raises_plan_too_large_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogBuilder()
    log.append([SimpleRecord(b"v" * 50)] * 1000)
    options = write_log(tmp_path, log)
    monkeypatch.setattr(slicing, "MAX_SLICES", 100)
    assert len(kts_source.plan({**options, "maxRecordsPerPartition": "10"}).tasks) == 100
    for limit in ("9", "1"):
        with pytest.raises(PlanTooLargeError, match="maxRecordsPerPartition"):
            kts_source.plan({**options, "maxRecordsPerPartition": limit})
