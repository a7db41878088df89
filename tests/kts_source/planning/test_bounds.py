"""Ends that contradict the start, or that the tier cannot decide yet."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import InvalidOptionError, OffsetOutOfRangeError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.planning.scan_plan import ScanPlan
from tests.golden_data import KEY_PREFIX, TIER, partition_summaries, tier_options

if TYPE_CHECKING:
    from kts_source.read.task import SegmentSlice

TXN = partition_summaries("txn")


def ends(topic: str, **by_partition: int) -> str:
    return json.dumps({topic: {name[1:]: at for name, at in by_partition.items()}})


@pytest.mark.parametrize(
    "options",
    [
        {"startingTimestamp": "1772600000000", "endingTimestamp": "0"},
        {"startingTimestamp": "1772600000000", "endingOffsets": ends("timeline", p0=1)},
        {"startingOffsets": ends("timeline", p0=2), "endingOffsets": ends("timeline", p0=1)},
        {"startingOffsets": ends("timeline", p0=2), "endingTimestamp": "0"},
    ],
)
def test_a_range_that_ends_before_it_begins_is_a_mistake(options: dict[str, str]) -> None:
    given = tier_options("timeline", startingOffsetsByTimestampStrategy="latest", **options)
    with pytest.raises(InvalidOptionError, match="is above the ending offset"):
        plan_scan(parse_options(given))


def test_an_explicit_end_above_an_open_transaction_names_it() -> None:
    asked = TXN[0]["tier_end_offset"]
    options = tier_options("txn", endingOffsets=ends("txn", p0=asked, p1=-1))
    with pytest.raises(
        OffsetOutOfRangeError,
        match=f"txn-0: endingOffsets asks for offset {asked}.*producer 6 since offset 3675",
    ):
        plan_scan(parse_options(options))
    uncommitted = plan_scan(parse_options({**options, "isolationLevel": "read_uncommitted"}))
    assert uncommitted.partitions[0].stop == asked


@pytest.mark.parametrize(
    "options",
    [
        {"endingOffsets": ends("txn", p0=TXN[0]["tier_end_offset"], p1=-1)}
        | {"failOnDataLoss": "false"},
        {"endingOffsets": ends("txn", p0=-1, p1=-1)},
        {"endingOffsets": "latest"},
        {"endingTimestamp": "4000000000000"},
    ],
)
def test_an_end_that_is_where_it_can_be_is_reported(
    options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kts_source")
    plan = plan_scan(parse_options(tier_options("txn", **options)))
    assert plan.partitions[0].stop == TXN[0]["tier_last_stable_offset"]
    (line,) = caplog.messages
    assert "txn-0 ends at offset 3675: open transaction of producer 6 since offset 3675" in line


def test_one_line_counts_what_read_committed_leaves_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "kts_source")
    plan = plan_scan(parse_options(tier_options(["txn", "codecs"])))
    (line,) = [text for text in caplog.messages if "left out" in text]
    aborted = {
        part.partition: sum(len(one.aborted) for one in slices_of(plan, part.partition))
        for part in plan.partitions
        if part.topic == "txn"
    }
    assert all(aborted.values())
    assert f"(txn-0: {distinct_aborted(plan, 0)}, txn-1: {distinct_aborted(plan, 1)})" in line
    assert "txn-0 ends at offset 3675" in line
    assert "codecs" not in line


def slices_of(plan: ScanPlan, partition: int) -> list[SegmentSlice]:
    return [
        part
        for task in plan.tasks
        for part in task.slices
        if (part.topic, part.partition) == ("txn", partition)
    ]


def distinct_aborted(plan: ScanPlan, partition: int) -> int:
    """Transactions that the slices leave out; several slices may leave out the same."""
    return len(
        {
            pair
            for part in slices_of(plan, partition)
            for pair in zip(
                part.aborted.producer_ids.tolist(), part.aborted.first_offsets.tolist(), strict=True
            )
        }
    )


@pytest.mark.parametrize("topic", ["codecs", "txn"])
def test_nothing_is_said_where_nothing_is_left_out(
    topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kts_source")
    level = "read_committed" if topic == "codecs" else "read_uncommitted"
    plan_scan(parse_options(tier_options(topic, isolationLevel=level)))
    assert "left out" not in caplog.text


def test_one_line_lists_the_options_without_effect(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kts_source")
    ignored = {"kafka.group.id": "x", "kafka.client.id": "secret-of-theirs"}
    plan_scan(parse_options({**tier_options("codecs"), **ignored}))
    (line,) = [text for text in caplog.messages if "kafka." in text]
    assert line.endswith("kafka.client.id, kafka.group.id")
    assert "secret-of-theirs" not in caplog.text
    caplog.clear()
    plan_scan(parse_options(tier_options("codecs")))
    assert "without effect" not in caplog.text


def test_a_named_partition_without_objects_is_empty_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "kts_source")
    options = tier_options("codecs", assign='{"codecs":[7,0,8]}')
    del options["subscribe"]
    plan = plan_scan(parse_options(options))
    assert [part.partition for part in plan.partitions] == [0]
    (line,) = caplog.messages
    assert "codecs" in line
    assert "[7, 8]" in line
    (note,) = plan.notes
    assert "[7, 8]" in note


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets", "both by time"])
def test_a_tiered_partition_missing_from_json_is_refused(option: str) -> None:
    named = '{"txn":{"0":5}}'
    given = {option: named} if option != "both by time" else {"startingOffsetsByTimestamp": named}
    with pytest.raises(InvalidOptionError, match="does not name txn-1"):
        plan_scan(parse_options(tier_options("txn", **given)))


def test_the_plan_names_the_topic_id_it_reads_and_those_it_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plan = plan_scan(parse_options(tier_options("recreated")))
    (part,) = plan.partitions
    (note,) = plan.notes
    assert f"topic id {part.topic_id}" in note
    assert note in plan.explain()
    assert ScanPlan.from_json(plan.to_json()).notes == plan.notes
    (other,) = {
        folder.name.removeprefix("recreated-") for folder in (TIER / KEY_PREFIX).glob("recreated-*")
    } - {part.topic_id}
    assert other in note
    assert other in caplog.text
    older = plan_scan(parse_options(tier_options("recreated", topicId=other)))
    assert {one.topic_id for one in older.partitions} == {other}
    assert part.topic_id in older.notes[0]


CODECS_STOP = partition_summaries("codecs")[0]["tier_end_offset"]
TRIMMED = partition_summaries("trimmed")[0]


@pytest.mark.parametrize(
    ("topic", "options", "expected"),
    [
        ("codecs", {"endingOffsets": ends("codecs", p0=99_999)}, (0, CODECS_STOP)),
        ("codecs", {"startingOffsets": ends("codecs", p0=99_999)}, (CODECS_STOP, CODECS_STOP)),
        (
            "trimmed",
            {"startingOffsets": ends("trimmed", p0=5)},
            (TRIMMED["log_start_offset"], TRIMMED["tier_end_offset"]),
        ),
    ],
)
def test_bounds_outside_are_refused_or_clamped_and_reported(
    topic: str,
    options: dict[str, str],
    expected: tuple[int, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    (option,) = options
    (asked,) = json.loads(options[option])[topic].values()
    low, high = expected[0], expected[1]
    with pytest.raises(OffsetOutOfRangeError) as caught:
        plan_scan(parse_options(tier_options(topic, **options)))
    reason = "below the log start" if asked < low else "not tiered yet"
    for words in (f"{topic}-0", option, f"offset {asked}", reason, f"{high})"):
        assert words in str(caught.value)
    caplog.set_level(logging.WARNING, "kts_source")
    plan = plan_scan(parse_options(tier_options(topic, failOnDataLoss="false", **options)))
    (part,) = plan.partitions
    assert (part.start, part.stop) == expected
    (line,) = caplog.messages
    assert f"offset {asked}, which is {reason}" in line
    assert "failOnDataLoss=false reads the offsets that exist" in line


def test_a_range_of_no_offset_is_empty() -> None:
    at = ends("codecs", p0=7000)
    plan = plan_scan(parse_options(tier_options("codecs", startingOffsets=at, endingOffsets=at)))
    assert plan.tasks == ()
    (part,) = plan.partitions
    assert (part.start, part.stop) == (7000, 7000)
