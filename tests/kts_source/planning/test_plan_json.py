"""Checks that plan files are rejected if slices of their partitions are missing."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

import kts_source
from kts_source.errors import InvalidOptionError
from kts_source.planning.scan_plan import ScanPlan
from tests.golden_data import TOPICS, tier_options


def make_plan_document(topic: str, **options: str) -> dict[str, Any]:
    """Returns the JSON of a plan with many tasks."""
    plan = kts_source.plan(tier_options(topic, targetPartitionBytes="20k", **options))
    content: dict[str, Any] = json.loads(plan.to_json())
    assert len(content["tasks"]) > 2
    return content


def test_plan_that_lacks_one_of_its_tasks_raises_invalid_option_error() -> None:
    # The tasks of this plan split each segment by bytes.
    plan = make_plan_document("txn", isolationLevel="read_uncommitted")
    for removed in range(len(plan["tasks"])):
        tasks = [task for number, task in enumerate(plan["tasks"]) if number != removed]
        with pytest.raises(InvalidOptionError, match="not a plan"):
            ScanPlan.from_json(json.dumps({**plan, "tasks": tasks}))


def test_plan_without_tasks_raises_invalid_option_error() -> None:
    with pytest.raises(InvalidOptionError, match="txn-0: the slices do not cover"):
        ScanPlan.from_json(json.dumps({**make_plan_document("txn"), "tasks": []}))


def test_plan_with_where_may_skip_offsets_but_not_bytes_between_slices() -> None:
    plan = make_plan_document("txn", where="offset >= 700")
    ScanPlan.from_json(json.dumps(plan))
    slices = [task_slice for task in plan["tasks"] for task_slice in task]
    continuations = (
        after for before, after in pairwise(slices) if before["offsets"] == after["offsets"]
    )
    next(continuations)["cuts"][0] += 1
    with pytest.raises(InvalidOptionError, match="skip bytes of their segment"):
        ScanPlan.from_json(json.dumps(plan))


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize(
    "options",
    [{}, {"maxRecordsPerPartition": "40"}, {"where": "offset between 50 and 70"}],
    ids=["plain", "few", "where"],
)
def test_plan_json_is_unchanged_after_a_round_trip(topic: str, options: dict[str, str]) -> None:
    scan_options = tier_options(topic, targetPartitionBytes="5k", failOnDataLoss="false", **options)
    plan = kts_source.plan(scan_options)
    middles = [(partition.start + partition.stop) // 2 for partition in plan.partitions]
    for each in (plan, plan.from_offsets(middles)):
        text = each.to_json()
        assert ScanPlan.from_json(text).to_json() == text


def test_plan_accepts_equal_segment_ids_in_different_partitions() -> None:
    plan = make_plan_document("txn")
    for number, segment in enumerate(plan["segments"]):
        before = plan["segments"][:number]
        segment["id"] = str([other["partition"] for other in before].count(segment["partition"]))
    assert json.loads(ScanPlan.from_json(json.dumps(plan)).to_json()) == plan


def test_plan_without_end_timestamps_has_the_same_tasks() -> None:
    document = make_plan_document("txn")
    plan = ScanPlan.from_json(json.dumps(document))
    for partition in document["partitions"]:
        del partition["endTimestampMs"]
    older = ScanPlan.from_json(json.dumps(document))
    assert (older.tasks, older.partitions) == (plan.tasks, plan.partitions)
