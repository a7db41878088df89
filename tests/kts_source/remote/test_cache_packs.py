"""Segments from a pack are the segments that were described, or are described anew."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kts_source.remote.aiven_layout import AivenLayout
from kts_source.remote.cache import CacheLimits, DiskCache
from kts_source.remote.cache_packs import SegmentPack
from kts_source.remote.local_store import LocalStore
from kts_source.remote.local_tiered_layout import LocalTieredLayout
from tests.golden_data import KEY_PREFIX, LOCAL_TIER, TIER, TOPICS

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.remote.layout import Layout, SegmentEntry
    from kts_source.remote.store import RangeStore

AIVEN = (AivenLayout(), LocalStore(TIER), KEY_PREFIX)


def entries(layout: Layout, store: RangeStore, prefix: str, topic: str) -> list[SegmentEntry]:
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
    cache: DiskCache, layout: Layout, store: RangeStore, prefix: str, topic: str
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
        found = again.find(entry)
        assert found == segment
        assert found is not None
        assert found.objects.chunk_index.chunks() == segment.objects.chunk_index.chunks()


@pytest.mark.parametrize("topic", TOPICS)
def test_every_golden_segment(topic: str, cache: DiskCache) -> None:
    check_round_trip(cache, *AIVEN, topic)


def test_the_other_layout(cache: DiskCache) -> None:
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
def test_any_other_object_is_another_segment(
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


def test_what_has_no_version_is_not_kept(cache: DiskCache) -> None:
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


def test_segments_that_are_no_longer_listed_leave_the_pack(cache: DiskCache) -> None:
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
        lambda text: text.replace("offset", "no such index"),
        lambda text: text.replace("\t", " "),
        lambda text: "",
    ],
)
def test_a_line_that_cannot_be_read_is_a_miss(
    spoil: object, cache: DiskCache, request: pytest.FixtureRequest
) -> None:
    listed, _ = packed(cache)
    data = cache.get("p")
    assert data is not None
    assert callable(spoil)
    spoiled = spoil(data.decode())
    assert spoiled != data.decode()
    cache.put("p", spoiled.encode())
    pack = SegmentPack(cache, "p")
    assert all(pack.find(entry) is None for entry in listed)


def test_without_a_cache_nothing_is_kept() -> None:
    layout, store, prefix = AIVEN
    entry = entries(layout, store, prefix, "codecs")[0]
    pack = SegmentPack(None, "")
    pack.add(entry, layout.describe(store, entry))
    pack.save([entry])
    assert pack.find(entry) is None
