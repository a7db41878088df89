"""What is kept on the local disk of the driver and of the executors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kts_source.cache.caches import NO_CACHE, CacheSettings
from kts_source.cache.disk_cache import CacheLimits
from kts_source.errors import InvalidOptionError
from kts_source.options.option import Option
from kts_source.options.parsing import parse_bool, parse_byte_size, parse_int, parse_text

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_BOUND: Final = -1


def _parse_ttl(name: str, text: str) -> int:
    """Milliseconds above 0, or −1."""
    value = parse_int(name, text)
    if value <= 0 and value != _NO_BOUND:
        raise InvalidOptionError(f"option {name!r} must be positive, or -1, not {text!r}")
    return value


def _parse_bound(name: str, text: str) -> int:
    """A size above 0, or −1."""
    return _NO_BOUND if text.strip() == f"{_NO_BOUND}" else parse_byte_size(name, text)


CACHE_OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "cache",
        parse_bool,
        "true",
        "`false` keeps nothing on local disk. Listings are never kept.",
    ),
    Option(
        "cacheDir",
        parse_text,
        None,
        "Folder of the caches, mode 0700, one user's. Default: `tiered-kafka` in `XDG_CACHE_HOME`,"
        " `~/.cache` or the temporary folder. Tiers in local folders are cached only if it is"
        " given.",
    ),
    Option(
        "indexCacheBytes",
        _parse_bound,
        "1g",
        "Disk for manifests and indexes on each machine, −1 without bound; the broker's"
        " `remote.log.index.file.cache.total.size.bytes`.",
    ),
    Option(
        "indexCacheTtlMs",
        _parse_ttl,
        "900000",
        "They are dropped so long after the last access, −1 never.",
    ),
    Option(
        "chunkCacheBytes",
        _parse_bound,
        None,
        "Disk for chunks of segments on each machine, as stored: what is encrypted stays so, unless"
        " `cachePlaintext`. Off by default; the plugin's `fetch.chunk.cache.size`.",
    ),
    Option(
        "chunkCacheTtlMs",
        _parse_ttl,
        "600000",
        "They are dropped so long after the last access, −1 never; the plugin's"
        " `fetch.chunk.cache.retention.ms`.",
    ),
    Option(
        "cachePlaintext",
        parse_bool,
        "false",
        "`true` keeps chunks decrypted and decompressed, files of mode 0600: a second scan is"
        " faster, but what was encrypted lies readable on this machine's disk.",
    ),
)


def cache_settings(values: Mapping[str, Any], *, patience_seconds: float) -> CacheSettings:
    """From parsed values to typed ones.

    Args:
        values: Option name to value.
        patience_seconds: How long to wait for another task that fetches the same.

    Raises:
        InvalidOptionError: How chunks are kept is said, but not that they are.
    """
    if values["cachePlaintext"] and values["chunkCacheBytes"] is None:
        raise InvalidOptionError("option cachePlaintext needs option chunkCacheBytes")
    if not values["cache"]:
        return NO_CACHE
    return CacheSettings(
        index=_limits(values["indexCacheBytes"], values["indexCacheTtlMs"]),
        chunks=None
        if values["chunkCacheBytes"] is None
        else _limits(values["chunkCacheBytes"], values["chunkCacheTtlMs"]),
        folder=values["cacheDir"],
        patience_seconds=patience_seconds,
        plaintext=values["cachePlaintext"],
    )


def _limits(max_bytes: int, ttl_ms: int) -> CacheLimits:
    return CacheLimits(
        None if max_bytes == _NO_BOUND else max_bytes,
        None if ttl_ms == _NO_BOUND else ttl_ms / 1000,
    )
