"""The one wrapper for credentials and keys, and what removes them from texts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

MASK = "***"

# Values shorter than this are not searched for: erasing "a" from a text hides the text, not a
# secret.
_MIN_SECRET_LENGTH = 4

_USER_INFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*://)[^\s/@'\"]*@")
_QUERY = re.compile(r"(?P<url>[A-Za-z][A-Za-z0-9+.\-]*://[^\s?'\"]*)\?[^\s'\"]*")


class Secret(Generic[T]):
    """A value that shows itself only through `reveal`.

    `repr`, `str`, `format` and JSON (through `default=str`) give `***`. Pickling keeps the value: a
    reader must carry it to its tasks. Two secrets are equal when their values are; a secret has no
    hash.
    """

    __slots__ = ("_value",)
    __hash__ = None  # type: ignore[assignment]  # a hash of a value is a trace of it

    def __init__(self, value: T) -> None:
        self._value = value

    def reveal(self) -> T:
        """The value itself. Keep it out of anything that is shown or stored."""
        return self._value

    def __repr__(self) -> str:
        return MASK

    def __format__(self, format_spec: str) -> str:
        return format(MASK, format_spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __reduce__(self) -> tuple[object, ...]:
        return Secret, (self._value,)


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    """A text without user information and query strings of URLs, and without the given values.

    Args:
        text: Message of a client library or a server.
        secrets: Values to erase wherever they occur; very short ones are ignored.
    """
    for value in sorted(set(secrets), key=len, reverse=True):
        if len(value) >= _MIN_SECRET_LENGTH:
            text = text.replace(value, MASK)
    text = _USER_INFO.sub(rf"\g<scheme>{MASK}@", text)
    return _QUERY.sub(rf"\g<url>?{MASK}", text)
