"""Base class of readers that read byte ranges with less CPU than s3fs, adlfs or gcsfs.

At its first use in a process, a store checks whether its options allow such a reader. Otherwise, it
reads through the fsspec library. Listings and look-ups always go through the fsspec library. One
subclass reads from S3 with our own client, another from other clouds with obstore.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from kts_source.store.client_store import reset_after_fork
from kts_source.store.request_policy import RetryPolicy, within_deadline
from segment_format.tuning import is_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kts_source.store.object_store import Data, Tally

C = TypeVar("C")

log = logging.getLogger(__name__)

EXPIRED_CODES: Final = frozenset(
    {"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "TokenRefreshRequired"}
)
"""S3's error codes for credentials that are no longer valid; their status is 400 or 403."""
_MAX_CLIENTS: Final = 4


class FsspecOnlyError(Exception):
    """Only the fsspec library supports the given options. The text is the reason, without values of
    options.
    """


class Range(NamedTuple):
    """Bytes [start, stop) of one version of an object. If `version` is None, any version is
    accepted.
    """

    key: str
    start: int
    stop: int
    version: str | None
    uri: str


@dataclass(eq=False)  # not frozen: raising sets its traceback
class RangeError(Exception):
    """A failed attempt to read a range.

    Attributes:
        status: HTTP status; 0 if no complete response was received.
        code: The service's error code; empty if there is none.
        text: Description of the failure; it may contain credentials.
        is_doubtful: True if the fsspec library may succeed, or report a better error.
        was_sent: False if the attempt failed before a request was sent.
    """

    status: int
    code: str
    text: str
    is_doubtful: bool = False
    was_sent: bool = True


class RangeReader(ABC):
    """Reads byte ranges of the objects in a bucket.

    Args:
        bucket: Name of the bucket or container, for messages.
        library: The fsspec library that is used instead if the options require it.
        tally: Counters of the store. Requests are added to them.
    """

    # Name of this reader, for messages.
    _name: ClassVar[str]

    def __init__(self, bucket: str, library: str, policy: RetryPolicy, tally: Tally) -> None:
        self._bucket = bucket
        self._library = library
        self._policy = policy
        self._tally = tally
        self.reset()
        reset_after_fork(self)

    def reset(self) -> None:
        """Clears the state that a forked process inherits. The process then decides again whether
        to use this reader, and opens new clients.
        """
        self._deciding, self._lock, self._renewing = (threading.Lock() for _ in range(3))
        self._reason: str | None = None
        self._has_answered = False

    @property
    def reason(self) -> str:
        """Reason why the fsspec library is used instead of this reader; empty if this reader is
        used. Sends no request.
        """
        if self._reason is None:
            with self._deciding:
                if self._reason is None:
                    try:
                        self._prepare()
                        self._reason = ""
                    except FsspecOnlyError as error:
                        self._leave(str(error))
        return self._reason or ""

    @property
    def remarks(self) -> tuple[str, ...]:
        """See `ObjectStore.remarks`."""
        reason = self.reason
        return (f"{self._library} reads {self._bucket}: {reason}",) if reason else ()

    def can_read(self, _key: str) -> bool:
        """Returns whether this reader can read the object with this key. Otherwise, the fsspec
        library must read it.
        """
        return not self.reason

    def read(self, wanted: Range, fallback: Callable[[], Data]) -> Data:
        """Makes one attempt to read a range, and checks the version, range and length of the
        response.

        `fallback` reads with the fsspec library. It is called if this reader cannot read the key,
        or after a `RangeError` with `is_doubtful`. If `fallback` succeeds after a `RangeError`, all
        later reads use the fsspec library.
        """
        if not self.can_read(wanted.key):
            return fallback()
        try:
            data = self._read_renewing(wanted)
        except RangeError as error:
            if not error.is_doubtful:
                raise
            self._tally.add(requests=error.was_sent)
        else:
            self._has_answered = True
            return data
        data = fallback()
        self._leave(
            f"a request by {self._name} failed, but the same request by {self._library} succeeded"
        )
        return data

    def _read_renewing(self, wanted: Range) -> Data:
        """Makes one attempt to read a range. If the credentials are rejected, renews them and tries
        once more.
        """
        client = self._client()
        try:
            return self._attempt(client, wanted)
        except RangeError as error:
            is_expired = error.status == 401 or error.code in EXPIRED_CODES
            if not is_expired or not self._within_deadline(lambda: self._renew(client)):
                raise
        self._tally.add(requests=1)
        return self._attempt(self._client(), wanted)

    def _leave(self, reason: str) -> None:
        self._reason = reason
        log.info("%s reads %s: %s", self._library, self._bucket, reason)

    def _within_deadline(self, call: Callable[[], C]) -> C:
        return within_deadline(self._policy.request_deadline_seconds, call)

    @abstractmethod
    def _prepare(self) -> None:
        """Creates the settings of the clients. Raises `FsspecOnlyError` if only the fsspec library
        supports the options.
        """

    @abstractmethod
    def _client(self) -> Any:  # noqa: ANN401  # as `_attempt` of the subclass takes it
        """Returns the value of the argument `client` of `_attempt`: the current credentials, or a
        client that uses them.
        """

    @abstractmethod
    def _attempt(self, client: Any, wanted: Range) -> Data:  # noqa: ANN401
        """Sends one request and checks the response. Returns the bytes."""

    @abstractmethod
    def _renew(self, refused: Any) -> bool:  # noqa: ANN401
        """Renews rejected credentials. Returns whether the current credentials differ from the
        rejected ones.

        May wait for a server that issues credentials. If several threads call this method, only one
        of them renews.
        """


class SharedClients(Generic[C]):
    """Caches the clients that this process used last. A client is looked up by its settings.

    A worker opens a store for each task. Without this cache, each task would read certificates,
    which takes 5 ms, and connect again.
    """

    def __init__(self) -> None:
        self.reset()
        reset_after_fork(self)

    def reset(self) -> None:
        """Forgets the clients of the parent process after a fork."""
        self._lock = threading.Lock()
        self._clients: list[tuple[Any, C]] = []

    def get(self, settings: Any, open_client: Callable[[], C]) -> C:  # noqa: ANN401
        """Returns the cached client with equal settings. If there is none, calls `open_client` and
        caches the result.
        """
        with self._lock:
            for number, (other, client) in enumerate(self._clients):
                if other == settings:
                    self._clients.append(self._clients.pop(number))
                    return client
            client = open_client()
            self._clients.append((settings, client))
            del self._clients[:-_MAX_CLIENTS]
            return client

    def forget(self, client: C) -> None:
        """Removes a client from the cache, because its credentials were rejected."""
        with self._lock:
            self._clients = [entry for entry in self._clients if entry[1] is not client]


def require_known(unknown: Iterable[str], schemes: Iterable[str]) -> None:
    """Raises `FsspecOnlyError` if there are arguments in `unknown` (names of arguments that only
    the fsspec library supports), if the fsspec configuration has settings for one of the URL
    schemes, or if `KTS_TUNING` is off.
    """
    import fsspec.config

    if not is_on():
        raise FsspecOnlyError("KTS_TUNING=off")
    if names := sorted(unknown):
        raise FsspecOnlyError(f"storageOptions name {', '.join(names)}")
    for scheme in schemes:
        if fsspec.config.conf.get(scheme):
            raise FsspecOnlyError(f"the fsspec configuration has settings for {scheme}://")
