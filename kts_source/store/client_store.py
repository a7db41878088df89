"""What all stores behind a client library share: checks, counters, retries and named errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from kts_source.errors import TieredKafkaError
from kts_source.secret import Secret, scrub
from kts_source.store.async_client import AsyncClient
from kts_source.store.cancel import CancelledFetchError
from kts_source.store.counters import StoreCounters, Tally
from kts_source.store.http_answer import error_of_status
from kts_source.store.object_store import check_key, check_range
from kts_source.store.retry import DEFAULT_RETRY_POLICY, RetryPolicy, TransientError
from kts_source.store.storage_options import secret_values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kts_source.store.object_store import Data, ObjectInfo

T = TypeVar("T")


class ClientStore(ABC):
    """An `ObjectStore` without its listings; a subclass adds them and makes the requests."""

    remarks: tuple[str, ...] = ()
    is_near = False
    lists_in_pages = False
    # Whether a leading slash is an ordinary character of a key.
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
        """See `ObjectStore.counters`. Requests that a client makes by itself are not seen."""
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
                raise TransientError(f"{len(data)} bytes were answered for [{start}, {stop})")
            return data

        pinned = "" if version is None else f" of version {version}"
        data = self._request(read, key, wanted=f"[{start}, {stop}){pinned}")
        self._tally.add(bytes=len(data))
        return data

    # -- what a subclass does

    @abstractmethod
    def _connect(self) -> Any:  # noqa: ANN401  # fsspec ships no types
        """Makes the file system of this process."""

    @abstractmethod
    def _look_up(self, key: str) -> ObjectInfo:
        """Makes one attempt to look an object up."""

    @abstractmethod
    def _read(self, key: str, start: int, stop: int, version: str | None) -> Data:
        """Makes one attempt to read a range that is not empty."""

    @abstractmethod
    def _failure(self, error: Exception, key: str, *, listing: bool) -> tuple[int, str]:
        """The HTTP status that an error of the client stands for (503 for what may pass, 0 for what
        is unknown) and its text without secrets. Raises what no status tells.
        """

    # -- what it needs for that

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
        """What an attempt gives. Each is counted; those that fail in passing are made again."""
        uri = self.uri(key)

        def attempted() -> T:
            self._tally.add(requests=not listing, list_requests=listing)
            try:
                return attempt()
            except (TransientError, TieredKafkaError, CancelledFetchError):
                raise
            except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
                status, text = self._failure(error, key, listing=listing)
                raise error_of_status(status, text, uri=uri, wanted=wanted) from None

        return self._retry_policy.run(attempted, uri=uri, tally=self._tally)

    def _text(self, error: BaseException) -> str:
        return scrub(f"{type(error).__name__}: {error}", self._secret_values.reveal())
