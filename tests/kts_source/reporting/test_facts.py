"""Checks the numbers of a report against the results of `describe`, the listed segments, plans and
file sizes.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import kts_source
from kts_source.auditing.report import AuditReport
from kts_source.cli.app import main
from kts_source.errors import InvalidOptionError
from kts_source.planning.estimate import monthly_cost
from kts_source.planning.lineage import COVERED
from kts_source.reporting.facts import MAX_TEXTS, RETENTIONS
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.golden_data import KEY_PREFIX, KEYS, TIER, TOPICS, tier_options
from tests.kts_source.auditing.damaged_tier import TOPIC, healthy_segments, write_tier
from tests.kts_source.classed_store import ClassedStore
from tests.kts_source.reporting.pages import as_shown, read_page

if TYPE_CHECKING:
    from pathlib import Path

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000


def cli(capsys: pytest.CaptureFixture[str], command: str, *arguments: str) -> str:
    keys = [
        f"encryption.key.pairs.{path.name.removesuffix('.private.pem')}.private.key.file={path}"
        for path in sorted(KEYS.glob("*.private.pem"))
    ]
    flags = [text for key in keys for text in ("-o", key)]
    assert main([command, str(TIER), "--key-prefix", KEY_PREFIX, *flags, *arguments]) == 0
    return capsys.readouterr().out


def snake_cased(text: str) -> list[dict[str, Any]]:
    """Parses JSON rows, and converts the names of their fields to snake case."""
    return [
        {re.sub("[A-Z]", lambda match: f"_{match[0].lower()}", name): row[name] for name in row}
        for row in json.loads(text)
    ]


def test_figures_on_report_page_equal_output_of_kts_topics(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = snake_cased(cli(capsys, "topics", "--json"))
    cli(capsys, "report", "--output", str(tmp_path / "report.html"))
    page = read_page((tmp_path / "report.html").read_text())
    assert len(page.partitions) == len(rows) > 15
    for shown, row in zip(page.partitions, rows, strict=True):
        del row["keys_needed"]
        for name in ("holes", "unverifiable", "skipped", "orphans"):
            assert shown[f"{name}_count"] == len(row[name])
        assert {name: shown[name] for name in row} == {
            name: as_shown(value) for name, value in row.items()
        }
    totals = page.facts["totals"]
    assert totals["segments"] == sum(row["segments"] for row in rows)
    assert totals["stored_bytes"] == sum(row["stored_bytes"] for row in rows)
    assert totals["original_bytes"] == sum(row["original_bytes"] for row in rows)
    assert totals["topics"] == len(TOPICS)


def test_segments_on_report_page_equal_output_of_kts_segments(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = json.loads(cli(capsys, "segments", "--json"))
    page = read_page(kts_source.report(tier_options(TOPICS), now_ms=NOW_MS).to_html())
    names = [(partition["topic"], partition["partition"]) for partition in page.partitions]
    columns = page.columns
    ids = page.facts["ids"]
    page_segments = {
        (
            *names[columns["partition"][row]],
            ids[str(row)],
            columns["start"][row],
            columns["stop"][row],
            columns["stored"][row],
            columns["original"][row],
            columns["newest"][row],
            bool(columns["flags"][row] & 1),
            bool(columns["flags"][row] & 2),
            columns["state"][row] == 0,
        )
        for row in range(page.facts["count"])
    }
    used = {
        (row["topic"], row["partition"], row["segment"]) for row in rows if row["state"] == "read"
    }
    expected = {
        (
            row["topic"],
            row["partition"],
            row["segment"],
            row["start"],
            row["stop"],
            row["storedBytes"],
            row["bytes"],
            -1 if row["maxTimestampMs"] < 0 else row["maxTimestampMs"] // 1000,
            row["compression"],
            row["encrypted"],
            row["state"] == "read",
        )
        for row in rows
        # Only `kts segments` lists the part of a segment below the log start separately.
        if row["state"] == "read" or (row["topic"], row["partition"], row["segment"]) not in used
    }
    assert page_segments == expected
    assert columns["partition"] == sorted(columns["partition"])
    states = {page.facts["states"][code] for code in columns["state"]}
    assert states == {"served", COVERED}


def test_read_cost_in_report_equals_estimate_of_plan() -> None:
    facts = kts_source.report(tier_options(TOPICS), now_ms=NOW_MS).facts
    plan = kts_source.plan(tier_options(TOPICS, isolationLevel="read_committed"))
    summary = plan.explain().splitlines()[1]
    assert f"{facts.cost.read_requests:,} requests for {facts.cost.read_bytes:,} stored" in summary


def test_stored_bytes_in_report_equal_object_sizes() -> None:
    facts = kts_source.report(tier_options(TOPICS), now_ms=NOW_MS).facts
    counted_bytes = sum(facts.cost.served_bytes.values()) + sum(facts.cost.unserved_bytes.values())
    counted_bytes += facts.cost.side_file_bytes + facts.cost.orphan_bytes
    objects = [path for path in TIER.rglob("*") if path.is_file()]
    # The report excludes manifests, and one of the two topic ids of topic `recreated`.
    other = next(TIER.rglob("recreated-Y0eIqb0wSCGvx1A44Duolw"))
    counted = [p for p in objects if p.suffix != ".rsm-manifest" and other not in p.parents]
    assert counted_bytes == sum(path.stat().st_size for path in counted)
    assert facts.cost.monthly == pytest.approx(counted_bytes / 2**30 * 0.023)
    assert monthly_cost({"DEEP_ARCHIVE": 2**40}) < monthly_cost({"of another store": 2**40})


def dated_tier(root: Path, days: list[int]) -> dict[str, str]:
    """Writes one segment for each number in `days`, with a record that many days after `NOW_MS`.
    Writes an additional segment with a record 400 days after `NOW_MS`.
    """
    builder = LogBuilder()
    for day in [*days, 400]:
        builder.append([SimpleRecord(bytes(500), timestamp=NOW_MS + day * DAY_MS)])
        builder.roll()
    writer = AivenTierWriter(str(root), topic="dated")
    for segment in builder.build().segments:
        writer.write_segment(segment)
    return {"path": str(root), "subscribe": "dated"}


def test_growth_and_size_per_retention_are_computed_from_segment_dates(tmp_path: Path) -> None:
    days = [-1000, -100, -40, -10, -10, -1]
    facts = kts_source.report(dated_tier(tmp_path, days), now_ms=NOW_MS).facts
    size = next(tmp_path.rglob("*.log")).stat().st_size
    today = NOW_MS // DAY_MS
    assert [
        (entry.day - today, entry.segments, entry.stored_bytes) for entry in facts.growth.days
    ] == [
        (-1000, 1, size),
        (-100, 1, size),
        (-40, 1, size),
        (-10, 2, 2 * size),
        (-1, 1, size),
    ]
    assert facts.growth.future_bytes == size
    assert facts.growth.undated_bytes == 0
    assert facts.growth.rate_days == 30
    assert facts.growth.rate == pytest.approx(3 * size / 30)
    assert [(entry.retention_days, entry.older_segments) for entry in facts.retentions] == [
        (limit, sum(-day > limit for day in days)) for limit in RETENTIONS
    ]
    for entry in facts.retentions:
        assert entry.older_bytes == entry.older_segments * size
        assert entry.steady_bytes == round(facts.growth.rate * entry.retention_days)


def test_missing_and_undecided_offsets_are_reported(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    tier.lose(2, "log", "indexes", "rsm-manifest")
    source = {"path": str(tmp_path), "keyPrefix": "", "subscribe": TOPIC}
    report = kts_source.report(source, now_ms=NOW_MS)
    described = kts_source.describe(source)
    assert report.facts.partitions == described.partitions
    assert report.facts.totals()["holes"] == 1
    assert report.facts.totals()["missing_offsets"] == 41
    (partition,) = read_page(report.to_html()).partitions
    assert partition["holes"] == [[82, 123]]


def test_long_lists_are_truncated_and_counted(tmp_path: Path) -> None:
    builder = LogBuilder()
    for _ in range(MAX_TEXTS + 5):
        builder.append([SimpleRecord(b"x")])
        builder.roll()
        builder.append([SimpleRecord(b"y")])
        builder.roll()
    writer = AivenTierWriter(str(tmp_path), topic="many")
    for segment in builder.build().segments[::2]:
        writer.write_segment(segment)
    report = kts_source.report({"path": str(tmp_path), "subscribe": "many"}, now_ms=NOW_MS)
    (partition,) = read_page(report.to_html()).partitions
    assert partition["holes_count"] == MAX_TEXTS + 4 == report.facts.totals()["holes"]
    assert len(partition["holes"]) == MAX_TEXTS


def test_report_shows_an_audit_of_the_same_tier() -> None:
    options = tier_options("crashed")
    report = kts_source.audit(options)
    assert AuditReport.from_json(report.to_json()) == report
    page = read_page(kts_source.report(options, audit=report, now_ms=NOW_MS).to_html())
    assert page.facts["audit"]["findings"] == report.to_dict()["findings"]
    assert sum(page.facts["audit"]["counts"].values()) == len(report.findings) > 0
    with pytest.raises(InvalidOptionError, match="the audit is of file:///elsewhere"):
        kts_source.report(options, audit=replace(report, path="file:///elsewhere"))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "[]",
        lambda text: text[:-10],
        lambda text: text.replace('"version": 1', '"version": 2'),
        lambda text: text.replace('"kind": "', '"kind": "no-such-'),
        lambda text: text.replace('"storedBytes": ', '"storedBytes": "x", "y": '),
        lambda text: text.replace('"objects": [', '"objects": [1, '),
        lambda text: text.replace('"isWhole": true', '"isWhole": 1').replace(
            '"isWhole": false', '"isWhole": 0'
        ),
    ],
)
def test_invalid_audit_file_is_refused(
    change: object, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert callable(change)
    options = tier_options("crashed")
    path = tmp_path / "audit.json"
    path.write_text(change(kts_source.audit(options).to_json()))
    flags = ["--subscribe", "crashed", "--key-prefix", KEY_PREFIX, "--audit", str(path)]
    assert main(["report", str(TIER), *flags, "--output", str(tmp_path / "x.html")]) == 2
    assert "written by kts audit --report" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


def test_report_command_requires_one_output_file(capsys: pytest.CaptureFixture[str]) -> None:
    where = [str(TIER), "--key-prefix", KEY_PREFIX, "--subscribe", "codecs"]
    assert main(["report", *where]) == 2
    assert "--output" in capsys.readouterr().err
    assert main(["report", *where, "--output", "x.png"]) == 2
    assert "--output x.png does not end with .html" in capsys.readouterr().err
    assert main(["report", *where, "--output", "/nowhere/x.html"]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert main(["report", *where, "-o", "a.html", "-o", "b.html"]) == 2


def test_report_lists_partitions_without_encryption_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    where = [str(TIER), "--key-prefix", KEY_PREFIX]
    assert main(["topics", *where, "--json"]) == 0
    rows = snake_cased(capsys.readouterr().out)
    assert main(["report", *where, "--output", str(tmp_path / "report.html")]) == 0
    page = read_page((tmp_path / "report.html").read_text())
    open_rows = [row for row in rows if row["log_start"] is not None]
    locked = [row for row in rows if row["log_start"] is None]
    assert {"encrypted", "epochs"} <= {row["topic"] for row in locked}
    assert len(open_rows) > 8
    shown = [(partition["topic"], partition["partition"]) for partition in page.partitions]
    assert shown == [(row["topic"], row["partition"]) for row in open_rows]
    names = ("topic", "topic_id", "partition", "segments", "stored_bytes", "orphans", "keys_needed")
    assert page.facts["locked"] == [
        {name: row[name] for name in (*names, "original_bytes")} for row in locked
    ]
    only_locked = [*where, "--subscribe", "encrypted", "--output", str(tmp_path / "none.html")]
    assert main(["report", *only_locked]) == 1
    assert "encryption.key.pairs" in capsys.readouterr().err


def test_report_supports_archived_and_large_tiers() -> None:
    options = tier_options("codecs")
    plain = kts_source.report(options, now_ms=NOW_MS).facts.cost
    small = {**options, "maxPlanBytes": "1", "maxPlanRequests": "1"}
    assert kts_source.report(small, now_ms=NOW_MS).facts.cost == plain
    cold = kts_source.report(options, store=ClassedStore(log="GLACIER"), now_ms=NOW_MS).facts.cost
    assert cold.served_bytes == {"GLACIER": plain.served_bytes["STANDARD"]}
    assert cold.monthly < plain.monthly
    assert (cold.read_requests, cold.read_bytes) == (plain.read_requests, plain.read_bytes)
