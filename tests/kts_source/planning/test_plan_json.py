"""A plan file whose slices are not all that its partitions promise is refused: rows would lack."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

import kts_source
from kts_source.errors import InvalidOptionError
from kts_source.planning.scan_plan import ScanPlan
from tests.golden_data import TOPICS, tier_options


def document(topic: str, **options: str) -> dict[str, Any]:
    """A plan of many tasks."""
    plan = kts_source.plan(tier_options(topic, targetPartitionBytes="20k", **options))
    read: dict[str, Any] = json.loads(plan.to_json())
    assert len(read["tasks"]) > 2
    return read


def test_plan_without_one_task_is_refused() -> None:
    plan = document("txn", isolationLevel="read_uncommitted")  # whole segments, cut by bytes
    for lacking in range(len(plan["tasks"])):
        tasks = [task for number, task in enumerate(plan["tasks"]) if number != lacking]
        with pytest.raises(InvalidOptionError, match="not a plan"):
            ScanPlan.from_json(json.dumps({**plan, "tasks": tasks}))


def test_plan_without_tasks_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="not all that is to be read of txn-0"):
        ScanPlan.from_json(json.dumps({**document("txn"), "tasks": []}))


def test_plan_with_where_may_skip_offsets_but_no_bytes() -> None:
    plan = document("txn", where="offset >= 700")
    ScanPlan.from_json(json.dumps(plan))
    slices = [piece for task in plan["tasks"] for piece in task]
    goes_on = (b for a, b in pairwise(slices) if a["offsets"] == b["offsets"])
    next(goes_on)["cuts"][0] += 1
    with pytest.raises(InvalidOptionError, match="no bytes are planned"):
        ScanPlan.from_json(json.dumps(plan))


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize(
    "options",
    [{}, {"maxRecordsPerPartition": "40"}, {"where": "offset between 50 and 70"}],
    ids=["plain", "few", "where"],
)
def test_planned_json_is_accepted_and_unchanged(topic: str, options: dict[str, str]) -> None:
    given = tier_options(topic, targetPartitionBytes="5k", failOnDataLoss="false", **options)
    plan = kts_source.plan(given)
    assert ScanPlan.from_json(plan.to_json()).to_json() == plan.to_json()
    clipped = plan.from_offsets([(part.start + part.stop) // 2 for part in plan.partitions])
    assert ScanPlan.from_json(clipped.to_json()).to_json() == clipped.to_json()


def test_partitions_with_equal_segment_ids_are_accepted() -> None:
    plan = document("txn")
    for number, segment in enumerate(plan["segments"]):
        before = plan["segments"][:number]
        segment["id"] = str([one["partition"] for one in before].count(segment["partition"]))
    assert json.loads(ScanPlan.from_json(json.dumps(plan)).to_json()) == plan
