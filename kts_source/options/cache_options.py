"""What is kept on the local disk of the driver and of the executors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kts_source.cache.caches import NO_CACHE, CacheSettings
from kts_source.cache.disk_cache import CacheLimits
from kts_source.errors import InvalidOptionError
from kts_source.options.option import Option
from kts_source.options.parsing import parse_bool, parse_byte_size, parse_positive_int, parse_text
from kts_source.store.open_store import local_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NO_BOUND: Final = -1
_SCHEMAS: Final = CacheLimits(64 << 20, None)
"""What registries say of ids does not change; the least used go when there are so many."""


def _or_no_bound(parse: Callable[[str, str], int]) -> Callable[[str, str], int]:
    """The same parser, which takes −1 too."""

    def parse_bound(name: str, text: str) -> int:
        if text.strip() == f"{_NO_BOUND}":
            return _NO_BOUND
        try:
            return parse(name, text)
        except InvalidOptionError as error:
            raise InvalidOptionError(f"{error}; {_NO_BOUND} means no bound") from None

    return parse_bound


CACHE_OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "cache",
        parse_bool,
        "`false` keeps nothing on local disk. Listings are never kept.",
        default="true",
    ),
    Option(
        "cacheDir",
        parse_text,
        "Folder of the caches, mode 0700, one user's. Default: `tiered-kafka` in `XDG_CACHE_HOME`,"
        " `~/.cache` or the temporary folder. Tiers in local folders are cached only if it is"
        " given.",
    ),
    Option(
        "indexCacheBytes",
        _or_no_bound(parse_byte_size),
        "Disk for manifests and indexes on each machine, −1 for no limit; the broker's"
        " `remote.log.index.file.cache.total.size.bytes`.",
        default="1g",
    ),
    Option(
        "indexCacheTtlMs",
        _or_no_bound(parse_positive_int),
        "Time from the last access until they are dropped, −1 for never.",
        default="900000",
    ),
    Option(
        "chunkCacheBytes",
        _or_no_bound(parse_byte_size),
        "Disk for chunks of segments on each machine, −1 for no limit. They stay encrypted, unless"
        " `cachePlaintext`. Off by default; the plugin's `fetch.chunk.cache.size`.",
    ),
    Option(
        "chunkCacheTtlMs",
        _or_no_bound(parse_positive_int),
        "Time from the last access until they are dropped, −1 for never; the plugin's"
        " `fetch.chunk.cache.retention.ms`.",
        default="600000",
    ),
    Option(
        "cachePlaintext",
        parse_bool,
        "`true` keeps chunks decrypted and decompressed, files of mode 0600: a second scan is"
        " faster, but what was encrypted can be read on this machine's disk.",
        default="false",
    ),
)


def cache_settings(values: Mapping[str, Any], *, patience_seconds: float) -> CacheSettings:
    """From parsed values, by option name, to typed ones.

    Raises:
        InvalidOptionError: How chunks are kept is said, but not that they are, or the folder is
            the URL of a store.
    """
    if values["cachePlaintext"] and values["chunkCacheBytes"] is None:
        raise InvalidOptionError("option cachePlaintext needs option chunkCacheBytes")
    if not values["cache"]:
        return NO_CACHE
    folder = values["cacheDir"]
    if folder is not None:
        file = local_file(folder)
        # A relative folder stays so: workers may run elsewhere.
        folder = str(file) if folder.lower().startswith("file:") else folder
    return CacheSettings(
        index=_limits(values["indexCacheBytes"], values["indexCacheTtlMs"]),
        chunks=None
        if values["chunkCacheBytes"] is None
        else _limits(values["chunkCacheBytes"], values["chunkCacheTtlMs"]),
        folder=folder,
        patience_seconds=patience_seconds,
        plaintext=values["cachePlaintext"],
        schemas=_SCHEMAS,
    )


def _limits(max_bytes: int, ttl_ms: int) -> CacheLimits:
    return CacheLimits(
        None if max_bytes == _NO_BOUND else max_bytes,
        None if ttl_ms == _NO_BOUND else ttl_ms / 1000,
    )
