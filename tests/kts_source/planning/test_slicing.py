"""Tasks are even by bytes, whole segments and slices stand in them in order, and limits hold."""

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


def segment(
    size: int,
    *,
    number: int = 0,
    partition: int = 0,
    offsets: int = 100,
    borders: int = 1 << 20,
    compressed: bool = False,
    encrypted: bool = False,
) -> SegmentSlice:
    """A whole segment of so many bytes and offsets, with an index of so many entries."""
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


def packed(wanted: Sequence[SegmentSlice], **options: str) -> list[ScanTask]:
    parsed = parse_options({"path": "/", "subscribe": "t", **options})
    target = target_bytes(wanted, parsed)
    return list(pack((part for one in wanted for part in cut(one, target)), target, parsed))


def work(task: ScanTask) -> int:
    return sum(part.work for part in task.slices)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9 * CHUNK), st.integers(0, 40)), min_size=1, max_size=40),
    st.integers(1, 20_000),
    st.integers(1, 5),
)
def test_everything_once_in_order_within_the_limits(
    sizes: list[tuple[int, int]], target: int, at_most: int
) -> None:
    wanted = [segment(size, number=n, borders=borders) for n, (size, borders) in enumerate(sizes)]
    tasks = packed(wanted, targetPartitionBytes=f"{target}", maxSegmentsPerTask=f"{at_most}")
    slices = [part for task in tasks for part in task.slices]
    assert sum(part.nominal_bytes for part in slices) == sum(size for size, _ in sizes)
    for one, other in itertools.pairwise(slices):
        if one.segment_id == other.segment_id:
            assert one.cut_stop == other.cut_start
        else:
            assert one.cut_stop == one.objects.size_in_bytes
            assert (other.cut_start, other.start_offset) == (0, one.segment_start + 1_000_000)
    counted = Counter(part.segment_id for part in slices)
    for one in wanted:  # a slice without a border of its own would be empty
        assert counted[one.segment_id] <= one.offset_index.size // 8 + 1
    for task in tasks:
        assert len(task.slices) <= at_most
        assert len(task.slices) == 1 or work(task) <= target
    for one_task, other_task in itertools.pairwise(tasks):  # no room is left unused
        full = len(one_task.slices) == at_most
        assert full or work(one_task) + other_task.slices[0].work > target


@pytest.mark.parametrize("wished", [2, 7, 16, 100])
def test_more_partitions_are_made_by_bytes_not_by_offsets(wished: int) -> None:
    # Of the same size, but one has a thousand times the other's offsets.
    few, many = segment(400_000, offsets=10), segment(400_000, number=1, offsets=10_000)
    tasks = packed([few, many], minPartitions=f"{wished}")
    assert wished <= len(tasks) <= wished + 2
    sizes = [task.nominal_bytes for task in tasks]
    assert max(sizes) <= 800_000 / wished + CHUNK
    halves = [
        sum(part.nominal_bytes for task in tasks for part in task.slices if part.segment_id == name)
        for name in (few.segment_id, many.segment_id)
    ]
    assert halves == [400_000, 400_000]
    counted = Counter(part.segment_id for task in tasks for part in task.slices)
    assert counted[few.segment_id] == counted[many.segment_id]


def test_what_takes_more_work_counts_for_more() -> None:
    plain = [segment(100, number=n) for n in range(600)]
    compressed = [segment(100, number=n, compressed=True) for n in range(600)]
    both = [segment(100, number=n, compressed=True, encrypted=True) for n in range(600)]
    limits = {"targetPartitionBytes": "10000", "maxSegmentsPerTask": "1000"}
    tasks = [len(packed(some, **limits)) for some in (plain, compressed, both)]
    assert tasks[0] == 6
    assert tasks == sorted(set(tasks))


