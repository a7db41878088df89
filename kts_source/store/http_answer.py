"""What an HTTP answer to a ranged request must say before its bytes are believed."""

from __future__ import annotations

import re

from kts_source.errors import TruncatedObjectError
from kts_source.store.retry import TransientError

_CONTENT_RANGE = re.compile(r"bytes (?P<first>\d+)-(?P<last>\d+)/(?P<size>\d+|\*)")


def require_range(
    content_range: str | None, content_length: object, start: int, stop: int, *, uri: str
) -> None:
    """Refuses an answer that is not about bytes [start, stop).

    Args:
        content_range: The header; None where the answer has none.
        content_length: The header's number; anything else where the answer has none.
        start: First byte asked for.
        stop: One past the last byte asked for.
        uri: For the error.

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
            raise TruncatedObjectError(
                f"the object has {last + 1} bytes, [{start}, {stop}) was asked for",
                uri=uri,
                position=last + 1,
            )
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


def object_size(content_range: str | None) -> int | None:
    """The size of the whole object, as a ranged answer tells it."""
    match = _CONTENT_RANGE.fullmatch(content_range or "")
    return int(match["size"]) if match and match["size"] != "*" else None
