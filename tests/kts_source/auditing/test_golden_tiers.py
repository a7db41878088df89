"""Tests audits of tiers that real brokers wrote.

The audits must report no errors, and only the expected warnings.
"""

from __future__ import annotations

import pytest

import kts_source
from kts_source.auditing.report import LEVELS, Severity
from tests.golden_data import LOCAL_TIER, TOPICS, summary, tier_options
from tests.kts_source.auditing.damaged_tier import NOW_MS

# The broker was killed during three uploads of `crashed`. They left a log only, a log with side
# files, and a complete segment that never became live. `recreated` was deleted, and the objects
# that Kafka deleted were restored.
WARNINGS = {
    ("crashed", "half-copy", 0),
    ("crashed", "duplicate-upload", 0),
    ("recreated", "other-topic-id", 0),
}


@pytest.mark.parametrize("level", LEVELS)
def test_golden_tier_has_only_expected_warnings(level: str) -> None:
    options = tier_options(TOPICS)
    report = kts_source.audit(options, level=level, now_ms=NOW_MS)
    assert report.errors == ()
    assert report.exit_code == 0
    warnings = [finding for finding in report.findings if finding.severity is Severity.WARNING]
    assert {(finding.topic, finding.name, finding.start) for finding in warnings} == WARNINGS
    assert len(warnings) == len(WARNINGS) + 1  # two half copies
    kinds = {(finding.topic, finding.name) for finding in report.findings}
    other_kinds = kinds - {warning[:2] for warning in WARNINGS}
    # These transactions are still open at the end of the tier.
    open_transactions = {("txn", "open-transaction"), ("encrypted", "open-transaction")}
    assert other_kinds == (set() if level == "listing" else open_transactions)


def test_audit_reports_the_same_offsets_and_row_counts_as_the_broker() -> None:
    report = kts_source.audit(tier_options(TOPICS), level="bytes", now_ms=NOW_MS)
    expected = {
        (topic["topic"], topic["topicId"], partition["partition"]): (
            partition["log_start_offset"],
            partition["tier_end_offset"],
            partition["tier_last_stable_offset"],
            partition["rows_in_tier_read_uncommitted"],
        )
        for topic in summary()["topics"]
        for partition in topic["partitions"]
    }
    for statement in report.partitions:
        facts = (
            statement.start,
            statement.stop,
            statement.last_stable_offset,
            statement.records,
        )
        key = (statement.topic, statement.topic_id, statement.partition)
        assert facts == expected[key], statement.topic
        assert statement.is_whole
        assert statement.digest is not None


@pytest.mark.parametrize("level", LEVELS)
def test_tier_written_by_local_tiered_storage_has_no_errors(level: str) -> None:
    options = {
        "path": str(LOCAL_TIER / "tier"),
        "layout": "local-tiered-storage",
        "subscribePattern": ".*",
    }
    report = kts_source.audit(options, level=level, now_ms=NOW_MS)
    assert {finding.name for finding in report.findings} <= {"open-transaction"}
    assert [(statement.topic, statement.partition) for statement in report.partitions] == [
        ("codecs", 0),
        ("txn", 0),
        ("txn", 1),
    ]
