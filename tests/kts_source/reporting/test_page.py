"""Checks that the page loads nothing, and that texts from a tier never become HTML."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kts_source
from kts_source.auditing.report import AuditReport, Finding
from kts_source.reporting.facts import SegmentColumns
from kts_source.reporting.page import MAX_IDS, packed, page
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.golden_data import tier_options
from tests.kts_source.reporting.pages import read_page

if TYPE_CHECKING:
    from pathlib import Path

NOW_MS = 1_800_000_000_000
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]><img src=x onerror=alert(1)>",
    "\" onload='x' `y` ${z} {{w}}",
    "line\u2028 and \u2029 ends\r\n",
    "\x1b[31mred\x07\x9b",
    "\u202egnp.exe\u2066",
    "\udcff\x00",
)
SAFE = re.compile(r"[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]*")


def test_content_security_policy_allows_only_own_code() -> None:
    html = kts_source.report(tier_options("epochs"), now_ms=NOW_MS).to_html()
    parsed = read_page(html)
    (policy,) = [
        attributes["content"]
        for tag, attributes in parsed.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        bodies = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert len(bodies) == 1
        digest = base64.b64encode(hashlib.sha256(bodies[0].encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    # The policy must precede the content that it covers.
    assert html.index("Content-Security-Policy") < html.index("<style>") < html.index("<script")
    names = {name for _, attributes in parsed.tags for name in attributes}
    assert not names & {"src", "href", "style", "onclick", "onload"}
    assert "http://" not in html
    assert "https://" not in html


def test_script_does_not_create_html_from_text() -> None:
    html = kts_source.report(tier_options("epochs"), now_ms=NOW_MS).to_html()
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert word not in script
    for word in ("fetch(", "XMLHttpRequest", "import(", "WebSocket", "localStorage"):
        assert word not in script


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_escaped(text: str) -> None:
    options = tier_options("epochs")
    report = kts_source.report(options, now_ms=NOW_MS)
    mark = replace(
        report.facts.partitions[0], topic=text, topic_id=text, reason=text, orphans=(text,)
    )
    finding = Finding("half-copy", text, text, 0, 0, None, (text,), 5, text)
    columns = replace(
        report.facts.segments, ids=(text,) * len(report.facts.segments), classes=(text,)
    )
    audit = AuditReport("metadata", NOW_MS, text, (finding,), ())
    html = page(replace(report.facts, uri=text, partitions=(mark,), segments=columns, audit=audit))
    plain = report.to_html()
    html.encode()  # the page can be encoded as UTF-8
    parsed, before = read_page(html), read_page(plain)
    assert [tag for tag, _ in parsed.tags] == [tag for tag, _ in before.tags]
    assert html.count("<script") == plain.count("<script") == 2
    assert html.count("<!--") == plain.count("<!--") == 0
    (partition,) = parsed.partitions
    shown = [
        *(partition[name] for name in ("topic", "topic_id", "reason")),
        partition["orphans"][0],
        parsed.facts["uri"],
        parsed.facts["ids"]["0"],
        parsed.facts["classes"][0],
        parsed.facts["audit"]["findings"][0]["detail"],
        parsed.facts["audit"]["findings"][0]["objects"][0],
        parsed.texts["title"][0],
    ]
    assert all(SAFE.fullmatch(text_shown) for text_shown in shown)
    assert len({*shown[:-1]}) == 1
    if text.isprintable():
        assert shown[0] == text


def columns_of(count: int, seed: int = 3, *, unserved: int = 0) -> SegmentColumns:
    """Returns `count` segments with random sizes and times in 30 partitions. The first `unserved`
    segments have a state in which readers ignore them.
    """
    random = np.random.default_rng(seed)
    partitions = np.sort(np.arange(count) % 30)
    length = random.integers(1, 3_000_000, count)
    stop = np.cumsum(length)
    original = (1 << 30) - random.integers(0, 1 << 14, count)
    newest = 1_700_000_000 + np.cumsum(random.integers(10, 20_000, count))
    state = np.zeros(count, np.int64)
    state[:unserved] = 2
    return SegmentColumns(
        partitions,
        stop - length,
        stop,
        (original * random.uniform(0.1, 1, count)).astype(np.int64),
        original,
        newest,
        newest + random.integers(1, 4000, count),
        state,
        random.integers(0, 9, count),
        np.full(count, 5, np.int64),
        random.integers(0, 2, count),
        np.full(count, 20_000, np.int64),
        ("STANDARD", "GLACIER_IR"),
        tuple(f"{number:022}" for number in range(count)),
    )


@pytest.mark.parametrize("count", [0, 1, 500])
def test_packed_columns_round_trip(count: int) -> None:
    columns = columns_of(count)
    facts: dict[str, Any] = {"partitions": {"names": [], "rows": []}}
    html = f'<script type="application/octet-stream" id="facts">{packed(facts, columns)}</script>'
    columns_read = read_page(html).columns
    for name, values in (
        ("partition", columns.partition),
        ("start", columns.start),
        ("stop", columns.stop),
        ("stored", columns.stored),
        ("original", columns.original),
        ("newest", columns.newest_s),
        ("copied", columns.copied_s),
        ("state", columns.state),
        ("epoch", columns.epoch),
        ("flags", columns.flags),
        ("storageClass", columns.storage_class),
    ):
        assert columns_read[name] == values.tolist(), name


def test_offsets_beyond_javascript_integers_are_marked_inexact() -> None:
    columns = columns_of(3)
    facts: dict[str, Any] = {"partitions": {"names": [], "rows": []}}
    start = '<script type="application/octet-stream" id="facts">'
    assert read_page(f"{start}{packed(facts, columns)}</script>").facts["exact"]
    far = replace(columns, start=columns.start + (1 << 60), stop=columns.stop + (1 << 60))
    parsed = read_page(f"{start}{packed(facts, far)}</script>")
    assert not parsed.facts["exact"]
    assert parsed.columns["stop"] == far.stop.tolist()


def test_page_of_100_000_segments_is_small() -> None:
    report = kts_source.report(tier_options("epochs"), now_ms=NOW_MS)
    columns = columns_of(100_000, unserved=50)
    html = page(replace(report.facts, segments=columns))
    assert len(html.encode()) <= 2_000_000
    assert len(read_page(html).facts["ids"]) == 50
    many = columns_of(100_000, unserved=100_000)
    assert len(read_page(page(replace(report.facts, segments=many))).facts["ids"]) == MAX_IDS


def test_large_numbers_are_stored_as_text(tmp_path: Path) -> None:
    far = (1 << 62) + 1
    builder = LogBuilder(start_offset=far)
    builder.append([SimpleRecord(b"x")])
    builder.roll()
    writer = AivenTierWriter(str(tmp_path), topic="far")
    for segment in builder.build().segments:
        writer.write_segment(segment)
    report = kts_source.report({"path": str(tmp_path), "subscribe": "far"}, now_ms=NOW_MS)
    parsed = read_page(report.to_html())
    assert parsed.partitions[0]["log_start"] == str(far)
    assert parsed.columns["start"] == [far]
