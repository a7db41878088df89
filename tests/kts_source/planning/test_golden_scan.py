"""Checks that scans of every golden topic return exactly the rows that a consumer received."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from tests.golden_data import (
    ISOLATION_LEVELS,
    SPARK_SCHEMA,
    TOPICS,
    IsolationLevel,
    assert_same_rows,
    expected_table,
    summary,
    tier_options,
)
from tests.kts_source.planning.scanning import run, scan


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("topic", TOPICS)
def test_scan_returns_expected_rows(topic: str, isolation_level: IsolationLevel) -> None:
    options = tier_options(topic, isolationLevel=isolation_level, includeHeaders="true")
    table = scan(options)
    assert table.schema == SPARK_SCHEMA
    assert_same_rows(table, expected_table(topic, isolation_level))


@pytest.mark.parametrize("size", ["1", "1000", "16384", "50k", "1m", "1g"])
@pytest.mark.parametrize("topic", TOPICS)
def test_scan_rows_do_not_depend_on_task_size(topic: str, size: str) -> None:
    options = tier_options(topic, targetPartitionBytes=size, includeHeaders="true")
    plan = plan_scan(parse_options(options))
    assert_same_rows(run(plan, options), expected_table(topic, "read_committed"))
    if size == "1g":
        assert len(plan.tasks) == 1
    if size == "1" and topic == "codecs":
        assert len(plan.tasks) > 100


@pytest.mark.parametrize("topic", TOPICS)
def test_plan_bounds_equal_offsets_of_broker(topic: str) -> None:
    for level, end in (
        ("read_uncommitted", "tier_end_offset"),
        ("read_committed", "tier_last_stable_offset"),
    ):
        plan = plan_scan(parse_options(tier_options(topic, isolationLevel=level)))
        bounds = {
            partition.partition: (partition.start, partition.stop) for partition in plan.partitions
        }
        (entry,) = [
            entry
            for entry in summary()["topics"]
            if (entry["topic"], entry["topicId"]) == (topic, plan.partitions[0].topic_id)
        ]
        assert bounds == {
            partition["partition"]: (partition["log_start_offset"], partition[end])
            for partition in entry["partitions"]
            if partition[end] is not None
        }


def test_scan_with_topic_id_reads_older_incarnation() -> None:
    table = scan(tier_options("recreated", topicId="Y0eIqb0wSCGvx1A44Duolw", includeHeaders="true"))
    assert_same_rows(table, expected_table("recreated-previous", "read_committed"))


def test_scan_of_several_topics_returns_all_rows() -> None:
    table = scan(tier_options(["codecs", "txn", "wide"], includeHeaders="true"))
    expected = [expected_table(topic, "read_committed") for topic in ("codecs", "txn", "wide")]
    assert_same_rows(table, pa.concat_tables(expected))


def test_plan_end_reason_names_open_transaction() -> None:
    plan = plan_scan(parse_options(tier_options("txn")))
    (first, second) = plan.partitions
    assert first.end_reason == "open transaction of producer 6 since offset 3675"
    assert second.end_reason == "end of the tier"


@pytest.mark.parametrize(
    "columns", [["offset"], ["value", "offset"], ["offset", "headers"], ["partition", "offset"]]
)
def test_scan_returns_only_selected_columns(columns: list[str]) -> None:
    table = scan(tier_options("codecs", columns=",".join(columns)))
    assert table.column_names == columns
    assert_same_rows(table, expected_table("codecs", "read_committed"))


@pytest.mark.parametrize("columns", [["topic"], ["partition", "topic"]])
def test_scan_of_topic_and_partition_columns_returns_all_rows(columns: list[str]) -> None:
    table = scan(tier_options("wide", columns=",".join(columns)))
    assert table.column_names == columns
    expected = expected_table("wide", "read_committed").select(columns)
    counts = [
        rows.group_by(columns).aggregate([([], "count_all")]).sort_by(columns[0])
        for rows in (table, expected)
    ]
    assert counts[0].num_rows == counts[1].num_rows
    assert table.num_rows == expected.num_rows


OFFSETS = [
    (0, 1),
    (0, 4000),
    (1, 23961),
    (5840, 5842),
    (5841, 5841),
    (12345, 20000),
    (23961, 23962),
]


@pytest.mark.parametrize(("start", "stop"), OFFSETS)
@pytest.mark.parametrize("size", ["10000", "1g"])
def test_scan_of_offset_range_returns_rows_in_range(start: int, stop: int, size: str) -> None:
    table = scan(
        tier_options(
            "codecs",
            startingOffsets=f'{{"codecs":{{"0":{start}}}}}',
            endingOffsets=f'{{"codecs":{{"0":{stop}}}}}',
            targetPartitionBytes=size,
            includeHeaders="true",
        )
    )
    expected = expected_table("codecs", "read_committed")
    offset = expected["offset"]
    expected_rows = expected.filter(pc.and_(pc.greater_equal(offset, start), pc.less(offset, stop)))
    if expected_rows.num_rows:
        assert_same_rows(table, expected_rows)
    else:
        assert table.num_rows == 0


@pytest.mark.parametrize("limit", [1, 7, 100, 5000])
def test_max_records_per_partition_limits_offsets_of_a_task(limit: int) -> None:
    options = tier_options("epochs", maxRecordsPerPartition=str(limit), includeHeaders="true")
    plan = plan_scan(parse_options(options))
    assert_same_rows(run(plan, options), expected_table("epochs", "read_committed"))
    for task in plan.tasks:
        assert (
            sum(task_slice.stop_offset - task_slice.start_offset for task_slice in task.slices)
            <= limit
        )
