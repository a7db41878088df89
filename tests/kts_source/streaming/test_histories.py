"""Random lives of a tiered topic, looked at by a stream all along: each row of the log that is left
in the end was returned once, or an error said what happened.

Seen to fail when broken on purpose: no check of the epoch below the stream's offset; the log start
moved up without a word; batches that end behind an undecided transaction.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from kts_source.errors import (
    CorruptSegmentError,
    InvalidOptionError,
    StoreError,
    TieredKafkaError,
)
from kts_source.options import parse_any_options
from kts_source.planning.planner import plan_scan
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.streaming import listing_memory, tier_look
from kts_source.streaming.offsets import INITIAL, position_from_json, position_to_json
from kts_source.streaming.tier_stream import TierStream
from kts_source.tier import Tier
from tests.kts_source.planning.history import (
    TOPIC,
    History,
    Shape,
    Step,
    World,
    random_history,
)
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.reading import InTurn, without_threads
from tests.kts_source.streaming.running import Clock, new_seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kts_source.planning.scan_plan import ScanPlan
    from tests.kts_source.planning.replica import Entry, Replica

Place = tuple[int, int]
"""Partition and offset."""
LOSES = {"lose", "spoil", "recreate", "clean_up", "retain", "delete_records"}
"""Kinds of steps after which loss may be an error; the others lose nothing that is in the log."""


class PagedStore(MemoryStore):
    """Lists page by page."""

    lists_in_pages = True


class Watching:
    """A stream over the tier of a history.

    Args:
        world: Has the tier.
        source: Decides when it is looked at.
        more: Options, besides.

    Attributes:
        restarts: How often another process reads a batch.
        read_of: How often each row was returned, by topic id.
    """

    def __init__(self, world: World, source: random.Random, **more: str) -> None:
        self._random = source
        self.restarts = 0.3
        limit = source.choice(({}, {"maxSegmentsPerTrigger": "1"}, {"maxOffsetsPerTrigger": "3"}))
        layout = "local-tiered-storage" if world.shape.local else "aiven"
        self.options = {
            "path": "file:///nowhere",
            "subscribePattern": f"^{TOPIC}$",
            "layout": layout,
            "isolationLevel": source.choice(("read_committed", "read_uncommitted")),
            "minListingIntervalMs": source.choice(("0", "1000")),
            "fullListingIntervalMs": source.choice(("0", "1000000")),
            **limit,
            **more,
        }
        self.tier = Tier(PagedStore(world.store))
        self.clock = Clock()
        self.start()
        self.position = INITIAL
        self.rows: list[tuple[Place, bytes | None]] = []
        self.begins: dict[int, int] = {}
        self.read_of: Counter[tuple[str, Place]] = Counter()

    def start(self) -> None:
        """A new process."""
        with (
            mock.patch.object(tier_look, "open_tier", return_value=self.tier),
            mock.patch.object(tier_look, "ThreadPoolExecutor", InTurn),
        ):
            self.stream = TierStream(parse_any_options(self.options), self.clock)

    def poll(self) -> bool:
        """One batch, sometimes by an earlier look, sometimes read again by another process; whether
        there was one.
        """
        if self._random.random() < 0.6:
            self.clock.seconds += 1
        end = self.stream.next(self.position)
        if end is self.position:
            return False
        end = position_from_json(position_to_json(end))
        for begin in end.begins.values():
            self.begins = {**begin.offsets, **self.begins}
        if self._random.random() < self.restarts:
            self.start()
        plan = self.stream.plan(self.position, end)
        found = self.read(plan)
        ids = {part.partition: part.topic_id for part in (plan.partitions if plan else ())}
        self.read_of.update((ids[place[0]], place) for place, _ in found)
        self.rows += found
        self.position = end
        return True

    def read(self, plan: ScanPlan | None) -> list[tuple[Place, bytes | None]]:
        """The rows of a plan."""
        options = parse_any_options(self.options)
        source, settings = SegmentSource(self.tier, options.key_ring), ReadSettings.of(options)
        found = []
        for task in [] if plan is None else plan.tasks:
            for batch in read_task(task, source, settings):
                columns = (
                    batch.column(name).to_pylist() for name in ("partition", "offset", "value")
                )
                found += [((part, at), value) for part, at, value in zip(*columns, strict=True)]
        return found


def decisions(replica: Replica) -> dict[int, tuple[Entry, Entry | None]]:
    """Of each record of a transaction: its batch, and the marker that ends it."""
    ends: dict[int, tuple[Entry, Entry | None]] = {}
    begun: dict[int, list[Entry]] = {}
    for entry in replica.entries:
        if entry.kind == "send":
            begun.setdefault(entry.producer_id, []).append(entry)
            ends.update((offset, (entry, None)) for offset in range(entry.base, entry.stop))
        elif entry.kind != "plain":
            for batch in begun.pop(entry.producer_id, []):
                ends.update((offset, (batch, entry)) for offset in range(batch.base, batch.stop))
    return ends


def undone(before: list[Replica], world: World) -> set[Place]:
    """Records that lost the end of their transaction in an election: nobody can see that a stream
    which has passed them would see another end now.
    """
    return {
        (partition, offset)
        for partition, (old, life) in enumerate(zip(before, world.lives, strict=False))
        if old is not life.leader
        for now in [decisions(life.leader)]
        for offset, (batch, end) in decisions(old).items()
        if offset in now and now[offset][0] is batch and now[offset][1] is not end
    }


def check(history: History, seed: str, outcomes: Counter[str]) -> None:
    """Polls between the steps, and compares with a scan in the end."""
    source = random.Random(seed)
    world = World(History(history.shape, ()))
    watching = Watching(world, source)
    may_lose = False
    deleted: Counter[int] = Counter()  # where each partition's log once started, at most
    changed: set[Place] = set()
    for number, step in enumerate([*history.steps, None]):
        if step is not None:
            leaders = [life.leader for life in world.lives]
            world.take(step)
            if step.kind == "recreate":
                deleted.clear()
                changed.clear()
            changed |= undone(leaders, world)
            may_lose |= step.kind in LOSES or world.has_lost(leaders)
            for partition, life in enumerate(world.lives):
                deleted[partition] = max(deleted[partition], life.leader.log_start)
        is_last = step is None
        if not world.store or not (is_last or source.random() < 0.4):
            continue
        if is_last:  # what changed in the middle shows in a whole listing
            watching.clock.seconds += 1001
        try:
            while watching.poll():
                if not is_last and source.random() < 0.3:
                    break
        except TieredKafkaError as error:
            # Loss, side files that are spoiled, several topic ids that nothing tells apart.
            if not may_lose:
                error.add_note(f"step {number}")
                raise
            outcomes[type(error).__name__] += 1
            return
    if watching.position.is_initial or not watching.position.topics:
        outcomes["nothing tiered"] += 1
        return
    options = parse_any_options(watching.options)
    try:
        plan = plan_scan(options, watching.tier)
    except TieredKafkaError as error:
        outcomes[f"the scan says {type(error).__name__}"] += 1
        return
    (topic,) = watching.position.topics.values()
    assert {part.topic_id for part in plan.partitions} <= {topic.topic_id}
    waits: dict[int, int] = {}
    for part in plan.partitions:
        at = topic.offsets.get(part.partition, part.start)
        if at < part.stop:
            # A transaction that is open and has no data above the log start: the stream knew it by
            # a snapshot that was spoiled since, so the scan cannot know it.
            assert watching.options["isolationLevel"] == "read_committed", "all is read"
            copies = world.lives[part.partition].uploads
            assert any("snapshot" in copy.spoiled for copy in copies), "all is read"
            assert at <= part.start, "all is read"
            waits[part.partition] = at
            outcomes["waits for what the scan cannot see"] += 1
    if may_lose:  # what was lost, and is copied again later, below where the tier seemed to begin
        deleted |= Counter(watching.begins)
    found = dict(watching.rows)
    assert len(found) == len(watching.rows), "a row came twice"
    # Deleted rows may come back with a leader that had not deleted them: no stream goes back there.
    due = {
        place: value
        for place, value in watching.read(plan)
        if place in found or place[1] >= deleted[place[0]]
        if place[1] < waits.get(place[0], place[1] + 1)
    }
    # Where the end of a transaction was lost, what the stream has read may be undecided again.
    spans = {
        part.partition: range(
            part.start, part.stop if may_lose and part.stop < part.wanted_stop else 1 << 62
        )
        for part in plan.partitions
    }
    here = {
        place: value for place, value in found.items() if place[1] in spans.get(place[0], range(0))
    }
    if watching.options["isolationLevel"] == "read_committed":
        different = {place for place in here.keys() ^ due.keys() if place in changed}
        outcomes["outcomes lost"] += bool(different)
        here = {place: value for place, value in here.items() if place not in different}
        due = {place: value for place, value in due.items() if place not in different}
    assert here == due
    outcomes["all rows" if due else "no rows"] += 1


def check_lenient(history: History, seed: str, outcomes: Counter[str]) -> None:
    """Where loss is allowed, the stream goes on, and no row of an incarnation comes twice.

    It is one process: another one could not know that what is left of the tier is of an older
    incarnation.
    """
    source = random.Random(seed)
    world = World(History(history.shape, ()))
    watching = Watching(
        world, source, failOnDataLoss="false", holeGraceMs=source.choice(("0", "600000"))
    )
    watching.restarts = 0.0
    for step in [*history.steps, None]:
        if step is not None:
            world.take(step)
        if not world.store or not (step is None or source.random() < 0.4):
            continue
        watching.clock.seconds += 1001 * (step is None)
        try:
            for count in range(500):
                if not watching.poll() or (step is not None and source.random() < 0.3):
                    break
                assert count < 499, "it does not end"
        except (InvalidOptionError, CorruptSegmentError, StoreError) as error:
            # Nothing tells which topic id is newest; side files that are spoiled.
            outcomes[type(error).__name__] += 1
            break
    assert max(watching.read_of.values(), default=1) == 1, "a row came twice"
    outcomes[f"{len({topic_id for topic_id, _ in watching.read_of})} topic ids"] += 1


def run(
    seeds: Iterable[object],
    check: Callable[[History, str, Counter[str]], None] = check,
) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    with (
        without_threads(),
        mock.patch.object(listing_memory, "PAGE", 6),
        mock.patch.object(listing_memory, "_SEEN_AGAIN", 3),
    ):
        for seed in seeds:
            history = random_history(random.Random(str(seed)))
            try:
                check(history, f"{seed} again", outcomes)
            except Exception as error:
                raise AssertionError(f"history {seed}: {history}") from error
    return outcomes


def test_histories() -> None:
    outcomes = run(range(60))
    assert outcomes["all rows"] > 10, outcomes
    assert outcomes["DataLossError"] + outcomes["OffsetOutOfRangeError"] > 5, outcomes


def test_an_index_that_is_spoiled_behind_the_stream() -> None:
    # The stream knew the index and planned the rest of the segment by it; its task then found
    # nothing to read, and rows were left out.
    segment = (*(Step("append", b=2),) * 6, Step("roll", a=7), Step("upload", a=15))
    world = World(History(Shape(interval=0), segment))
    watching = Watching(world, random.Random(0), maxOffsetsPerTrigger="9")
    watching.restarts = 0.0
    assert watching.poll()
    world.take(Step("spoil", 0, 2, 3))
    with pytest.raises(CorruptSegmentError, match="offset index"):
        watching.poll()
    watching.start()  # which plans anew
    while watching.poll():
        pass
    assert [offset for (_, offset), _ in watching.rows] == list(range(18))


def test_histories_that_failed_once() -> None:
    assert run(["4089210482-1472"]).total() == 1


def with_two_ids(seeds: Iterable[object]) -> Iterator[object]:
    """The seeds of histories in which the topic is created again."""
    for seed in seeds:
        steps = random_history(random.Random(str(seed))).steps
        if any(step.kind == "recreate" for step in steps):
            yield seed


def test_histories_in_which_loss_is_allowed() -> None:
    outcomes = run(islice(with_two_ids(range(1000)), 30), check_lenient)
    assert outcomes["2 topic ids"] > 0, outcomes


@pytest.mark.fuzz
def test_histories_never_seen_before() -> None:
    assert run(new_seeds(seconds=30)).total() > 20
    assert run(with_two_ids(new_seeds(seconds=20)), check_lenient).total() > 0
