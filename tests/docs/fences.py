"""Parses the fenced blocks of a documentation page."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

PYTHON: Final = "python"
SHELL: Final = "sh"
EXECUTED: Final = (PYTHON, SHELL)
SHOWN: Final = ("text", "json", "yaml", "toml", "ini", "properties")
"""Languages of blocks that the tests do not run: output, diagrams and input of other programs."""

_FENCE: Final = re.compile(r"\s*(?P<marks>`{3,}|~{3,})(?P<info>.*)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a documentation page.

    Attributes:
        language: The first word after the opening fence; may be empty.
        line: Number of the line after the opening fence; the first line of the page is 1.
    """

    language: str
    text: str
    line: int

    @property
    def needs_spark(self) -> bool:
        """Returns whether the block uses the variable `spark`."""
        return self.language == PYTHON and any(
            isinstance(node, ast.Name) and node.id == "spark"
            for node in ast.walk(ast.parse(self.text))
        )


def blocks(page: Path) -> tuple[Block, ...]:
    """Returns the fenced blocks of a page, in order.

    Raises:
        ValueError: A fence is indented, consists of tildes, or is not closed. Also raised for
            indented code without a fence, because the tests would not run it.
    """
    result: list[Block] = []
    language, lines, first = None, list[str](), 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = _FENCE.fullmatch(line)
        if fence is None:
            if language is None and line.startswith(("    ", "\t")):
                raise ValueError(f"{page.name}:{number}: put indented code between ``` fences")
            lines.append(line)
        elif not line.startswith("```") or fence["marks"] != "```":
            raise ValueError(f"{page.name}:{number}: a fence must be ``` at the start of the line")
        elif language is None:
            language, lines, first = fence["info"].strip(), [], number + 1
        else:
            result.append(Block(language.partition(" ")[0], "\n".join([*lines, ""]), first))
            language = None
    if language is not None:
        raise ValueError(f"{page.name}:{first}: the fence is not closed; end the block with ```")
    return tuple(result)
