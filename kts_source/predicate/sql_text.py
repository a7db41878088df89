"""The text of a predicate and the tree that sqlglot makes of it, each told from the other.

sqlglot does not get to see string literals, whose escapes are Spark's: marks stand in their place.
"""

from __future__ import annotations

from typing import Any, Final

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError

_DIALECT: Final = "spark"
_MAX_TEXT: Final = 1 << 20
_STRINGS: Final = (TokenType.STRING, TokenType.RAW_STRING, TokenType.HEX_STRING)


class SqlText:
    """One text; `ValueError` if it is too long."""

    def __init__(self, text: str) -> None:
        if len(text) > _MAX_TEXT:
            raise ValueError(f"a predicate of {len(text)} characters; {_MAX_TEXT} are read")
        self._text = text
        self._strings: dict[str, str] = {}  # mark to literal, quotes included

    def tree(self) -> exp.Expr:
        """The tree of the one expression it holds; `ValueError` if it holds something else."""
        try:
            trees = sqlglot.parse(self._without_strings(), read=_DIALECT)
        except SqlglotError as error:
            raise ValueError(self._syntax_error(error)) from None
        if len(trees) != 1 or trees[0] is None:
            raise ValueError(f"one condition is expected, not {self._text!r}")
        return trees[0]

    def string(self, node: exp.Literal) -> str:
        """A string literal as it stands in the text, or as sqlglot added it, quotes included."""
        return self._strings.get(node.this, f"'{node.this}'")

    def of(self, node: exp.Expr) -> str:
        """A part of the tree as text."""
        copy = node.copy()
        for literal in list(copy.find_all(exp.Literal)):
            if literal.this in self._strings:
                raw = exp.Var(this=self._strings[literal.this])
                if literal is copy:
                    copy = raw
                else:
                    literal.replace(raw)
        return copy.sql(dialect=_DIALECT)

    def _without_strings(self) -> str:
        pieces: list[str] = []
        position = 0
        for token in sqlglot.tokenize(self._text, read=_DIALECT):
            if token.token_type in _STRINGS:
                mark = f"$string{len(self._strings)}"
                pieces += self._text[position : token.start], f"'{mark}'"
                position = token.end + 1
                self._strings[mark] = self._text[token.start : position]
        return "".join([*pieces, self._text[position:]])

    def _syntax_error(self, error: SqlglotError) -> str:
        found: list[dict[str, Any]] = getattr(error, "errors", [])
        if not found:
            return f"not understood: {self._text!r}"
        description = str(found[0].get("description") or "not understood").strip().rstrip(".")
        return f"{description} near {found[0].get('highlight')!r} in {self._text!r}"


def names_of(node: exp.Column | exp.Dot) -> tuple[str, ...]:
    """The parts of a name, from left to right; none if one of them is something else."""
    parts = node.parts
    names = tuple(part.name for part in parts if isinstance(part, exp.Identifier))
    return names if len(names) == len(parts) else ()
