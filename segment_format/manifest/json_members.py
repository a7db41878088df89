"""Reading a JSON object member by member: errors name the path, leftovers are listed."""

from __future__ import annotations

import base64
import json
from typing import Final, NoReturn

from segment_format.errors import InvalidManifestError

MAX_INT32 = 2**31 - 1
MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1


def parse_json_object(data: bytes, what: str) -> dict[str, object]:
    """One JSON object from UTF-8 bytes; NaN and Infinity are refused.

    Raises:
        InvalidManifestError: Not that.
    """
    try:
        text = bytes(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidManifestError(f"{what} is not UTF-8", position=error.start) from error
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        position = len(text[: error.pos].encode("utf-8"))
        raise InvalidManifestError(f"{what} is not JSON: {error.msg}", position=position) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, deep nesting
        raise InvalidManifestError(f"{what} is not JSON that can be read") from error
    if not isinstance(value, dict):
        raise InvalidManifestError(f"{what} is not a JSON object")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


class Members:
    """The members of one JSON object; those never asked for are reported as unknown.

    Args:
        members: The parsed object.
        path: Names that lead to the object, from the document on.
    """

    __slots__ = ("_asked", "_children", "_members", "_path")

    def __init__(self, members: dict[str, object], path: tuple[str, ...] = ()) -> None:
        self._members = members
        self._path = path
        self._asked: set[str] = set()
        self._children: list[Members] = []

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def path(self, name: str) -> str:
        """Path of a member in the document."""
        return ".".join((*self._path, name))

    def fail(self, name: str, problem: str) -> InvalidManifestError:
        """The error to raise about a member."""
        return InvalidManifestError(f"{self.path(name)} {problem}")

    def value(self, name: str) -> object:
        """A required member of any type, null included."""
        self._asked.add(name)
        if name not in self._members:
            raise self.fail(name, "is missing")
        return self._members[name]

    def optional(self, name: str) -> object:
        """A member of any type; None for null and for absent."""
        self._asked.add(name)
        return self._members.get(name)

    def integer(self, name: str, *, low: int = 0, high: int = MAX_INT32) -> int:
        """A required whole number from `low` to `high`, both inclusive."""
        self._asked.add(name)
        value = self._members.get(name)
        if type(value) is not int:
            self.value(name)  # raises if it is missing
            raise self.fail(name, "is not a whole number")
        if not low <= value <= high:
            raise self.fail(name, f"is outside {low} … {high}")
        return value

    def text(self, name: str) -> str:
        """A required text that can be written as UTF-8."""
        value = self.value(name)
        if not isinstance(value, str):
            raise self.fail(name, "is not a text")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise self.fail(name, "holds half of a surrogate pair") from error
        return value

    def boolean(self, name: str) -> bool:
        """A required true or false."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise self.fail(name, "is neither true nor false")
        return value

    def base64_bytes(self, name: str) -> bytes:
        """A required text of standard base64 with padding."""
        text = self.text(name)
        try:
            return base64.b64decode(text, validate=True)
        except ValueError as error:  # binascii.Error is one
            raise self.fail(name, "is not base64") from error

    def members(self, name: str) -> Members:
        """A required JSON object."""
        value = self.value(name)
        if not isinstance(value, dict):
            raise self.fail(name, "is not a JSON object")
        child = Members(value, (*self._path, name))
        self._children.append(child)
        return child

    def optional_members(self, name: str) -> Members | None:
        """A JSON object; None for null and for absent."""
        return None if self.optional(name) is None else self.members(name)

    def items(self) -> dict[str, object]:
        """All members; asks for every one."""
        self._asked.update(self._members)
        return self._members

    def unknown(self) -> tuple[str, ...]:
        """Paths of the members that nobody asked for, here and in the objects asked for."""
        own: tuple[str, ...] = ()
        if not self._asked.issuperset(self._members):
            own = tuple(self.path(name) for name in self._members if name not in self._asked)
        for child in self._children:
            own += child.unknown()
        return own
