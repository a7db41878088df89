"""Tests streams that read a tiered topic during random sequences of events.

The stream must return each row of the final log exactly once, or raise an error.
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
from kts_source.streaming import tier_look
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

RowPosition = tuple[int, int]
"""Partition and offset."""
LOSING_STEPS = {"lose", "spoil", "recreate", "clean_up", "retain", "delete_records"}
"""Kinds of steps after which the stream may report a loss. Other kinds lose no record of the
log.
"""


class PagedStore(MemoryStore):
    """Store that lists objects in pages."""

    lists_in_pages = True


class HistoryStream:
    """A stream over the tier of a history.

    Args:
        world: Simulated cluster whose tier the stream reads.
        source: Random generator that chooses the options, and when a new process reads a batch.
        options: Additional options.

    Attributes:
        restart_probability: Probability that another process reads a batch.
        read_counts: Number of times that each row was returned, by topic id.
    """

    def __init__(self, world: World, source: random.Random, **options: str) -> None:
        self._random = source
        self.restart_probability = 0.3
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
            **options,
        }
        self.tier = Tier(PagedStore(world.store))
        self.clock = Clock()
        self.start()
        self.position = INITIAL
        self.rows: list[tuple[RowPosition, bytes | None]] = []
        self.begins: dict[int, int] = {}
        self.read_counts: Counter[tuple[str, RowPosition]] = Counter()

    def start(self) -> None:
        """Starts a new process."""
        with (
            mock.patch.object(tier_look, "open_tier", return_value=self.tier),
            mock.patch.object(tier_look, "ThreadPoolExecutor", InTurn),
        ):
            self.stream = TierStream(parse_any_options(self.options), self.clock)

    def poll(self) -> bool:
        """Reads the next batch; returns false if there is no new batch. Sometimes replaces the
        process between choosing the end of the batch and planning it.
        """
        if self._random.random() < 0.6:
            self.clock.seconds += 1
        end = self.stream.next(self.position)
        if end is self.position:
            return False
        end = position_from_json(position_to_json(end))
        for begin in end.begins.values():
            self.begins = {**begin.offsets, **self.begins}
        if self._random.random() < self.restart_probability:
            self.start()
        plan = self.stream.plan(self.position, end)
        rows = self.read(plan)
        topic_ids = {
            bounds.partition: bounds.topic_id for bounds in (plan.partitions if plan else ())
        }
        self.read_counts.update((topic_ids[position[0]], position) for position, _ in rows)
        self.rows += rows
        self.position = end
        return True

    def read(self, plan: ScanPlan | None) -> list[tuple[RowPosition, bytes | None]]:
        """Returns the rows of a plan."""
        options = parse_any_options(self.options)
        source, settings = SegmentSource(self.tier, options.key_ring), ReadSettings.of(options)
        rows = []
        for task in [] if plan is None else plan.tasks:
            for batch in read_task(task, source, settings):
                columns = (
                    batch.column(name).to_pylist() for name in ("partition", "offset", "value")
                )
                rows += [
                    ((partition, offset), value)
                    for partition, offset, value in zip(*columns, strict=True)
                ]
        return rows


def transaction_ends(replica: Replica) -> dict[int, tuple[Entry, Entry | None]]:
    """Returns for each transactional offset the batch of the offset, and the marker that ends the
    transaction or `None`.
    """
    ends: dict[int, tuple[Entry, Entry | None]] = {}
    open_batches: dict[int, list[Entry]] = {}
    for entry in replica.entries:
        if entry.kind == "send":
            open_batches.setdefault(entry.producer_id, []).append(entry)
            ends.update((offset, (entry, None)) for offset in range(entry.base, entry.stop))
        elif entry.kind != "plain":
            for batch in open_batches.pop(entry.producer_id, []):
                ends.update((offset, (batch, entry)) for offset in range(batch.base, batch.stop))
    return ends


def records_with_changed_outcome(before: list[Replica], world: World) -> set[RowPosition]:
    """Returns records whose transaction ends with a different marker, or without a marker, after an
    election. A stream that has already read these records cannot detect the change.
    """
    return {
        (partition, offset)
        for partition, (old, life) in enumerate(zip(before, world.lives, strict=False))
        if old is not life.leader
        for current in [transaction_ends(life.leader)]
        for offset, (batch, end) in transaction_ends(old).items()
        if offset in current and current[offset][0] is batch and current[offset][1] is not end
    }


class _Poller:
    """Polls a stream between the steps of a history.

    Attributes:
        stream: The stream.
        may_lose: True after a step that may lose records.
        deleted: Highest log start of each partition so far.
        changed_outcomes: Records whose transaction has a different end marker after an election.
    """

    def __init__(self, history: History, source: random.Random) -> None:
        self._history = history
        self._source = source
        self.world = World(History(history.shape, ()))
        self.stream = HistoryStream(self.world, source)
        self.may_lose = False
        self.deleted: Counter[int] = Counter()
        self.changed_outcomes: set[RowPosition] = set()

    def run(self) -> TieredKafkaError | None:
        """Performs all steps of the history, and polls the stream between them.

        Returns the error that ended the stream, or None. Raises the error if no earlier step could
        have lost records.
        """
        source, stream = self._source, self.stream
        for number, step in enumerate([*self._history.steps, None]):
            if step is not None:
                self._take(step)
            is_last = step is None
            if not self.world.store or not (is_last or source.random() < 0.4):
                continue
            if is_last:  # only a full listing shows changes in the middle
                stream.clock.seconds += 1001
            try:
                while stream.poll():
                    if not is_last and source.random() < 0.3:
                        break
            except TieredKafkaError as error:
                # Expected after loss, damaged side files, or several topic ids of unknown order.
                if not self.may_lose:
                    error.add_note(f"step {number}")
                    raise
                return error
        return None

    def _take(self, step: Step) -> None:
        world = self.world
        leaders = [life.leader for life in world.lives]
        world.take(step)
        if step.kind == "recreate":
            self.deleted.clear()
            self.changed_outcomes.clear()
        self.changed_outcomes |= records_with_changed_outcome(leaders, world)
        self.may_lose |= step.kind in LOSING_STEPS or world.has_lost(leaders)
        for partition, life in enumerate(world.lives):
            self.deleted[partition] = max(self.deleted[partition], life.leader.log_start)


def check(history: History, seed: str, outcomes: Counter[str]) -> None:
    """Polls the stream between the steps of a history, and compares its rows with a scan at the
    end.
    """
    poller = _Poller(history, random.Random(seed))
    error = poller.run()
    if error is not None:
        outcomes[type(error).__name__] += 1
        return
    history_stream = poller.stream
    if history_stream.position.is_initial or not history_stream.position.topics:
        outcomes["nothing tiered"] += 1
        return
    options = parse_any_options(history_stream.options)
    try:
        plan = plan_scan(options, history_stream.tier)
    except TieredKafkaError as refusal:
        outcomes[f"the scan raises {type(refusal).__name__}"] += 1
        return
    waits = _find_waits(poller, plan)
    outcomes.update("waits for a transaction unknown to the scan" for _ in waits)
    _check_rows(poller, plan, waits, outcomes)


def _find_waits(poller: _Poller, plan: ScanPlan) -> dict[int, int]:
    """Returns the offset at which the stream waits, for each partition in which the scan ends at a
    higher offset.
    """
    history_stream = poller.stream
    (topic,) = history_stream.position.topics.values()
    assert {bounds.topic_id for bounds in plan.partitions} <= {topic.topic_id}
    waits: dict[int, int] = {}
    for bounds in plan.partitions:
        offset = topic.offsets.get(bounds.partition, bounds.start)
        if offset < bounds.stop:
            # The stream waits for an open transaction without data above the log start. It knows
            # the transaction from a snapshot that was damaged later, so the scan cannot know it.
            assert history_stream.options["isolationLevel"] == "read_committed", "unread offsets"
            copies = poller.world.lives[bounds.partition].uploads
            assert any("snapshot" in copy.spoiled for copy in copies), "unread offsets"
            assert offset <= bounds.start, "unread offsets"
            waits[bounds.partition] = offset
    return waits


def _check_rows(
    poller: _Poller, plan: ScanPlan, waits: dict[int, int], outcomes: Counter[str]
) -> None:
    """Compares the rows of the stream with the rows of a scan."""
    history_stream, may_lose = poller.stream, poller.may_lose
    deleted = poller.deleted
    if may_lose:  # lost records below the stream's begin may be copied again later
        deleted |= Counter(history_stream.begins)
    rows = dict(history_stream.rows)
    assert len(rows) == len(history_stream.rows), "a row was returned twice"
    # A new leader may still have rows that the previous leader deleted. The stream does not go back
    # to such rows.
    expected = {
        position: value
        for position, value in history_stream.read(plan)
        if position in rows or position[1] >= deleted[position[0]]
        if position[1] < waits.get(position[0], position[1] + 1)
    }
    # If the end marker of a transaction was lost, the transaction is open again. The stream may
    # have already read its rows.
    spans = {
        bounds.partition: range(
            bounds.start, bounds.stop if may_lose and bounds.stop < bounds.wanted_stop else 1 << 62
        )
        for bounds in plan.partitions
    }
    comparable = {
        position: value
        for position, value in rows.items()
        if position[1] in spans.get(position[0], range(0))
    }
    if history_stream.options["isolationLevel"] == "read_committed":
        different = {
            position
            for position in comparable.keys() ^ expected.keys()
            if position in poller.changed_outcomes
        }
        outcomes["outcomes lost"] += bool(different)
        comparable = {
            position: value for position, value in comparable.items() if position not in different
        }
        expected = {
            position: value for position, value in expected.items() if position not in different
        }
    assert comparable == expected
    outcomes["all rows" if expected else "no rows"] += 1


def check_lenient(history: History, seed: str, outcomes: Counter[str]) -> None:
    """Checks that a stream with `failOnDataLoss=false` continues after losses and returns each row
    of a topic id at most once.

    The stream never restarts: a new process could not know that the remaining segments belong to an
    older topic id.
    """
    source = random.Random(seed)
    world = World(History(history.shape, ()))
    history_stream = HistoryStream(
        world, source, failOnDataLoss="false", holeGraceMs=source.choice(("0", "600000"))
    )
    history_stream.restart_probability = 0.0
    for step in [*history.steps, None]:
        if step is not None:
            world.take(step)
        if not world.store or not (step is None or source.random() < 0.4):
            continue
        history_stream.clock.seconds += 1001 * (step is None)
        try:
            for count in range(500):
                if not history_stream.poll() or (step is not None and source.random() < 0.3):
                    break
                assert count < 499, "the stream does not end"
        except (InvalidOptionError, CorruptSegmentError, StoreError) as error:
            # Expected if the newest topic id is unknown, or if side files are damaged.
            outcomes[type(error).__name__] += 1
            break
    assert max(history_stream.read_counts.values(), default=1) == 1, "a row was returned twice"
    outcomes[f"{len({topic_id for topic_id, _ in history_stream.read_counts})} topic ids"] += 1


def run(
    seeds: Iterable[object],
    check: Callable[[History, str, Counter[str]], None] = check,
) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    with (
        without_threads(),
        mock.patch.object(tier_look, "PAGE", 6),
        mock.patch.object(tier_look, "_SEEN_AGAIN", 3),
    ):
        for seed in seeds:
            history = random_history(random.Random(str(seed)))
            try:
                check(history, f"{seed} again", outcomes)
            except Exception as error:
                raise AssertionError(f"history {seed}: {history}") from error
    return outcomes


def test_streams_over_random_histories_return_each_row_once() -> None:
    outcomes = run(range(60))
    assert outcomes["all rows"] > 10, outcomes
    assert outcomes["DataLossError"] + outcomes["OffsetOutOfRangeError"] > 5, outcomes


def test_index_damaged_between_batches_loses_no_row() -> None:
    # The stream plans the rest of the segment with the index that it read before the damage. The
    # task of that plan must raise an error instead of skipping rows.
    segment = (*(Step("append", b=2),) * 6, Step("roll", a=7), Step("upload", a=15))
    world = World(History(Shape(interval=0), segment))
    history_stream = HistoryStream(world, random.Random(0), maxOffsetsPerTrigger="9")
    history_stream.restart_probability = 0.0
    assert history_stream.poll()
    world.take(Step("spoil", 0, 2, 3))
    with pytest.raises(CorruptSegmentError, match="offset index"):
        history_stream.poll()
    history_stream.start()  # a new process plans without the damaged index
    while history_stream.poll():
        pass
    assert [offset for (_, offset), _ in history_stream.rows] == list(range(18))


def test_stream_over_earlier_failing_history_returns_each_row_once() -> None:
    assert run(["4089210482-1472"]).total() == 1


def with_two_ids(seeds: Iterable[object]) -> Iterator[object]:
    """Yields the seeds of histories that recreate the topic."""
    for seed in seeds:
        steps = random_history(random.Random(str(seed))).steps
        if any(step.kind == "recreate" for step in steps):
            yield seed


def test_streams_that_allow_data_loss_return_no_row_twice() -> None:
    outcomes = run(islice(with_two_ids(range(1000)), 30), check_lenient)
    assert outcomes["2 topic ids"] > 0, outcomes


@pytest.mark.fuzz
def test_streams_over_new_random_histories_return_each_row_once() -> None:
    assert run(new_seeds(seconds=30)).total() > 20
    assert run(with_two_ids(new_seeds(seconds=20)), check_lenient).total() > 0
