"""Checks that a scan of a recreated topic reads all partitions from the same incarnation."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.errors import InvalidOptionError
from kts_source.tier import Tier
from tests.kts_source.planning.history import TOPIC, History, Shape, Step, World
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.scanning import run

if TYPE_CHECKING:
    from kts_source.planning.scan_plan import ScanPlan

SEGMENT = (Step("append", b=2), Step("roll", a=7), Step("upload", a=15))
TWO_PARTITIONS = tuple(
    Step(step.kind, step.a, step.b, step.c, partition)
    for _ in range(3)
    for partition in range(2)
    for step in SEGMENT
)
OPTIONS = {"path": "/", "subscribe": TOPIC}


def recreate_topic(partitions: int, *steps: Step) -> World:
    """Builds a topic of two partitions with three segments each, and recreates the topic.

    The new incarnation has `partitions` partitions. `steps` are applied to this incarnation.
    """
    recreate = Step("recreate", a=partitions - 1)
    return World(History(Shape(partitions=2), (*TWO_PARTITIONS, recreate, *steps)))


def make_plan(world: World, **options: str) -> ScanPlan:
    return kts_source.plan({**OPTIONS, **options}, MemoryStore(world.store))


def test_scan_of_recreated_topic_reads_no_partition_of_older_incarnation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = recreate_topic(1, *SEGMENT)
    older, newer = world.incarnations
    plan = make_plan(world)
    assert [(partition.topic_id, partition.partition) for partition in plan.partitions] == [
        (newer, 0)
    ]
    # The second partition of the older incarnation is not read.
    assert run(plan, OPTIONS, Tier(MemoryStore(world.store))).num_rows == 3
    assert plan.notes == (
        f"topic {TOPIC}: reading topic id {newer}, not {older}",
        f"topic {TOPIC}: no segments of partitions [1] under topic id {newer}",
    )
    assert all(note in plan.explain() and note in caplog.messages for note in plan.notes)
    caplog.clear()
    older_plan = make_plan(world, topicId=older)
    assert f"topic {TOPIC}: reading topic id {older}, not {newer}" in older_plan.notes
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [(partition.topic_id, partition.partition) for partition in older_plan.partitions] == [
        (older, 0),
        (older, 1),
    ]
    assert run(older_plan, OPTIONS, Tier(MemoryStore(world.store))).num_rows == 18


def test_newest_incarnation_is_read_even_if_tier_has_fewer_of_its_partitions() -> None:
    # The newer incarnation has only the second partition in the tier, the older one has both.
    world = recreate_topic(2, *(Step(step.kind, step.a, step.b, step.c, 1) for step in SEGMENT))
    older, newer = world.incarnations
    plan = make_plan(world)
    assert [(partition.topic_id, partition.partition) for partition in plan.partitions] == [
        (newer, 1)
    ]
    assert "partitions [0]" in plan.notes[1]
    assert older in plan.notes[0]


def test_unknown_topic_id_error_lists_existing_ids() -> None:
    world = recreate_topic(1, *SEGMENT)
    with pytest.raises(InvalidOptionError, match="has no id") as error:
        make_plan(world, topicId="A" * 22)
    assert all(topic_id in str(error.value) for topic_id in world.incarnations)


def test_topic_id_is_required_if_incarnations_have_the_same_timestamp() -> None:
    world = recreate_topic(1, *SEGMENT)
    for key, data in world.store.items():
        if key.endswith(".rsm-manifest"):
            document = json.loads(data)
            document["remoteLogSegmentMetadata"]["eventTimestampMs"] = 5
            world.store[key] = json.dumps(document).encode()
    with pytest.raises(InvalidOptionError, match="option 'topicId'") as error:
        make_plan(world)
    assert "same newest event timestamp" in str(error.value)
    for topic_id in world.incarnations:
        assert topic_id in str(error.value)
        assert {
            partition.topic_id for partition in make_plan(world, topicId=topic_id).partitions
        } == {topic_id}


def test_plan_of_topic_with_one_incarnation_has_no_notes() -> None:
    plan = make_plan(World(History(Shape(partitions=2), TWO_PARTITIONS)))
    assert plan.notes == ()
    assert len(plan.partitions) == 2
