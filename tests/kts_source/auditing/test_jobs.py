"""Tests that an audit in several processes returns the same report as an audit in one process.

Some of these audits use a state file.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.auditing.run import AuditOutcome
from kts_source.errors import InvalidOptionError, StoreError
from tests.golden_data import TIER, TOPICS, tier_options
from tests.kts_source.auditing.damaged_tier import NOW_MS
from tests.kts_source.planning.memory_store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kts_source.auditing.run import AuditJob, AuditTask


def test_audit_in_several_processes_has_the_same_report_as_in_one(tmp_path: Path) -> None:
    copy = tmp_path / "tier"
    shutil.copytree(TIER, copy)
    log = min(copy.rglob("*.log"))
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    options = {**tier_options(TOPICS), "path": str(copy)}
    expected = kts_source.audit(options, level="bytes", now_ms=NOW_MS)
    assert expected.errors
    state = str(tmp_path / "state")
    read: list[int] = []
    for _ in range(2):
        report = kts_source.audit(
            options, level="bytes", now_ms=NOW_MS, jobs=2, state=state, on_read=read.append
        )
        assert report == expected
    # A later audit in one process skips the segments that the audit in two processes proved.
    read_again: list[int] = []
    report = kts_source.audit(
        options, level="bytes", now_ms=NOW_MS, state=state, on_read=read_again.append
    )
    assert report == expected
    assert 0 < sum(read_again) < sum(read) / 3


class TextExecutor:
    """Runs audit tasks in this process. Serializes each outcome to text and parses it, as in Spark.

    Args:
        loses_first: True to skip the first task, so that its outcome is missing.
    """

    is_near = False

    def __init__(self, *, loses_first: bool = False) -> None:
        self._loses = loses_first
        self.lines = 0

    def run(self, audit_tasks: Sequence[AuditTask], job: AuditJob) -> Iterator[AuditOutcome]:
        assert job.state is None
        for task in audit_tasks[self._loses :]:
            outcome = AuditOutcome.from_text(task.run(job).to_text())
            self.lines += len(outcome.lines)
            yield outcome


def test_audit_by_executor_that_serializes_results_equals_default_audit(tmp_path: Path) -> None:
    from kts_source.auditing.run import audit

    options = tier_options(("txn", "timeline"))
    expected = audit(options, level="bytes", now_ms=NOW_MS)
    executor, state = TextExecutor(), str(tmp_path / "state")
    report = audit(options, level="bytes", now_ms=NOW_MS, executor=executor, state=state)
    assert report == expected
    assert executor.lines
    second = TextExecutor()
    report = audit(options, level="bytes", now_ms=NOW_MS, executor=second, state=state)
    assert (report, second.lines) == (expected, 0)
    with pytest.raises(StoreError, match="returned no result"):
        audit(options, now_ms=NOW_MS, executor=TextExecutor(loses_first=True))


def test_audit_with_zero_jobs_or_with_both_jobs_and_store_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="one process or more"):
        kts_source.audit(tier_options("txn"), jobs=0)
    with pytest.raises(InvalidOptionError, match="remove argument store or jobs"):
        kts_source.audit(tier_options("txn"), jobs=2, store=MemoryStore({}))
