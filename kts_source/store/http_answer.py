"""What an HTTP answer must say before its bytes are believed, and what its status means."""

from __future__ import annotations

import re

from kts_source.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    TruncatedObjectError,
)
from kts_source.store.object_store import beyond_end
from kts_source.store.retry import TransientError

_CONTENT_RANGE = re.compile(r"bytes (?P<first>\d+)-(?P<last>\d+)/(?P<size>\d+|\*)")


def error_of_status(
    status: int, text: str, *, uri: str, wanted: str
) -> StoreError | TransientError:
    """The error that an HTTP status stands for; 0 where there was no answer.

    `text` tells of the failure, free of credentials; `wanted` of the range and version asked for.
    """
    match status:
        case 404:
            return ObjectNotFoundError("no such object", uri=uri)
        case 401 | 403:
            return AccessDeniedError(f"access denied: {text}", uri=uri)
        case 412:
            return ObjectChangedError(f"the object changed: {wanted} was planned", uri=uri)
        case 416:
            return TruncatedObjectError(f"the object ends before {wanted}", uri=uri)
    if status == 429 or (status >= 500 and status != 501):
        return TransientError(text)
    return StoreError(f"the store failed: {text}", uri=uri)


def require_range(
    content_range: str | None, content_length: object, start: int, stop: int, *, uri: str
) -> None:
    """Refuses an answer that is not about bytes [start, stop).

    `content_range` and `content_length` are values of its headers, None where it lacks them.

    Raises:
        TruncatedObjectError: The object ends before `stop`.
        TransientError: Another range, another length, or the range was ignored.
    """
    length = require_length(content_length)
    match = _CONTENT_RANGE.fullmatch(content_range or "")
    if match is None:
        if start == 0 and length == stop:
            return  # the whole object is what was asked for
        raise TransientError(f"the range was ignored: the answer has {length} bytes")
    first, last, size = int(match["first"]), int(match["last"]), match["size"]
    if first != start or last >= stop:
        raise TransientError(f"another range was answered: [{first}, {last + 1})")
    if last < stop - 1:
        if size == str(last + 1):
            raise beyond_end(last + 1, start, stop, uri=uri)
        raise TransientError(f"less was answered than asked for: [{first}, {last + 1})")
    if length != stop - start:
        raise TransientError(f"the answer has {length} bytes for [{start}, {stop})")


def require_length(content_length: object) -> int:
    """The length an answer states.

    Raises:
        TransientError: It states none.
    """
    if not isinstance(content_length, int):
        raise TransientError("the answer does not say its length")
    return content_length


def object_size(content_range: str | None) -> int:
    """The size of the whole object, as a ranged answer tells it.

    Raises:
        TransientError: It does not.
    """
    match = _CONTENT_RANGE.fullmatch(content_range or "")
    if match is None or match["size"] == "*":
        raise TransientError("the answer does not say the size of the object")
    return int(match["size"])
