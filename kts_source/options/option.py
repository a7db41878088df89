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
        parse: Option name and text to value; raises `InvalidOptionError` that names the option.
        doc: One sentence for the docs.
        default: Shown in the docs, and parsed like a given text; `None` = no default.
    """

    name: str
    parse: Callable[[str, str], Any]
    doc: str
    default: str | None = None
