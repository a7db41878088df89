"""Tests the options of the caches: their defaults, -1 for no limit, and `cache=false`."""

from __future__ import annotations

import pytest

from kts_source.cache.caches import NO_CACHE, CacheSettings
from kts_source.cache.disk_cache import CacheLimits
from kts_source.errors import InvalidOptionError
from kts_source.options import parse_options
from kts_source.store.local_store import LocalStore
from kts_source.tier import open_tier


def settings(**source_options: str) -> CacheSettings:
    return parse_options({"path": "s3://b", "subscribe": "t", **source_options}).cache


def test_caches_without_options_have_default_limits() -> None:
    # Schemas never change, so cached schemas do not expire.
    assert settings() == CacheSettings(
        index=CacheLimits(1 << 30, 900), chunks=None, schemas=CacheLimits(64 << 20, None)
    )


def test_cache_limits_are_parsed() -> None:
    assert settings(indexCacheBytes="10m", indexCacheTtlMs="1500").index == CacheLimits(
        10 << 20, 1.5
    )
    assert settings(indexCacheBytes="-1", indexCacheTtlMs="-1").index == CacheLimits(None, None)
    assert settings(chunkCacheBytes="50g").chunks == CacheLimits(50 << 30, 600)
    assert settings(chunkCacheBytes="-1", chunkCacheTtlMs="-1").chunks == CacheLimits(None, None)
    assert settings(cacheDir="/some/where").folder == "/some/where"


def test_option_cache_plaintext_needs_a_chunk_cache() -> None:
    assert not settings(chunkCacheBytes="1g").plaintext
    assert settings(chunkCacheBytes="1g", cachePlaintext="true").plaintext
    with pytest.raises(InvalidOptionError, match="cachePlaintext needs option chunkCacheBytes"):
        settings(cachePlaintext="true")


def test_cache_waits_no_longer_than_the_read_timeout() -> None:
    assert settings(fetchReadTimeoutMs="700").patience_seconds == 0.7


def test_option_cache_false_disables_all_caches() -> None:
    assert settings(cache="false", chunkCacheBytes="1g", cacheDir="/x") == NO_CACHE


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("indexCacheBytes", "0"),
        ("indexCacheBytes", "-2"),
        ("indexCacheTtlMs", "0"),
        ("indexCacheTtlMs", "-2"),
        ("chunkCacheBytes", "much"),
        ("chunkCacheTtlMs", "soon"),
        ("cache", "maybe"),
        ("cacheDir", " "),
    ],
)
def test_invalid_cache_options_are_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidOptionError, match=name):
        settings(**{name: text})


def test_local_store_is_cached_only_if_option_cache_dir_is_set(tmp_path: object) -> None:
    source_options = {"path": f"file://{tmp_path}", "subscribe": "t"}
    tier = open_tier(parse_options(source_options))
    assert isinstance(tier.store, LocalStore)
    # Local files are as fast to read as a cached copy.
    assert tier.caches.index is None
    cached = open_tier(parse_options({**source_options, "cacheDir": f"{tmp_path}/cache"}))
    assert cached.caches.index is not None
    assert cached.caches.chunks is None
    elsewhere = open_tier(parse_options({**source_options, "path": "memory://t", "cache": "false"}))
    assert elsewhere.caches.index is None
