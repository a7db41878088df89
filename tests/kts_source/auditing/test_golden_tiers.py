"""Tiers that a real broker wrote have no errors, at any level; what they have is known."""

from __future__ import annotations

import pytest

import kts_source
from kts_source.auditing.report import LEVELS, Severity
from tests.golden_data import LOCAL_TIER, TOPICS, summary, tier_options
from tests.kts_source.auditing.damaged_tier import NOW_MS

# The broker was killed in three uploads of `crashed`: a log alone, a log with side files, and a
# whole segment that never became live. `recreated` was deleted once, and what Kafka had deleted
# was put back.
WARNINGS = {
    ("crashed", "half-copy", 0),
    ("crashed", "duplicate-upload", 0),
    ("recreated", "other-topic-id", 0),
}


@pytest.mark.parametrize("level", LEVELS)
def test_the_golden_tier_has_no_errors(level: str) -> None:
    options = tier_options(TOPICS)
    report = kts_source.audit(options, level=level, now_ms=NOW_MS)
    assert report.errors == ()
    assert report.exit_code == 0
    warnings = [one for one in report.findings if one.severity is Severity.WARNING]
    assert {(one.topic, one.name, one.start) for one in warnings} == WARNINGS
    assert len(warnings) == len(WARNINGS) + 1  # two half copies
    others = {(one.topic, one.name) for one in report.findings} - {w[:2] for w in WARNINGS}
    # Transactions that are undecided where the tier ends.
    told = {("txn", "open-transaction"), ("encrypted", "open-transaction")}
    assert others == (set() if level == "listing" else told)


def test_the_statement_is_what_the_broker_says() -> None:
    report = kts_source.audit(tier_options(TOPICS), level="bytes", now_ms=NOW_MS)
    expected = {
        (topic["topic"], topic["topicId"], part["partition"]): (
            part["log_start_offset"],
            part["tier_end_offset"],
            part["tier_last_stable_offset"],
            part["rows_in_tier_read_uncommitted"],
        )
        for topic in summary()["topics"]
        for part in topic["partitions"]
    }
    for part in report.partitions:
        stated = (part.start, part.stop, part.last_stable_offset, part.records)
        assert stated == expected[part.topic, part.topic_id, part.partition], part.topic
        assert part.is_whole
        assert part.digest is not None


@pytest.mark.parametrize("level", LEVELS)
def test_the_tier_of_kafkas_own_tests_has_none_either(level: str) -> None:
    options = {
        "path": str(LOCAL_TIER / "tier"),
        "layout": "local-tiered-storage",
        "subscribePattern": ".*",
    }
    report = kts_source.audit(options, level=level, now_ms=NOW_MS)
    assert {one.name for one in report.findings} <= {"open-transaction"}
    assert [(part.topic, part.partition) for part in report.partitions] == [
        ("codecs", 0),
        ("txn", 0),
        ("txn", 1),
    ]
