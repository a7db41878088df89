"""Ranges of a bucket's objects, read by less than the cloud's library behind fsspec takes.

Only ranges: listings and look-ups stay with that library. So do the ranges where it alone does what
the options ask for, or where it turns out to do better. Who reads instead, `obstore` or a client of
our own, is a subclass.
"""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from kts_source.errors import StoreError
from kts_source.store.deadline import within_deadline
from kts_source.store.range_settings import LeftToFsspecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kts_source.secret import Secret
    from kts_source.store.counters import Tally
    from kts_source.store.object_store import Data
    from kts_source.store.range_settings import RangeSettings
    from kts_source.store.retry import RetryPolicy

T = TypeVar("T")

log = logging.getLogger(__name__)

EXPIRED_CODES: Final = frozenset(
    {"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "TokenRefreshRequired"}
)
"""S3's words for credentials that hold no longer; their status is 400 or 403."""
NO_TOKEN: Final = "NoToken"
"""Our word where nothing was asked for want of a token."""
_REFUSED: Final = 401
_KEPT_CLIENTS: Final = 4


@dataclass(eq=False)  # not frozen: raising sets its traceback
class RangeError(Exception):
    """An attempt that failed.

    Attributes:
        status: Of HTTP; 0 where there was no whole answer.
        code: The service's word for it, `NO_TOKEN`, or empty.
        text: For people. It may hold credentials.
    """

    status: int
    code: str
    text: str


class RangeReader(ABC):
    """Reads ranges of a bucket's objects in this process; made anew after a fork.

    Args:
        place: The bucket or container, for people.
        other: The library that reads where this one cannot.
        settings: Makes the settings; asks nothing of the store. Raises `LeftToFsspecError`.
        policy: Deadlines.
        tally: Where second requests are counted.
    """

    # For people.
    _name: ClassVar[str]

    def __init__(
        self,
        place: str,
        other: str,
        settings: Callable[[], RangeSettings],
        policy: RetryPolicy,
        tally: Tally,
    ) -> None:
        self._place = place
        self._other = other
        self._make_settings = settings
        self._policy = policy
        self._tally = tally
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._renewing = threading.Lock()
        self._settings: RangeSettings | None = None
        self._opened: tuple[Secret[Any], Any] | None = None
        self._has_answered = False
        self._reason: str | None = None
        self._process = os.getpid()  # last: another thread goes on once it is told

    @property
    def why_not(self) -> str:
        """Why the other library reads instead, or empty. It asks nothing of the store."""
        if self._process != os.getpid():
            with _process.lock:
                if self._process != os.getpid():
                    self._begin()  # a thread that is not here may hold the locks
        if self._reason is None:
            with _process.lock:  # threads that come first at once make them once
                if self._reason is None:
                    try:
                        self._settings = self._make_settings()
                        self._reason = ""
                    except LeftToFsspecError as error:
                        self.leave(str(error))
        return self._reason or ""

    @property
    def remarks(self) -> tuple[str, ...]:
        """For `ObjectStore.remarks`: who reads and why, where it is the other library."""
        why_not = self.why_not
        return (f"{self._other} reads {self._place}: {why_not}",) if why_not else ()

    def can_read(self, _key: str) -> bool:
        """Whether this one asks for this very key."""
        return not self.why_not

    def leave(self, reason: str) -> None:
        """No more reads by this one."""
        self._reason = reason
        log.info("%s reads %s: %s", self._other, self._place, reason)

    def read_or(
        self,
        otherwise: Callable[[], Data],
        key: str,
        start: int,
        stop: int,
        version: str | None,
        *,
        uri: str,
    ) -> Data:
        """As `read`, but `otherwise` reads where this cannot; for good, if it then succeeds."""
        if not self.can_read(key):
            return otherwise()
        try:
            return self.read(key, start, stop, version, uri=uri)
        except LeftToFsspecError as error:
            self._tally.add(requests=error.was_asked)
            reason = str(error)
        data = otherwise()
        self.leave(reason)
        return data

    def read(self, key: str, start: int, stop: int, version: str | None, *, uri: str) -> Data:
        """One attempt to read [start, stop) of an object of that version; None takes any.

        Raises:
            TransientError: Another answer than asked for.
            TruncatedObjectError: The object ends before `stop`.
            ObjectChangedError: It is of another version.
            LeftToFsspecError: The other library may do better, or else names better what is wrong.
            RangeError: Anything else.
        """
        client = self._client()
        try:
            try:
                data = self._attempt(client, key, start, stop, version, uri=uri)
            except RangeError as refusal:
                expired = refusal.status == _REFUSED or refusal.code in EXPIRED_CODES
                if not expired or not self._in_time(lambda: self._renewed(client)):
                    raise
                self._tally.add(requests=1)
                data = self._attempt(self._client(), key, start, stop, version, uri=uri)
        except RangeError as failure:
            if self._is_others(failure):
                reason = f"a request by {self._name} failed where that by {self._other} did not"
                raise LeftToFsspecError(reason, was_asked=failure.code != NO_TOKEN) from None
            raise
        self._has_answered = True
        return data

    def close(self) -> None:
        """Leaves the connections to who reads the same bucket next."""
        # Without the lock: who gives the credentials may let its holder wait.
        if self._process == os.getpid():
            self._opened = None

    # -- what a subclass does

    @abstractmethod
    def _attempt(
        self,
        client: Any,  # noqa: ANN401  # what its settings open
        key: str,
        start: int,
        stop: int,
        version: str | None,
        *,
        uri: str,
    ) -> Data:
        """Asks once, and checks the answer. See `read` for what it raises."""

    @abstractmethod
    def _is_others(self, failure: RangeError) -> bool:
        """Whether the other library may do better, or else names better what is wrong."""

    # -- clients

    def _renewed(self, refused: Any) -> bool:  # noqa: ANN401
        """Whether there are new credentials since a client was opened whose were refused. Of
        several threads, one renews them.
        """
        settings = self._settings
        with self._renewing:
            opened = self._opened
            if settings is None or opened is None or opened[1] is not refused:
                return settings is not None
            if not settings.renew():
                return False
            _process.forget(refused)
            self._opened = None
            return True

    def _in_time(self, call: Callable[[], T]) -> T:
        """As `within_deadline`, with that of a request."""
        return within_deadline(self._policy.request_deadline_seconds, call)

    def _client(self) -> Any:  # noqa: ANN401
        """The client for the credentials of now."""
        settings = self._settings
        if settings is None:
            raise StoreError(f"{self._name} cannot read {self._place}", uri="")

        def client() -> Any:  # noqa: ANN401
            with self._lock:
                credentials, opened = settings.credentials(), self._opened
                if opened is None or opened[0] != credentials:
                    opened = credentials, _process.opened(settings, credentials, self._open)
                    self._opened = opened
                return opened[1]

        return self._in_time(client) if settings.may_wait else client()

    def _open(self, settings: RangeSettings, credentials: Secret[Any]) -> Any:  # noqa: ANN401
        """A new one. Raises `LeftToFsspecError`."""
        try:
            return settings.open(credentials)
        except (OSError, ValueError):
            raise LeftToFsspecError(f"{self._name} does not open it") from None


class _Process:
    """What all readers of a process share.

    Attributes:
        lock: Held while settings are made.
    """

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        # After a fork, a thread that is not here may hold them, and the connections are its own.
        self.lock, self._opening = threading.Lock(), threading.Lock()
        self._clients: list[tuple[RangeSettings, Secret[Any], Any]] = []

    def opened(
        self,
        settings: RangeSettings,
        credentials: Secret[Any],
        open_: Callable[[RangeSettings, Secret[Any]], Any],
    ) -> Any:  # noqa: ANN401
        """A client, one of before if it was opened alike: a worker reads task after task, and a new
        one takes 5 ms to read certificates, and connects anew. Else what `open_` gives, or raises.
        """
        with self._opening:
            for number, (others, theirs, client) in enumerate(self._clients):
                if others == settings and theirs == credentials:
                    self._clients.append(self._clients.pop(number))
                    return client
            client = open_(settings, credentials)
            self._clients.append((settings, credentials, client))
            del self._clients[:-_KEPT_CLIENTS]
            return client

    def forget(self, client: Any) -> None:  # noqa: ANN401
        """Nobody gets it again: its credentials were refused."""
        with self._opening:
            self._clients = [kept for kept in self._clients if kept[2] is not client]


_process: Final = _Process()
