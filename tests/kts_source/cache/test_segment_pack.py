"""Checks that the cache returns segment descriptions unchanged.

A segment pack is a cache entry with the descriptions of a partition's segments. If the entry is
unreadable, it counts as a miss, and the descriptions are created again.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from benchmarks.simulated import TOPIC, SimulatedTier
from kts_source.cache.caches import Caches, CacheSettings
from kts_source.cache.disk_cache import CacheLimits, DiskCache
from kts_source.cache.packs import SegmentPack
from kts_source.layout.aiven import AivenLayout
from kts_source.layout.local_tiered import LocalTieredLayout
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.store.local_store import LocalStore
from kts_source.tier import Tier
from tests.golden_data import KEY_PREFIX, LOCAL_TIER, TIER, TOPICS

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier
    from pathlib import Path

    from kts_source.layout.layout import Layout, SegmentEntry
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.read.task import SegmentSlice
    from kts_source.store.object_store import ObjectStore

AIVEN = (AivenLayout(), LocalStore(TIER), KEY_PREFIX)


def entries(layout: Layout, store: ObjectStore, prefix: str, topic: str) -> list[SegmentEntry]:
    return [
        entry
        for folder in layout.topic_folders(store, prefix, topic)
        for partition in layout.partitions(store, folder)
        for entry in layout.list_partition(store, folder, partition).segments
    ]


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", CacheLimits(None, None))


def check_round_trip(
    cache: DiskCache, layout: Layout, store: ObjectStore, prefix: str, topic: str
) -> None:
    listed = entries(layout, store, prefix, topic)
    assert listed
    pack = SegmentPack(cache, topic)
    described = [layout.describe(store, entry) for entry in listed]
    for entry, segment in zip(listed, described, strict=True):
        assert pack.find(entry) is None
        pack.add(entry, segment)
    pack.save(listed)
    again = SegmentPack(cache, topic)
    for entry, segment in zip(listed, described, strict=True):
        packed_segment = again.find(entry)
        assert packed_segment == segment
        assert packed_segment is not None
        assert packed_segment.objects.chunk_index.chunks() == segment.objects.chunk_index.chunks()


@pytest.mark.parametrize("topic", TOPICS)
def test_cached_segment_descriptions_equal_those_read_from_golden_tier(
    topic: str, cache: DiskCache
) -> None:
    check_round_trip(cache, *AIVEN, topic)


def test_cached_segment_descriptions_equal_those_read_from_local_tier(cache: DiskCache) -> None:
    layout, store = LocalTieredLayout(), LocalStore(LOCAL_TIER / "tier")
    topics = {folder.topic for folder in layout.topic_folders(store, "", None)}
    assert topics
    for topic in sorted(topics):
        check_round_trip(cache, layout, store, "", topic)


def packed(cache: DiskCache) -> tuple[list[SegmentEntry], SegmentPack]:
    layout, store, prefix = AIVEN
    listed = entries(layout, store, prefix, "codecs")
    pack = SegmentPack(cache, "p")
    for entry in listed:
        pack.add(entry, layout.describe(store, entry))
    pack.save(listed)
    return listed, SegmentPack(cache, "p")


@pytest.mark.parametrize("changed", [{"version": "other"}, {"size": 1}, {"version": None}])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_cached_description_of_segment_with_changed_object_is_not_used(
    which: int, changed: dict[str, object], cache: DiskCache
) -> None:
    listed, pack = packed(cache)
    objects = list(listed[0].objects)
    suffix, info = objects[which]
    objects[which] = (suffix, replace(info, **changed))  # type: ignore[arg-type]  # fields by name
    assert pack.find(listed[0]) is not None
    assert pack.find(replace(listed[0], objects=tuple(objects))) is None
    assert pack.find(replace(listed[0], base_offset=1)) is None
    assert pack.find(replace(listed[0], segment_id="A" * 22)) is None


def test_objects_without_version_are_not_cached(cache: DiskCache) -> None:
    layout, store, prefix = AIVEN
    entry = entries(layout, store, prefix, "codecs")[0]
    described = layout.describe(store, entry)
    bare = replace(
        entry, objects=tuple((name, replace(info, version=None)) for name, info in entry.objects)
    )
    pack = SegmentPack(cache, "p")
    pack.add(bare, described)
    assert pack.find(bare) is None
    pack.save([bare])
    assert cache.get("p") is None


def test_cache_drops_descriptions_of_segments_that_are_no_longer_listed(cache: DiskCache) -> None:
    listed, pack = packed(cache)
    layout, store, _ = AIVEN
    pack.add(listed[0], layout.describe(store, listed[0]))
    pack.save(listed[:1])
    again = SegmentPack(cache, "p")
    assert again.find(listed[0]) is not None
    assert again.find(listed[1]) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace("[", "{"),
        lambda text: text.replace(",true,", ","),
        lambda text: text.replace('"log"', '"gol"'),
        lambda text: text.replace('"indexes"', '"sexedni"'),
        lambda text: text.replace("offset", "no such index"),
        lambda text: text.replace("\t", " "),
        lambda text: "",
    ],
)
def test_unreadable_cached_description_is_a_miss(
    spoil: object, cache: DiskCache, request: pytest.FixtureRequest
) -> None:
    listed, _ = packed(cache)
    data = cache.get("p")
    assert data is not None
    assert callable(spoil)
    damaged = spoil(data.decode())
    assert damaged != data.decode()
    cache.put("p", damaged.encode())
    pack = SegmentPack(cache, "p")
    assert all(pack.find(entry) is None for entry in listed)


def test_segment_pack_without_cache_stores_no_descriptions() -> None:
    layout, store, prefix = AIVEN
    entry = entries(layout, store, prefix, "codecs")[0]
    pack = SegmentPack(None, "")
    pack.add(entry, layout.describe(store, entry))
    pack.save([entry])
    assert pack.find(entry) is None


# -- concurrent planners


def _plan(
    folder: Path,
    together: Barrier,
    results: Queue[tuple[int, str]],
) -> None:
    tier = SimulatedTier(3, 40, latency_seconds=0.01, aborted_share=10**9)
    kept = CacheSettings(index=CacheLimits(None, None), folder=str(folder))
    options = parse_options(
        {"path": "simulated", "subscribe": TOPIC, "isolationLevel": "read_uncommitted"}
    )
    together.wait(60)
    plan = plan_scan(options, Tier(tier, Caches(kept)))
    text = repr(
        [
            (task_slice.segment_id, task_slice.cut_start, task_slice.cut_stop)
            for task_slice in slices_of(plan)
        ]
    )
    results.put((tier.counters.requests, text))


def slices_of(plan: ScanPlan) -> list[SegmentSlice]:
    return [task_slice for task in plan.tasks for task_slice in task.slices]


def planned_at_once(folder: Path, planners: int) -> list[tuple[int, str]]:
    """Starts `planners` processes that plan a scan concurrently, with the same cache folder.
    Returns the number of store requests and the planned slices as text, for each process.
    """
    context = multiprocessing.get_context("spawn")
    together, results = context.Barrier(planners), context.Queue()
    processes = [
        context.Process(target=_plan, args=(folder, together, results)) for _ in range(planners)
    ]
    for process in processes:
        process.start()
    answers = [results.get(timeout=100) for _ in processes]
    for process in processes:
        process.join(100)
        assert process.exitcode == 0
    return answers


def test_concurrent_planning_processes_write_complete_cache_entries(tmp_path: Path) -> None:
    first, second = planned_at_once(tmp_path, 2)
    assert first[1] == second[1]
    # Each process reads the manifest of each segment once, and for each partition the leader
    # epoch checkpoint of the newest segment.
    assert 0 < max(first[0], second[0]) <= 3 * 40 + 3
    assert planned_at_once(tmp_path, 1) == [(0, first[1])]
