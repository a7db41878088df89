"""Wraps credentials and keys, removes them from texts, and calls functions that provide them."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

MASK = "***"

# Shorter values are not removed from texts: without every "a" a text cannot be read.
_MIN_SECRET_LENGTH = 4

_USER_INFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*://)[^\s/@'\"]*@")
_CALLBACK: Final = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<function>[A-Za-z_]\w*)")
_QUERY = re.compile(r"(?P<url>[A-Za-z][A-Za-z0-9+.\-]*://[^\s?'\"]*)\?[^\s'\"]*")


class Secret(Generic[T]):
    """Hides a value in texts; only `reveal` returns it.

    `repr`, `str`, `format` and JSON (through `default=str`) return `***`. Pickling keeps the value,
    because Spark pickles readers with their options. Secrets are equal if their values are equal,
    and have no hash.
    """

    __slots__ = ("_value",)
    __hash__ = None  # type: ignore[assignment]  # a hash would leak the value

    def __init__(self, value: T) -> None:
        self._value = value

    def reveal(self) -> T:
        """Returns the value. Never show or store it."""
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
    """Removes user information and query strings of URLs, and secret values, from a text.

    Args:
        text: Message of a client library or a server.
        secrets: Values to remove; very short ones are ignored.
    """
    for value in sorted(set(secrets), key=len, reverse=True):
        if len(value) >= _MIN_SECRET_LENGTH:
            text = text.replace(value, MASK)
    text = _USER_INFO.sub(rf"\g<scheme>{MASK}@", text)
    return _QUERY.sub(rf"\g<url>?{MASK}", text)


def is_callback(text: str) -> bool:
    """Returns whether a text is written as `module:function`."""
    return _CALLBACK.fullmatch(text) is not None


def call_callback(callback: str, *arguments: str) -> object:
    """Calls a user's function. Hide what it raises: its message may quote a secret."""
    match = _CALLBACK.fullmatch(callback)
    assert match is not None
    return getattr(importlib.import_module(match["module"]), match["function"])(*arguments)