def test_small_segments_of_several_partitions_share_a_task_up_to_64() -> None:
    wanted = [segment(10, number=n % 50, partition=n // 50) for n in range(150)]
    tasks = packed(wanted)
    assert [len(task.slices) for task in tasks] == [64, 64, 22]
    assert {part.partition for part in tasks[0].slices} == {0, 1}
    assert len(packed(wanted, maxSegmentsPerTask="1000")) == 1


def in_order(plan: ScanPlan) -> bool:
    """Whether topics, partitions, offsets and bytes ascend within each task and between them."""
    places = [
        (part.topic, part.partition, part.start_offset, part.cut_start)
        for task in plan.tasks
        for part in task.slices
    ]
    return places == sorted(places)


@pytest.mark.parametrize("given", [{}, {"targetPartitionBytes": "30k"}, {"minPartitions": "20"}])
def test_golden_plans_are_in_order(given: dict[str, str]) -> None:
    plan = kts_source.plan(tier_options(TOPICS, failOnDataLoss="false", **given))
    assert in_order(plan)
    if "minPartitions" in given:
        assert len(plan.tasks) >= 20
    if not given:
        assert max(len({part.partition for part in task.slices}) for task in plan.tasks) > 1
        assert max(len({part.topic for part in task.slices}) for task in plan.tasks) > 1


def test_a_large_topic_is_cut_evenly() -> None:
    tier = SimulatedTier(3, 20, latency_seconds=0)
    given = {"path": "simulated", "subscribe": TOPIC, "isolationLevel": "read_uncommitted"}
    plan = kts_source.plan({**given, "targetPartitionBytes": "10m"}, tier)
    assert in_order(plan)
    assert max(work(task) for task in plan.tasks) <= (10 << 20) + (1 << 20)
    spread = [task.nominal_bytes for task in plan.tasks]
    assert max(spread) <= 2 * min(spread)
    wished = kts_source.plan({**given, "minPartitions": "500"}, tier)
    assert 500 <= len(wished.tasks) <= 600
    assert sum(task.nominal_bytes for task in wished.tasks) == plan.nominal_bytes


def test_a_cut_of_a_cut_segment_keeps_its_offsets() -> None:
    part = replace(segment(9000), cut_start=2500, start_offset=30, stop_offset=60)
    slices = list(cut(part, 2000))
    assert [(one.cut_start, one.cut_stop) for one in slices] == [
        (2500, 4000),
        (4000, 6000),
        (6000, 7000),
        (7000, 9000),
    ]
    assert {(one.start_offset, one.stop_offset) for one in slices} == {(30, 60)}


def write_log(folder: Path, log: LogBuilder) -> dict[str, str]:
    writer = AivenTierWriter(folder, topic="t", topic_id="lZ6vvmajTWKDBUTV6SQAtQ")
    for segment in log.build().segments:
        writer.write_segment(segment)
    return {"path": str(folder), "subscribe": "t", "cache": "false"}


def rows_of(options: dict[str, str]) -> list[int]:
    """Rows of each task, all of which have their place in the log."""
    plan = kts_source.plan(options)
    tables = [run(replace(plan, tasks=(task,)), options) for task in plan.tasks]
    offsets = [offset for table in tables for offset in table["offset"].to_pylist()]
    assert offsets == sorted(set(offsets))
    return [table.num_rows for table in tables]


@pytest.mark.parametrize("limit", [1, 10, 100, 100_000])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_what_compaction_left_makes_tasks_by_its_bytes(
    codec: str, limit: int, tmp_path: Path
) -> None:
    """Few records, millions of offsets apart: a task for each record at most, and not for each
    stretch of offsets.
    """
    log = LogBuilder()
    for number in range(20):
        log.append([SimpleRecord(b"v%d" % number * 9)], codec=codec)
        log.skip_offsets(1_000_000)
        if number == 9:
            log.roll()
    size = sum(len(segment.log) for segment in log.build().segments)
    options = write_log(tmp_path, log)
    counts = rows_of({**options, "maxRecordsPerPartition": f"{limit}"})
    assert sum(counts) == 20
    assert len(counts) <= min(size // limit + 2, 20)


@pytest.mark.parametrize("limit", [3, 64])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_dense_records_are_bounded_whatever_they_compress_to(
    codec: str, limit: int, tmp_path: Path
) -> None:
    log = LogBuilder()
    for _ in range(2):
        log.append([SimpleRecord(None, None)] * 150, codec=codec)
    counts = rows_of({**write_log(tmp_path, log), "maxRecordsPerPartition": f"{limit}"})
    assert sum(counts) == 300
    assert max(counts) == limit
    assert len(counts) == -(-300 // limit)


@pytest.mark.parametrize("limit", [1, 10, 1000])
def test_dense_and_sparse_stretches_of_one_segment(limit: int, tmp_path: Path) -> None:
    """The index tells where records are: before a gap, between two of them, behind."""
    log = LogBuilder()
    for _ in range(4):
        for _ in range(5):
            log.append([SimpleRecord(b"v" * 2000)] * 5)
        log.skip_offsets(500_000_000)
    log.append([SimpleRecord(b"v")])
    counts = rows_of({**write_log(tmp_path, log), "maxRecordsPerPartition": f"{limit}"})
    assert sum(counts) == 101
    assert len(counts) <= -(-101 // limit) + 8
    assert max(counts) <= max(limit, 10)  # two appends, between which the index has no entry


@pytest.mark.parametrize("name", ["minPartitions", "targetPartitionBytes"])
@pytest.mark.parametrize("value", ["1", "2147483647"])
def test_extremes_give_all_rows(name: str, value: str, tmp_path: Path) -> None:
    log = LogBuilder()
    for _ in range(40):
        log.append([SimpleRecord(b"v" * 500)] * 10)
    options = write_log(tmp_path, log)
    counts = rows_of({**options, name: value})
    assert sum(counts) == 400
    few = (name, value) in (("minPartitions", "1"), ("targetPartitionBytes", "2147483647"))
    assert (len(counts) == 1) == few
    assert len(counts) <= 42


def test_a_plan_of_too_many_slices_is_refused(
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
