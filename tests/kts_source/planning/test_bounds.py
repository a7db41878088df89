"""Checks the bounds of scans: invalid ranges, ends in open transactions, and offsets not in the
tier.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import InvalidOptionError, OffsetOutOfRangeError, TopicNotFoundError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.planning.scan_plan import ScanPlan
from tests.golden_data import KEY_PREFIX, TIER, partition_summaries, tier_options

if TYPE_CHECKING:
    from kts_source.read.task import SegmentSlice

TXN = partition_summaries("txn")


def format_offsets(topic: str, **by_partition: int) -> str:
    return json.dumps({topic: {name[1:]: offset for name, offset in by_partition.items()}})


@pytest.mark.parametrize(
    "options",
    [
        {"startingTimestamp": "1772600000000", "endingTimestamp": "0"},
        {"startingTimestamp": "1772600000000", "endingOffsets": format_offsets("timeline", p0=1)},
        {
            "startingOffsets": format_offsets("timeline", p0=2),
            "endingOffsets": format_offsets("timeline", p0=1),
        },
        {"startingOffsets": format_offsets("timeline", p0=2), "endingTimestamp": "0"},
    ],
)
def test_range_with_end_before_start_raises_invalid_option_error(options: dict[str, str]) -> None:
    scan_options = tier_options("timeline", startingOffsetsByTimestampStrategy="latest", **options)
    with pytest.raises(InvalidOptionError, match="is above the ending offset"):
        plan_scan(parse_options(scan_options))


def test_ending_offset_above_open_transaction_raises_error_that_names_producer() -> None:
    ending_offset = TXN[0]["tier_end_offset"]
    options = tier_options("txn", endingOffsets=format_offsets("txn", p0=ending_offset, p1=-1))
    with pytest.raises(
        OffsetOutOfRangeError,
        match=f"txn-0: endingOffsets names offset {ending_offset}.*producer 6 since offset 3675",
    ):
        plan_scan(parse_options(options))
    uncommitted = plan_scan(parse_options({**options, "isolationLevel": "read_uncommitted"}))
    assert uncommitted.partitions[0].stop == ending_offset


@pytest.mark.parametrize(
    "options",
    [
        {"endingOffsets": format_offsets("txn", p0=TXN[0]["tier_end_offset"], p1=-1)}
        | {"failOnDataLoss": "false"},
        {"endingOffsets": format_offsets("txn", p0=-1, p1=-1)},
        {"endingOffsets": "latest"},
        {"endingTimestamp": "4000000000000"},
    ],
)
def test_scan_that_ends_at_open_transaction_logs_a_warning(
    options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kts_source")
    plan = plan_scan(parse_options(tier_options("txn", **options)))
    assert plan.partitions[0].stop == TXN[0]["tier_last_stable_offset"]
    (line,) = caplog.messages
    assert "txn-0 ends at offset 3675: open transaction of producer 6 since offset 3675" in line


def test_read_committed_scan_logs_count_of_aborted_transactions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "kts_source")
    plan = plan_scan(parse_options(tier_options(["txn", "codecs"])))
    (line,) = [text for text in caplog.messages if "aborted transactions are skipped" in text]
    aborted = {
        partition.partition: sum(
            len(task_slice.aborted) for task_slice in list_slices(plan, partition.partition)
        )
        for partition in plan.partitions
        if partition.topic == "txn"
    }
    assert all(aborted.values())
    assert f"(txn-0: {count_aborted(plan, 0)}, txn-1: {count_aborted(plan, 1)})" in line
    assert "codecs" not in line


def list_slices(plan: ScanPlan, partition: int) -> list[SegmentSlice]:
    return [
        task_slice
        for task in plan.tasks
        for task_slice in task.slices
        if (task_slice.topic, task_slice.partition) == ("txn", partition)
    ]


def count_aborted(plan: ScanPlan, partition: int) -> int:
    """Returns the number of aborted transactions of a partition. A transaction in several slices
    counts once.
    """
    return len(
        {
            pair
            for task_slice in list_slices(plan, partition)
            for pair in zip(
                task_slice.aborted.producer_ids.tolist(),
                task_slice.aborted.first_offsets.tolist(),
                strict=True,
            )
        }
    )


@pytest.mark.parametrize("topic", ["codecs", "txn"])
def test_scan_that_skips_no_transactions_logs_no_count(
    topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kts_source")
    level = "read_committed" if topic == "codecs" else "read_uncommitted"
    plan_scan(parse_options(tier_options(topic, isolationLevel=level)))
    assert "transactions are skipped" not in caplog.text


def test_options_without_effect_are_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kts_source")
    ignored = {"kafka.group.id": "x", "kafka.client.id": "secret-of-theirs"}
    plan_scan(parse_options({**tier_options("codecs"), **ignored}))
    (line,) = [text for text in caplog.messages if "kafka." in text]
    assert line.endswith("kafka.client.id, kafka.group.id")
    assert "secret-of-theirs" not in caplog.text
    caplog.clear()
    plan_scan(parse_options(tier_options("codecs")))
    assert "without effect" not in caplog.text


def test_assigned_partition_above_all_partitions_raises_topic_not_found_error() -> None:
    options = tier_options("codecs", assign='{"codecs":[7,0,8]}')
    del options["subscribe"]
    with pytest.raises(TopicNotFoundError, match=r"no partition 7, 8 in .* partitions: 0\."):
        plan_scan(parse_options(options))


def test_assigned_partition_without_objects_logs_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "kts_source")
    options = tier_options("codecs", assign='{"codecs":[7,0,8]}', failOnDataLoss="false")
    del options["subscribe"]
    plan = plan_scan(parse_options(options))
    assert [partition.partition for partition in plan.partitions] == [0]
    (line,) = caplog.messages
    assert "codecs" in line
    assert "[7, 8]" in line
    (note,) = plan.notes
    assert "[7, 8]" in note


def planned_offsets(**bounds: str) -> list[tuple[int, int]]:
    options = tier_options("txn", isolationLevel="read_uncommitted", **bounds)
    return [(each.start, each.stop) for each in plan_scan(parse_options(options)).partitions]


TXN_STOPS = [partition_summaries("txn")[number]["tier_end_offset"] for number in (0, 1)]


def test_partitions_missing_in_offsets_json_are_read_from_earliest_to_latest() -> None:
    first, second = TXN_STOPS
    assert planned_offsets(startingOffsets='{"txn":{"0":5}}') == [(5, first), (0, second)]
    assert planned_offsets(endingOffsets='{"txn":{"1":7}}') == [(0, first), (0, 7)]
    by_time = planned_offsets(endingOffsetsByTimestamp='{"txn":{"0":0}}')
    assert by_time == [(0, 0), (0, second)]
    by_time = planned_offsets(
        startingOffsetsByTimestamp='{"txn":{"1":9999999999999}}',
        startingOffsetsByTimestampStrategy="latest",
    )
    assert by_time == [(0, first), (second, second)]


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
@pytest.mark.parametrize(
    ("offsets", "wrong"),
    [('{"txn":{"0":5,"2":5}}', "txn-2"), ('{"txn":{"0":5},"tnx":{"1":5}}', "tnx-1")],
)
def test_offsets_json_with_unknown_partition_raises_invalid_option_error(
    option: str, offsets: str, wrong: str
) -> None:
    with pytest.raises(InvalidOptionError, match=f"not read: {wrong}.*to read: txn-0, txn-1"):
        planned_offsets(**{option: offsets})


def test_notes_of_plan_contain_selected_and_unselected_topic_ids(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plan = plan_scan(parse_options(tier_options("recreated")))
    (partition,) = plan.partitions
    (note,) = plan.notes
    assert f"topic id {partition.topic_id}" in note
    assert note in plan.explain()
    assert ScanPlan.from_json(plan.to_json()).notes == plan.notes
    (other,) = {
        folder.name.removeprefix("recreated-") for folder in (TIER / KEY_PREFIX).glob("recreated-*")
    } - {partition.topic_id}
    assert other in note
    assert other in caplog.text
    older = plan_scan(parse_options(tier_options("recreated", topicId=other)))
    assert {older_partition.topic_id for older_partition in older.partitions} == {other}
    assert partition.topic_id in older.notes[0]


CODECS_STOP = partition_summaries("codecs")[0]["tier_end_offset"]
TRIMMED = partition_summaries("trimmed")[0]


@pytest.mark.parametrize(
    ("topic", "options", "expected"),
    [
        ("codecs", {"endingOffsets": format_offsets("codecs", p0=99_999)}, (0, CODECS_STOP)),
        (
            "codecs",
            {"startingOffsets": format_offsets("codecs", p0=99_999)},
            (CODECS_STOP, CODECS_STOP),
        ),
        (
            "trimmed",
            {"startingOffsets": format_offsets("trimmed", p0=5)},
            (TRIMMED["log_start_offset"], TRIMMED["tier_end_offset"]),
        ),
    ],
)
def test_bounds_outside_tier_raise_error_or_are_limited_to_the_tier(
    topic: str,
    options: dict[str, str],
    expected: tuple[int, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (option,) = options
    (requested_offset,) = json.loads(options[option])[topic].values()
    low, high = expected[0], expected[1]
    with pytest.raises(OffsetOutOfRangeError) as error:
        plan_scan(parse_options(tier_options(topic, **options)))
    reason = "below the log start" if requested_offset < low else "not tiered yet"
    for words in (f"{topic}-0", option, f"offset {requested_offset}", reason, f"{high})"):
        assert words in str(error.value)
    caplog.set_level(logging.WARNING, "kts_source")
    plan = plan_scan(parse_options(tier_options(topic, failOnDataLoss="false", **options)))
    (partition,) = plan.partitions
    assert (partition.start, partition.stop) == expected
    (line,) = caplog.messages
    assert f"offset {requested_offset}, which is {reason}" in line
    assert "this run reads the offsets that exist" in line


def test_range_with_equal_start_and_end_has_no_tasks() -> None:
    bounds = format_offsets("codecs", p0=7000)
    plan = plan_scan(
        parse_options(tier_options("codecs", startingOffsets=bounds, endingOffsets=bounds))
    )
    assert plan.tasks == ()
    (partition,) = plan.partitions
    assert (partition.start, partition.stop) == (7000, 7000)
