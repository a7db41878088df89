"""One row of the table of options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table.

    Attributes:
        name: As users write it.
        parse: Text to value; raises `InvalidOptionError` naming the option.
        default: Shown in the docs; `None` = no default text. Parsed like a given value.
        doc: One sentence for the docs.
    """

    name: str
    parse: Callable[[str, str], Any]
    default: str | None
    doc: str
