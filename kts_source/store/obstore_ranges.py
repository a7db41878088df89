"""Ranged reads through obstore, at half the processor time of s3fs and adlfs.

Only that: listings and look-ups stay with those, since obstore takes prefixes as whole folders and
tells no storage class. So do keys whose path obstore would change, and whatever the options ask for
that a cloud's settings do not know. What obstore says about a failure is text, which only
`read_error` reads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import StoreError
from kts_source.store.async_client import AsyncClient
from kts_source.store.object_store import beyond_end, check_version
from kts_source.store.obstore_settings import LeftToFsspecError
from kts_source.store.retry import TransientError

if TYPE_CHECKING:
    from collections.abc import Callable

    from obstore import GetOptions

    from kts_source.secret import Secret
    from kts_source.store.counters import Tally
    from kts_source.store.obstore_settings import RangeSettings
    from kts_source.store.retry import RetryPolicy

log = logging.getLogger(__name__)

_ANSWER: Final = re.compile(
    r"Server returned non-2xx status code: (\d{3})[^:\n]*: ?(.*)", re.DOTALL
)
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9]+)</Code>")
_STATUS_OF_CLASS: Final = {
    "FileNotFoundError": 404,
    "NotFoundError": 404,
    "UnauthenticatedError": 401,
    "PermissionDeniedError": 403,
    "AlreadyExistsError": 409,
    "PreconditionError": 412,
    "NotModifiedError": 304,
}
# The second is Azurite's range of an empty object.
_START_BEHIND_END: Final = ("Wanted range starting at", '"bytes 0--1/0"')
# The region is wrong, or the answer lacks what obstore insists on: the other library knows better.
_FOR_THE_OTHER: Final = ("Received redirect", "ETag Header missing", "Last-Modified Header missing")
_WRONG_REGION: Final = frozenset({"AuthorizationHeaderMalformed", "IllegalLocationConstraint"})
_NO_TOKEN: Final = "NoToken"
_REFUSED: Final = 401
EXPIRED_CODES: Final = frozenset(
    {"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "TokenRefreshRequired"}
)
"""S3's words for credentials that hold no longer; their status is 400 or 403."""
_KEPT_STORES: Final = 4
_DEBUG: Final = "\n\nDebug source"
_CAUSE: Final = re.compile(r'"([^"\\]+)"|\b(IncompleteMessage|TimedOut|ConnectionReset)\b')


@dataclass(frozen=True)
class RangeError(Exception):
    """An attempt of obstore that failed.

    Attributes:
        status: Of HTTP; 0 where there was no whole answer.
        code: S3's word for it, or empty; ours where nothing was asked for want of a token.
        text: For people. It may hold credentials.
    """

    status: int
    code: str
    text: str


