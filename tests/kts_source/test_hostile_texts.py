"""Tests that hostile names are escaped in notebooks, terminals, logs and Prometheus metrics."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.auditing.report import AuditReport, Finding, PartitionStatement, to_prometheus
from kts_source.cli.app import main
from kts_source.cli.output import json_text, print_json, print_table
from kts_source.errors import CorruptSegmentError
from kts_source.export.report import Skipped, empty_report
from kts_source.layout.layout import Orphan
from kts_source.texts import MAX_ROWS, Table, printable, some
from tests.golden_data import tier_options
from tests.kts_source.auditing.damaged_tier import TOPIC, healthy_segments, write_tier
from tests.kts_source.reporting.test_page import HOSTILE, SAFE

if TYPE_CHECKING:
    from pathlib import Path


class _Parsed(HTMLParser):
    """Parses the start tags, attribute names and cell texts of a table."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.names: set[str] = set()
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


TABLE_TAGS = {"table", "caption", "b", "thead", "tbody", "tr", "th", "td"}


def create_report(text: str) -> AuditReport:
    finding = Finding("half-copy", text, text, 0, 0, None, (text,), 5, text)
    statement = PartitionStatement(text, text, 0, 0, 5, 5, 1, 5, is_whole=True)
    return AuditReport("metadata", 1, text, (finding,), (statement,))


def check_html(html: str, text: str) -> None:
    parsed = _Parsed(html)
    assert set(parsed.tags) <= TABLE_TAGS
    assert parsed.names <= {"style", "colspan"}
    assert all(SAFE.fullmatch(cell) for cell in parsed.texts)
    assert any(printable(text) in cell for cell in parsed.texts)


@pytest.mark.parametrize("text", HOSTILE)
def test_notebook_tables_escape_texts(text: str) -> None:
    check_html(Table.of_facts(text, {text: text}).html(), text)
    check_html(Table(text, (text,), [(text,)]).html(), text)
    check_html(create_report(text)._repr_html_(), text)
    gap = Skipped(text, 0, 1, 2, text)
    report = empty_report(text, "parquet")
    check_html(replace(report, skipped=(gap,))._repr_html_(), text)


def test_notebook_tables_contain_the_same_values_as_plain_texts() -> None:
    options = tier_options("txn")
    described = kts_source.describe(options)
    cells = _Parsed(described._repr_html_()).texts
    assert cells[0] == "Tier"
    assert {"txn-0", "txn-1", "3,675", "open transaction of producer 6 since offset 3675"} <= {
        *cells
    }
    plan = kts_source.plan(options)
    shown = "".join(_Parsed(plan._repr_html_()).texts)
    requests = re.search(r"([\d,]+) requests", plan.explain())
    assert requests is not None
    assert requests[0] in shown
    assert "txn-0" in shown
    audit = kts_source.audit(tier_options("crashed"))
    assert "duplicate-upload" in audit._repr_html_()
    assert "whole" in audit._repr_html_()
    assert "Scan" in kts_source.scan(options)._repr_html_()


def test_long_notebook_tables_are_truncated() -> None:
    html = Table("t", ("n",), [(n,) for n in range(MAX_ROWS + 7)]).html()
    assert html.count("<td") == MAX_ROWS + 1
    assert "and 7 more" in html


@pytest.mark.parametrize("text", HOSTILE)
def test_prometheus_metrics_escape_names(text: str) -> None:
    lines = to_prometheus(create_report(text)).split("\n")
    assert lines.pop() == ""
    # Prometheus text format: a name, labels with escaped values, and a number.
    label = r'[a-z]+="(?:[^"\\\n]|\\["\\n])*"'
    sample = re.compile(rf"kts_audit_[a-z_]+\{{{label}(?:,{label})*\}} \S+")
    samples = [line for line in lines if not line.startswith("#")]
    assert len(samples) >= 6
    for line in samples:
        assert sample.fullmatch(line), line
        line.encode()
    topics = re.findall(r'topic="((?:[^"\\]|\\.)*)"', "\n".join(samples))
    unescaped = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
    assert {re.sub(r"\\.", lambda match: unescaped[match[0]], topic) for topic in topics} == {
        "\n".join(map(printable, text.split("\n")))
    }


@pytest.mark.parametrize("text", HOSTILE)
def test_terminal_output_escapes_texts(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_table((text,), [(text,)])
    print_json({text: [text]})
    out = capsys.readouterr().out
    assert all(SAFE.fullmatch(line) for line in out.split("\n"))
    assert json.loads(json_text({text: text})) == {text: text}
    assert SAFE.fullmatch(json_text(text))
    error = CorruptSegmentError(text, topic=text, uri=text)
    assert SAFE.fullmatch(str(error))
    assert error.message == text
    assert SAFE.fullmatch(some([text]))
    assert SAFE.fullmatch(some(map(str, [Orphan((text,), "why")])))


def test_printable_keeps_readable_text() -> None:
    for text in ("orders-ü-日本-🙂", "a b", "x\\n"):
        assert printable(text) == text
        assert text in json_text({"x": text}) or "\\" in text


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\u202eb", "a\x9bb", "a\nkts: all is well"])
def test_object_names_are_escaped_in_logs_and_commands(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    tier = write_tier(tmp_path / "tier", healthy_segments())
    folder = tier.path(0, "log").parent
    (folder / f"00000000000000000000-{name}.log").write_bytes(b"x")
    tier.path(4, "rsm-manifest").unlink()
    tier_arguments = [str(tier.root), "--subscribe", TOPIC]
    with caplog.at_level(logging.DEBUG, "kts_source"):
        for command in (
            ["topics", *tier_arguments],
            ["topics", *tier_arguments, "--json"],
            ["segments", *tier_arguments],
            ["plan", *tier_arguments, "--no-fail-on-data-loss"],
            ["audit", *tier_arguments],
            ["audit", *tier_arguments, "--json"],
            ["report", *tier_arguments, "--output", str(tmp_path / "x.html")],
        ):
            main(command)
    out, err = capsys.readouterr()
    for text in (out, err, *(record.getMessage() for record in caplog.records)):
        assert all(SAFE.fullmatch(line) for line in text.split("\n"))
        assert "\nkts: all" not in text
    assert "all is well" in out or "\\x" in out or "\\u202e" in out
    assert SAFE.fullmatch((tmp_path / "x.html").read_text().replace("\n", ""))
