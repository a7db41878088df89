"""Lists, sizes and names in texts that people read."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHOWN: Final = 5
_LOOKED_AT: Final = 1000


def some(texts: Iterable[str]) -> str:
    """The first few of many, printable, and how many more there are."""
    found = list(texts)
    more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(map(printable, found[:_SHOWN])) + more


def one_line(reason: str) -> str:
    """The beginning of a reason, in one line."""
    return " ".join(reason[:_LOOKED_AT].split())[:300]  # it may have megabytes


def format_bytes(size: int) -> str:
    """A size in B, KiB, MiB, GiB or TiB."""
    amount, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{size} B" if unit == "B" else f"{amount:.1f} {unit}"


def printable(text: str) -> str:
    """The text without what a terminal or a reader's eye obeys: control characters, line ends and
    marks that turn the direction of writing become escapes. Names in a store come from strangers.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def camel_case(name: str) -> str:
    """An attribute's name as JSON has it: `firstOffset` for `first_offset`."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def json_fields(value: Any) -> Any:  # noqa: ANN401
    """Returns a dataclass as values of JSON, with names in camel case, nested ones too."""
    if is_dataclass(value):
        return {
            camel_case(one.name): json_fields(getattr(value, one.name)) for one in fields(value)
        }
    if isinstance(value, list | tuple):
        return [json_fields(one) for one in value]
    return value