class RangeReader:
    """Reads ranges of a bucket's objects in this process; made anew after a fork.

    Args:
        place: The bucket or container, for people.
        other: The library that reads where obstore cannot.
        settings: Makes the settings; asks nothing of the store. Raises `LeftToFsspecError`.
        policy: Deadlines.
        tally: Where second requests are counted.
        by_generation: Whether a version is Google's generation, not an ETag.
        doubted: Statuses of HTTP that the other library must confirm.
    """

    def __init__(
        self,
        place: str,
        other: str,
        settings: Callable[[], RangeSettings],
        policy: RetryPolicy,
        tally: Tally,
        *,
        by_generation: bool = False,
        doubted: frozenset[int] = frozenset(),
    ) -> None:
        self._place = place
        self._other = other
        self._make_settings = settings
        self._by_generation = by_generation
        self._doubted = doubted
        self._tally = tally
        self._client = AsyncClient(_Loop, policy, tally)
        self._lock = threading.Lock()
        self._renewing = threading.Lock()
        self._settings: RangeSettings | None = None
        self._opened: tuple[Secret[Any], Any] | None = None
        self._has_answered = False
        self._reason: str | None = None

    @property
    def why_not(self) -> str:
        """Why the other library reads instead, or empty. It asks nothing of the store."""
        if _process.is_child_of_a_user:
            return "obstore was used before this process was forked"
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
        """For `ObjectStore.remarks`: who reads and why, where it is not obstore."""
        why_not = self.why_not
        return (f"{self._other} reads {self._place}: {why_not}",) if why_not else ()

    def can_read(self, key: str) -> bool:
        """Whether obstore asks for this very key: it drops empty parts of a path."""
        return not self.why_not and "" not in key.split("/") and key.isprintable()

    def leave(self, reason: str) -> None:
        """No more reads by obstore."""
        self._reason = reason
        log.info("%s reads %s: %s", self._other, self._place, reason)

    def read_or(
        self,
        otherwise: Callable[[], bytes],
        key: str,
        start: int,
        stop: int,
        version: str | None,
        *,
        uri: str,
    ) -> bytes:
        """As `read`, but `otherwise` reads where obstore cannot; for good, if it then succeeds."""
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

    def read(self, key: str, start: int, stop: int, version: str | None, *, uri: str) -> bytes:
        """One attempt to read [start, stop) of an object of that version; None takes any.

        Raises:
            TransientError: Another answer than asked for.
            TruncatedObjectError: The object ends before `stop`.
            ObjectChangedError: It is of another version.
            LeftToFsspecError: The other library may do better, or else names better what is wrong.
            RangeError: Anything else.
        """
        from obstore import exceptions, get_async

        _process.is_user = True
        options: GetOptions = {"range": (start, stop)}
        if version is not None:
            options["version" if self._by_generation else "if_match"] = version

        async def ranged(store: Any) -> bytes:  # noqa: ANN401
            answer = await get_async(store, key, options=options)
            found = answer.meta["version"] if self._by_generation else answer.meta["e_tag"]
            if found is None and version is not None:
                raise TransientError("the answer has no version")
            check_version(found, version, uri=uri)
            first, end = answer.range
            if (first, end) != (start, stop):
                if first == start and end < stop and answer.meta["size"] == end:
                    raise beyond_end(end, start, stop, uri=uri)
                raise TransientError(f"another range was answered: [{first}, {end})")
            # Not `bytes_async`: it takes as much as the answer has, whatever was asked for.
            length, parts = 0, []
            async for part in answer.stream(min_chunk_size=stop - start):
                length += len(part)
                if length > stop - start:
                    raise TransientError(f"more than [{start}, {stop}) was answered")
                parts.append(part)
            return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

        def attempt(store: Any) -> bytes:  # noqa: ANN401
            try:
                return self._client.run(lambda _loop: ranged(store), hedge=True)
            except (exceptions.BaseError, FileNotFoundError) as error:
                raise read_error(type(error).__name__, str(error)) from None

        store = self._store()
        try:
            try:
                data = attempt(store)
            except RangeError as refusal:
                expired = refusal.status == _REFUSED or refusal.code in EXPIRED_CODES
                if not expired or not self._renewed(store):
                    raise
                self._tally.add(requests=1)
                data = attempt(self._store())
        except RangeError as failure:
            if self._may_be_better_otherwise(failure):
                reason = f"obstore's request failed where that of {self._other} did not"
                raise LeftToFsspecError(reason, was_asked=failure.code != _NO_TOKEN) from None
            raise
        self._has_answered = True
        return data

    def close(self) -> None:
        """Leaves the connections to who reads the same bucket next."""
        if _process.is_child_of_a_user:
            return  # they are the parent's, as may be who holds the lock
        with self._lock:
            self._opened = None
        self._client.close()

    def _may_be_better_otherwise(self, failure: RangeError) -> bool:
        if failure.code in _WRONG_REGION or failure.code == _NO_TOKEN:
            return True
        if failure.status != 0:
            return failure.status in self._doubted
        # A certificate that only the other trusts looks like a connection that failed.
        is_encrypted = self._settings is not None and self._settings.endpoint[:6] == "https:"
        untrusted = is_encrypted and not self._has_answered
        return untrusted or any(one in failure.text for one in _FOR_THE_OTHER)

    def _renewed(self, refused: Any) -> bool:  # noqa: ANN401  # obstore's
        """Whether there are new credentials since a store was opened whose were refused. Of several
        threads, one renews them.
        """
        settings = self._settings
        with self._renewing:
            if settings is None or self._opened is None or self._opened[1] is not refused:
                return settings is not None
            if not self._client.run(lambda _loop: asyncio.to_thread(settings.renew)):
                return False
            _process.forget(refused)
            with self._lock:
                self._opened = None
            return True

    def _store(self) -> Any:  # noqa: ANN401  # obstore's
        """The store for the credentials of now."""
        settings = self._settings
        if settings is None:
            raise StoreError(f"obstore cannot read {self._place}", uri="")
        with self._lock:
            credentials = settings.credentials()
            if self._opened is None or self._opened[0] != credentials:
                self._opened = credentials, _process.opened(settings, credentials)
            return self._opened[1]


