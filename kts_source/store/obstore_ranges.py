"""Ranges of Azure's and Google's objects through obstore, at half the processor time of adlfs and
gcsfs.

Keys whose path obstore would change are left to those. What obstore says about a failure is text,
which only `read_error` reads.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

from kts_source.store.async_client import AsyncClient
from kts_source.store.object_store import beyond_end, check_version
from kts_source.store.range_reader import NO_TOKEN, RangeError, RangeReader
from kts_source.store.range_settings import LeftToFsspecError
from kts_source.store.retry import TransientError

if TYPE_CHECKING:
    from collections.abc import Callable

    from obstore import GetOptions

    from kts_source.secret import Secret
    from kts_source.store.counters import Tally
    from kts_source.store.range_settings import RangeSettings
    from kts_source.store.retry import RetryPolicy

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
# The answer lacks what obstore insists on, or leads elsewhere: the other library knows better.
_FOR_THE_OTHER: Final = ("Received redirect", "ETag Header missing", "Last-Modified Header missing")
_DEBUG: Final = "\n\nDebug source"
_CAUSE: Final = re.compile(r'"([^"\\]+)"|\b(IncompleteMessage|TimedOut|ConnectionReset)\b')


class ObstoreReader(RangeReader):
    """See `RangeReader`.

    obstore's threads do not come along into a child of a fork, which would wait for them: there the
    other library reads, unless this process never did.

    Args:
        place: The bucket or container, for people, as `other` is for `RangeReader`.
        other: The library that reads where obstore cannot.
        settings: See `RangeReader`.
        policy: See there.
        tally: See there.
        by_generation: Whether a version is Google's generation, not an ETag.
        doubted: Statuses of HTTP that the other library must confirm.
    """

    _name = "obstore"

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
        super().__init__(place, other, settings, policy, tally)
        self._by_generation = by_generation
        self._doubted = doubted
        self._requests = AsyncClient(_Loop, policy, tally)

    @property
    def why_not(self) -> str:
        """See `RangeReader.why_not`."""
        if _use.is_of_a_parent:
            return "obstore was used before this process was forked"
        return super().why_not

    def can_read(self, key: str) -> bool:
        """Whether obstore asks for this very key: it drops empty parts of a path."""
        return super().can_read(key) and "" not in key.split("/") and key.isprintable()

    def close(self) -> None:
        """See `RangeReader.close`."""
        super().close()
        self._requests.close()

    def _open(self, settings: RangeSettings, credentials: Secret[Any]) -> Any:  # noqa: ANN401
        from obstore.exceptions import BaseError

        try:
            return super()._open(settings, credentials)
        except BaseError:  # such as files of credentials in the environment, which it reads anyway
            raise LeftToFsspecError("obstore does not open it") from None

    def _attempt(
        self,
        client: Any,  # noqa: ANN401  # obstore's stores have no base
        key: str,
        start: int,
        stop: int,
        version: str | None,
        *,
        uri: str,
    ) -> bytes:
        from obstore import exceptions, get_async

        _use.is_ours = True
        options: GetOptions = {"range": (start, stop)}
        if version is not None:
            options["version" if self._by_generation else "if_match"] = version

        async def ranged() -> bytes:
            answer = await get_async(client, key, options=options)
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

        try:
            return self._requests.run(lambda _loop: ranged(), hedge=True)
        except (exceptions.BaseError, FileNotFoundError) as error:
            raise read_error(type(error).__name__, str(error)) from None

    def _is_others(self, failure: RangeError) -> bool:
        if failure.code == NO_TOKEN:
            return True
        if failure.status != 0:
            return failure.status in self._doubted
        # A certificate that only the other trusts looks like a connection that failed.
        is_encrypted = self._settings is not None and self._settings.endpoint[:6] == "https:"
        untrusted = is_encrypted and not self._has_answered
        return untrusted or any(one in failure.text for one in _FOR_THE_OTHER)


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
            return RangeError(0, NO_TOKEN, told.partition(": ")[2] or told)
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


class _Use:
    """Whether obstore was used in this process, or in one that it was forked from."""

    def __init__(self) -> None:
        self.is_ours = False
        self.is_of_a_parent = False
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.is_of_a_parent = self.is_of_a_parent or self.is_ours


_use: Final = _Use()
