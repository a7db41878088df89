"""Tests options that error messages and log lines recommend: they exist, and accept the recommended
values.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, Final

import pytest

from kts_source.broker.kafka_table import COUNTED, PREFIX
from kts_source.export.settings import ExportArguments, export_settings
from kts_source.options import parse_any_options
from kts_source.options.option_table import OPTIONS

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = "broker", "export", "planning", "read", "registry", "spark", "streaming"
OTHERS: Final = {
    "kafka.sasl.mechanism": "a setting that the message rejects",
    "name": "syntax of JAAS",
    "segment.format": "a setting of the storage plugin",
    "target": "a label of Prometheus",
    "urlencode": "syntax of JAAS",
    "useKeyTab": "syntax of JAAS",
}
"""Names before `=` in messages that are not options of this package, and what they are."""
WITH: Final[dict[str, dict[str, object]]] = {
    "catalog": {"kafka.bootstrap.servers": "localhost:9092"},
    "replay": {"dead_letters": "rejected"},
    "tail": {"kafka.bootstrap.servers": "localhost:9092"},
    "writer": {"target": "shop.orders"},
}
"""Other options that an option needs, by its name."""
SOURCE: Final = {"path": "tier", "subscribe": "orders"}
NAMES: Final = {option.name for option in OPTIONS} | {f"{PREFIX}{name}" for name in COUNTED}


def _text(node: ast.AST) -> str | None:
    """Returns a string literal, with `…` for the values of an f-string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) or "…" for value in node.values)
    return None


def _texts(path: Path) -> set[str]:
    """Returns the string literals of a module that have several words, except docstrings."""
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    skipped = {
        id(part)
        for node in nodes
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    skipped |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = (_text(node) for node in nodes if id(node) not in skipped)
    return {text for text in texts if text is not None and " " in text.strip()}


def _advice() -> set[tuple[str, str]]:
    """Returns names and values of all `name=value` in messages. `…` stands for a value that is
    formatted at run time.
    """
    pattern = re.compile(r"(?<![\w…%.])([a-z][\w.]*)=([\w-]+|'\w+'|[…%\"])")
    return {
        (match[1], match[2])
        for package in PACKAGES
        for path in (ROOT / "kts_source" / package).rglob("*.py")
        for text in _texts(path)
        for match in pattern.finditer(text)
        if len(match[1]) > 1 and match[1] not in OTHERS
    }


def _is_fixed(value: str) -> bool:
    return value[0] not in '…%"'


def test_advice_is_found_in_literals_and_f_strings() -> None:
    assert {("failOnDataLoss", "false"), ("second_copy", "True"), ("export_id", "…")} <= _advice()


@pytest.mark.parametrize(("name", "value"), sorted(_advice()))
def test_recommended_option_exists_and_accepts_recommended_value(name: str, value: str) -> None:
    companions: dict[str, Any] = WITH.get(name, {})
    if name in NAMES:
        if _is_fixed(value):
            parse_any_options({**SOURCE, **companions, name: value})
        return
    assert name in ExportArguments.__annotations__
    if _is_fixed(value):
        arguments: dict[str, Any] = {"table_format": "delta", "target": "table", **companions}
        arguments[name] = ast.literal_eval(value)
        export_settings(source=SOURCE, **arguments)


def test_options_that_messages_name_exist() -> None:
    pattern = re.compile(r"\boptions? '([a-z][\w.]*)'")
    named = {
        match[1]
        for package in PACKAGES
        for path in (ROOT / "kts_source" / package).rglob("*.py")
        for text in _texts(path)
        for match in pattern.finditer(text)
    }
    assert named
    assert named <= NAMES