def read_error(class_name: str, text: str) -> RangeError:
    """Reads the text of an error of obstore 0.12, which is all that it tells.

    Args:
        class_name: Of the error.
        text: Its message.
    """
    told, _, debug = text.partition(_DEBUG)
    answer = _ANSWER.search(told)
    status = _STATUS_OF_CLASS.get(class_name, 0)
    if answer is None:
        if status == 401:
            # Nobody answered: what gives the tokens failed, maybe in passing.
            return RangeError(0, _NO_TOKEN, told.partition(": ")[2] or told)
        if status == 0 and any(one in told for one in _START_BEHIND_END):
            status = 416
        _, _, why = debug.partition("HttpError {")
        causes = ", ".join(a or b for a, b in _CAUSE.findall(why))
        told = f"no whole answer: {causes}" if causes else told.partition(": ")[2] or told
        return RangeError(status, "", told)
    code = _CODE.search(answer[2])
    if status == 0:
        status = int(answer[1])
    return RangeError(status, "" if code is None else code[1], f"{answer[1]} {answer[2]}".strip())


class _Loop:
    """What `AsyncClient` runs on: the event loop of fsspec."""

    def __init__(self) -> None:
        import fsspec.asyn

        self.loop = fsspec.asyn.get_loop()

    async def set_session(self) -> None:
        """Nothing to wait for: each request is whole."""


class _Process:
    """What all readers of a process share.

    obstore's threads do not come along into a child of a fork, which would wait for them.

    Attributes:
        lock: Held while settings are made.
    """

    def __init__(self) -> None:
        self.is_user = False
        self.is_child_of_a_user = False
        self.lock = threading.Lock()
        self._opening = threading.Lock()
        self._stores: list[tuple[RangeSettings, Secret[Any], Any]] = []
        os.register_at_fork(after_in_child=self._forked)

    def opened(self, settings: RangeSettings, credentials: Secret[Any]) -> Any:  # noqa: ANN401
        """A store, one of before if it was opened alike: a worker reads task after task, and a new
        one takes 5 ms to read the system's certificates, and connects anew.

        Raises:
            LeftToFsspecError: Such as with files of credentials in the environment, which obstore
                reads in any case.
        """
        from obstore.exceptions import BaseError

        with self._opening:
            for number, (others, theirs, store) in enumerate(self._stores):
                if others == settings and theirs == credentials:
                    self._stores.append(self._stores.pop(number))
                    return store
            try:
                store = settings.open(credentials)
            except (BaseError, OSError, ValueError):
                raise LeftToFsspecError("obstore does not open it") from None
            self._stores.append((settings, credentials, store))
            del self._stores[:-_KEPT_STORES]
            return store

    def forget(self, store: Any) -> None:  # noqa: ANN401  # obstore's
        """Nobody gets it again: its credentials were refused."""
        with self._opening:
            self._stores = [kept for kept in self._stores if kept[2] is not store]

    def _forked(self) -> None:
        self.is_child_of_a_user = self.is_child_of_a_user or self.is_user
        # A thread that is not here may hold them.
        self.lock, self._opening = threading.Lock(), threading.Lock()


_process: Final = _Process()
