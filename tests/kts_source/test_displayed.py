"""Tests the texts that terminals and notebooks show for the results of the Python API."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.texts import MAX_ROWS, Table, one_line
from tests.golden_data import tier_options

if TYPE_CHECKING:
    from pathlib import Path

SECRETS = {"s3.access-key-id": "the-id-of-a-key", "s3.secret-access-key": "the-secret-of-a-key"}


def shown(value: object) -> list[str]:
    """Returns the lines of a value's text. Checks that `print` and the interpreter show the same
    text.
    """
    assert repr(value) == str(value)
    assert "of-a-key" not in str(value)
    return str(value).splitlines()


def test_long_text_ends_after_a_word_with_the_number_of_missing_characters() -> None:
    text = "word " * 100
    shown_text, _, rest = one_line(text).partition(" … ")
    assert set(shown_text.split(" ")) == {"word"}
    assert rest == f"({len(text) - len(shown_text):,} more characters)"
    assert one_line("a\nb  c") == "a b c"
    assert len(one_line("x" * 5_000_000)) < 400


def check_aligned(lines: list[str]) -> None:
    """Checks that each cell begins or ends at the same position as a column name of the header.
    Cells after the last column name belong to a column without a name.
    """
    cells = [list(re.finditer(r"\S+(?: \S+)*", line)) for line in lines]
    starts, ends = ({place(cell) for cell in cells[0]} for place in (re.Match.start, re.Match.end))
    assert len(starts) > 2
    for cell in (cell for line in cells[1:] for cell in line):
        assert cell.start() in starts or cell.end() in ends or cell.start() > max(ends), cell


def test_table_aligns_numbers_right_and_texts_left() -> None:
    table = Table("Title", ("name", "count"), [("a", 5), ("bcdefg", 12_345), ("", "none")])
    assert table.text().splitlines() == [
        "Title",
        "name     count",
        "a            5",
        "bcdefg  12,345",
        "          none",
    ]


def test_table_truncates_cells_and_rows() -> None:
    table = Table("", ("text",), [("x" * 200,)] * (MAX_ROWS + 3))
    lines = table.text().splitlines()
    assert lines[1] == "x" * 59 + "…"
    assert (len(lines), lines[-1]) == (MAX_ROWS + 2, "and 3 more")


def test_table_escapes_control_characters() -> None:
    assert "\x1b" not in Table("\x1b[31m", ("\x1b",), [("\x1b[0m",)]).text()


def test_table_without_rows_shows_its_header() -> None:
    assert Table("Tier", ("partition", "stop"), ()).text() == "Tier\npartition  stop"
    assert Table("Nothing", (), ()).text() == "Nothing"


def test_description_and_plan_are_shown_as_aligned_tables() -> None:
    title, *lines = shown(kts_source.describe(tier_options("txn", **SECRETS)))
    assert title == "Tier"
    assert lines[1].split()[:4] == ["txn-0", "0", "3,963", "3,675"]
    check_aligned(lines)
    plan = kts_source.plan(tier_options("txn", **SECRETS))
    title, *lines = shown(plan)
    assert title.startswith("Plan: 1 tasks, ")
    assert lines[1].split()[:4] == ["txn-0", "0", "3,675", "11"]
    check_aligned(lines)
    assert shown(plan.tasks[0])[0].startswith("ScanTask(txn-0 [0, ")
    assert len(repr(plan.tasks[0])) < 200


def test_audit_report_is_shown_as_two_aligned_tables() -> None:
    lines = shown(kts_source.audit(tier_options("crashed", **SECRETS)))
    assert lines[0].startswith("Audit at level metadata: 0 errors, 3 findings")
    blank = lines.index("")
    check_aligned(lines[1:blank])
    assert lines[blank + 1] == "Served offsets"
    check_aligned(lines[blank + 2 :])


def test_scan_shows_its_options() -> None:
    source = {"path": "s3://bucket", "assign": '{"orders":[1,0]}', **SECRETS}
    lines = shown(kts_source.scan(source).select("key").where("offset > 5").limit(3))
    assert lines[0] == "Scan"
    facts = dict(re.split("  +", line, maxsplit=1) for line in lines[1:])
    assert facts.keys() == {"path", "topics", "columns", "isolationLevel", "where", "limit"}
    assert facts["topics"] == "orders-0, orders-1"
    assert (facts["columns"], facts["limit"]) == ("key", "3")


def test_search_hides_its_keys_and_certificate_shows_counts() -> None:
    search = kts_source.find(tier_options("txn", **SECRETS), keys=["k112", "the-key-of-a-person"])
    before = shown(search)
    assert "not read" in before[-1]
    rows = search.to_table().num_rows
    assert "read to the end" in shown(search)[-1]
    lines = shown(search.certificate)
    assert lines[0].startswith(f"Certificate: complete and exhaustive, {rows} matches in ")
    assert not any("person" in line for line in [*before, *lines])
    blank = lines.index("")
    check_aligned(lines[blank + 2 :])
    assert "<table>" in search._repr_html_()
    assert "Searched offsets" in search.certificate._repr_html_()


def test_backfill_report_is_shown_as_text(tmp_path: Path) -> None:
    target = tmp_path / "table"
    source = tier_options("txn")
    report = kts_source.backfill(None, source=source, target=target, progress=False)
    assert shown(report)[0].startswith(f"Exported to {target} (parquet): 5,589 rows")
    assert "5,589 rows" in report._repr_html_()


def test_report_is_a_table_in_terminals_and_a_page_in_notebooks() -> None:
    report = kts_source.report(tier_options("txn", **SECRETS), now_ms=1_790_000_000_000)
    lines = shown(report)
    assert lines[0].startswith("Report of file://")
    check_aligned(lines[1:])
    frame = report._repr_html_()
    match = re.fullmatch(r'<iframe srcdoc="([^"]*)" ([^<>]*)></iframe>', frame)
    assert match is not None
    assert html.unescape(match[1]) == report.to_html()
    assert 'sandbox="allow-scripts"' in match[2]


@pytest.mark.parametrize("pattern", ["^or.*s$"])
def test_selections_are_shown_without_class_names(pattern: str) -> None:
    def topics(**options: str) -> str:
        scan = kts_source.scan({"path": "s3://bucket", **options})
        return str(scan).splitlines()[2].split(maxsplit=1)[1]

    assert topics(subscribe="a,b") == "a, b"
    assert topics(subscribePattern=pattern) == f"topics that match '{pattern}'"
