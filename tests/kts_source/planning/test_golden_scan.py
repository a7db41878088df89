"""Every golden topic gives exactly the rows a consumer must see, however it is cut."""

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
def test_rows(topic: str, isolation_level: IsolationLevel) -> None:
    options = tier_options(topic, isolationLevel=isolation_level, includeHeaders="true")
    table = scan(options)
    assert table.schema == SPARK_SCHEMA
    assert_same_rows(table, expected_table(topic, isolation_level))


@pytest.mark.parametrize("size", ["1", "1000", "16384", "50k", "1m", "1g"])
@pytest.mark.parametrize("topic", TOPICS)
def test_rows_do_not_depend_on_the_cut(topic: str, size: str) -> None:
    options = tier_options(topic, targetPartitionBytes=size, includeHeaders="true")
    plan = plan_scan(parse_options(options))
    assert_same_rows(run(plan, options), expected_table(topic, "read_committed"))
    if size == "1g":
        assert len(plan.tasks) == 1
    if size == "1" and topic == "codecs":
        assert len(plan.tasks) > 100


@pytest.mark.parametrize("topic", TOPICS)
def test_the_plan_begins_and_ends_where_the_broker_says(topic: str) -> None:
    for level, end in (
        ("read_uncommitted", "tier_end_offset"),
        ("read_committed", "tier_last_stable_offset"),
    ):
        plan = plan_scan(parse_options(tier_options(topic, isolationLevel=level)))
        found = {part.partition: (part.start, part.stop) for part in plan.partitions}
        (entry,) = [
            entry
            for entry in summary()["topics"]
            if (entry["topic"], entry["topicId"]) == (topic, plan.partitions[0].topic_id)
        ]
        assert found == {
            part["partition"]: (part["log_start_offset"], part[end])
            for part in entry["partitions"]
            if part[end] is not None
        }


def test_the_older_incarnation_by_its_id() -> None:
    table = scan(tier_options("recreated", topicId="Y0eIqb0wSCGvx1A44Duolw", includeHeaders="true"))
    assert_same_rows(table, expected_table("recreated-previous", "read_committed"))


def test_several_topics_at_once() -> None:
    table = scan(tier_options(["codecs", "txn", "wide"], includeHeaders="true"))
    expected = [expected_table(topic, "read_committed") for topic in ("codecs", "txn", "wide")]
    assert_same_rows(table, pa.concat_tables(expected))


def test_an_open_transaction_ends_the_read_and_says_so() -> None:
    plan = plan_scan(parse_options(tier_options("txn")))
    (first, second) = plan.partitions
    assert first.end_reason == "open transaction of producer 6 since offset 3675"
    assert second.end_reason == "end of the tier"


@pytest.mark.parametrize(
    "columns", [["offset"], ["value", "offset"], ["offset", "headers"], ["partition", "offset"]]
)
def test_only_the_columns_asked_for(columns: list[str]) -> None:
    table = scan(tier_options("codecs", columns=",".join(columns)))
    assert table.column_names == columns
    assert_same_rows(table, expected_table("codecs", "read_committed"))


@pytest.mark.parametrize("columns", [["topic"], ["partition", "topic"]])
def test_columns_that_no_record_holds(columns: list[str]) -> None:
    table = scan(tier_options("wide", columns=",".join(columns)))
    assert table.column_names == columns
    expected = expected_table("wide", "read_committed").select(columns)
    counts = [
        t.group_by(columns).aggregate([([], "count_all")]).sort_by(columns[0])
        for t in (table, expected)
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
def test_offset_ranges(start: int, stop: int, size: str) -> None:
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
    wanted = expected.filter(pc.and_(pc.greater_equal(offset, start), pc.less(offset, stop)))
    if wanted.num_rows:
        assert_same_rows(table, wanted)
    else:
        assert table.num_rows == 0


@pytest.mark.parametrize("limit", [1, 7, 100, 5000])
def test_records_per_partition_are_bounded(limit: int) -> None:
    options = tier_options("epochs", maxRecordsPerPartition=str(limit), includeHeaders="true")
    plan = plan_scan(parse_options(options))
    assert_same_rows(run(plan, options), expected_table("epochs", "read_committed"))
    for task in plan.tasks:
        assert sum(part.stop_offset - part.start_offset for part in task.slices) <= limit
