"""Counts the requests of planning. Also checks that a plan that reads only some manifests of a
partition equals the plan that reads all manifests.
"""

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
    """Store that lists each object with the event timestamp in its manifest as modification
    time.
    """

    def set_times(self, infos: Iterator[ObjectInfo], read: Callable[[str], bytes]) -> Iterator[Any]:
        from dataclasses import replace

        listed = list(infos)
        times = {
            info.key.rsplit(".", 1)[0]: parse_manifest(read(info.key))["eventTimestampMs"]
            for info in listed
            if info.key.endswith(".rsm-manifest")
        }
        for info in listed:
            yield replace(info, last_modified_ms=times.get(info.key.rsplit(".", 1)[0], 0))


class TimedLocalStore(LocalStore, TimedListing):
    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        return self.set_times(
            super().list_objects(prefix, after=after), lambda key: (TIER / key).read_bytes()
        )


class TimedMemoryStore(MemoryStore, TimedListing):
    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        return self.set_times(super().list_objects(prefix, after=after), self._objects.__getitem__)


def parse_manifest(data: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(data)["remoteLogSegmentMetadata"]
    return document


def find_outcome(option_texts: Mapping[str, str], store: ObjectStore) -> object:
    """Plans a scan. Returns the content of the plan, or the type of the error that planning
    raised.
    """
    try:
        plan = plan_scan(parse_options(option_texts), Tier(store))
    except TieredKafkaError as error:
        return type(error)
    return extract_content(plan)


def extract_content(plan: ScanPlan) -> object:
    tasks = [
        [
            (
                *(
                    task_slice.topic,
                    task_slice.partition,
                    task_slice.segment_id,
                    task_slice.cut_start,
                    task_slice.cut_stop,
                ),
                *(
                    task_slice.start_offset,
                    task_slice.stop_offset,
                    task_slice.lineage,
                    task_slice.objects.log,
                ),
                task_slice.aborted.first_offsets.tolist(),
                task_slice.aborted.last_offsets.tolist(),
            )
            for task_slice in task.slices
        ]
        for task in plan.tasks
    ]
    ends = [
        (
            *(
                partition.partition,
                partition.start,
                partition.stop,
                partition.wanted_stop,
                partition.undecided,
            ),
            *(partition.surviving.log_start, partition.surviving.stop),
        )
        for partition in plan.partitions
    ]
    return tasks, ends


@pytest.fixture
def from_all(monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Returns a function that plans a scan with all manifests, and returns the plan or the raised
    error.
    """

    def plan(option_texts: Mapping[str, str], store: ObjectStore) -> object:
        with monkeypatch.context() as patched:
            patched.setattr(tier_source, "can_plan_in_part", lambda *_, **__: False)
            return find_outcome(option_texts, store)

    return plan


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """Returns a counter of planned partitions. The key True counts partitions for which planning
    read all manifests; the key False counts the remaining ones.
    """
    counted: Counter[bool] = Counter()
    decided = tier_source.TierLog.decided

    def count(self: tier_source.TierLog, start: int, stop: int) -> object:
        decision = decided(self, start, stop)
        counted[self.is_complete] += 1
        return decision

    monkeypatch.setattr(tier_source.TierLog, "decided", count)
    return counted


# -- plans from few segments


@pytest.mark.parametrize("topic", only(6, TOPICS))
def test_offset_window_of_golden_topic_has_the_plan_made_from_all_manifests(
    topic: str,
    from_all: Callable[..., object],
    views: Counter[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tier_source, "NEWEST_UPLOADS", 1)  # partitions have few segments
    store = TimedLocalStore(TIER)
    source = random.Random(topic)
    summaries = partition_summaries(topic)
    bounds = {
        str(number): (summary["log_start_offset"], summary["tier_end_offset"])
        for number, summary in summaries.items()
        if summary["tier_end_offset"] is not None
    }
    for number in range(25):
        starts, stops = {}, {}
        for partition, (low, high) in bounds.items():
            starts[partition] = source.choice([-2, source.randint(low, high)])
            least = max(starts[partition], low)
            near_stop = min(high, least + source.randint(0, 400))
            stops[partition] = source.choice([-1, near_stop, source.randint(least, high)])
        option_texts = tier_options(
            topic,
            startingOffsets=json.dumps({topic: starts}),
            endingOffsets=json.dumps({topic: stops}),
            targetPartitionBytes=source.choice(["20k", "1m"]),
            failOnDataLoss=source.choice(["true", "false"]),
            isolationLevel=source.choice(["read_committed", "read_uncommitted"]),
        )
        assert find_outcome(option_texts, store) == from_all(option_texts, store), (
            number,
            option_texts,
        )
    if topic in ("codecs", "timeline"):
        assert views[False] > 5, views


@pytest.mark.slow
def test_offset_window_of_random_log_has_the_plan_made_from_all_manifests(
    from_all: Callable[..., object], views: Counter[bool]
) -> None:
    counted: Counter[str] = Counter()
    for seed in range(120):
        source = random.Random(seed)
        world = World(random_history(source))
        store = TimedMemoryStore(world.store)
        lives = list(world.incarnations.values())[-1]
        for _ in range(6):
            starts, stops = {}, {}
            for number in range(
                max(len(partition_lives) for partition_lives in world.incarnations.values())
            ):
                end = max((copy.stop for copy in lives[number % len(lives)].uploads), default=0)
                start = source.randint(0, end)
                starts[str(number)] = source.choice([start, start, -2])
                stops[str(number)] = source.choice([source.randint(start, end), -1])
            option_texts = {
                "path": "/",
                "subscribe": HISTORY_TOPIC,
                "startingOffsets": json.dumps({HISTORY_TOPIC: starts}),
                "endingOffsets": json.dumps({HISTORY_TOPIC: stops}),
                "failOnDataLoss": source.choice(["true", "false", "false"]),
                "targetPartitionBytes": source.choice(["1", "300", "1m"]),
            }
            if not has_newest_epoch_in_last_uploads(world.store):
                counted["newest epoch not among the newest uploads"] += 1
                continue
            expected = from_all(option_texts, store)
            assert find_outcome(option_texts, store) == expected, (seed, option_texts)
            counted["plan" if isinstance(expected, tuple) else "error"] += 1
    assert counted["plan"] > 100, counted
    assert views[False] > 50, (views, counted)


def has_newest_epoch_in_last_uploads(objects: Mapping[str, bytes]) -> bool:
    """Returns whether the last `NEWEST_UPLOADS` uploads of each partition include its newest
    segment: the one with the highest end offset among the segments of the highest leader epoch.

    A plan that reads only some manifests is correct only if this is true.
    """
    groups: dict[str, list[tuple[int, int, int]]] = {}
    for key, data in objects.items():
        if key.endswith(".rsm-manifest"):
            metadata = parse_manifest(data)
            epoch = max(map(int, metadata["segmentLeaderEpochs"]))
            uploads_of_partition = groups.setdefault(key.rsplit("/", 1)[0], [])
            uploads_of_partition.append(
                (metadata["eventTimestampMs"], epoch, metadata["endOffset"])
            )
    for uploads in groups.values():
        newest = max(uploads, key=lambda upload: upload[1:])
        if newest not in sorted(uploads)[-tier_source.NEWEST_UPLOADS :]:
            return False
    return True


@pytest.mark.parametrize("topic", ["timeline", "codecs", "appendtime", "txn", "epochs"])
def test_time_window_has_the_plan_made_from_all_manifests(
    topic: str, from_all: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_source, "NEWEST_UPLOADS", 1)
    store = TimedLocalStore(TIER)
    manifests = [
        parse_manifest(path.read_bytes()) for path in TIER.glob(f"*/{topic}-*/*/*.rsm-manifest")
    ]
    ahead = max(metadata["maxTimestampMs"] - metadata["eventTimestampMs"] for metadata in manifests)
    times = sorted(metadata["maxTimestampMs"] for metadata in manifests)
    source = random.Random(topic)
    for _ in range(12):
        start = source.choice(times) - source.randint(0, 100_000)
        stop = start + source.choice([0, 1000, HOUR_MS, 100 * HOUR_MS])
        option_texts = tier_options(
            topic,
            startingTimestamp=f"{max(start, 1)}",
            endingTimestamp=f"{max(stop, 1)}",
            startingOffsetsByTimestampStrategy="latest",
            isolationLevel="read_uncommitted",
        )
        expected = from_all(option_texts, store)
        assert find_outcome({**option_texts, "maxTimestampAheadMs": f"{ahead}"}, store) == expected


# -- number of requests


def make_window(tier: SimulatedTier, first: int, last: int) -> dict[str, str]:
    starts, stops = (
        {f"{number}": tier.base_offset(segment) + 40 for number in range(tier.partitions)}
        for segment in (first, last)
    )
    return {
        "startingOffsets": json.dumps({TOPIC: starts}),
        "endingOffsets": json.dumps({TOPIC: stops}),
    }


def make_plan(store: ObjectStore, caches: CacheSettings = NO_CACHE, /, **options: str) -> ScanPlan:
    option_texts = {"path": "simulated", "subscribe": TOPIC, **options}
    return plan_scan(parse_options(option_texts), Tier(store, Caches(caches)))


def count_requests(segments: int, **options: str) -> float:
    """Returns the number of planning requests divided by the number of partitions, if each
    partition has `segments` segments.
    """
    tier = SimulatedTier(3, segments, latency_seconds=0, aborted_share=10**9)
    make_plan(tier, **options)
    return tier.counters.requests / 3


def test_number_of_requests_for_offset_window_does_not_depend_on_log_length() -> None:
    costs = [
        count_requests(count, **make_window(SimulatedTier(3, count), 20, 22))
        for count in (40, 80, 160)
    ]
    assert len(set(costs)) == 1
    assert costs[0] <= 15
    wider = count_requests(160, **make_window(SimulatedTier(3, 160), 20, 52))
    assert costs[0] + 25 <= wider <= costs[0] + 35


def test_number_of_requests_for_time_window_does_not_depend_on_log_length() -> None:
    costs = []
    for count in (40, 80, 160):
        tier = SimulatedTier(3, count)
        start = FIRST_MS + 20 * tier.segment_ms + 1000
        hour = {"startingTimestamp": f"{start}", "endingTimestamp": f"{start + HOUR_MS}"}
        costs.append(count_requests(count, **hour, maxTimestampAheadMs="60000"))
        assert count_requests(count, **hour) > count
    assert max(costs) <= 20
    assert max(costs) - min(costs) <= 3


def test_plan_from_some_manifests_equals_plan_from_all_manifests() -> None:
    tier = SimulatedTier(2, 30, latency_seconds=0)
    start = FIRST_MS + 7 * tier.segment_ms + 1000
    hours = {"startingTimestamp": f"{start}", "endingTimestamp": f"{start + 30 * HOUR_MS}"}
    plan = make_plan(tier, **hours)
    assert extract_content(
        make_plan(tier, **hours, maxTimestampAheadMs="60000")
    ) == extract_content(plan)
    option_texts = {"path": "simulated", "subscribe": TOPIC, "columns": "timestamp,partition"}
    table = run(plan, option_texts, Tier(tier))
    stamps = table["timestamp"].cast("int64").to_pylist()
    assert min(stamps) >= start * 1000
    assert max(stamps) < (start + 30 * HOUR_MS) * 1000
    assert table.num_rows == sum(partition.stop - partition.start for partition in plan.partitions)


def test_plan_does_not_depend_on_the_number_of_planning_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With more threads than partitions, the additional threads read manifests."""
    tier = SimulatedTier(8, 40, latency_seconds=0)
    window = make_window(tier, 20, 22)
    names: list[str] = []
    described = AivenLayout.describe

    def note(self: AivenLayout, store: ObjectStore, entry: SegmentEntry) -> RemoteSegment:
        names.append(threading.current_thread().name)
        return described(self, store, entry)

    monkeypatch.setattr(AivenLayout, "describe", note)
    expected = extract_content(make_plan(tier, **window))
    assert any("describe" in name for name in names)
    names.clear()
    monkeypatch.setattr(segment_catalog, "PLANNING_THREADS", 8)
    assert extract_content(make_plan(tier, **window)) == expected
    assert names
    assert not any("describe" in name for name in names)


def test_second_plan_with_cache_sends_only_listings(tmp_path: Path) -> None:
    first, second = (SimulatedTier(3, 40, latency_seconds=0, aborted_share=5) for _ in range(2))
    index = CacheLimits(None, None)
    caches = CacheSettings(index=index, folder=str(tmp_path))
    expected = make_plan(first, caches)
    assert first.counters.requests > 3 * 40
    assert extract_content(make_plan(second, caches)) == extract_content(expected)
    assert second.counters.requests == 0
    assert second.counters.list_requests == first.counters.list_requests
    assert len(list(tmp_path.glob("v1/index/*.entry"))) < 60


def test_second_plan_of_same_window_with_cache_sends_only_listings(tmp_path: Path) -> None:
    first, second = (SimulatedTier(3, 40, latency_seconds=0, aborted_share=5) for _ in range(2))
    caches = CacheSettings(index=CacheLimits(None, None), folder=str(tmp_path))
    window = make_window(first, 20, 22)
    expected = make_plan(first, caches, **window)
    assert first.counters.requests > 3 * 5
    assert extract_content(make_plan(second, caches, **window)) == extract_content(expected)
    assert second.counters.requests == 0
    # The cache has one entry for each partition.
    assert len(list(tmp_path.glob("v1/index/*.entry"))) == 3


def test_each_manifest_is_requested_only_once() -> None:
    tier = SimulatedTier(3, 40, latency_seconds=0, aborted_share=10**9)
    make_plan(tier, isolationLevel="read_uncommitted")
    # One request for the manifest of each segment, and one for the checkpoint of the newest segment
    # of each partition.
    assert tier.counters.requests == 3 * 40 + 3
