"""What a plan asks of the store; and a plan made from few segments is the plan made from all."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.simulated import FIRST_MS, TOPIC, SimulatedTier
from kts_source.cache.caches import NO_CACHE, Caches, CacheSettings
from kts_source.cache.disk_cache import CacheLimits
from kts_source.errors import TieredKafkaError
from kts_source.layout.aiven import AivenLayout
from kts_source.options import parse_options
from kts_source.planning import segment_catalog, tier_source
from kts_source.planning.planner import plan_scan
from kts_source.store.local_store import LocalStore
from kts_source.tier import Tier
from tests.golden_data import TIER, TOPICS, partition_summaries, tier_options
from tests.kts_source.planning.history import TOPIC as HISTORY_TOPIC
from tests.kts_source.planning.history import World, random_history
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.scanning import run
from tests.quick import only

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from kts_source.layout.layout import SegmentEntry
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.store.object_store import ObjectInfo, ObjectStore

HOUR_MS = 3_600_000


class TimedListing:
    """Objects listed with the time their upload began, as their manifest tells it."""

    def timed(self, infos: Iterator[ObjectInfo], read: Callable[[str], bytes]) -> Iterator[Any]:
        from dataclasses import replace

        found = list(infos)
        times = {
            info.key.rsplit(".", 1)[0]: manifest(read(info.key))["eventTimestampMs"]
            for info in found
            if info.key.endswith(".rsm-manifest")
        }
        for info in found:
            yield replace(info, last_modified_ms=times.get(info.key.rsplit(".", 1)[0], 0))


class TimedLocalStore(LocalStore, TimedListing):
    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        return self.timed(
            super().list_objects(prefix, after=after), lambda key: (TIER / key).read_bytes()
        )


class TimedMemoryStore(MemoryStore, TimedListing):
    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        return self.timed(super().list_objects(prefix, after=after), self._objects.__getitem__)


def manifest(data: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(data)["remoteLogSegmentMetadata"]
    return document


def outcome(given: Mapping[str, str], store: ObjectStore) -> object:
    """What a plan reads, or the kind of its error."""
    try:
        plan = plan_scan(parse_options(given), Tier(store))
    except TieredKafkaError as error:
        return type(error)
    return essence(plan)


def essence(plan: ScanPlan) -> object:
    tasks = [
        [
            (
                *(part.topic, part.partition, part.segment_id, part.cut_start, part.cut_stop),
                *(part.start_offset, part.stop_offset, part.lineage, part.objects.log),
                part.aborted.first_offsets.tolist(),
                part.aborted.last_offsets.tolist(),
            )
            for part in task.slices
        ]
        for task in plan.tasks
    ]
    ends = [
        (
            *(part.partition, part.start, part.stop, part.wanted_stop, part.undecided),
            *(part.surviving.log_start, part.surviving.stop),
        )
        for part in plan.partitions
    ]
    return tasks, ends


@pytest.fixture
def from_all(monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """The outcome of a plan that looks at every segment."""

    def plan(given: Mapping[str, str], store: ObjectStore) -> object:
        with monkeypatch.context() as patched:
            patched.setattr(tier_source, "can_plan_in_part", lambda *_, **__: False)
            return outcome(given, store)

    return plan


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """Counts the partitions that were planned from all segments (True) and from some (False)."""
    counted: Counter[bool] = Counter()
    decided = tier_source.TierLog.decided

    def count(self: tier_source.TierLog, start: int, stop: int) -> object:
        found = decided(self, start, stop)
        counted[self.is_complete] += 1
        return found

    monkeypatch.setattr(tier_source.TierLog, "decided", count)
    return counted


# -- the same plan from few segments


@pytest.mark.parametrize("topic", only(6, TOPICS))
def test_golden_windows(
    topic: str,
    from_all: Callable[..., object],
    views: Counter[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tier_source, "NEWEST_UPLOADS", 1)  # partitions have few segments
    store = TimedLocalStore(TIER)
    source = random.Random(topic)
    parts = partition_summaries(topic)
    bounds = {
        str(number): (entry["log_start_offset"], entry["tier_end_offset"])
        for number, entry in parts.items()
        if entry["tier_end_offset"] is not None
    }
    for number in range(25):
        starts, stops = {}, {}
        for partition, (low, high) in bounds.items():
            starts[partition] = source.choice([-2, source.randint(low, high)])
            least = max(starts[partition], low)
            narrow = min(high, least + source.randint(0, 400))
            stops[partition] = source.choice([-1, narrow, source.randint(least, high)])
        given = tier_options(
            topic,
            startingOffsets=json.dumps({topic: starts}),
            endingOffsets=json.dumps({topic: stops}),
            targetPartitionBytes=source.choice(["20k", "1m"]),
            failOnDataLoss=source.choice(["true", "false"]),
            isolationLevel=source.choice(["read_committed", "read_uncommitted"]),
        )
        assert outcome(given, store) == from_all(given, store), (number, given)
    if topic in ("codecs", "timeline"):
        assert views[False] > 5, views


@pytest.mark.slow
def test_random_histories(from_all: Callable[..., object], views: Counter[bool]) -> None:
    counted: Counter[str] = Counter()
    for seed in range(120):
        source = random.Random(seed)
        world = World(random_history(source))
        store = TimedMemoryStore(world.store)
        lives = list(world.incarnations.values())[-1]
        for _ in range(6):
            starts, stops = {}, {}
            for number in range(max(len(of) for of in world.incarnations.values())):
                end = max((copy.stop for copy in lives[number % len(lives)].uploads), default=0)
                start = source.randint(0, end)
                starts[str(number)] = source.choice([start, start, -2])
                stops[str(number)] = source.choice([source.randint(start, end), -1])
            given = {
                "path": "/",
                "subscribe": HISTORY_TOPIC,
                "startingOffsets": json.dumps({HISTORY_TOPIC: starts}),
                "endingOffsets": json.dumps({HISTORY_TOPIC: stops}),
                "failOnDataLoss": source.choice(["true", "false", "false"]),
                "targetPartitionBytes": source.choice(["1", "300", "1m"]),
            }
            if not newest_is_among_the_last_uploads(world.store):
                counted["newest epoch not among the newest uploads"] += 1
                continue
            expected = from_all(given, store)
            assert outcome(given, store) == expected, (seed, given)
            counted["plan" if isinstance(expected, tuple) else "error"] += 1
    assert counted["plan"] > 100, counted
    assert views[False] > 50, (views, counted)


def newest_is_among_the_last_uploads(objects: Mapping[str, bytes]) -> bool:
    """Whether the times of the uploads tell the newest epoch, as planning in part assumes."""
    groups: dict[str, list[tuple[int, int, int]]] = {}
    for key, data in objects.items():
        if key.endswith(".rsm-manifest"):
            facts = manifest(data)
            epoch = max(map(int, facts["segmentLeaderEpochs"]))
            of = groups.setdefault(key.rsplit("/", 1)[0], [])
            of.append((facts["eventTimestampMs"], epoch, facts["endOffset"]))
    for uploads in groups.values():
        newest = max(uploads, key=lambda upload: upload[1:])
        if newest not in sorted(uploads)[-tier_source.NEWEST_UPLOADS :]:
            return False
    return True


@pytest.mark.parametrize("topic", ["timeline", "codecs", "appendtime", "txn", "epochs"])
def test_bounds_in_time_when_records_are_not_dated_ahead(
    topic: str, from_all: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_source, "NEWEST_UPLOADS", 1)
    store = TimedLocalStore(TIER)
    facts = [manifest(path.read_bytes()) for path in TIER.glob(f"*/{topic}-*/*/*.rsm-manifest")]
    ahead = max(fact["maxTimestampMs"] - fact["eventTimestampMs"] for fact in facts)
    times = sorted(fact["maxTimestampMs"] for fact in facts)
    source = random.Random(topic)
    for _ in range(12):
        start = source.choice(times) - source.randint(0, 100_000)
        stop = start + source.choice([0, 1000, HOUR_MS, 100 * HOUR_MS])
        given = tier_options(
            topic,
            startingTimestamp=f"{max(start, 1)}",
            endingTimestamp=f"{max(stop, 1)}",
            startingOffsetsByTimestampStrategy="latest",
            isolationLevel="read_uncommitted",
        )
        expected = from_all(given, store)
        assert outcome({**given, "maxTimestampAheadMs": f"{ahead}"}, store) == expected


# -- what it costs


def window_of(tier: SimulatedTier, first: int, last: int) -> dict[str, str]:
    starts, stops = (
        {f"{number}": tier.base_offset(at) + 40 for number in range(tier.partitions)}
        for at in (first, last)
    )
    return {
        "startingOffsets": json.dumps({TOPIC: starts}),
        "endingOffsets": json.dumps({TOPIC: stops}),
    }


def planned(store: ObjectStore, kept: CacheSettings = NO_CACHE, /, **options: str) -> ScanPlan:
    given = {"path": "simulated", "subscribe": TOPIC, **options}
    return plan_scan(parse_options(given), Tier(store, Caches(kept)))


def requests(segments: int, **options: str) -> float:
    """For each partition of a topic of so many segments a partition."""
    tier = SimulatedTier(3, segments, latency_seconds=0, aborted_share=10**9)
    planned(tier, **options)
    return tier.counters.requests / 3


def test_a_window_of_offsets_costs_the_same_in_a_longer_log() -> None:
    costs = [
        requests(count, **window_of(SimulatedTier(3, count), 20, 22)) for count in (40, 80, 160)
    ]
    assert len(set(costs)) == 1
    assert costs[0] <= 15
    wider = requests(160, **window_of(SimulatedTier(3, 160), 20, 52))
    assert costs[0] + 25 <= wider <= costs[0] + 35


def test_an_hour_costs_the_same_in_a_longer_log_when_records_are_not_dated_ahead() -> None:
    costs = []
    for count in (40, 80, 160):
        tier = SimulatedTier(3, count)
        start = FIRST_MS + 20 * tier.segment_ms + 1000
        hour = {"startingTimestamp": f"{start}", "endingTimestamp": f"{start + HOUR_MS}"}
        costs.append(requests(count, **hour, maxTimestampAheadMs="60000"))
        assert requests(count, **hour) > count
    assert max(costs) <= 20
    assert max(costs) - min(costs) <= 3


def test_a_plan_in_part_reads_what_the_whole_plan_reads() -> None:
    tier = SimulatedTier(2, 30, latency_seconds=0)
    start = FIRST_MS + 7 * tier.segment_ms + 1000
    hours = {"startingTimestamp": f"{start}", "endingTimestamp": f"{start + 30 * HOUR_MS}"}
    plan = planned(tier, **hours)
    assert essence(planned(tier, **hours, maxTimestampAheadMs="60000")) == essence(plan)
    given = {"path": "simulated", "subscribe": TOPIC, "columns": "timestamp,partition"}
    table = run(plan, given, Tier(tier))
    stamps = table["timestamp"].cast("int64").to_pylist()
    assert min(stamps) >= start * 1000
    assert max(stamps) < (start + 30 * HOUR_MS) * 1000
    assert table.num_rows == sum(part.stop - part.start for part in plan.partitions)


def test_the_plan_of_many_partitions_is_the_plan_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which thread reads the manifests of a window changes nothing."""
    tier = SimulatedTier(8, 40, latency_seconds=0)
    given = window_of(tier, 20, 22)
    names: list[str] = []
    described = AivenLayout.describe

    def note(self: AivenLayout, store: ObjectStore, entry: SegmentEntry) -> RemoteSegment:
        names.append(threading.current_thread().name)
        return described(self, store, entry)

    monkeypatch.setattr(AivenLayout, "describe", note)
    expected = essence(planned(tier, **given))
    assert any("describe" in name for name in names)
    names.clear()
    monkeypatch.setattr(segment_catalog, "PLANNING_THREADS", 8)
    assert essence(planned(tier, **given)) == expected
    assert names
    assert not any("describe" in name for name in names)


