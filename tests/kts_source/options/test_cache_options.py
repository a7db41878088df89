"""Options of the caches: the broker's defaults, −1 for no bound, one switch for all."""

from __future__ import annotations

import pytest

from kts_source.cache.caches import NO_CACHE, CacheSettings
from kts_source.cache.disk_cache import CacheLimits
from kts_source.errors import InvalidOptionError
from kts_source.options import parse_options
from kts_source.store.local_store import LocalStore
from kts_source.tier import open_tier


def settings(**given: str) -> CacheSettings:
    return parse_options({"path": "s3://b", "subscribe": "t", **given}).cache


def test_indexes_are_kept_as_a_broker_keeps_them_and_chunks_are_not() -> None:
    # Schemas keep their meaning: they have no time to live.
    assert settings() == CacheSettings(
        index=CacheLimits(1 << 30, 900), chunks=None, schemas=CacheLimits(64 << 20, None)
    )


def test_bounds() -> None:
    assert settings(indexCacheBytes="10m", indexCacheTtlMs="1500").index == CacheLimits(
        10 << 20, 1.5
    )
    assert settings(indexCacheBytes="-1", indexCacheTtlMs="-1").index == CacheLimits(None, None)
    assert settings(chunkCacheBytes="50g").chunks == CacheLimits(50 << 30, 600)
    assert settings(chunkCacheBytes="-1", chunkCacheTtlMs="-1").chunks == CacheLimits(None, None)
    assert settings(cacheDir="/some/where").folder == "/some/where"


def test_plaintext_is_kept_only_if_asked_for_and_where_chunks_are() -> None:
    assert not settings(chunkCacheBytes="1g").plaintext
    assert settings(chunkCacheBytes="1g", cachePlaintext="true").plaintext
    with pytest.raises(InvalidOptionError, match="cachePlaintext needs option chunkCacheBytes"):
        settings(cachePlaintext="true")


def test_cache_waits_for_the_read_timeout() -> None:
    assert settings(fetchReadTimeoutMs="700").patience_seconds == 0.7


def test_one_switch_for_all() -> None:
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
def test_cache_options_contradictions_are_refused(name: str, text: str) -> None:
    with pytest.raises(InvalidOptionError, match=name):
        settings(**{name: text})


def test_the_tier_is_opened_with_its_caches(tmp_path: object) -> None:
    given = {"path": f"file://{tmp_path}", "subscribe": "t"}
    tier = open_tier(parse_options(given))
    assert isinstance(tier.store, LocalStore)
    # Files of this machine are as near as their copies would be.
    assert tier.caches.index is None
    cached = open_tier(parse_options({**given, "cacheDir": f"{tmp_path}/cache"}))
    assert cached.caches.index is not None
    assert cached.caches.chunks is None
    elsewhere = open_tier(parse_options({**given, "path": "memory://t", "cache": "false"}))
    assert elsewhere.caches.index is None
