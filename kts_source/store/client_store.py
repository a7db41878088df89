"""Defines the base class of the stores that send requests through a client library. It checks keys
and responses, counts and retries requests, and translates the library's errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from kts_source.errors import StoreUnavailableError, TieredKafkaError
from kts_source.secret import Secret, scrub
from kts_source.store.http_exchange import error_of_status
from kts_source.store.object_store import StoreCounters, Tally, check_key, check_range
from kts_source.store.request_policy import (
    DEFAULT_RETRY_POLICY,
    CancelledFetchError,
    RetryPolicy,
    TransientError,
    await_result,
    hedged,
)
from kts_source.store.storage_options import secret_values
from kts_source.texts import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from kts_source.store.object_store import Data, ObjectInfo

T = TypeVar("T")

_CLOSE_SECONDS = 2.0
_reset_in_children: WeakSet[Any] = WeakSet()


def reset_after_fork(owner: Any) -> None:  # noqa: ANN401  # anything with a method `reset`
    """Makes every forked child process call `owner.reset()`. The method must replace locks, because
    the threads that hold them do not exist in the child.
    """
    _reset_in_children.add(owner)


def _reset_all() -> None:
    for owner in list(_reset_in_children):
        owner.reset()


os.register_at_fork(after_in_child=_reset_all)


class ClientStore(ABC):
    """An `ObjectStore` without listings. Subclasses add listings and send the requests."""

    remarks: tuple[str, ...] = ()
    is_near = False
    lists_in_pages = False
    # True if a leading slash is an ordinary character of a key.
    _absolute_keys = True

    def __init__(
        self,
        url: str,
        storage: Secret[Mapping[str, str]],
        retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY,
    ) -> None:
        self._url = url
        self._storage = storage
        self._retry_policy = retry_policy
        self._secret_values = Secret(secret_values(storage.reveal()))
        self._tally = Tally()
        self._client = AsyncClient(self._connect, retry_policy, self._tally)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri('')!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._url, self._storage, self._retry_policy)

    @property
    def counters(self) -> StoreCounters:
        """See `ObjectStore.counters`. Excludes requests that the client library sends
        automatically.
        """
        return self._tally.snapshot

    @abstractmethod
    def uri(self, key: str) -> str:
        """See `ObjectStore.uri`."""

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        self._check_key(key)
        return self._request(lambda: self._look_up(key), key)

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> Data:
        """See `ObjectStore.get_range`."""
        check_range(start, stop)
        self._check_key(key)
        if start == stop:
            return b""

        def read() -> Data:
            data = self._read(key, start, stop, version)
            if len(data) != stop - start:
                raise TransientError(
                    f"the response has {len(data)} bytes, but [{start}, {stop}) was requested"
                )
            return data

        pinned = "" if version is None else f" of version {version}"
        data = self._request(read, key, wanted=f"[{start}, {stop}){pinned}")
        self._tally.add(bytes=len(data))
        return data

    @abstractmethod
    def _connect(self) -> Any:  # noqa: ANN401  # fsspec ships no types
        """Opens the fsspec file system for this process."""

    @abstractmethod
    def _look_up(self, key: str) -> ObjectInfo:
        """Makes one attempt to look up an object."""

    @abstractmethod
    def _read(self, key: str, start: int, stop: int, version: str | None) -> Data:
        """Makes one attempt to read bytes [start, stop) of an object. The range is not empty."""

    @abstractmethod
    def _failure(self, error: Exception, key: str, *, listing: bool) -> tuple[int, str]:
        """Returns the HTTP status and a text without secrets for an error of the client library.

        The status is 503 if a retry may succeed, and 0 if the error has no HTTP status. Raises an
        error if no status describes the failure.
        """

    def _check_key(self, key: str) -> None:
        check_key(key, self.uri(""), absolute=self._absolute_keys)

    def _request(
        self,
        attempt: Callable[[], T],
        key: str,
        *,
        listing: bool = False,
        wanted: str = "the object",
    ) -> T:
        """Calls `attempt`, and retries it as the retry policy allows. Counts each call. Returns the
        result of the successful call. `wanted` describes the request in errors.
        """

        def try_once() -> T:
            self._tally.add(requests=not listing, list_requests=listing)
            with self._translated(key, listing=listing, wanted=wanted):
                return attempt()

        return self._retry_policy.run(try_once, uri=self.uri(key), tally=self._tally)

    @contextlib.contextmanager
    def _translated(
        self, key: str, *, listing: bool = False, wanted: str = "the object"
    ) -> Iterator[None]:
        """Converts the errors of the client library that the block raises to errors of the package,
        or to `TransientError`.
        """
        try:
            yield
        except (TransientError, TieredKafkaError, CancelledFetchError):
            raise
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            status, text = self._failure(error, key, listing=listing)
            raise error_of_status(status, text, uri=self.uri(key), wanted=wanted) from None

    def _upload(self, file: Any, key: str) -> io.RawIOBase:  # noqa: ANN401
        """Returns fsspec's `file`, a multipart upload of an object, with errors of the package."""
        return _Upload(file, lambda: self._translated(key), self.uri(key))

    def _scrub(self, text: str) -> str:
        return scrub(text, self._secret_values.reveal())

    def _text(self, error: BaseException) -> str:
        """Returns class and message of a client library's error as one line without secrets."""
        return one_line(self._scrub(f"{type(error).__name__}: {error}"))


