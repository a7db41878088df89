"""Random lives of an exported topic: the tier changes, exports come, die, race and come again.

A small model says what each run may do: the table holds exactly the rows of the offsets that were
committed, each once, whatever happened between two runs.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kts_source.errors import (
    CommitConflictError,
    DataLossError,
    ExportError,
    RangeGapError,
    RangeOverlapError,
    StoreError,
)
from kts_source.export.ranges import PartitionKey
from kts_source.export.run import clean
from kts_source.export.tables.open_target import open_target
from kts_source.options import parse_options
from kts_source.planning import planner
from tests.kts_source.export.exporting import Lake
from tests.kts_source.export.fates import (
    EXPORT,
    FATES,
    Between,
    Dying,
    Expected,
    Held,
    memory_tier,
    rolled_back,
    table_rows,
    without_answers,
)
from tests.kts_source.export.killing import Killed, Steps, mortal_folder
from tests.kts_source.planning.history import TOPIC, History, Step, World
from tests.kts_source.planning.reading import ISOLATION_LEVELS
from tests.kts_source.planning.replica import divergence
from tests.kts_source.planning.truth import (
    is_in_doubt,
    newest_incarnation,
    truth_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kts_source.export.executor import LocalExecutor
    from kts_source.export.report import BackfillReport
    from tests.kts_source.planning.truth import PartitionTruth, Row


class _AmbiguousTierError(Exception):
    """A damaged checkpoint would look like this tier, so a run refused it."""


class Exporting:
    """Lives through one history.

    Args:
        history: Steps of the topic and exports.
        seed: Decides what does not change: the isolation level.
        folder: For the table.
        table_format: Of the table.
        outcomes: Counted here.
    """

    def __init__(
        self, history: History, seed: int, folder: Path, table_format: str, outcomes: Counter[str]
    ) -> None:
        self._steps = history.steps
        self._world = World(History(history.shape, ()))
        self._isolation = ISOLATION_LEVELS[seed % 2]
        self._lake = Lake(folder, table_format)
        self._folder = folder
        self._held = Held()
        self._outcomes = outcomes
        self._plans: list[tuple[str, list[Expected]]] = []

    def check(self) -> None:
        """Fails on the first wrong row, and on an error too many or too few."""
        with memory_tier(self._world):
            for step in self._steps:
                if step.kind != EXPORT:
                    self._world.take(step)
                elif not self._export(step):
                    return

    def _export(self, step: Step) -> bool:
        """One run; False where nobody can tell any more what it should do."""
        in_doubt = is_in_doubt(self._world, times=True)
        truth = {} if in_doubt else truth_of(self._world)
        if in_doubt or any(one.is_outlived for one in truth.values()):
            self._outcomes["tier does not tell"] += 1  # see kts_source.planning.partial_log
            return False
        if not truth:
            return True
        fate = FATES[step.a]
        self._outcomes[fate] += 1
        try:
            getattr(self, f"_{fate.replace(' ', '_').replace(',', '')}")(step, truth)
        except _AmbiguousTierError:
            self._outcomes["ambiguous"] += 1
            return False
        return True

    # -- fates

    def _plain(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        expected, allowed, must = self._expected(truth)
        report = self._run(step, allowed, must=must)
        if report is not None:
            assert report.skipped == () or self._isolation == "read_committed", report
            self._committed(expected)
            again = self._lake.export(self._options(step))
            assert (again.commits, again.rows, again.ranges) == (0, 0, ()), again
        self._compare()

    def _loss_allowed(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        expected, _, _ = self._expected(truth)
        report = self._run(step, (), failOnDataLoss="false")
        assert report is not None
        self._committed_with_losses(expected, report)

    def _later_start(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        """A start that the user names: a gap, an overlap or neither; never silent."""
        starts = {}
        problems = False
        for one in self._expected(truth)[0]:
            low, high = one.truth.log_start, one.truth.stop
            start = starts[str(one.key.partition)] = low + (high - low) * step.c // 15
            held = self._held.ranges.get(one.key)
            problems |= held is not None and start < high and not held[0] <= start <= held[1]
        if not problems:
            return
        found = self._run(
            step,
            (RangeGapError, RangeOverlapError, DataLossError),
            must=True,
            startingOffsets=json.dumps({TOPIC: starts}),
        )
        assert found is None
        self._compare()

    def _plan_file(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        # The plan begins where the tier does: what the table holds does not matter to it.
        expected, allowed, must = self._expected(truth, planned=True)
        fresh, fresh_allowed, fresh_must = self._expected(truth, held=False)
        path = self._folder / f"plan-{len(self._plans)}.json"
        try:
            plan = planner.plan_scan(parse_options(self._options(step)))
        except DataLossError as error:
            self._raise_if_ambiguous(error)
            assert DataLossError in fresh_allowed
            return
        assert not fresh_must
        path.write_text(plan.to_json())
        self._plans.append((str(path), fresh))
        # A plan of no offsets leaves no gap.
        must = must and all(one.first < one.stop for one in fresh)
        if self._run(step, allowed, must=must, planFile=str(path)) is not None:
            self._committed(expected)
        self._compare()

    def _old_plan_file(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        """An earlier plan: what of it is missing, as it was then, or an error."""
        if not self._plans:
            self._plain(step, truth)
            return
        path, fresh = self._plans[step.c % len(self._plans)]
        expected, allowed = [], [StoreError, DataLossError]
        for one in fresh:
            start, stop = self._held.ranges.get(one.key, (one.first, one.first))
            if one.first < start or one.first > stop:
                allowed += [RangeGapError, RangeOverlapError]
            expected.append(Expected(one.key, one.truth, min(stop, one.stop), one.stop))
        report = self._run(step, tuple(allowed), planFile=path)
        if report is not None:
            self._committed(expected)
        else:
            self._reload(expected)
        self._compare()

    def _dies_before_a_commit(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        table = Dying(self._lake.table(), step.c % 3, after=False)
        self._dies(step, truth, table)

    def _dies_after_a_commit(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        self._dies(step, truth, Dying(self._lake.table(), step.c % 3, after=True))

    def _dies_at_a_step(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        if self._lake.table_format != "parquet":
            self._dies_after_a_commit(step, truth)
            return
        settings = self._lake.settings()
        target = open_target(settings.target, settings.storage)
        number = 2 + (step.b * 16 + step.c) % 40
        self._dies(
            step, truth, mortal_folder(settings, target, Steps(number, after=step.c % 2 > 0))
        )

    def _dies(self, step: Step, truth: Mapping[int, PartitionTruth], table: Any) -> None:  # noqa: ANN401
        expected, allowed, must = self._expected(truth)
        try:
            if self._run(step, allowed, must=must, table=table) is not None:
                self._committed(expected)
        except Killed:
            self._outcomes["died"] += 1
            # Whatever a reader sees now stands there once.
            assert not table_rows(self._lake) - self._rows_with(expected)
            self._reload(expected)
        self._compare()

    def _race(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        self._races(step, truth, before=True)

    def _race_at_the_end(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        self._races(step, truth, before=False)

    def _races(self, step: Step, truth: Mapping[int, PartitionTruth], *, before: bool) -> None:
        """Another export does the same meanwhile."""
        expected, allowed, must = self._expected(truth)
        others: list[BackfillReport] = []
        executor = Between(
            lambda: others.append(self._lake.export(self._options(step))), before=before
        )
        allowed = (*allowed, CommitConflictError)
        report = self._run(step, allowed, must=must, executor=executor)
        # A run without tasks does not start the other, and records where partitions begin.
        if others or report is not None:
            self._committed(expected)
        self._compare()

    def _vanishes(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        expected, allowed, must = self._expected(truth)
        report = self._run(
            step,
            (*allowed, DataLossError),
            must=must,
            executor=Between(lambda: self._lose(step), before=True),
        )
        if report is not None:
            self._committed(expected)
        else:
            self._reload(expected)
        self._compare()

    def _vanishes_loss_allowed(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        expected, _, _ = self._expected(truth)
        executor = Between(lambda: self._lose(step), before=True)
        report = self._run(step, (), executor=executor, failOnDataLoss="false")
        assert report is not None
        self._committed_with_losses(expected, report)

    def _lost_answer(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        """A commit takes place, and the library says that it did not."""
        expected, allowed, must = self._expected(truth)
        table = without_answers(self._lake.table(), step.c % 3, is_error=step.c % 2 > 0)
        report = self._run(step, allowed, must=must, table=table)
        if report is not None:
            self._committed(expected)
        self._compare()

    def _clean_during_the_run(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        expected, allowed, must = self._expected(truth)

        def clean_up() -> None:
            clean(self._lake.settings(), older_than_hours=-1, remove=True)

        executor = Between(clean_up, before=step.c % 2 > 0)
        if self._run(step, allowed, must=must, executor=executor) is not None:
            self._committed(expected)
        self._compare()

    def _rolled_back(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        """Commits are undone, or a folder loses its log: a run is refused, or allows the loss."""
        if self._lake.table_format == "parquet":
            self._without_log(step, truth)
            return
        if not rolled_back(self._lake, step.b):
            self._plain(step, truth)
            return
        self._outcomes["rolled back, done"] += 1
        self._held.rows = table_rows(self._lake)
        found = self._run(step, (DataLossError,), must=True)
        assert found is None
        self._compare()
        self._loss_allowed(step, truth)
        if self._is_rolled_back():  # the run had nothing to commit
            self._held = Held()
            self._lake = Lake(
                self._folder / f"other-{self._outcomes['runs']}", self._lake.table_format
            )
            self._lake.folder.mkdir()

    def _is_rolled_back(self) -> bool:
        table = self._lake.table()
        text = table.load().rollback()
        table.close()
        return text is not None

    def _without_log(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        log = Path(self._lake.target) / "_kts"
        kept = self._folder / "kept-log"
        if not log.exists() or not self._held.rows:
            self._plain(step, truth)
            return
        log.rename(kept)
        found = self._run(step, (ExportError,), must=True)
        assert found is None
        shutil.rmtree(log, ignore_errors=True)
        kept.rename(log)
        self._compare()

    # -- inside

    def _lose(self, step: Step) -> None:
        self._world.take(Step("lose", step.b, step.c))

    def _raise_if_ambiguous(self, error: DataLossError) -> None:
        """Raises `_AmbiguousTierError` if a damaged checkpoint would look like this tier."""
        if "on this evidence" in str(error):
            if not truth_of(self._world)[error.partition or 0].is_start_unsure:
                raise error
            raise _AmbiguousTierError from error

    def _options(self, step: Step, **options: str) -> dict[str, str]:
        if "planFile" not in options:  # a plan is cut already
            options["targetPartitionBytes"] = str((1, 100, 300, 1 << 20)[step.b % 4])
        return {
            "path": "/",
            "subscribe": TOPIC,
            "isolationLevel": self._isolation,
            "maxConcurrentRequests": "1",
            **options,
        }

    def _run(
        self,
        step: Step,
        allowed: tuple[type[Exception], ...],
        *,
        must: bool = False,
        executor: LocalExecutor | None = None,
        table: Any = None,  # noqa: ANN401
        **options: str,
    ) -> BackfillReport | None:
        """A run, or `None` where it ended in one of the errors that are allowed."""
        try:
            report = self._lake.export(
                self._options(step, **options),
                executor=executor,
                table=table,
                commit_bytes=(1, 1, 200, 1 << 40)[step.b // 4],
            )
        except DataLossError as error:
            self._raise_if_ambiguous(error)
            if not isinstance(error, allowed):
                raise
            self._outcomes[type(error).__name__] += 1
            return None
        except allowed as error:
            self._outcomes[type(error).__name__] += 1
            return None
        assert not must, f"no error, but one of {allowed} was due"
        self._outcomes["runs"] += 1
        return report

    def _expected(
        self, truth: Mapping[int, PartitionTruth], *, held: bool = True, planned: bool = False
    ) -> tuple[list[Expected], tuple[type[Exception], ...], bool]:
        """What a run should write, which errors it may end in, and whether it must; `planned` is a
        run of a plan file.
        """
        topic_id = newest_incarnation(self._world)
        found = []
        allowed: set[type[Exception]] = set()
        must = False
        for number, one in sorted(truth.items()):
            key = PartitionKey(topic_id, number)
            first, stop = one.log_start, one.stop
            known = self._held.ranges.get(key) if held else None
            if known is not None:
                if one.log_start < min(known[0], one.stop):
                    allowed.add(RangeOverlapError)
                    must = True
                if known[1] < one.log_start and known[1] < one.stop:
                    allowed.add(RangeGapError)
                    must = True
                first = max(first, known[1])
                may_differ, differs = self._has_other_log(key, one, planned=planned)
                must = must or differs
                if may_differ:
                    allowed.add(DataLossError)
            elif held and self._is_unseen(key, one, truth):
                allowed.add(DataLossError)
                must = True
            if any(max(low, first) < min(high, stop) for low, high in one.missing):
                allowed.add(DataLossError)
                must = True
            if self._isolation == "read_committed":
                if first < stop:
                    may, lost = one.lost_outcomes(first, stop)
                    must = must or lost
                    if may:
                        allowed.add(DataLossError)
                stop = max(min(stop, one.decided_stop), min(first, stop))
            found.append(Expected(key, one, min(first, stop), stop))
        keys = {one.key for one in found}
        if (
            held
            and self._held.topic_id not in ("", topic_id)
            and not keys & self._held.ranges.keys()
        ):
            allowed.add(DataLossError)  # the topic was created again
            must = True
        return found, tuple(allowed), must

    def _has_other_log(
        self, key: PartitionKey, truth: PartitionTruth, *, planned: bool
    ) -> tuple[bool, bool]:
        """Whether a run may find that records of the table are not those of the log, and must."""
        stop = self._held.ranges[key][1]
        if stop > truth.stop:
            return True, not planned
        differs = divergence(self._held.logs[key], truth.entries) < stop
        return differs, differs and truth.log_start < stop

    def _is_unseen(
        self, key: PartitionKey, truth: PartitionTruth, all_truth: Mapping[int, PartitionTruth]
    ) -> bool:
        """Whether records of a partition that is new to the table may have gone unseen."""
        others = (PartitionKey(key.topic_id, number) for number in all_truth)
        return truth.log_start > 0 and any(one in self._held.ranges for one in others)

    def _rows_with(self, expected: Sequence[Expected]) -> Counter[Row]:
        rows = Counter(self._held.rows)
        for one in expected:
            rows.update(one.truth.rows(self._isolation, one.first, one.stop))
        return rows

    def _committed(self, expected: Sequence[Expected]) -> None:
        """All that was expected is in the table now."""
        self._held.rows = self._rows_with(expected)
        self._move(expected)

    def _move(self, expected: Sequence[Expected]) -> None:
        """Moves the offsets that the table holds."""
        for one in expected:
            is_new = one.key not in self._held.ranges
            has_lost_records = one.first == one.truth.log_start > 0
            if one.first < one.stop or (is_new and has_lost_records):
                start, _ = self._held.ranges.get(one.key, (one.first, 0))
                self._held.ranges[one.key] = start, one.stop
                self._held.logs[one.key] = one.truth.entries
                self._held.topic_id = one.key.topic_id

    def _committed_with_losses(self, expected: Sequence[Expected], report: BackfillReport) -> None:
        """All but what the report names; outcomes of transactions may be lost with it."""
        rows = table_rows(self._lake)
        fresh = rows - self._held.rows
        assert not self._held.rows - rows
        visible = self._rows_with(expected) - self._held.rows
        assert not fresh - visible, f"rows that are not visible: {fresh - visible}"
        gaps = [(gap.partition, gap.start, gap.stop) for gap in report.skipped]
        named = {(p, at) for p, start, stop in gaps for at in range(start, stop)}
        optional = set()
        for one in expected:
            if self._isolation == "read_committed" and one.truth.missing:
                optional |= {
                    (one.key.partition, row.offset)
                    for row in one.truth.log.all_rows
                    if row.transaction is not None
                }
        unnamed = [row for row in visible - fresh if row[:2] not in named | optional]
        assert not unnamed, f"rows left out without a word: {unnamed}"
        written = {
            (span.partition, at) for span in report.ranges for at in range(span.start, span.stop)
        }
        assert not written & named
        assert {row[:2] for row in fresh} <= written | named
        self._outcomes["rows named as lost"] += len(visible - fresh)
        self._move(self._with_skipped_ends(expected, named))
        self._held.rows = rows

    def _with_skipped_ends(
        self, expected: Sequence[Expected], named: set[tuple[int, int]]
    ) -> list[Expected]:
        """Extend ends over offsets that the run skipped and named.

        A transaction whose end is lost does not hold back a run that may lose data.
        """
        table = self._lake.table()
        committed = table.load().committed
        table.close()
        extended = []
        for one in expected:
            known = committed.get(one.key)
            # The table may hold more than a log that became shorter.
            end = max(one.stop, self._held.ranges.get(one.key, (0, 0))[1])
            stop = end if known is None else known.stop
            assert {(one.key.partition, at) for at in range(end, stop)} <= named
            extended.append(replace(one, stop=stop) if stop > end else one)
        return extended

    def _reload(self, expected: Sequence[Expected]) -> None:
        """Takes over how far a run that ended early has come, once that is plausible."""
        table = self._lake.table()
        committed = table.load().committed
        table.close()
        reached = []
        for one in expected:
            known = committed.get(one.key)
            if known is None:
                assert one.key not in self._held.ranges
                continue
            before = self._held.ranges.get(one.key, (one.first, one.first))
            assert known.start == before[0]
            assert before[1] <= known.stop <= max(before[1], one.stop)
            reached.append(Expected(one.key, one.truth, before[1], known.stop))
        self._committed(reached)

    def _compare(self) -> None:
        rows = table_rows(self._lake)
        lacking, extra = self._held.rows - rows, rows - self._held.rows
        assert not lacking, f"rows lacking: {sorted(lacking.elements())[:4]}"
        assert not extra, f"rows too many: {sorted(extra.elements())[:4]}"
        self._outcomes["rows"] += rows.total()


def check_export_history(
    history: History, seed: int, table_format: str, outcomes: Counter[str] | None = None
) -> None:
    """Lives through a history with a table of its own, in memory where the machine allows.

    Raises:
        AssertionError: Wrong rows, or a wrong error.
    """
    counted = Counter() if outcomes is None else outcomes
    in_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as folder:
        Exporting(history, seed, Path(folder), table_format, counted).check()
