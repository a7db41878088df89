"""Which incarnation of a topic that was created again is read: once for all of its partitions."""

from __future__ import annotations

import json
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


def recreated(partitions: int, *steps: Step) -> World:
    """A topic of two partitions with three segments each, and its successor."""
    again = Step("recreate", a=partitions - 1)
    return World(History(Shape(partitions=2), (*TWO_PARTITIONS, again, *steps)))


def planned(world: World, **options: str) -> ScanPlan:
    return kts_source.plan({**OPTIONS, **options}, MemoryStore(world.store))


def test_a_topic_created_again_with_fewer_partitions(caplog: pytest.LogCaptureFixture) -> None:
    world = recreated(1, *SEGMENT)
    older, newer = world.incarnations
    plan = planned(world)
    assert [(part.topic_id, part.partition) for part in plan.partitions] == [(newer, 0)]
    # The older one's second partition is not stirred in.
    assert run(plan, OPTIONS, Tier(MemoryStore(world.store))).num_rows == 3
    assert plan.notes == (
        f"topic {TOPIC}: reading topic id {newer}, not {older}",
        f"topic {TOPIC}: no segments of partitions [1] under topic id {newer}",
    )
    assert all(note in plan.explain() and note in caplog.messages for note in plan.notes)
    chosen = planned(world, topicId=older)
    assert [(part.topic_id, part.partition) for part in chosen.partitions] == [
        (older, 0),
        (older, 1),
    ]
    assert run(chosen, OPTIONS, Tier(MemoryStore(world.store))).num_rows == 18


def test_partitions_of_the_older_one_alone_do_not_make_it_the_newest() -> None:
    # Of the newer one, only the second partition was copied; of the older, both.
    world = recreated(2, *(Step(step.kind, step.a, step.b, step.c, 1) for step in SEGMENT))
    older, newer = world.incarnations
    plan = planned(world)
    assert [(part.topic_id, part.partition) for part in plan.partitions] == [(newer, 1)]
    assert "partitions [0]" in plan.notes[1]
    assert older in plan.notes[0]


def test_a_topic_id_that_is_not_there_lists_those_that_are() -> None:
    world = recreated(1, *SEGMENT)
    with pytest.raises(InvalidOptionError, match="has no id") as caught:
        planned(world, topicId="A" * 22)
    assert all(topic_id in str(caught.value) for topic_id in world.incarnations)


def test_a_tie_is_the_users_choice() -> None:
    world = recreated(1, *SEGMENT)
    for key, data in world.store.items():
        if key.endswith(".rsm-manifest"):
            document = json.loads(data)
            document["remoteLogSegmentMetadata"]["eventTimestampMs"] = 5
            world.store[key] = json.dumps(document).encode()
    with pytest.raises(InvalidOptionError, match="option 'topicId'") as caught:
        planned(world)
    assert "same newest event timestamp" in str(caught.value)
    for topic_id in world.incarnations:
        assert topic_id in str(caught.value)
        assert {part.topic_id for part in planned(world, topicId=topic_id).partitions} == {topic_id}


def test_nothing_is_said_of_a_topic_that_was_created_once() -> None:
    plan = planned(World(History(Shape(partitions=2), TWO_PARTITIONS)))
    assert plan.notes == ()
    assert len(plan.partitions) == 2
