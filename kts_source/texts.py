"""Lists in texts that people read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHOWN: Final = 5


def some(texts: Iterable[str]) -> str:
    """The first few of many, and how many more there are."""
    found = list(texts)
    more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
