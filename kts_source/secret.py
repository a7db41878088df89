"""Wraps credentials and keys so that they are not printed, removes secrets from texts, and calls
functions that provide secrets.
"""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")

MASK = "***"

# Shorter values are not replaced, because a text without any "a", for example, is not readable.
_MIN_SECRET_LENGTH = 4

# An Azure URL has the container in front of the account's host, not a user.
_USER_INFO = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*://)"
    r"(?![A-Za-z0-9$-]+@[A-Za-z0-9]+\.(?:dfs|blob)\.)[^\s/@'\"]*@"
)
_CALLBACK: Final = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<function>[A-Za-z_]\w*)")
_QUERY = re.compile(r"(?P<url>[A-Za-z][A-Za-z0-9+.\-]*://[^\s?'\"]*)\?[^\s'\"]*")


class Secret(Generic[T]):
    """Wraps a value that must not be printed. Only `reveal` returns the value.

    `repr`, `str`, `format` and JSON (with `default=str`) return `***`. Pickling includes the value,
    because Spark pickles readers with their options. Secrets are equal if their values are equal,
    and are not hashable.
    """

    __slots__ = ("_value",)
    __hash__ = None  # type: ignore[assignment]  # a hash would leak the value

    def __init__(self, value: T) -> None:
        self._value = value

    def reveal(self) -> T:
        """Returns the value. Do not print or store the result."""
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
    """Returns `text` with `***` in place of user names, passwords and query strings in URLs, and in
    place of the values in `secrets`. Values with less than four characters are not replaced.
    """
    for value in sorted(set(secrets), key=len, reverse=True):
        if len(value) >= _MIN_SECRET_LENGTH:
            text = text.replace(value, MASK)
    text = _USER_INFO.sub(rf"\g<scheme>{MASK}@", text)
    return _QUERY.sub(rf"\g<url>?{MASK}", text)


def is_callback(text: str) -> bool:
    """Returns whether a text has the form `module:function`."""
    return _CALLBACK.fullmatch(text) is not None


def call_callback(callback: str, *arguments: str) -> object:
    """Calls the user's function that `callback` names in the form `module:function`. Do not show
    the errors that it raises, because their messages may quote a secret.
    """
    match = _CALLBACK.fullmatch(callback)
    assert match is not None
    return getattr(importlib.import_module(match["module"]), match["function"])(*arguments)
