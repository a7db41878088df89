"""Audits in several processes: the report of one process, with and without a state."""

from __future__ import annotations

import shutil
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING

import pytest

import kts_source
from kts_source.auditing import run as tasks
from kts_source.auditing.run import AuditOutcome
from kts_source.errors import InvalidOptionError, StoreError
from tests.golden_data import TIER, TOPICS, tier_options
from tests.kts_source.auditing.damaged_tier import NOW_MS
from tests.kts_source.planning.memory_store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kts_source.auditing.run import AuditJob, AuditTask


def test_processes_say_what_one_says(tmp_path: Path) -> None:
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
    # What processes have proven, one process need not read; what is at fault, it does.
    read_again: list[int] = []
    report = kts_source.audit(
        options, level="bytes", now_ms=NOW_MS, state=state, on_read=read_again.append
    )
    assert report == expected
    assert 0 < sum(read_again) < sum(read) / 3


class Loops:
    """Runs tasks here, through texts, as Spark does; may lose one."""

    is_near = False

    def __init__(self, *, loses: bool = False) -> None:
        self._loses = loses
        self.lines = 0

    def run(self, given: Sequence[AuditTask], job: AuditJob) -> Iterator[AuditOutcome]:
        assert job.state is None
        for task in given[self._loses :]:
            outcome = AuditOutcome.from_text(task.run(job).to_text())
            self.lines += len(outcome.lines)
            yield outcome


def test_outcomes_travel_as_texts(tmp_path: Path) -> None:
    from kts_source.auditing.run import audit

    options = tier_options(("txn", "timeline"))
    expected = audit(options, level="bytes", now_ms=NOW_MS)
    far, state = Loops(), str(tmp_path / "state")
    report = audit(options, level="bytes", now_ms=NOW_MS, executor=far, state=state)
    assert report == expected
    assert far.lines
    again = Loops()
    report = audit(options, level="bytes", now_ms=NOW_MS, executor=again, state=state)
    assert (report, again.lines) == (expected, 0)
    with pytest.raises(StoreError, match="did not answer"):
        audit(options, now_ms=NOW_MS, executor=Loops(loses=True))


def test_a_process_that_dies_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(*_: object) -> Iterator[object]:
        raise BrokenProcessPool

    monkeypatch.setattr(tasks, "in_processes", dying)
    with pytest.raises(StoreError, match="died"):
        kts_source.audit(tier_options("txn"), jobs=2)


def test_what_processes_cannot_do() -> None:
    with pytest.raises(InvalidOptionError, match="one process or more"):
        kts_source.audit(tier_options("txn"), jobs=0)
    with pytest.raises(InvalidOptionError, match="leave out store or jobs"):
        kts_source.audit(tier_options("txn"), jobs=2, store=MemoryStore({}))
