"""Random lives of a tiered topic: no false alarms, and every loss and every spoiled file is named;
what an audit calls whole, a scan does not refuse.

Seen to fail when broken on purpose: transactions of a first segment that the log start cuts; the
end of a lost segment taken from one of a dead branch; the lineage of a newest segment without its
log left out of account.
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

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kts_source.auditing.report import AuditReport, Finding
    from kts_source.planning.scan_plan import ScanPlan
    from tests.kts_source.planning.truth import PartitionTruth

HARMS: Final = ("lose", "spoil")
FAMILIES: Final = {
    "index": "offset-index",
    "timeindex": "time-index",
    "txnindex": "transactions",
    "snapshot": "snapshot",
    "leader_epoch_checkpoint": "epochs",
}


def audited(world: World) -> AuditReport | None:
    """The audit of all that there is; nothing where there is no topic, or which one is not told."""
    options = {"path": "memory://", "subscribe": TOPIC}
    if world.shape.local:
        options["layout"] = "local-tiered-storage"
    store = MemoryStore(world.store)
    try:
        return kts_source.audit(parse_options(options), level="bytes", store=store, now_ms=NOW_MS)
    except TierNotFoundError:
        return None
    except InvalidOptionError:  # the layout does not tell which topic id is newer
        if len(world.incarnations) == 1:
            raise
        return None


def scan_plan(world: World) -> ScanPlan:
    """The plan of a scan of all that there is."""
    options = parse_options({"path": "memory://", "subscribe": TOPIC})
    return plan_scan(options, Tier(MemoryStore(world.store)))


def offsets(ranges: Iterable[tuple[int, int]]) -> set[int]:
    return {offset for low, high in ranges for offset in range(low, high)}


def lost(errors: Iterable[Finding]) -> set[int]:
    places = ((one.start, one.stop) for one in errors if one.kind.loses_data)
    return offsets((low, high) for low, high in places if low is not None and high is not None)


def without_harm(history: History) -> History:
    return replace(history, steps=tuple(one for one in history.steps if one.kind not in HARMS))


def check(history: History, outcomes: Counter[str], *, exactly: bool = True) -> None:
    """Compares an audit with what is known of a history.

    Args:
        history: What happened.
        outcomes: Counts what was compared.
        exactly: Whether what harm has done is compared, fault by fault and offset by offset. Where
            the newest copy is damaged, the tier alone may not tell where an older one ends: then a
            loss must be told, wherever.
    """
    world = World(history)
    report = audited(world)
    if report is None:
        outcomes["none"] += 1
        return
    harmed = any(step.kind in HARMS for step in history.steps)
    truths = {truth.number: truth for truth in truth_of(world).values()}
    # Of another incarnation there may be parts that are newer: a scan wants to be told which it is.
    told = not world.shape.local and len(world.incarnations) == 1
    if told and truths and not report.errors:
        scan_plan(world)
        outcomes["planned"] += 1
    for part in report.partitions:
        truth = truths.get(part.partition)
        errors = [one for one in report.errors if one.partition == part.partition]
        if truth is None:  # parts of segments alone
            assert all(one.kind.loses_data for one in errors)
            continue
        assert part.is_whole == (not errors)
        if any(one.name == "lineage-disagrees" for one in errors) and truth.is_start_unsure:
            outcomes["ambiguous lineage"] += 1
            continue
        if not exactly and (harmed or truth.missing):
            assert not (part.is_whole and truth.missing)
            outcomes["harmed"] += 1
            continue
        # That layout does not tell where segments end, so gaps are unsure.
        if world.shape.local and (harmed or truth.missing):
            continue
        # Of a segment without checkpoint and log nobody knows the branch: a scan reads nothing.
        if world.shape.local and is_in_doubt(world, times=False):
            assert {one.name for one in errors} <= {"object-missing"}
            assert report.errors
            outcomes["in doubt"] += 1
            continue
        # Nor when copies were made, which alone tells the newest of equal ones: a scan says the
        # same then.
        if world.shape.local and truth.is_ambiguous:
            assert not errors
            assert part.stop == truth.stop
            outcomes["ambiguous"] += 1
            continue
        named, spoiled = (
            spoiled_files(errors),
            spoiled_uploads(world, part.topic_id, part.partition),
        )
        assert named <= spoiled
        # A checkpoint that lost its last line feed says the same.
        assert {family for *_, family in spoiled - named} <= {"epochs"}
        if any(family == "epochs" for *_, family in named):
            outcomes["lineage unknown"] += 1
            continue
        assert lost(errors) == offsets(truth.missing)
        assert (part.start, part.stop) == (truth.log_start, truth.stop)
        check_counts(part.records, part.batches, truth)
        outcomes["harmed" if harmed else "healthy"] += 1
        outcomes["with losses"] += bool(truth.missing)
        outcomes["with spoiled files"] += bool(named)
        outcomes["whole"] += part.is_whole


def check_counts(records: int | None, batches: int | None, truth: PartitionTruth) -> None:
    if truth.missing:
        assert (records, batches) == (None, None)
        return
    rows = [row for row in truth.log.all_rows if truth.log_start <= row.offset < truth.stop]
    assert records == len(rows)


def spoiled_files(errors: Iterable[Finding]) -> set[tuple[int | None, int | None, str]]:
    """First offset, end, and what file it is, of findings that lose no data."""
    names = ((one, one.name.rpartition("-")) for one in errors if not one.kind.loses_data)
    found = set()
    for one, (family, _, rest) in names:
        assert rest in ("invalid", "disagrees", "disagree"), one
        found.add((one.start, one.stop, family))
    return found


def spoiled_uploads(world: World, topic_id: str, partition: int) -> set[tuple[int, int, str]]:
    """The same of what was spoiled, as far as it can be seen."""
    found = set()
    for copy in world.incarnations[topic_id][partition].complete():
        for name in copy.spoiled:
            if name != "index" or copy.files.index:  # an empty one is that of a small segment
                found.add((copy.base, copy.stop, FAMILIES[name]))
    return found


def test_healthy_tiers_have_no_errors() -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(60):
        check(without_harm(random_history(random.Random(seed))), outcomes)
    assert outcomes["whole"] > 40, outcomes


def test_a_batch_that_two_segments_share_counts_once() -> None:
    # The log start moved into it between two copies. It was counted twice once.
    outcomes: Counter[str] = Counter()
    check(without_harm(random_history(random.Random("7-43"))), outcomes)
    assert outcomes["whole"] == 1


def test_copies_of_which_nothing_tells_the_newest() -> None:
    # The last segment was copied twice, with a delete of records between: an older log start was
    # stated than the newest copy has.
    outcomes: Counter[str] = Counter()
    for seed in (664, 1273, 1866, 1933):
        history = without_harm(random_history(random.Random(f"healthy {seed}")))
        for local in (True, False):
            check(replace(history, shape=replace(history.shape, local=local)), outcomes)
    assert outcomes["ambiguous"] == 4


COPIED = (Step("roll", 7), Step("upload", 15))


def test_a_lost_segment_of_the_newest_epoch_is_no_delete() -> None:
    # What is left are a segment of a branch that died and, of the log, no checkpoint: epochs 1 and
    # 3 against 0 and 2. The partition was called whole once, and a scan refuses to read it.
    steps = (
        *(Step("append"), Step("elect_unclean", 1, 1), Step("append")),
        *(Step("elect_unclean", 0, 1), Step("append"), *COPIED),
        *(Step("elect_unclean", 1, 1), Step("append"), *COPIED),
        Step("lose", 1, 5),
    )
    world = World(History(Shape(), steps))
    (truth,) = truth_of(world).values()
    assert truth.missing == ((0, 2),)
    report = audited(world)
    assert report is not None
    assert [(one.name, one.start, one.stop) for one in report.errors] == [("object-missing", 0, 2)]
    (part,) = report.partitions
    assert (part.is_whole, part.last_stable_offset, part.records) == (False, None, None)
    with pytest.raises(DataLossError, match="newest leader epoch"):
        scan_plan(world)


def test_branches_are_not_joined_where_the_lineage_is_unknown() -> None:
    # A transaction of the dead branch seemed to end by a marker of the other, which no index told.
    steps = (
        *(Step("send", 1), Step("settle", b=14), *COPIED, Step("elect_unclean", 1, 6)),
        *(Step("append"), Step("roll", 7), Step("settle", b=10), *COPIED, Step("upload", 15)),
        *(Step("retain"), Step("spoil", 1, 4, 1)),
    )
    report = audited(World(History(Shape(), steps)))
    assert report is not None
    assert [one.name for one in report.errors] == ["epochs-invalid"]


def test_histories_that_failed_once() -> None:
    outcomes: Counter[str] = Counter()
    for seed in ("fix-3-2358", "fix-1-310"):
        history = random_history(random.Random(seed))
        history = replace(history, shape=replace(history.shape, local=False))
        check(history, outcomes, exactly=False)
    assert outcomes["harmed"] == 2


def test_what_was_lost_and_spoiled_is_named() -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(100):
        check(random_history(random.Random(seed)), outcomes)
    assert outcomes["planned"] > 20, outcomes
    assert outcomes["with losses"] > 2, outcomes
    assert outcomes["with spoiled files"] > 5, outcomes


@pytest.mark.fuzz
def test_histories_never_audited_before() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    stop = time.monotonic() + 40
    outcomes: Counter[str] = Counter()
    number = 0
    while time.monotonic() < stop:
        history = random_history(random.Random(f"{seed}-{number}"))
        history = without_harm(history) if number % 2 else history
        # The other layout does not tell all that the truth knows.
        history = replace(history, shape=replace(history.shape, local=False))
        try:
            check(history, outcomes, exactly=False)
        except Exception as error:
            raise AssertionError(f"seed {seed}, history {number}: {history}") from error
        number += 1
    assert number > 100
