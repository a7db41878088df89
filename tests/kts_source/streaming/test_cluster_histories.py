"""Tests streams that read a topic from tier and brokers during random sequences of events.

The stream must return each row of the leader's log exactly once, or raise an error.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from kts_source.errors import TieredKafkaError
from kts_source.options import parse_any_options
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.read.task_metrics import TaskMeter, TaskPlace
from kts_source.store.joined_store import EmptyStore
from kts_source.streaming import cluster_look, tier_look
from kts_source.streaming.offsets import INITIAL, position_from_json, position_to_json
from kts_source.streaming.tier_stream import TierStream
from kts_source.tier import Tier
from segment_format.kafka_uuid import uuid_from_text
from tests.kts_source.broker.fake_broker import FakeCluster
from tests.kts_source.planning.history import TOPIC, History, World, random_history
from tests.kts_source.planning.hybrid_reading import in_one_thread, served
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.reading import InTurn
from tests.kts_source.streaming.running import Clock, new_seeds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import ScanPlan
    from segment_format.testing import BuiltLog

Row = tuple[int, int, bytes | None]
"""Partition, offset, value."""
LOSING_STEPS = {"recreate", "retain", "delete_records"}
"""Kinds of steps, in addition to elections, after which the leader's log may lack earlier
records.
"""


class HistoryStream:
    """A stream over the tier and the brokers of a history."""

    def __init__(
        self, world: World, cluster: FakeCluster, source: random.Random, tier: Tier
    ) -> None:
        self.world = world
        self._cluster = cluster
        self._random = source
        limits: tuple[dict[str, str], ...] = (
            {},
            {"maxSegmentsPerTrigger": "1"},
            {"maxOffsetsPerTrigger": "3"},
            {"maxBytesPerTrigger": "300"},
        )
        self.isolation = source.choice(("read_committed", "read_uncommitted"))
        self.options = {
            "path": "file:///nowhere",
            "subscribePattern": f"^{TOPIC}$",
            "layout": "local-tiered-storage" if world.shape.local else "aiven",
            "isolationLevel": self.isolation,
            "minListingIntervalMs": source.choice(("0", "1000000")),
            "minBrokerPollIntervalMs": source.choice(("0", "1000")),
            "kafka.bootstrap.servers": cluster.bootstrap,
            "kafka.request.timeout.ms": "5000",
            "kafka.fetch.max.wait.ms": "10",
            "maxConcurrentRequests": "1",
            **source.choice(limits),
        }
        if source.random() < 0.2:
            del self.options["path"], self.options["layout"]
        self.tier = tier
        self.position = INITIAL
        self.rows: list[Row] = []
        self.unknown_outcomes: dict[int, int] = {}
        self.clock = Clock()
        self.stream: TierStream | None = None
        self.truths: list[tuple[BuiltLog | None, int]] = []
        self.start()

    def start(self) -> None:
        """Starts a new process."""
        if self.stream is not None:
            self.stream.close()
        self.stream = TierStream(parse_any_options(self.options), self.clock)

    def refresh(self) -> None:
        """Updates the brokers to the current state of the history."""
        topic_id, lives = list(self.world.incarnations.items())[-1]
        partitions = [served(life, self._random.choice((0, 3, 100))) for life in lives]
        is_tiered = any(topic_id in key for key in self.world.store)
        for partition, _ in partitions if is_tiered else ():
            log = partition.log
            local_start = self._random.randint(log.log_start, max(log.log_start, log.end))
            log.local_start = self._random.choice((0, local_start))
        self.truths = [
            (truth, life.leader.log_start)
            for (_, truth), life in zip(partitions, lives, strict=True)
        ]
        self._cluster.create(
            TOPIC, [partition for partition, _ in partitions], uuid_from_text(topic_id)
        )

    def poll(self) -> bool:
        """Reads the next batch; returns false if there is no new batch. Sometimes replaces the
        process between choosing the end of the batch and planning it.
        """
        if self._random.random() < 0.6:
            self.clock.seconds += 1
        assert self.stream is not None
        end = self.stream.next(self.position)
        if end is self.position:
            return False
        end = position_from_json(position_to_json(end))
        if self._random.random() < 0.3:
            self.start()
        self.rows += self._read(self.stream.plan(self.position, end))
        self.position = end
        return True

    def _read(self, plan: ScanPlan | None) -> list[Row]:
        options: ScanOptions = parse_any_options(self.options)
        source, settings = SegmentSource(self.tier, options.key_ring), ReadSettings.of(options)
        rows: list[Row] = []
        for task in [] if plan is None else plan.tasks:
            meter = TaskMeter(task, self.tier, TaskPlace())
            for batch in read_task(task, source, settings, meter=meter):
                columns = (
                    batch.column(name).to_pylist() for name in ("partition", "offset", "value")
                )
                rows += zip(*columns, strict=True)
        return rows

    def mark_outcomes_unknown(self) -> None:
        """Marks the outcomes of transactions up to the current position as unknown.

        An election may lose the end of a transaction after the stream read its records. The stream
        cannot detect that the outcome of the transaction has changed.
        """
        for topic in self.position.topics.values():
            self.unknown_outcomes = {
                partition: max(offset, self.unknown_outcomes.get(partition, 0))
                for partition, offset in topic.offsets.items()
            }

    def expected_rows(self) -> list[Row]:
        """Returns the rows of the leaders' logs."""
        return [
            (number, row.offset, row.value)
            for number, (truth, start) in enumerate(self.truths)
            if truth is not None
            for row in truth.rows(self.isolation, start=start)
        ]


