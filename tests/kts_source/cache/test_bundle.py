"""Tests bundles, which store several values in one cache entry. An unreadable entry counts as an
empty bundle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kts_source.cache.caches import Bundle
from kts_source.cache.disk_cache import CacheLimits, DiskCache

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", CacheLimits(None, None))


def test_saved_bundle_returns_the_last_value_of_each_key(cache: DiskCache) -> None:
    bundle = Bundle(cache, "p")
    bundle.put("a", b"one\n")
    bundle.put("b", b"")
    assert bundle.get("a") == b"one\n"
    assert Bundle(cache, "p").get("a") is None  # not saved yet
    bundle.save()
    again = Bundle(cache, "p")
    assert (again.get("a"), again.get("b"), again.get("c")) == (b"one\n", b"", None)
    again.put("b", b"\x00two")
    again.save()
    last = Bundle(cache, "p")
    assert (last.get("a"), last.get("b")) == (b"one\n", b"\x00two")


def test_unchanged_bundle_is_not_written_again(cache: DiskCache, tmp_path: Path) -> None:
    bundle = Bundle(cache, "p")
    bundle.save()
    assert cache.get("p") is None
    bundle.put("a", b"x")
    bundle.save()
    (entry,) = tmp_path.glob("cache/*.entry")
    stored = entry.stat().st_ino
    bundle.save()
    assert bundle.get("a") == b"x"
    bundle.save()
    assert entry.stat().st_ino == stored  # a write would create another file


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.replace(b"\n", b" "),
        lambda data: data[:-1],
        lambda data: data.replace(b"3", b"-1"),
        lambda data: data.replace(b"3", b'"3"'),
        lambda data: b"[3]\nabc",
        lambda data: b"",
    ],
)
def test_unreadable_cache_entry_counts_as_empty_bundle(
    spoil: Callable[[bytes], bytes], cache: DiskCache
) -> None:
    bundle = Bundle(cache, "p")
    bundle.put("a", b"abc")
    bundle.save()
    data = cache.get("p")
    assert data is not None
    assert spoil(data) != data
    cache.put("p", spoil(data))
    assert Bundle(cache, "p").get("a") is None
