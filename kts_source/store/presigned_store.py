"""Objects behind presigned URLs: readable by whoever holds the URL, listable by nobody.

The path names a list of URLs, itself a file, an `http(s)://` URL or one of these with `presigned+`
before it:

    text    a URL a line; `#` begins a comment
    JSON    a list of URLs, or an object of key to URL

The key of a URL is its path without the leading slash, percent escapes resolved, unless the list
gives one. Query strings are secret: no error, log line or URI holds one. A presigned URL allows GET
alone, so an object is looked up by reading its first byte; the version is its ETag.
"""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from kts_source.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    ObjectTooLargeError,
    StoreError,
    TieredKafkaError,
    TruncatedObjectError,
)
from kts_source.secret import Secret, scrub
from kts_source.store.async_client import AsyncClient
from kts_source.store.cancel import CancelledFetchError
from kts_source.store.counters import StoreCounters, Tally
from kts_source.store.http_answer import object_size, require_length, require_range
from kts_source.store.object_store import ObjectInfo, check_key, check_range, is_behind
from kts_source.store.presigned_path import PATH_SECRET, shown, without_prefix
from kts_source.store.retry import DEFAULT_RETRY_POLICY, RetryPolicy, TransientError
from kts_source.texts import some

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

log = logging.getLogger(__name__)

MAX_LIST_BYTES: Final = 256 << 20
_LOOK_UPS: Final = 16


