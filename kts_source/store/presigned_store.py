"""Store of objects with presigned URLs. Such URLs allow reads, but no listings.

The path names a list of URLs: a file or an `http(s)://` URL, optionally with `presigned+` in front.
The list has one of two formats:

    text    one URL per line; `#` starts a comment
    JSON    a list of URLs, or an object that maps keys to URLs

If the list does not map keys to URLs, the key of an object is the path of its URL, without the
leading slash and with percent escapes decoded. Query strings are secret, so they never appear in
errors, log lines or URIs. A presigned URL allows only GET, so the size and version of an object are
looked up by reading its first byte. The version is the ETag.
"""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from kts_source.errors import ObjectNotFoundError, ObjectTooLargeError, StoreError
from kts_source.secret import Secret, scrub
from kts_source.store.client_store import ClientStore
from kts_source.store.http_exchange import (
    AS_STORED,
    join_header,
    object_size,
    read_range,
    require_length,
)
from kts_source.store.local_store import local_root
from kts_source.store.object_store import ObjectInfo, check_version, key_order, sorts_after
from kts_source.store.request_policy import DEFAULT_RETRY_POLICY, RetryPolicy
from kts_source.store.storage_options import (
    PATH_SECRET,
    hide_query,
    without_presigned,
    without_query,
)
from kts_source.texts import some

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from aiohttp import ClientResponse

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_LIST_BYTES: Final = 256 << 20
_LOOK_UPS: Final = 16


