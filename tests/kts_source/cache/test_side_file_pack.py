"""Checks that cached ranges of side files are returned unchanged, and that the size of the cache
entry that contains them is limited.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from kts_source.cache.disk_cache import CacheLimits, DiskCache
from kts_source.cache.packs import MAX_PACK_BYTES, SideFilePack
from kts_source.layout.remote_segment import ObjectRef

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", CacheLimits(None, None))


def source(name: str, version: str | None = "1") -> ObjectRef:
    return ObjectRef(f"{name}.indexes", 1 << 30, version)


def content(name: str, start: int, stop: int) -> bytes:
    """Returns bytes [start, stop) of the object `name`."""
    return random.Random(name).randbytes(4096)[start:stop]


def test_saved_side_file_ranges_are_returned_by_a_new_pack(cache: DiskCache) -> None:
    spans = [("a", 10, 60), ("a", 100, 140), ("b", 0, 4096), ("c", 5, 5)]
    pack = SideFilePack(cache, "p")
    for name, start, stop in spans:
        assert pack.find(source(name), start, stop) is None
        pack.add(source(name), start, content(name, start, stop))
    pack.save()
    for again in (pack, SideFilePack(cache, "p")):
        for name, start, stop in spans:
            assert again.find(source(name), start, stop) == content(name, start, stop)
        assert again.find(source("a"), 20, 30) == content("a", 20, 30)
        for start, stop in ((9, 60), (10, 61), (59, 101), (61, 99)):
            assert again.find(source("a"), start, stop) is None
        assert again.find(source("a", "2"), 10, 60) is None
        assert again.find(source("d"), 10, 60) is None


def test_objects_without_version_are_not_cached(cache: DiskCache) -> None:
    pack = SideFilePack(cache, "p")
    pack.add(source("a", None), 0, b"abc")
    assert pack.find(source("a", None), 0, 3) is None
    pack.save()
    assert cache.get("p") is None


def test_unchanged_side_files_are_not_written_again(cache: DiskCache, tmp_path: Path) -> None:
    pack = SideFilePack(cache, "p")
    pack.add(source("a"), 0, b"abc")
    pack.save()
    (entry,) = tmp_path.glob("cache/*.entry")
    stored = entry.stat().st_ino
    again = SideFilePack(cache, "p")
    assert again.find(source("a"), 0, 3) == b"abc"
    again.save()
    pack.save()
    assert entry.stat().st_ino == stored  # a write would create another file


def test_full_side_file_pack_drops_least_recently_used_files(cache: DiskCache) -> None:
    file_size = MAX_PACK_BYTES // 4
    for plan in range(5):  # each plan reads one file and uses the first again
        pack = SideFilePack(cache, "p")
        if plan:
            assert pack.find(source("0"), 0, file_size) == bytes([0]) * file_size
        pack.add(source(f"{plan}"), 0, bytes([plan]) * file_size)
        pack.save()
    last = SideFilePack(cache, "p")
    kept = [plan for plan in range(5) if last.find(source(f"{plan}"), 0, file_size) is not None]
    assert len(kept) == 4
    assert {0, 4} <= set(kept)
    data = cache.get("p")
    assert data is not None
    assert len(data) < MAX_PACK_BYTES + 1000


def test_side_file_pack_ignores_files_beyond_its_size_limit(cache: DiskCache) -> None:
    pack = SideFilePack(cache, "p")
    file_size = MAX_PACK_BYTES // 2 - 1
    for name in "abc":
        assert pack.has_room(file_size) == (name != "c")
        pack.add(source(name), 0, bytes(file_size))
    assert pack.find(source("b"), 0, file_size) is not None
    assert pack.find(source("c"), 0, file_size) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.replace(b"\n", b" "),
        lambda data: data[:-1],
        lambda data: data.replace(b"[[", b"[{"),
        lambda data: data.replace(b",3]", b',"3"]'),
        lambda data: data.replace(b",0,3]", b",3,0]"),
        lambda data: data.replace(b",0,3]", b",0]"),
        lambda data: data.replace(b",0,3]", b",-3,0]"),
        lambda data: b"",
    ],
)
def test_unreadable_cache_value_is_a_miss(
    spoil: Callable[[bytes], bytes], cache: DiskCache
) -> None:
    pack = SideFilePack(cache, "p")
    pack.add(source("a"), 0, b"abc")
    pack.save()
    data = cache.get("p")
    assert data is not None
    assert spoil(data) != data
    cache.put("p", spoil(data))
    again = SideFilePack(cache, "p")
    assert again.find(source("a"), 0, 3) is None
    assert again.find(source("a"), 3, 0) is None