class _Upload(io.RawIOBase):
    """A multipart upload, which is completed when it is closed.

    Args:
        file: fsspec's file.
        translated: Context manager that converts errors of the client library.
        uri: The object.
    """

    def __init__(
        self,
        file: Any,  # noqa: ANN401
        translated: Callable[[], contextlib.AbstractContextManager[None]],
        uri: str,
    ) -> None:
        super().__init__()
        self._file = file
        self._translated = translated
        self._uri = uri

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def write(self, data: Any) -> int:  # noqa: ANN401  # any buffer
        with self._errors():
            return int(self._file.write(data))

    def close(self) -> None:
        if not self.closed:
            try:
                with self._errors():
                    self._file.close()
            finally:
                super().close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with self._translated():
                yield
        except TransientError as error:
            raise StoreUnavailableError(
                f"the upload failed: {str(error).rstrip('. ')}. Wait for the end of the outage and"
                " run again",
                uri=self._uri,
            ) from None


class AsyncClient:
    """Runs coroutines of an fsspec file system on fsspec's event loop, from any thread.

    `connect` opens the file system once per process, when it is first used. A forked or unpickled
    `AsyncClient` opens a new file system, because connections and event loops cannot be inherited.
    """

    def __init__(self, connect: Callable[[], Any], policy: RetryPolicy, tally: Tally) -> None:
        self._connect = connect
        self._policy = policy
        self._tally = tally
        self._filesystem: Any = None
        self.reset()
        reset_after_fork(self)

    def reset(self) -> None:
        """Makes a forked process open a new file system instead of using its parent's."""
        self._lock = threading.Lock()
        # Keep a reference to the parent's file system: its finalizer would wait for an event loop
        # that does not run in this process.
        self._inherited, self._filesystem = self._filesystem, None

    @property
    def filesystem(self) -> Any:  # noqa: ANN401  # fsspec ships no types
        """The file system of this process, which is opened if necessary."""
        with self._lock:
            if self._filesystem is None:
                self._filesystem = self._connect()
            return self._filesystem

    def run(self, call: Callable[[Any], Coroutine[Any, Any, T]], *, hedge: bool = False) -> T:
        """Runs the coroutine `call(filesystem)` on the file system's event loop and returns its
        result.

        With `hedge`, if the retry policy allows it, sends a second request when the response to the
        first is late.

        Raises:
            TransientError: The deadline passed.
            CancelledFetchError: The caller's scope was cancelled.
        """
        filesystem, after = self.filesystem, self._policy.hedge_after_seconds
        if not hedge or after is None:
            return self._run_once(filesystem, call)
        # Open the session first, because two concurrent requests would open two sessions.
        self._run_once(filesystem, lambda _: filesystem.set_session())
        return hedged(
            lambda: self._run_once(filesystem, call),
            after_seconds=after,
            on_second=lambda: self._tally.add(requests=1, hedges=1),
        )

    def _run_once(self, filesystem: Any, call: Callable[[Any], Coroutine[Any, Any, T]]) -> T:  # noqa: ANN401
        is_abandoned = threading.Event()

        async def attempt() -> T:
            try:
                return await call(filesystem)
            except Exception:
                if is_abandoned.is_set():
                    # Replace the error, because the loop would log it with credentials.
                    raise asyncio.CancelledError from None
                raise

        future = asyncio.run_coroutine_threadsafe(attempt(), filesystem.loop)

        def give_up() -> None:
            is_abandoned.set()
            future.cancel()

        try:
            return await_result(future, self._policy.request_deadline_seconds, give_up)
        except TimeoutError as error:  # a read timeout of the client
            raise TransientError(f"timeout: {scrub(str(error)) or type(error).__name__}") from None

    def drop(self, filesystem: Any) -> None:  # noqa: ANN401
        """Makes the next call of `run` open a new file system; running requests continue to use
        `filesystem`. Does nothing if `filesystem` was already replaced.
        """
        with self._lock:
            if self._filesystem is filesystem:
                self._filesystem = None

    def close(self, disconnect: Callable[[Any], Coroutine[Any, Any, object]] | None = None) -> None:
        """Drops the file system, and closes its connections with `disconnect` if it is set."""
        with self._lock:
            filesystem, self._filesystem = self._filesystem, None
        if filesystem is not None and disconnect is not None:
            future = asyncio.run_coroutine_threadsafe(disconnect(filesystem), filesystem.loop)
            with contextlib.suppress(Exception):
                future.result(_CLOSE_SECONDS)
