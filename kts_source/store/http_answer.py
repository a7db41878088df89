"""What an HTTP answer must say before its bytes are believed, and what its status means."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    TruncatedObjectError,
)
from kts_source.store.object_store import beyond_end
from kts_source.store.retry import TransientError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiohttp import ClientResponse

AS_STORED: Final[dict[str, Any]] = {
    "auto_decompress": False,
    "headers": {"Accept-Encoding": "identity"},
}
"""Arguments of an aiohttp session whose answers are the stored bytes, since ranges count those."""

# Range units are case-insensitive (RFC 9110, 14.1).
_CONTENT_RANGE = re.compile(
    r"bytes +(?P<first>\d+)-(?P<last>\d+)/(?P<size>\d+|\*)", re.IGNORECASE | re.ASCII
)


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
    status: int,
    content_range: str | None,
    content_length: object,
    start: int,
    stop: int,
    *,
    uri: str,
) -> None:
    """Refuses an answer that is not about bytes [start, stop).

    `content_range` and `content_length` are values of its headers, None where it lacks them.

    Raises:
        TruncatedObjectError: The object ends before `stop`.
        TransientError: Another range, another length, or the range was ignored.
    """
    length = require_length(content_length)
    if content_range is None:
        if status == 206:
            raise TransientError("the answer does not say its range")
        if start == 0 and length == stop:
            return  # the whole object is what was asked for
        raise TransientError(f"the range was ignored: the answer has {length} bytes")
    first, last, size = _parsed_range(content_range)
    if first != start or last >= stop:
        raise TransientError(f"another range was answered: [{first}, {last + 1})")
    if last < stop - 1:
        if size == last + 1:
            raise beyond_end(last + 1, start, stop, uri=uri)
        raise TransientError(f"less was answered than asked for: [{first}, {last + 1})")
    if length != stop - start:
        raise TransientError(f"the answer has {length} bytes for [{start}, {stop})")


def first_byte(content_range: str | None) -> int:
    """Returns the first byte of an answer; 0 where it is of the whole object.

    Raises:
        TransientError: The header cannot be read.
    """
    return 0 if content_range is None else _parsed_range(content_range)[0]


def _parsed_range(content_range: str) -> tuple[int, int, int | None]:
    """Returns first byte, last byte and the object's size; None where the size is `*`."""
    match = _CONTENT_RANGE.fullmatch(content_range.strip())
    if match is None:
        raise TransientError(f"the Content-Range {content_range[:100]!r} cannot be read")
    first, last = int(match["first"]), int(match["last"])
    size = None if match["size"] == "*" else int(match["size"])
    if first > last + 1 or (size is not None and last >= size):
        raise TransientError(f"the Content-Range {content_range[:100]!r} contradicts itself")
    return first, last, size


def joined_header(values: Iterable[str]) -> str | None:
    """Returns the value of a header that may be repeated; different values are joined by commas."""
    return ", ".join(sorted(set(values))) or None


async def ranged_body(answer: ClientResponse, start: int, stop: int, *, uri: str) -> bytes:
    """Reads the body of a successful answer to a request for bytes [start, stop).

    The session must not decompress, see `AS_STORED`.

    Raises:
        TruncatedObjectError: The object ends before `stop`.
        TransientError: The answer is about other bytes.
    """
    content_range = joined_header(answer.headers.getall("Content-Range", ()))
    require_range(answer.status, content_range, answer.content_length, start, stop, uri=uri)
    return await answer.read()


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
    size = None if content_range is None else _parsed_range(content_range)[2]
    if size is None:
        raise TransientError("the answer does not say the size of the object")
    return size
