"""Audits tiers that result from random sequences of events, such as uploads, elections and damage.

An audit must report each lost offset range and each damaged file, and nothing else. If it reports
no error, planning a scan must not fail.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

import kts_source
from kts_source.errors import DataLossError, InvalidOptionError, TierNotFoundError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.tier import Tier
from tests.kts_source.auditing.damaged_tier import NOW_MS
from tests.kts_source.planning.history import (
    TOPIC,
    History,
    Shape,
    Step,
    World,
    random_history,
)
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.truth import is_in_doubt, truth_of
from tests.quick import only

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kts_source.auditing.report import AuditReport, Finding, PartitionStatement
    from kts_source.planning.scan_plan import ScanPlan
    from tests.kts_source.planning.truth import PartitionTruth

DAMAGING_STEPS: Final = ("lose", "spoil")
FAMILIES: Final = {
    "index": "offset-index",
    "timeindex": "time-index",
    "txnindex": "transactions",
    "snapshot": "snapshot",
    "leader_epoch_checkpoint": "epochs",
}


def run_audit(world: World) -> AuditReport | None:
    """Audits the tier of the simulated cluster `world`. Returns `None` instead of a report if the
    tier has no segments, or if it has several topic ids and does not show which of them is the
    newest.
    """
    options = {"path": "memory://", "subscribe": TOPIC}
    if world.shape.local:
        options["layout"] = "local-tiered-storage"
    store = MemoryStore(world.store)
    try:
        return kts_source.audit(parse_options(options), level="bytes", store=store, now_ms=NOW_MS)
    except TierNotFoundError:
        return None
    except InvalidOptionError:  # the layout does not show which topic id is newer
        if len(world.incarnations) == 1:
            raise
        return None


def scan_plan(world: World) -> ScanPlan:
    """Plans a scan of the tier of the simulated cluster `world`."""
    options = parse_options({"path": "memory://", "subscribe": TOPIC})
    return plan_scan(options, Tier(MemoryStore(world.store)))


def offsets(ranges: Iterable[tuple[int, int]]) -> set[int]:
    return {offset for low, high in ranges for offset in range(low, high)}


def lost_offsets(errors: Iterable[Finding]) -> set[int]:
    ranges = ((error.start, error.stop) for error in errors if error.kind.loses_data)
    return offsets((low, high) for low, high in ranges if low is not None and high is not None)


def without_damage(history: History) -> History:
    steps = tuple(step for step in history.steps if step.kind not in DAMAGING_STEPS)
    return replace(history, steps=steps)


def check_statement(
    world: World,
    report: AuditReport,
    statement: PartitionStatement,
    truth: PartitionTruth,
    outcomes: Counter[str],
    *,
    is_damaged: bool,
) -> None:
    """Asserts that the report about one partition matches `truth`, the expected content of the
    partition. Counts the result in `outcomes`.
    """
    errors = [error for error in report.errors if error.partition == statement.partition]
    # If checkpoint and log are missing, the branch of a segment is unknown and scans fail.
    if world.shape.local and is_in_doubt(world, times=False):
        assert {error.name for error in errors} <= {"object-missing"}
        assert report.errors
        outcomes["in doubt"] += 1
        return
    # The local layout stores no copy times, so the newest of several copies of a segment is
    # unknown to audits and to scans.
    if world.shape.local and truth.is_ambiguous:
        assert not errors
        assert statement.stop == truth.stop
        outcomes["ambiguous"] += 1
        return
    reported, damaged = (
        reported_files(errors),
        damaged_uploads(world, statement.topic_id, statement.partition),
    )
    assert reported <= damaged
    # The damage may remove only the last line feed of a checkpoint, which has no effect.
    assert {family for *_, family in damaged - reported} <= {"epochs"}
    if any(family == "epochs" for *_, family in reported):
        outcomes["lineage unknown"] += 1
        return
    assert lost_offsets(errors) == offsets(truth.missing)
    assert (statement.start, statement.stop) == (truth.log_start, truth.stop)
    check_counts(statement.records, statement.batches, truth)
    outcomes["damaged" if is_damaged else "healthy"] += 1
    outcomes["with losses"] += bool(truth.missing)
    outcomes["with damaged files"] += bool(reported)
    outcomes["complete"] += statement.is_whole


def check(history: History, outcomes: Counter[str], *, is_exact: bool = True) -> None:
    """Audits the tier that results from `history` and compares the report with the expected content
    of each partition. Counts the comparisons in `outcomes`.

    If `is_exact` is true, the report must contain exactly the expected findings and offsets. If it
    is false, reports about damaged tiers and lost offsets may differ, but must not call a partition
    complete if it lost offsets. The reason is that the end of an older copy of a segment may be
    unknown if the newest copy is damaged.
    """
    world = World(history)
    report = run_audit(world)
    if report is None:
        outcomes["none"] += 1
        return
    is_damaged = any(step.kind in DAMAGING_STEPS for step in history.steps)
    truths = {truth.number: truth for truth in truth_of(world).values()}
    # With several topic ids, a scan may need the option topicId.
    has_one_id = not world.shape.local and len(world.incarnations) == 1
    if has_one_id and truths and not report.errors:
        scan_plan(world)
        outcomes["planned"] += 1
    for statement in report.partitions:
        truth = truths.get(statement.partition)
        errors = [error for error in report.errors if error.partition == statement.partition]
        if truth is None:  # the partition has only incomplete segments
            assert all(error.kind.loses_data for error in errors)
            continue
        assert statement.is_whole == (not errors)
        if any(error.name == "lineage-disagrees" for error in errors) and truth.is_start_unsure:
            outcomes["ambiguous lineage"] += 1
        elif not is_exact and (is_damaged or truth.missing):
            assert not (statement.is_whole and truth.missing)
            outcomes["damaged"] += 1
        # The local layout stores no segment ends, so an audit cannot be sure about gaps.
        elif not (world.shape.local and (is_damaged or truth.missing)):
            check_statement(world, report, statement, truth, outcomes, is_damaged=is_damaged)


def check_counts(records: int | None, batches: int | None, truth: PartitionTruth) -> None:
    if truth.missing:
        assert (records, batches) == (None, None)
        return
    rows = [row for row in truth.log.all_rows if truth.log_start <= row.offset < truth.stop]
    assert records == len(rows)


def reported_files(errors: Iterable[Finding]) -> set[tuple[int | None, int | None, str]]:
    """Returns start offset, end offset and file kind of each error that reports a damaged file
    without data loss.
    """
    names = ((error, error.name.rpartition("-")) for error in errors if not error.kind.loses_data)
    files = set()
    for error, (family, _, problem) in names:
        assert problem in ("invalid", "disagrees", "disagree"), error
        files.add((error.start, error.stop, family))
    return files


def damaged_uploads(world: World, topic_id: str, partition: int) -> set[tuple[int, int, str]]:
    """Returns the start offset, end offset and kind of each damaged file that audits can detect."""
    files = set()
    for copy in world.incarnations[topic_id][partition].complete():
        for name in copy.spoiled:
            if name != "index" or copy.files.index:  # small segments have an empty index
                files.add((copy.base, copy.stop, FAMILIES[name]))
    return files


@pytest.mark.parametrize("seeds", only(1, [range(20), range(20, 60)]))
def test_audits_of_healthy_tiers_report_no_errors(seeds: range) -> None:
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        check(without_damage(random_history(random.Random(seed))), outcomes)
    assert outcomes["complete"] > len(seeds) * 2 // 3, outcomes


def test_batch_in_two_segments_is_counted_only_once() -> None:
    # Between the copies of two segments, the log start moved into a batch that both contain.
    outcomes: Counter[str] = Counter()
    check(without_damage(random_history(random.Random("7-43"))), outcomes)
    assert outcomes["complete"] == 1


def test_audit_of_segment_copied_twice_reports_no_false_errors() -> None:
    # The last segment was copied before and after DeleteRecords. If the layout stores copy times,
    # the audit must report the log start of the newer copy.
    outcomes: Counter[str] = Counter()
    for seed in (664, 1273, 1866, 1933):
        history = without_damage(random_history(random.Random(f"healthy {seed}")))
        for local in (True, False):
            check(replace(history, shape=replace(history.shape, local=local)), outcomes)
    assert outcomes["ambiguous"] == 4


COPIED = (Step("roll", 7), Step("upload", 15))


def test_missing_segment_of_newest_epoch_is_reported_as_data_loss() -> None:
    # Only a segment of a replaced branch (epochs 0 and 2) remains. The checkpoint of the current
    # branch (epochs 1 and 3) is missing. Scans of the partition fail, so the audit must not report
    # the partition as complete.
    steps = (
        *(Step("append"), Step("elect_unclean", 1, 1), Step("append")),
        *(Step("elect_unclean", 0, 1), Step("append"), *COPIED),
        *(Step("elect_unclean", 1, 1), Step("append"), *COPIED),
        Step("lose", 1, 5),
    )
    world = World(History(Shape(), steps))
    (truth,) = truth_of(world).values()
    assert truth.missing == ((0, 2),)
    report = run_audit(world)
    assert report is not None
    (error,) = report.errors
    assert (error.name, error.start, error.stop) == ("object-missing", 0, 2)
    (statement,) = report.partitions
    assert not statement.is_whole
    assert (statement.last_stable_offset, statement.records) == (None, None)
    with pytest.raises(DataLossError, match="newest leader epoch"):
        scan_plan(world)


def test_audit_separates_transactions_of_two_branches_despite_damaged_checkpoint() -> None:
    # A marker of the new branch must not end a transaction of the replaced branch.
    steps = (
        *(Step("send", 1), Step("settle", b=14), *COPIED, Step("elect_unclean", 1, 6)),
        *(Step("append"), Step("roll", 7), Step("settle", b=10), *COPIED, Step("upload", 15)),
        *(Step("retain"), Step("spoil", 1, 4, 1)),
    )
    report = run_audit(World(History(Shape(), steps)))
    assert report is not None
    assert [error.name for error in report.errors] == ["epochs-invalid"]


def test_audits_of_two_histories_never_call_a_partition_with_losses_complete() -> None:
    outcomes: Counter[str] = Counter()
    for seed in ("fix-3-2358", "fix-1-310"):
        history = random_history(random.Random(seed))
        history = replace(history, shape=replace(history.shape, local=False))
        check(history, outcomes, is_exact=False)
    assert outcomes["damaged"] == 2


@pytest.mark.parametrize("seeds", only(1, [range(35), range(100)]))
def test_audits_of_damaged_tiers_report_lost_offsets_and_damaged_files(seeds: range) -> None:
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        check(random_history(random.Random(seed)), outcomes)
    assert outcomes["planned"] > len(seeds) // 5, outcomes
    assert outcomes["with losses"] > len(seeds) // 50, outcomes
    assert outcomes["with damaged files"] > len(seeds) // 20, outcomes


@pytest.mark.fuzz
def test_audits_of_random_histories_report_expected_findings() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    deadline = time.monotonic() + 40
    outcomes: Counter[str] = Counter()
    number = 0
    while time.monotonic() < deadline:
        history = random_history(random.Random(f"{seed}-{number}"))
        history = without_damage(history) if number % 2 else history
        # Use the other layout, because the local layout does not store all compared facts.
        history = replace(history, shape=replace(history.shape, local=False))
        try:
            check(history, outcomes, is_exact=False)
        except Exception as error:
            raise AssertionError(f"seed {seed}, history {number}: {history}") from error
        number += 1
    assert number > 100
