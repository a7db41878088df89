"""Describes changed settings of an export in the words of its options.

A table stores its settings as compact texts, such as the `repr` of a parsed predicate. These texts
must not change, so this module translates them for messages.
"""

from __future__ import annotations

import ast
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from kts_source.predicate.model import Op, Part, Wildcard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NAMES: Final = {"partitionBy": "partition_by"}
_ENUM: Final = re.compile(r"<(\w+\.\w+): (?:'[^']*'|\"[^\"]*\")>")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_VALUES: Final[Mapping[str, str]] = {
    f"{type(member).__name__}.{member.name}": str(member.value)
    for kind in (Op, Part, Wildcard)
    for member in kind
}


def describe_change(name: str, before: str | None, after: str) -> str:
    """Returns a text such as `isolationLevel: read_committed → read_uncommitted`.

    Args:
        name: Name of the setting.
        before: Stored text of the setting; `None` if the table has only its digest.
        after: Text of the setting in this run.
    """
    label = _NAMES.get(name, name)
    if before is not None and name == "columns":
        return "; ".join(_column_changes(before, after))
    if before is not None and name == "transform":
        names = [text.partition("#")[0].partition("~")[0] for text in (before, after)]
        if names[0] == names[1]:
            return f"{label}: the code of {names[0]}, or an object that it uses, has changed"
    old = "another value" if before is None else _plain(name, before)
    return f"{label}: {old} → {_plain(name, after)}"


def _plain(name: str, text: str) -> str:
    if not text:
        return "none"
    if name == "where":
        return where_sql(text)
    if name == "transform":
        return text.partition("#")[0].partition("~")[0]
    if name == "columns":
        return ", ".join(f"{column} ({form})" for column, form in _columns(text).items())
    if name == "compact":
        tombstones, retention_ms, selection = text.split(",", 2)
        return f"tombstones={tombstones}, delete_retention_ms={retention_ms}, {selection}"
    return text


def _columns(text: str) -> dict[str, str]:
    """Returns the format of each column in the setting `columns`."""
    columns = {}
    for rule in text.split(","):
        column, *form = rule.split(":")
        columns[column] = " ".join(part for part in form if not part.isdigit()) or "bytes"
        if form and form[-1].isdigit():
            columns[column] += f", type {form[-1]}"
    return columns


def _column_changes(before: str, after: str) -> Iterator[str]:
    old, new = _columns(before), _columns(after)
    if [*old] != [*new] and {*old} == {*new}:
        yield f"columns: {', '.join(old)} → {', '.join(new)}"
    for column in dict.fromkeys((*old, *new)):
        if (first := old.get(column, "no column")) != (then := new.get(column, "no column")):
            yield f"columns: {column}: {first} → {then}"


def where_sql(text: str) -> str:
    """Returns the condition whose `repr` is `text` as SQL. Returns `text` if it cannot be
    translated.
    """
    try:
        return _sql(ast.parse(_ENUM.sub(r"\1", text), mode="eval").body)
    except (SyntaxError, KeyError, ValueError, AttributeError, OverflowError):
        return text


def _sql(node: ast.expr) -> str:
    if not isinstance(node, ast.Call):
        return _literal(node)
    kind = ast.unparse(node.func)
    parts = {str(keyword.arg): keyword.value for keyword in node.keywords}
    if kind in ("And", "Or"):
        terms: Any = parts["terms"]
        return f" {kind.upper()} ".join(_term(term) for term in terms.elts)
    if kind == "Not":
        return f"NOT ({_sql(parts['term'])})"
    if kind == "Constant":
        return ast.unparse(parts["value"]).lower()
    if kind in ("Column", "Header", "Field", "Decimal"):
        return _operand(kind, node, parts)
    return _condition(kind, parts)


def _condition(kind: str, parts: Mapping[str, Any]) -> str:
    operand = parts.get("left", parts.get("operand"))
    name = _sql(operand)
    is_time = name == "timestamp" or "INSTANT" in ast.unparse(operand)
    if kind == "Compare":
        return f"{name} {_enum(parts['op'])} {_value(parts['right'], is_time=is_time)}"
    if kind == "In":
        values = [_value(value, is_time=is_time) for value in parts["values"].elts]
        values += ["NULL"] if parts["has_null"].value else []
        return f"{name} IN ({', '.join(values)})"
    if kind == "IsNull":
        return f"{name} IS NULL"
    if kind == "HasText":
        return f"{_enum(parts['part'])}({name}, {_literal(parts['text'])})"
    pattern = "".join(
        str(each.value) if isinstance(each, ast.Constant) else _enum(each)
        for each in parts["pattern"].elts
    )
    return f"{name} LIKE '{pattern}'"


def _term(node: ast.expr) -> str:
    text = _sql(node)
    is_compound = isinstance(node, ast.Call) and ast.unparse(node.func) in ("And", "Or")
    return f"({text})" if is_compound else text


def _operand(kind: str, node: ast.Call, parts: Mapping[str, Any]) -> str:
    if kind == "Decimal":
        return str(ast.literal_eval(node.args[0]))
    if kind == "Field":
        path = ast.literal_eval(parts["path"])
        return ".".join((ast.literal_eval(parts["source"]), *path))
    name: str = ast.literal_eval(parts["name"])
    return name if kind == "Column" else f"header('{name}')"


def _value(node: ast.expr, *, is_time: bool) -> str:
    if is_time and isinstance(node, ast.Constant) and isinstance(node.value, int):
        return f"timestamp '{(_EPOCH + timedelta(microseconds=node.value)).isoformat()}'"
    return _sql(node)


def _literal(node: ast.expr) -> str:
    value = ast.literal_eval(node)
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return f"X'{value.hex()}'"
    if isinstance(value, str):
        return "'" + value.replace("\\", r"\\").replace("'", r"\'") + "'"
    return str(value)


def _enum(node: ast.expr) -> str:
    return _VALUES[ast.unparse(node)]
