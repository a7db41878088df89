"""Tests the values of audit reports, exit codes, the documented JSON schema and metrics.

Also tests that invalid options of audits are refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import FrozenInstanceError, replace
from typing import TYPE_CHECKING, Any

import pytest

import kts_source
from kts_source.auditing.report import (
    KINDS,
    LEVELS,
    AuditReport,
    Finding,
    PartitionStatement,
    Severity,
    in_order,
    to_prometheus,
)
from kts_source.errors import InvalidOptionError, TopicNotFoundError
from kts_source.planning.estimate import S3_STORAGE
from tests.docs.fences import ROOT
from tests.kts_source.auditing.damaged_tier import NOW_MS, TOPIC, healthy_segments, write_tier

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (ROOT / "docs" / "audit-reference.md").read_text()


def create_finding(name: str, topic: str = TOPIC, start: int | None = 0) -> Finding:
    return Finding(name, topic, "id", 0, start, None, ("key",), 5, "detail")


def create_report(*findings: Finding) -> AuditReport:
    return AuditReport("metadata", 1, "file:///t", in_order(findings), ())


def test_kinds_with_advice_to_delete_exclude_used_objects() -> None:
    advises = re.compile(r"\bdelete (them|the objects|its objects)\b", re.IGNORECASE)
    advice = {name: kind.advice for name, kind in KINDS.items() if advises.search(kind.advice)}
    assert len(advice) == 7
    for name, text in advice.items():
        assert KINDS[name].allows_delete
        assert "no topic that was restored with zero copy uses them" in text


def test_docs_list_all_kinds_of_findings() -> None:
    rows = re.findall(
        r"^\| `([a-z-]+)` \| (error|warning|info) \| (\w+) \| (.*) \| (.*) \|$", PAGE, re.M
    )
    assert rows == [
        (kind.name, kind.severity.value, kind.level, kind.meaning, kind.advice)
        for kind in KINDS.values()
    ]
    assert {kind.level for kind in KINDS.values()} == set(LEVELS)


def test_exit_code_distinguishes_loss_from_damage() -> None:
    assert create_report().exit_code == 0
    assert (
        create_report(create_finding("half-copy"), create_finding("open-transaction")).exit_code
        == 0
    )
    assert create_report(create_finding("crc"), create_finding("half-copy")).exit_code == 1
    assert create_report(create_finding("crc"), create_finding("hole")).exit_code == 3
    ordered = create_report(
        create_finding("open-transaction"), create_finding("half-copy"), create_finding("crc")
    )
    assert [reported.severity for reported in ordered.findings] == list(Severity)
    with pytest.raises(FrozenInstanceError):
        ordered.level = "bytes"  # type: ignore[misc]


def conforms(value: Any, schema: dict[str, Any]) -> bool:  # noqa: ANN401
    """Returns true if a JSON value matches a schema.

    Supports only the JSON Schema keywords that the documented schema uses.
    """
    kinds = {"integer": int, "number": float, "string": str, "boolean": bool, "null": type(None)}
    kinds |= {"array": list, "object": dict}
    allowed = schema.get("type", [])
    names = allowed if isinstance(allowed, list) else [allowed]
    if names and not any(type(value) is kinds[name] for name in names):
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        return False
    if isinstance(value, int | float) and value < schema.get("minimum", value):
        return False
    if isinstance(value, list):
        return all(conforms(item, schema["items"]) for item in value)
    if isinstance(value, dict):
        properties = schema["properties"]
        return set(value) == set(schema["required"]) == set(properties) and all(
            conforms(member, properties[name]) for name, member in value.items()
        )
    return True


@pytest.mark.parametrize("level", LEVELS)
def test_json_report_matches_the_schema_in_the_docs(tmp_path: Path, level: str) -> None:
    (text,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.M | re.S)
    schema = json.loads(text)
    tier = write_tier(tmp_path, healthy_segments())
    tier.lose(2, "log", "indexes", "rsm-manifest")
    tier.resize(3, "log", -1)
    report = kts_source.audit(
        {"path": str(tmp_path), "subscribe": TOPIC}, level=level, now_ms=NOW_MS
    )
    document = json.loads(report.to_json())
    assert document == report.to_dict()
    assert conforms(document, schema)
    assert bool(document["findings"]) == (level != "listing")
    document["findings"] = [{"kind": "hole"}]
    assert not conforms(document, schema)


def test_report_contains_bytes_and_monthly_price_of_orphans(tmp_path: Path) -> None:
    tier = write_tier(tmp_path, healthy_segments())
    tier.lose(4, "rsm-manifest")
    tier.lose(2, "indexes")  # a loss, not an orphan
    stray = tier.path(4, "log").with_name("notes.txt")
    stray.write_bytes(bytes(1 << 20))
    report = kts_source.audit({"path": str(tmp_path), "subscribe": TOPIC}, now_ms=NOW_MS)
    sizes = [tier.path(4, suffix).stat().st_size for suffix in ("log", "indexes")]
    total = sum(sizes) + (1 << 20)
    assert report.orphan_bytes == total
    # A GiB of S3 Standard costs 2.3 cents a month.
    assert report.orphan_dollars_a_month == pytest.approx(total / (1 << 30) * 0.023)
    document = report.to_dict()
    assert document["orphanBytes"] == total
    assert document["orphanDollarsAMonth"] == round(total / (1 << 30) * 0.023, 6)
    parsed = AuditReport.from_json(report.to_json())
    assert parsed == report
    metrics = to_prometheus(report)
    labels = '{topic="t",partition="0"}'
    assert f"kts_audit_orphan_bytes{labels} {total}\n" in metrics
    name = "kts_audit_orphan_dollars_a_month"
    assert f"{name}{labels} {report.orphan_dollars_a_month}\n" in metrics
    healthy = to_prometheus(create_report(create_finding("crc")))
    assert f"kts_audit_orphan_bytes{labels} 0\n" in healthy
    assert parsed.orphan_dollars_a_month == report.orphan_dollars_a_month > 0


def test_docs_list_the_prices_of_storage() -> None:
    page = (ROOT / "docs" / "cost.md").read_text().partition("## Cost of storage")[2]
    documented = {
        name: float(price)
        for names, price in re.findall(r"^\| ([A-Z_, ]+) \| \$([\d.]+) \|$", page, re.M)
        for name in names.split(", ")
    }
    assert documented == S3_STORAGE


def test_hostile_topic_names_are_escaped_in_metrics_and_json() -> None:
    hostile = 'a"b\\c\nkts_audit_whole{} 1'
    text = to_prometheus(
        create_report(create_finding("crc", hostile), create_finding("crc", hostile, 7))
    )
    (line,) = [line for line in text.splitlines() if line.startswith("kts_audit_findings")]
    assert line == (
        'kts_audit_findings{topic="a\\"b\\\\c\\nkts_audit_whole{} 1",partition="0",kind="crc",'
        'severity="error"} 2'
    )
    assert "\x1b" not in create_report(create_finding("crc", "\x1b[2J")).to_json()
    assert "\x9b" not in create_report(create_finding("crc", "\x9b2J")).to_json()


def test_prometheus_metrics_have_one_sample_for_several_topic_ids() -> None:
    statements = (
        PartitionStatement(TOPIC, "new", 0, 10, 30, 30, 2, 100, is_whole=True, records=20),
        PartitionStatement(TOPIC, "old", 0, 0, 10, 10, 1, 50, is_whole=False, records=10),
    )
    text = to_prometheus(replace(create_report(), partitions=statements))
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    assert len(samples) == len([line for line in text.splitlines() if line[0] != "#"])
    labels = f'{{topic="{TOPIC}",partition="0"}}'
    names = ("whole", "start_offset", "stop_offset", "stored_bytes", "records")
    assert [samples[f"kts_audit_{name}{labels}"] for name in names] == ["0", "0", "30", "150", "30"]


def test_prometheus_metrics_omit_values_that_the_audit_did_not_compute(tmp_path: Path) -> None:
    write_tier(tmp_path, healthy_segments())
    options = {"path": str(tmp_path), "subscribe": TOPIC}
    listing = to_prometheus(kts_source.audit(options, level="listing"))
    assert "kts_audit_start_offset" not in listing
    assert 'kts_audit_whole{topic="t",partition="0"} 1\n' in listing
    all_bytes = to_prometheus(kts_source.audit(options, level="bytes"))
    assert 'kts_audit_records{topic="t",partition="0"} 201\n' in all_bytes
    helps = re.findall(r"^# HELP (\w+)", all_bytes, re.M)
    assert len(helps) == len(set(helps))


@pytest.mark.parametrize(
    "extra_options",
    [
        {"startingOffsets": '{"t":{"0":5}}'},
        {"endingTimestamp": "5"},
        {"where": "offset > 5"},
        {"planFile": "plan.json"},
        {"tailPath": "disk"},
        {"catalog": "metadata-topic", "kafka.bootstrap.servers": "localhost:1"},
        {"layout": "kafka-logs"},
    ],
)
def test_options_that_restrict_an_audit_are_refused(
    tmp_path: Path, extra_options: dict[str, str]
) -> None:
    write_tier(tmp_path, healthy_segments())
    with pytest.raises(InvalidOptionError, match="an audit covers the complete tier"):
        kts_source.audit({"path": str(tmp_path), "subscribe": TOPIC, **extra_options})


def test_unknown_level_or_topic_is_refused(tmp_path: Path) -> None:
    write_tier(tmp_path, healthy_segments())
    with pytest.raises(InvalidOptionError, match="listing, metadata, indexes, bytes"):
        kts_source.audit({"path": str(tmp_path), "subscribe": TOPIC}, level="all")
    with pytest.raises(TopicNotFoundError):
        kts_source.audit({"path": str(tmp_path), "subscribe": "u"})


def test_finding_of_unknown_kind_raises_key_error() -> None:
    with pytest.raises(KeyError):
        _ = replace(create_finding("crc"), name="none").kind