def test_the_second_plan_asks_only_for_listings(tmp_path: Path) -> None:
    first, second = (SimulatedTier(3, 40, latency_seconds=0, aborted_share=5) for _ in range(2))
    index = CacheLimits(None, None)
    kept = CacheSettings(index=index, folder=str(tmp_path))
    expected = planned(first, kept)
    assert first.counters.requests > 3 * 40
    assert essence(planned(second, kept)) == essence(expected)
    assert second.counters.requests == 0
    assert second.counters.list_requests == first.counters.list_requests
    assert len(list(tmp_path.glob("v1/index/*.entry"))) < 60


def test_the_second_plan_of_a_window_asks_only_for_listings(tmp_path: Path) -> None:
    first, second = (SimulatedTier(3, 40, latency_seconds=0, aborted_share=5) for _ in range(2))
    kept = CacheSettings(index=CacheLimits(None, None), folder=str(tmp_path))
    given = window_of(first, 20, 22)
    expected = planned(first, kept, **given)
    assert first.counters.requests > 3 * 5
    assert essence(planned(second, kept, **given)) == essence(expected)
    assert second.counters.requests == 0
    # One file for each partition, and that of the sweep.
    assert len(list(tmp_path.glob("v1/index/*.entry"))) == 3


def test_a_manifest_is_asked_for_once() -> None:
    tier = SimulatedTier(3, 40, latency_seconds=0, aborted_share=10**9)
    planned(tier, isolationLevel="read_uncommitted")
    # A manifest of each segment, and the checkpoint of each partition's newest.
    assert tier.counters.requests == 3 * 40 + 3