def check(history: History, seed: str, cluster: FakeCluster, outcomes: Counter[str]) -> None:
    """Polls the stream between the steps of a history, and compares its rows with the leaders' logs
    at the end.
    """
    source = random.Random(seed)
    world = World(History(history.shape, ()))
    tier = Tier(MemoryStore(world.store))

    def open_tier(options: ScanOptions) -> Tier:
        return tier if options.path else Tier(EmptyStore())

    with (
        mock.patch.object(cluster_look, "open_tier", open_tier),
        mock.patch.object(tier_look, "open_tier", open_tier),
    ):
        _check(HistoryStream(world, cluster, source, tier), history, source, outcomes)


def _check(
    history_stream: HistoryStream, history: History, source: random.Random, outcomes: Counter[str]
) -> None:
    may_lose = False
    steps = [*history.steps, None]
    try:
        for number, step in enumerate(steps):
            if step is not None:
                leaders = [life.leader for life in history_stream.world.lives]
                history_stream.world.take(step)
                if history_stream.world.has_lost(leaders):
                    history_stream.mark_outcomes_unknown()
                    may_lose = True
                may_lose |= step.kind in LOSING_STEPS
            is_last = step is None
            if not (is_last or source.random() < 0.3):
                continue
            history_stream.refresh()
            history_stream.clock.seconds += is_last
            try:
                while history_stream.poll():
                    if not is_last and source.random() < 0.3:
                        break
            except TieredKafkaError as error:
                if not may_lose:
                    error.add_note(f"step {number}")
                    raise
                outcomes[type(error).__name__] += 1
                return
    finally:
        assert history_stream.stream is not None
        history_stream.stream.close()
    starts = [start for _, start in history_stream.truths]
    row_counts = Counter(history_stream.rows)
    assert max(row_counts.values(), default=1) == 1, "a row was returned twice"
    rows = {row for row in row_counts if row[1] >= starts[row[0]]}
    expected = set(history_stream.expected_rows())
    if history_stream.isolation == "read_committed":
        different = {
            row
            for row in rows ^ expected
            if row[1] < history_stream.unknown_outcomes.get(row[0], 0)
        }
        outcomes["outcomes lost"] += bool(different)
        rows, expected = rows - different, expected - different
    assert rows == expected
    outcomes["all rows" if rows else "no rows"] += 1


def run(seeds: Iterable[object]) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    with in_one_thread(), FakeCluster() as cluster:
        for seed in seeds:
            history = random_history(random.Random(str(seed)))
            try:
                check(history, f"{seed} again", cluster, outcomes)
            except Exception as error:
                raise AssertionError(f"history {seed}: {history}") from error
    return outcomes


@pytest.fixture(autouse=True)
def _simple(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cluster_look, tier_look):
        monkeypatch.setattr(module, "ThreadPoolExecutor", InTurn)


def test_streams_over_random_histories_return_each_row_once() -> None:
    outcomes = run(range(25))
    assert outcomes["all rows"] > 5, outcomes


def test_stream_over_history_with_one_tiered_partition_returns_all_rows() -> None:
    # A batch must be readable even if the tier has no segment of its partition, only of another.
    assert run(["f-122"])["all rows"] == 1


@pytest.mark.fuzz
def test_streams_over_new_random_histories_return_each_row_once() -> None:
    assert run(new_seeds(seconds=40)).total() > 20
