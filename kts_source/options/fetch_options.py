"""Options of requests to the store (timeouts, retries, mirror, metrics) and of the disk caches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kts_source.cache.caches import NO_CACHE, CacheSettings
from kts_source.cache.disk_cache import CacheLimits
from kts_source.errors import InvalidOptionError
from kts_source.options.parsing import (
    Option,
    parse_bool,
    parse_byte_size,
    parse_positive_int,
    parse_positive_int32,
    parse_text,
)
from kts_source.secret import Secret
from kts_source.store.open_store import local_file, scheme_of
from kts_source.store.request_policy import DEFAULT_RETRY_POLICY, RetryPolicy
from kts_source.store.storage_options import STORAGE_OPTIONS, storage_options_from

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


FETCH_OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "fetchConnectTimeoutMs",
        parse_positive_int32,
        "Time to open a connection, with the TLS handshake. Alias, as in KIP-1254:"
        " `fetch.remote.connect.timeout.ms`.",
        default="10000",
    ),
    Option(
        "fetchReadTimeoutMs",
        parse_positive_int32,
        "Maximum time between two received bytes. Alias: `fetch.remote.read.timeout.ms`.",
        default="5000",
    ),
    Option(
        "fetchDeadlineMs",
        parse_positive_int32,
        "Maximum total time of one attempt, even if bytes still arrive.",
        default="60000",
    ),
    Option(
        "maxAttempts",
        parse_positive_int32,
        "Maximum attempts of a request if the store throttles, fails, resets, or answers late or"
        " partly. Retries use exponential backoff with jitter.",
        default="6",
    ),
    Option(
        "hedgeAfterMs",
        parse_positive_int32,
        "Send a request a second time after this many ms; the first response wins. Default: never.",
    ),
    Option(
        "fallbackPath",
        parse_text,
        "A mirror with the same keys, such as a replica bucket, that is read if the first store"
        " fails, or has lost or damaged objects. `fallback.s3.*` and `fallback.storageOptions`"
        " override its settings.",
    ),
    Option(
        "metricsPath",
        parse_text,
        "Folder or URL where each task writes a line of JSON: requests, bytes, seconds, records."
        " Read them with `kts_source.metrics.summary`.",
    ),
)

_CREDENTIALS: Final = frozenset(
    {"s3.access-key-id", "s3.secret-access-key", "s3.session-token", "s3.anonymous"}
)


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """Typed values of the options for requests to the store.

    Attributes:
        retry_policy: Timeouts, number of attempts, and delay of hedged requests.
        fallback_path: Root of the mirror, which is read if the first store fails.
        fallback_storage: Credentials and settings of the mirror's store.
        metrics_path: Folder or URL for the metrics of tasks.
    """

    retry_policy: RetryPolicy
    fallback_path: str | None = field(repr=False)  # URLs may have secrets
    fallback_storage: Secret[Mapping[str, Any]]
    metrics_path: str | None = field(repr=False)


def fetch_options(
    values: Mapping[str, Any], storage: Mapping[str, str], fallback: Mapping[str, str]
) -> FetchOptions:
    """Builds `FetchOptions` from parsed options.

    Args:
        values: Parsed options by name.
        storage: Options `s3.*` and `storageOptions` of the first store, by name in lower case.
        fallback: Options of the mirror's store, named as in `storage`. The mirror uses the options
            of `storage` that are not set here; but it takes credentials from only one of the two,
            and `storageOptions` only from `fallback` if an endpoint is set here.

    Raises:
        InvalidOptionError: There are options for the mirror, but `fallbackPath` is not set.
    """
    path = values["fallbackPath"]
    if fallback and path is None:
        raise InvalidOptionError("options fallback.s3.… need option fallbackPath")
    hedge = values["hedgeAfterMs"]
    deadline = values["fetchDeadlineMs"] / 1000
    policy = RetryPolicy(
        max_attempts=values["maxAttempts"],
        give_up_after_seconds=max(DEFAULT_RETRY_POLICY.give_up_after_seconds, deadline),
        request_deadline_seconds=deadline,
        connect_timeout_seconds=values["fetchConnectTimeoutMs"] / 1000,
        read_timeout_seconds=values["fetchReadTimeoutMs"] / 1000,
        hedge_after_seconds=None if hedge is None else hedge / 1000,
    )
    replaced = set(fallback)
    if replaced & _CREDENTIALS:  # never mix credentials of two stores
        replaced |= _CREDENTIALS
    if "s3.endpoint" in fallback:
        replaced.add(STORAGE_OPTIONS.lower())
    inherited = {name: text for name, text in storage.items() if name not in replaced}
    mirror = Secret({}) if path is None else storage_options_from({**inherited, **fallback})
    if (metrics_path := values["metricsPath"]) is not None:
        scheme_of(metrics_path)  # refuse bad URLs here: tasks only warn
    return FetchOptions(policy, path, mirror, metrics_path)


_NO_BOUND: Final = -1
_SCHEMAS: Final = CacheLimits(64 << 20, None)
"""Limits of the cache of registered schemas, which never change."""


def _or_no_limit(parse: Callable[[str, str], int]) -> Callable[[str, str], int]:
    """Returns a parser that accepts −1 (no limit), and otherwise calls `parse`."""

    def parse_bound(name: str, text: str) -> int:
        if text.strip() == f"{_NO_BOUND}":
            return _NO_BOUND
        try:
            return parse(name, text)
        except InvalidOptionError as error:
            raise InvalidOptionError(f"{error}; {_NO_BOUND} means no limit") from None

    return parse_bound


CACHE_OPTIONS: Final[tuple[Option, ...]] = (
    Option(
        "cache",
        parse_bool,
        "`false` disables the caches on local disk. Listings are never cached.",
        default="true",
    ),
    Option(
        "cacheDir",
        parse_text,
        "Folder of the caches, mode 0700, of one user. Default: `tiered-kafka` in `XDG_CACHE_HOME`,"
        " `~/.cache` or the temporary folder. Local tiers are cached only if this option is set.",
    ),
    Option(
        "indexCacheBytes",
        _or_no_limit(parse_byte_size),
        "Disk space for manifests and indexes on each machine, −1 = no limit; like the broker's"
        " `remote.log.index.file.cache.total.size.bytes`.",
        default="1g",
    ),
    Option(
        "indexCacheTtlMs",
        _or_no_limit(parse_positive_int),
        "Time from the last access until manifests and indexes are deleted, −1 = never.",
        default="900000",
    ),
    Option(
        "chunkCacheBytes",
        _or_no_limit(parse_byte_size),
        "Disk space for chunks of segments on each machine, −1 = no limit; default: off. Chunks"
        " stay encrypted unless `cachePlaintext` is set. The plugin's `fetch.chunk.cache.size`.",
    ),
    Option(
        "chunkCacheTtlMs",
        _or_no_limit(parse_positive_int),
        "Time from the last access until chunks are deleted, −1 = never; like the plugin's"
        " `fetch.chunk.cache.retention.ms`.",
        default="600000",
    ),
    Option(
        "cachePlaintext",
        parse_bool,
        "`true` caches decrypted and decompressed chunks in files of mode 0600. A second scan is"
        " faster, but decrypted data is stored on this machine's disk.",
        default="false",
    ),
)


def cache_settings(values: Mapping[str, Any], *, patience_seconds: float) -> CacheSettings:
    """Builds the settings of the disk caches from parsed options. A task that needs a range which
    another task is fetching into the cache waits for `patience_seconds`.

    Raises:
        InvalidOptionError: `cachePlaintext` is set without `chunkCacheBytes`, or the folder of a
            cache is not on a local disk.
    """
    if values["cachePlaintext"] and values["chunkCacheBytes"] is None:
        raise InvalidOptionError("option cachePlaintext needs option chunkCacheBytes")
    if not values["cache"]:
        return NO_CACHE
    folder = values["cacheDir"]
    if folder is not None:
        file = local_file(folder)
        # Do not make the folder absolute, because workers may have another working directory.
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