class PresignedStore(ClientStore):
    """Objects whose presigned URLs are in a list.

    The URL of the list may have a query string: pass it in the path, or in the storage options that
    `hide_query` returns.
    """

    pinning = "conditional reads (If-Match), and the ETag of every response"

    def __init__(
        self,
        path: str,
        storage: Secret[Mapping[str, str]],
        retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY,
    ) -> None:
        super().__init__(*hide_query(path, storage), retry_policy)
        self._shown = without_query(path)
        self._lock = threading.Lock()
        self._urls: Mapping[str, str] | None = None

    def uri(self, key: str) -> str:
        """See `ObjectStore.uri`. The URI consists of the location of the list and the key."""
        return f"{self._shown}#/{key}"

    def close(self) -> None:
        """See `ObjectStore.close`."""
        self._client.close(_disconnect)

    def list_folders(self, prefix: str) -> list[str]:
        """See `ObjectStore.list_folders`."""
        self._check_key(prefix)
        cut = len(prefix)
        return sorted(
            {
                prefix + key[cut:].split("/", 1)[0] + "/"
                for key in self._load(fresh=True)
                if key.startswith(prefix) and "/" in key[cut:]
            }
        )

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_objects`. Sends one request per object to get its size."""
        self._check_key(prefix)
        wanted = (
            k for k in self._load(fresh=True) if k.startswith(prefix) and sorts_after(k, after)
        )
        keys = sorted(wanted, key=key_order)
        with ThreadPoolExecutor(_LOOK_UPS, thread_name_prefix="kts-list") as pool:
            infos = list(pool.map(self._head_or_none, keys))
        missing = [key for key, info in zip(keys, infos, strict=True) if info is None]
        if missing:
            log.warning(
                "%d URLs in %s have no object: %s", len(missing), self._shown, some(missing)
            )
        yield from (info for info in infos if info is not None)

    def _head_or_none(self, key: str) -> ObjectInfo | None:
        try:
            return self.head(key)
        except ObjectNotFoundError:
            return None

    @property
    def _secret_path(self) -> str:
        return without_presigned(self._storage.reveal().get(PATH_SECRET, self._url))

    def _load(self, *, fresh: bool = False) -> Mapping[str, str]:
        with self._lock:
            if self._urls is None or fresh:
                self._urls = self._parse(self._request(self._read_list, "", listing=True))
            return self._urls

    def _read_list(self) -> bytes:
        path = self._secret_path
        if path.lower().startswith(("http:", "https:")):
            return self._get(path, {}, self._read_body)
        try:
            return Path(local_root(path)).read_bytes()
        except OSError as error:
            raise StoreError(
                f"the list of URLs cannot be read: {error.strerror}", uri=self._shown
            ) from None

    async def _read_body(self, answer: ClientResponse) -> bytes:
        _require_success(answer)
        size = require_length(answer.content_length)
        if size > MAX_LIST_BYTES:
            raise ObjectTooLargeError(
                f"the list of URLs has {size} bytes; at most {MAX_LIST_BYTES} are read",
                uri=self._shown,
            )
        return await answer.read()

    def _parse(self, data: bytes) -> Mapping[str, str]:
        try:
            return self._urls_by_key(data.decode())
        except (ValueError, RecursionError):
            # Not chained, because the cause quotes the list with its secret query strings.
            raise StoreError(
                "the list of URLs is not UTF-8, not valid JSON, or has a malformed URL",
                uri=self._shown,
            ) from None

    def _urls_by_key(self, text: str) -> Mapping[str, str]:
        document = json.loads(text) if text.lstrip()[:1] in ("[", "{") else text.splitlines()
        if isinstance(document, dict):
            urls = document
        else:
            listed = [url for line in document if (url := str(line).strip()) and url[0] != "#"]
            urls = {_key(url): url for url in listed}
            if len({(_key(url), urlsplit(url).netloc) for url in listed}) > len(urls):
                raise StoreError(
                    "the list has URLs with the same path on several hosts: write it as a JSON"
                    " object that maps keys to URLs",
                    uri=self._shown,
                )
        for url in urls.values():
            if not isinstance(url, str) or not url.lower().startswith(("http://", "https://")):
                raise StoreError("an entry of the list is not an http(s) URL", uri=self._shown)
        return urls

    def _url_of(self, key: str) -> str:
        url = self._load().get(key)
        if url is None:
            raise ObjectNotFoundError("no such object in the list of URLs", uri=self.uri(key))
        return url

    def _connect(self) -> Any:  # noqa: ANN401  # fsspec ships no types
        import aiohttp
        import fsspec

        session = {
            "timeout": aiohttp.ClientTimeout(
                total=None,
                sock_connect=self._retry_policy.connect_timeout_seconds,
                sock_read=self._retry_policy.read_timeout_seconds,
            ),
            **AS_STORED,
        }
        return fsspec.filesystem("http", client_kwargs=session, skip_instance_cache=True)

    def _get(
        self,
        url: str,
        headers: Mapping[str, str],
        read: Callable[[ClientResponse], Awaitable[T]],
        *,
        hedge: bool = False,
    ) -> T:
        async def call(filesystem: Any) -> T:  # noqa: ANN401
            session = await filesystem.set_session()
            async with session.get(url, headers=headers) as answer:
                return await read(answer)

        return self._client.run(call, hedge=hedge)

    def _look_up(self, key: str) -> ObjectInfo:
        async def read(answer: ClientResponse) -> ObjectInfo:
            size = 0
            if answer.status != 416:  # an empty object has no first byte
                _require_success(answer)
                size = length = require_length(answer.content_length)
                if answer.status == 206:
                    size = object_size(join_header(answer.headers.getall("Content-Range", ())))
                if length <= 1:
                    await answer.read()  # so that the connection can be reused
            date = answer.headers.get("Last-Modified")
            modified = parsedate_to_datetime(date).timestamp() * 1000 if date else None
            return ObjectInfo(
                key=key,
                size=size,
                version=answer.headers.get("ETag"),
                last_modified_ms=None if modified is None else round(modified),
            )

        return self._get(self._url_of(key), {"Range": "bytes=0-0"}, read)

    def _read(self, key: str, start: int, stop: int, version: str | None) -> bytes:
        uri = self.uri(key)
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        if version is not None and not version.startswith("W/"):
            headers["If-Match"] = version

        async def read(answer: ClientResponse) -> bytes:
            _require_success(answer)
            check_version(answer.headers.get("ETag"), version, uri=uri)
            return await read_range(answer, start, stop, uri=uri)

        return self._get(self._url_of(key), headers, read, hedge=True)

    def _failure(self, error: Exception, key: str, *, listing: bool) -> tuple[int, str]:
        if isinstance(error, _RefusedError):
            (status,) = error.args
            expired = ": has the URL expired?" if status in (401, 403) else ""
            return status, f"status {status}{expired}"
        url = self._secret_path if listing else (self._urls or {}).get(key, "")
        return 503, scrub(f"{type(error).__name__}: {error}", (url, urlsplit(url).query))


class _RefusedError(Exception):
    """The server responded with an HTTP error; the argument is the status."""


def _require_success(answer: ClientResponse) -> None:
    if answer.status >= 300:
        raise _RefusedError(answer.status)


async def _disconnect(filesystem: Any) -> None:  # noqa: ANN401
    await (await filesystem.set_session()).close()


def _key(url: str) -> str:
    return unquote(urlsplit(url).path).lstrip("/")
