"""LIKE as Spark decides it: a pattern over characters, on bytes that may not be valid UTF-8.

Spark turns the bytes into a Java string, where each malformed stretch becomes one U+FFFD, and `_`
takes any one character of that. Literal text is found byte by byte: a valid sequence of UTF-8
begins and ends where the decoded string has a character's borders too, so no decoding is needed
without `_`.
"""

from __future__ import annotations

import re
from typing import Final

from kts_source.predicate.model import Wildcard

_REPLACEMENT: Final = "\ufffd"


def parse_pattern(text: str, escape: str = "\\") -> tuple[str | Wildcard, ...]:
    """The parts of a LIKE pattern.

    `escape` takes the meaning from the wildcard, or from itself, behind it.

    Raises:
        ValueError: The escape character stands before anything else or at the end, or the pattern
            holds U+FFFD, which cannot be told from malformed bytes.
    """
    if _REPLACEMENT in text:
        raise ValueError("a LIKE pattern cannot hold U+FFFD, which stands for malformed bytes")
    parts: list[str | Wildcard] = []
    characters = iter(text)
    for character in characters:
        part: str | Wildcard = character
        if character == escape:
            part = next(characters, "")
            if part not in ("_", "%", escape) or not part:
                raise ValueError(
                    f"LIKE {text!r}: the escape character {escape!r} stands before"
                    f" {part!r}, not before '_', '%' or itself"
                )
        elif character in ("_", "%"):
            part = Wildcard(character)
        last = parts[-1] if parts else None
        if isinstance(part, str) and isinstance(last, str):
            parts[-1] = last + part
        elif part is not Wildcard.RUN or last is not Wildcard.RUN:
            parts.append(part)
    return tuple(parts)


def text_pattern(pattern: tuple[str | Wildcard, ...]) -> re.Pattern[str]:
    """What a decoded string must match in full."""
    return re.compile(
        "".join(
            re.escape(part) if isinstance(part, str) else "." if part is Wildcard.ONE else ".*"
            for part in pattern
        ),
        re.DOTALL,
    )


def byte_pattern(pattern: tuple[str | Wildcard, ...]) -> bytes:
    """The same for bytes, as an RE2 expression in Latin-1; not for patterns with `_`."""
    parts = (
        b"".join(b"\\x%02x" % byte for byte in part.encode()) if isinstance(part, str) else b".*"
        for part in pattern
    )
    return rb"(?s)\A" + b"".join(parts) + rb"\z"


def java_string(data: bytes) -> str:
    """Bytes as `new String(bytes, UTF_8)` of Java decodes them.

    As Python with replacement, but an encoded surrogate (ED A0 80 … ED BF BF, or cut short) is one
    U+FFFD there.
    """
    return _SURROGATE.sub(b"\xff", data).decode("utf-8", "replace")


# Behind a lead byte that would take ED for a continuation nothing is lost: ED is none.
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?", re.DOTALL)