class PresignedStore:
    """The objects of a list of URLs.

    Args:
        path: Where the list is; its query string, too, is secret.
        retry_policy: How failures that may pass are retried.
    """

    pinning = "conditional reads (If-Match), and the ETag of every answer"
    is_near = False

    def __init__(
        self, path: Secret[str], *, retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY
    ) -> None:
        self._path = path
        self._shown = shown(path.reveal())
        self._retry_policy = retry_policy
        self._tally = Tally()
        self._lock = threading.Lock()
        self._urls: Mapping[str, str] | None = None
        self._client = AsyncClient(_Http, deadline_seconds=retry_policy.request_deadline_seconds)

    def __repr__(self) -> str:
        return f"PresignedStore({self._shown!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (self._path, self._retry_policy)

    @property
    def counters(self) -> StoreCounters:
        """Work done so far; look-ups of a listing count as requests."""
        return self._tally.snapshot

    def uri(self, key: str) -> str:
        """The list, and the key in it."""
        return f"{self._shown}#/{key}"

    def close(self) -> None:
        """Closes the connections of this process."""
        self._client.close(lambda http: http.close())

    def list_folders(self, prefix: str) -> list[str]:
        """See `ObjectStore.list_folders`."""
        check_key(prefix, self.uri(""), absolute=True)
        cut = len(prefix)
        return sorted(
            {
                prefix + key[cut:].split("/", 1)[0] + "/"
                for key in self._listed(fresh=True)
                if key.startswith(prefix) and "/" in key[cut:]
            }
        )

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_objects`. Costs a request an object: lists give no sizes."""
        check_key(prefix, self.uri(""), absolute=True)
        wanted = (
            k for k in self._listed(fresh=True) if k.startswith(prefix) and is_behind(k, after)
        )
        keys = sorted(wanted, key=str.encode)
        with ThreadPoolExecutor(_LOOK_UPS, thread_name_prefix="kts-list") as pool:
            found = list(pool.map(self._if_there, keys))
        gone = [key for key, info in zip(keys, found, strict=True) if info is None]
        if gone:
            log.warning("%d URLs in %s lead to no object: %s", len(gone), self._shown, some(gone))
        yield from (info for info in found if info is not None)

    def _if_there(self, key: str) -> ObjectInfo | None:
        try:
            return self.head(key)
        except ObjectNotFoundError:
            return None

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        status, headers, _ = self._get(key, {"Range": "bytes=0-0"}, None)
        size = 0 if status == 416 else object_size(headers.get("Content-Range"))
        if size is None:
            size = require_length(_length(headers))
        modified = headers.get("Last-Modified")
        return ObjectInfo(
            key=key,
            size=size,
            version=headers.get("ETag"),
            last_modified_ms=_milliseconds(modified) if modified else None,
        )

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> bytes:
        """See `ObjectStore.get_range`."""
        check_range(start, stop)
        check_key(key, self.uri(""), absolute=True)
        if start == stop:
            return b""
        wanted = {"Range": f"bytes={start}-{stop - 1}"}
        status, _, body = self._get(key, wanted, version, span=(start, stop))
        if status == 416:
            raise TruncatedObjectError(
                f"the object ends before [{start}, {stop})", uri=self.uri(key)
            )
        self._tally.add(received=len(body))
        return body

    def get_object(self, key: str, *, max_bytes: int, version: str | None = None) -> bytes:
        """See `ObjectStore.get_object`."""
        info = self.head(key)
        if version is not None and info.version != version:
            raise self._changed(key, version)
        if info.size > max_bytes:
            raise ObjectTooLargeError(
                f"the object has {info.size} bytes, more than the {max_bytes} allowed here",
                uri=self.uri(key),
            )
        return self.get_range(key, 0, info.size, version=info.version)

    # -- the list

    def _listed(self, *, fresh: bool = False) -> Mapping[str, str]:
        with self._lock:
            if self._urls is None or fresh:
                self._urls = self._parsed(self._list_text())
            return self._urls

    def _list_text(self) -> str:
        path = without_prefix(self._path.reveal())
        self._tally.add(list_requests=1)
        if path.lower().startswith(("http:", "https:")):
            _, _, body = self._fetched(path, {}, self._shown, None, None)
            return body.decode()
        from kts_source.store.local_store import local_root

        try:
            return Path(local_root(path)).read_text("utf-8")
        except OSError as error:
            raise StoreError(f"no list of URLs: {error.strerror}", uri=self._shown) from None

    def _parsed(self, text: str) -> Mapping[str, str]:
        try:
            document = json.loads(text) if text.lstrip()[:1] in ("[", "{") else None
        except ValueError:
            # Not chained: the cause quotes the list.
            raise StoreError("the list of URLs is not valid JSON", uri=self._shown) from None
        if isinstance(document, dict):
            urls = {str(key): url for key, url in document.items()}
        else:
            lines = text.splitlines() if document is None else document
            found = [str(line).strip() for line in lines]
            urls = {_key(url): url for url in found if url and not url.startswith("#")}
        for url in urls.values():
            if not isinstance(url, str) or not url.lower().startswith(("http://", "https://")):
                raise StoreError("the list holds what is no http(s) URL", uri=self._shown)
        return urls

    # -- requests

    def _get(
        self,
        key: str,
        headers: dict[str, str],
        version: str | None,
        *,
        span: tuple[int, int] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        check_key(key, self.uri(""), absolute=True)
        url = self._listed().get(key)
        if url is None:
            raise ObjectNotFoundError("no such object in the list of URLs", uri=self.uri(key))
        if version is not None and not version.startswith("W/"):
            headers = {**headers, "If-Match": version}
        return self._fetched(url, headers, self.uri(key), version, span)

    def _fetched(
        self,
        url: str,
        headers: dict[str, str],
        uri: str,
        version: str | None,
        span: tuple[int, int] | None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        policy = self._retry_policy
        hidden = [part for part in (url, urlsplit(url).query) if part]

        async def call(http: _Http) -> tuple[int, Mapping[str, str], bytes]:
            async with http.session(policy).get(url, headers=headers) as response:
                if response.status < 300:
                    if version is not None and response.headers.get("ETag") != version:
                        raise ObjectChangedError(
                            f"the object changed: version {version} was planned", uri=uri
                        )
                    length = require_length(_length(response.headers))
                    if span is not None:
                        ranged = response.headers.get("Content-Range")
                        require_range(ranged, length, *span, uri=uri)
                    elif "Range" in headers and response.status == 200 and length > 1:
                        return response.status, response.headers, b""
                    elif length > MAX_LIST_BYTES:
                        raise ObjectTooLargeError(f"an answer of {length} bytes", uri=uri)
                    body = await response.read()
                    if len(body) != length:
                        raise TransientError(f"{len(body)} of {length} bytes came")
                    return response.status, response.headers, body
                return response.status, response.headers, b""

        def attempt() -> tuple[int, Mapping[str, str], bytes]:
            self._tally.add(requests=1)
            try:
                answer = self._client.run(
                    call,
                    hedge_after_seconds=policy.hedge_after_seconds if span else None,
                    on_hedge=lambda: self._tally.add(requests=1, hedges=1),
                )
            except (TransientError, TieredKafkaError, CancelledFetchError):
                raise
            except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
                text = scrub(f"{type(error).__name__}: {error}", hidden)
                raise TransientError(text) from None
            self._refuse(answer[0], uri, version)
            return answer

        return policy.run(attempt, uri=uri, tally=self._tally)

    def _refuse(self, status: int, uri: str, version: str | None) -> None:
        match status:
            case _ if status < 300 or status == 416:
                return
            case 404:
                raise ObjectNotFoundError("no such object", uri=uri)
            case 401 | 403:
                raise AccessDeniedError(f"status {status}: the URL has expired?", uri=uri)
            case 412:
                raise ObjectChangedError(
                    f"the object changed: version {version} was planned", uri=uri
                )
            case _ if status == 429 or (status >= 500 and status != 501):
                raise TransientError(f"status {status}")
        raise StoreError(f"the server refuses: status {status}", uri=uri)

    def _changed(self, key: str, version: str) -> ObjectChangedError:
        return ObjectChangedError(
            f"the object changed: version {version} was planned", uri=self.uri(key)
        )


class _Http:
    """A session on fsspec's event loop, made where it is used."""

    def __init__(self) -> None:
        from fsspec.asyn import get_loop

        self.loop = get_loop()
        self._session: Any = None

    def session(self, policy: RetryPolicy) -> Any:  # noqa: ANN401
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    sock_connect=policy.connect_timeout_seconds,
                    sock_read=policy.read_timeout_seconds,
                ),
                # Ranges are of the stored bytes.
                auto_decompress=False,
                headers={"Accept-Encoding": "identity"},
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def open_presigned(
    path: str, storage: Secret[Mapping[str, str]], *, retry_policy: RetryPolicy
) -> PresignedStore:
    """The store of a list; of the whole path where the storage options carry it."""
    return PresignedStore(
        Secret(storage.reveal().get(PATH_SECRET, path)), retry_policy=retry_policy
    )


def _key(url: str) -> str:
    return unquote(urlsplit(url).path).lstrip("/")


def _milliseconds(date: str) -> int:
    return round(parsedate_to_datetime(date).timestamp() * 1000)


def _length(headers: Mapping[str, str]) -> int | None:
    text = headers.get("Content-Length", "")
    return int(text) if text.isdigit() else None


def _reopened(path: Secret[str], retry_policy: RetryPolicy) -> PresignedStore:
    return PresignedStore(path, retry_policy=retry_policy)
