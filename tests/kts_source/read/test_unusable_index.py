"""Checks reads of segments with an unusable offset index.

If the plan did not use the index, the read must return all rows. If the index was damaged after the
plan used it, the read must fail.
"""

from __future__ import annotations

import json

import pytest

from kts_source.errors import CorruptSegmentError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.planning.scan_plan import ScanPlan
from kts_source.tier import Tier
from tests.kts_source.planning.history import TOPIC, History, Shape, Step, World
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.scanning import run

SEGMENT = (*(Step("append", b=2),) * 6, Step("roll", a=7), Step("upload", a=15))
"""A segment of 18 offsets, with an index entry for each batch of three except the first."""
STOP = 36


def options_from(start: int, **more: str) -> dict[str, str]:
    starting = json.dumps({TOPIC: {"0": start}})
    return {"path": "/", "subscribe": TOPIC, "startingOffsets": starting, **more}


def damage_steps(how: int) -> list[Step]:
    """Returns steps that damage the offset index of both segments in the way `how`. Some ways keep
    the size of the index. The store has no object versions, so readers cannot detect such damage
    before they parse the index.
    """
    return [Step("spoil", number, 2, how) for number in range(2)]


PIECES: tuple[dict[str, str], ...] = (
    {},
    {"targetPartitionBytes": "1"},
    {"maxRecordsPerPartition": "2"},
)


@pytest.mark.parametrize("how", [1, 2, 3])
@pytest.mark.parametrize("more", PIECES)
def test_index_damaged_after_planning_raises_error(how: int, more: dict[str, str]) -> None:
    # Earlier code without this error skipped rows if no slice began at the start of the segment.
    for start in range(1, STOP + 1, 5):
        world = World(History(Shape(interval=0), SEGMENT * 2))
        options = options_from(start, **more)
        tier = Tier(MemoryStore(world.store))
        plan = ScanPlan.from_json(plan_scan(parse_options(options), tier).to_json())
        for step in damage_steps(how):
            world.take(step)
        slices = [task_slice for task in plan.tasks for task_slice in task.slices]
        if any(
            task_slice.cut_start > 0 and task_slice.start_offset > task_slice.segment_start
            for task_slice in slices
        ):
            with pytest.raises(
                CorruptSegmentError, match=r"offset index is invalid.*topic t, partition 0"
            ):
                run(plan, options, tier)
        else:
            assert run(plan, options, tier)["offset"].to_pylist() == list(range(start, STOP))


@pytest.mark.parametrize("how", [1, 2, 3])
@pytest.mark.parametrize("more", PIECES)
def test_segment_planned_without_index_is_read_in_full(how: int, more: dict[str, str]) -> None:
    for start in range(1, STOP + 1, 5):
        world = World(History(Shape(interval=0), (*SEGMENT * 2, *damage_steps(how))))
        options = options_from(start, **more)
        tier = Tier(MemoryStore(world.store))
        plan = plan_scan(parse_options(options), tier)
        assert run(plan, options, tier)["offset"].to_pylist() == list(range(start, STOP))
        for task in plan.tasks:
            assert all(
                task_slice.is_whole or task_slice.start_offset == task_slice.segment_start
                for task_slice in task.slices
            )
