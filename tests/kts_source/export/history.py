"""Runs random histories of an exported topic. Each step of a history changes the tier or runs an
export. Exports may be killed, run concurrently, or be repeated.

A small model computes the allowed results of each export. After each export, the table must contain
each row of the committed offsets exactly once.
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
    StoreNotFoundError,
)
from kts_source.export.ranges import PartitionKey
from kts_source.export.run import clean
from kts_source.export.tables.target_store import open_target
from kts_source.options import parse_options
from kts_source.planning import planner
from tests.kts_source.export.exporting import Lake
from tests.kts_source.export.fates import (
    EXPORT,
    FATES,
    Between,
    Dying,
    Expected,
    TableState,
    memory_tier,
    rolled_back,
    table_rows,
    without_answers,
)
from tests.kts_source.export.killing import Killed, Steps, killable_folder
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

    from kts_source.export.report import BackfillReport
    from kts_source.export.task_writer import LocalExecutor
    from tests.kts_source.planning.truth import PartitionTruth, Row


class _AmbiguousTierError(Exception):
    """Raised if a run refused a tier whose leader-epoch checkpoint may be damaged. Whether it is
    damaged cannot be found out from the tier.
    """


class Exporting:
    """Runs one history, and checks the table and the errors of each export.

    Args:
        history: Changes of the topic and exports, in order.
        seed: Selects the isolation level of all exports: one for even, one for odd numbers.
        folder: Folder of the table.
        table_format: Format of the table.
        outcomes: Counters of events and results; the run increments them.
    """

    def __init__(
        self, history: History, seed: int, folder: Path, table_format: str, outcomes: Counter[str]
    ) -> None:
        self._steps = history.steps
        self._world = World(History(history.shape, ()))
        self._isolation = ISOLATION_LEVELS[seed % 2]
        self._lake = Lake(folder, table_format)
        self._folder = folder
        self._table = TableState()
        self._outcomes = outcomes
        self._plans: list[tuple[str, list[Expected]]] = []

    def check(self) -> None:
        """Runs all steps. Fails on wrong rows, an unexpected error or a missing error. Ends early
        if the expected result of an export is unknown.
        """
        with memory_tier(self._world):
            for step in self._steps:
                if step.kind != EXPORT:
                    self._world.take(step)
                elif not self._export(step):
                    return

    def _export(self, step: Step) -> bool:
        """Runs one export step. Returns False if the expected result cannot be computed from the
        tier. The history must then end.
        """
        in_doubt = is_in_doubt(self._world, times=True)
        truth = {} if in_doubt else truth_of(self._world)
        if in_doubt or any(partition_truth.is_outlived for partition_truth in truth.values()):
            self._outcomes["tier does not tell"] += 1  # see kts_source.planning.tier_source
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

    # -- events

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
        """Runs an export with random `startingOffsets`. The offsets leave a gap after the end of
        the table, or begin before its first offset, so the export must raise an error.

        Does nothing if the random offsets have neither problem.
        """
        starts = {}
        problems = False
        for expected_range in self._expected(truth)[0]:
            low, high = expected_range.truth.log_start, expected_range.truth.stop
            start = starts[str(expected_range.key.partition)] = low + (high - low) * step.c // 15
            held = self._table.ranges.get(expected_range.key)
            problems |= held is not None and start < high and not held[0] <= start <= held[1]
        if not problems:
            return
        earlier = self._run(
            step,
            (RangeGapError, RangeOverlapError, DataLossError),
            must=True,
            startingOffsets=json.dumps({TOPIC: starts}),
        )
        assert earlier is None
        self._compare()

    def _plan_file(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        # The plan begins at the start of the tier, even if the table has these offsets already.
        expected, allowed, must = self._expected(truth, planned=True)
        fresh, fresh_allowed, fresh_must = self._expected(truth, with_table=False)
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
        # A plan without offsets leaves no gap.
        must = must and all(expected_range.first < expected_range.stop for expected_range in fresh)
        if self._run(step, allowed, must=must, planFile=str(path)) is not None:
            self._committed(expected)
        self._compare()

    def _old_plan_file(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        """Runs an export with the plan file of an earlier step. The export writes the planned
        offsets that the table lacks, or fails.
        """
        if not self._plans:
            self._plain(step, truth)
            return
        path, fresh = self._plans[step.c % len(self._plans)]
        expected, allowed = [], [StoreError, DataLossError]
        for expected_range in fresh:
            start, stop = self._table.ranges.get(
                expected_range.key, (expected_range.first, expected_range.first)
            )
            if expected_range.first < start or expected_range.first > stop:
                allowed += [RangeGapError, RangeOverlapError]
            expected.append(
                Expected(
                    expected_range.key,
                    expected_range.truth,
                    min(stop, expected_range.stop),
                    expected_range.stop,
                )
            )
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
            step, truth, killable_folder(settings, target, Steps(number, after=step.c % 2 > 0))
        )

    def _dies(self, step: Step, truth: Mapping[int, PartitionTruth], table: Any) -> None:  # noqa: ANN401
        expected, allowed, must = self._expected(truth)
        try:
            if self._run(step, allowed, must=must, table=table) is not None:
                self._committed(expected)
        except Killed:
            self._outcomes["died"] += 1
            # Even now, readers see no row twice and no row that the run should not write.
            assert not table_rows(self._lake) - self._rows_with(expected)
            self._reload(expected)
        self._compare()

    def _race(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        self._races(step, truth, before=True)

    def _race_at_the_end(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        self._races(step, truth, before=False)

    def _races(self, step: Step, truth: Mapping[int, PartitionTruth], *, before: bool) -> None:
        """Runs two exports: after the first one is planned and before it commits, the second one
        commits. If `before` is true, the second export runs before the tasks of the first; if
        false, after them.
        """
        expected, allowed, must = self._expected(truth)
        other_reports: list[BackfillReport] = []
        executor = Between(
            lambda: other_reports.append(self._lake.export(self._options(step))), before=before
        )
        allowed = (*allowed, CommitConflictError)
        report = self._run(step, allowed, must=must, executor=executor)
        # If a run has no tasks, the other export does not run. The run still commits the start
        # offsets of new partitions.
        if other_reports or report is not None:
            self._committed(expected)
        self._compare()

    def _vanishes(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        expected, allowed, must = self._expected(truth)
        report = self._run(
            step,
            (*allowed, DataLossError, StoreNotFoundError),
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
        report = self._run(step, (StoreNotFoundError,), executor=executor, failOnDataLoss="false")
        if report is not None:
            self._committed_with_losses(expected, report)
            return
        # A tier without any object of the topic may be unmounted, so its records are not lost.
        folder = f"{TOPIC}-{newest_incarnation(self._world)}/"
        assert not any(key.startswith(folder) for key in self._world.store)
        self._reload(expected)
        self._compare()

    def _lost_answer(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        """Runs an export. One of its commits succeeds, but the library reports a failure."""
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
        """Undoes commits of a Delta or Iceberg table, or hides the commit log of a folder. The next
        export must fail. If loss is allowed, an export into a Delta or Iceberg table must
        succeed.
        """
        if self._lake.table_format == "parquet":
            self._without_log(step, truth)
            return
        if not rolled_back(self._lake, step.b):
            self._plain(step, truth)
            return
        self._outcomes["rolled back, done"] += 1
        self._table.rows = table_rows(self._lake)
        report = self._run(step, (DataLossError,), must=True)
        assert report is None
        self._compare()
        self._loss_allowed(step, truth)
        if self._is_rolled_back():  # the run had nothing to commit
            self._table = TableState()
            self._lake = Lake(
                self._folder / f"other-{self._outcomes['runs']}", self._lake.table_format
            )
            self._lake.folder.mkdir()

    def _is_rolled_back(self) -> bool:
        table = self._lake.table()
        rollback = table.load().rollback()
        table.close()
        return rollback is not None

    def _without_log(self, step: Step, truth: Mapping[int, PartitionTruth]) -> None:
        log = Path(self._lake.target) / "_kts"
        kept = self._folder / "kept-log"
        if not log.exists() or not self._table.rows:
            self._plain(step, truth)
            return
        log.rename(kept)
        report = self._run(step, (ExportError,), must=True)
        assert report is None
        shutil.rmtree(log, ignore_errors=True)
        kept.rename(log)
        self._compare()

    # -- helpers

    def _lose(self, step: Step) -> None:
        self._world.take(Step("lose", step.b, step.c))

    def _raise_if_ambiguous(self, error: DataLossError) -> None:
        """Returns if the message of `error` does not mention a damaged leader-epoch checkpoint.

        Raises:
            _AmbiguousTierError: The tier looks like a tier with a damaged checkpoint.
            DataLossError: `error` itself, because the tier cannot have a damaged checkpoint.
        """
        if "Segments would be skipped because of it" in str(error):
            if not truth_of(self._world)[error.partition or 0].is_start_unsure:
                raise error
            raise _AmbiguousTierError from error

    def _options(self, step: Step, **options: str) -> dict[str, str]:
        if "planFile" not in options:  # a plan file already consists of tasks
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
        """Runs an export. Returns its report, or `None` if it raised one of the `allowed` errors.
        If `must` is true, the export must raise one of them.
        """
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
        assert not must, f"no error, but one of {allowed} was expected"
        self._outcomes["runs"] += 1
        return report

    def _expected(
        self, truth: Mapping[int, PartitionTruth], *, with_table: bool = True, planned: bool = False
    ) -> tuple[list[Expected], tuple[type[Exception], ...], bool]:
        """Returns the ranges that a run should write, the allowed errors, and whether the run must
        fail. If `with_table` is false, ignores the offsets that the table already has. `planned`
        is true if the run uses a plan file.
        """
        topic_id = newest_incarnation(self._world)
        expected_ranges = []
        allowed: set[type[Exception]] = set()
        must = False
        for number, partition_truth in sorted(truth.items()):
            key = PartitionKey(topic_id, number)
            first, stop = partition_truth.log_start, partition_truth.stop
            exported = self._table.ranges.get(key) if with_table else None
            if exported is not None:
                if partition_truth.log_start < min(exported[0], partition_truth.stop):
                    allowed.add(RangeOverlapError)
                    must = True
                if exported[1] < partition_truth.log_start and exported[1] < partition_truth.stop:
                    allowed.add(RangeGapError)
                    must = True
                first = max(first, exported[1])
                may_differ, differs = self._has_other_log(key, partition_truth, planned=planned)
                must = must or differs
                if may_differ:
                    allowed.add(DataLossError)
            elif with_table and self._is_unseen(key, partition_truth, truth):
                allowed.add(DataLossError)
                must = True
            if any(max(low, first) < min(high, stop) for low, high in partition_truth.missing):
                allowed.add(DataLossError)
                must = True
            if self._isolation == "read_committed":
                if first < stop:
                    may, lost = partition_truth.lost_outcomes(first, stop)
                    must = must or lost
                    if may:
                        allowed.add(DataLossError)
                stop = max(min(stop, partition_truth.decided_stop), min(first, stop))
            expected_ranges.append(Expected(key, partition_truth, min(first, stop), stop))
        keys = {expected_range.key for expected_range in expected_ranges}
        if (
            with_table
            and self._table.topic_id not in ("", topic_id)
            and not keys & self._table.ranges.keys()
        ):
            allowed.add(DataLossError)  # the topic was created again
            must = True
        return expected_ranges, tuple(allowed), must

    def _has_other_log(
        self, key: PartitionKey, truth: PartitionTruth, *, planned: bool
    ) -> tuple[bool, bool]:
        """Compares the log at the last export with the current log, below the end of the table.

        Returns whether a run may report a difference, and whether it must report one.
        """
        stop = self._table.ranges[key][1]
        if stop > truth.stop:
            return True, not planned
        differs = divergence(self._table.logs[key], truth.entries) < stop
        return differs, differs and truth.log_start < stop

    def _is_unseen(
        self, key: PartitionKey, truth: PartitionTruth, all_truth: Mapping[int, PartitionTruth]
    ) -> bool:
        """Returns whether a run must report that the first records of a new partition may be lost.
        This is the case if the table has other partitions of the topic, and the log starts above
        0.
        """
        other_keys = (PartitionKey(key.topic_id, number) for number in all_truth)
        return truth.log_start > 0 and any(
            key_of_partition in self._table.ranges for key_of_partition in other_keys
        )

    def _rows_with(self, expected: Sequence[Expected]) -> Counter[Row]:
        rows = Counter(self._table.rows)
        for expected_range in expected:
            rows.update(
                expected_range.truth.rows(
                    self._isolation, expected_range.first, expected_range.stop
                )
            )
        return rows

    def _committed(self, expected: Sequence[Expected]) -> None:
        """Adds the rows and the offsets of the `expected` ranges to the model."""
        self._table.rows = self._rows_with(expected)
        self._move(expected)

    def _move(self, expected: Sequence[Expected]) -> None:
        """Adds the offsets of the `expected` ranges to the model, but not their rows."""
        for expected_range in expected:
            is_new = expected_range.key not in self._table.ranges
            has_lost_records = expected_range.first == expected_range.truth.log_start > 0
            if expected_range.first < expected_range.stop or (is_new and has_lost_records):
                start, _ = self._table.ranges.get(expected_range.key, (expected_range.first, 0))
                self._table.ranges[expected_range.key] = start, expected_range.stop
                self._table.logs[expected_range.key] = expected_range.truth.entries
                self._table.topic_id = expected_range.key.topic_id

    def _committed_with_losses(self, expected: Sequence[Expected], report: BackfillReport) -> None:
        """Checks a run with `failOnDataLoss=false`, and adds the rows that it wrote to the model.

        Each expected row that was not written must be reported as skipped, or belong to a
        transaction whose outcome may be lost.
        """
        rows = table_rows(self._lake)
        fresh = rows - self._table.rows
        assert not self._table.rows - rows
        visible = self._rows_with(expected) - self._table.rows
        assert not fresh - visible, f"invisible rows: {fresh - visible}"
        gaps = [(gap.partition, gap.start, gap.stop) for gap in report.skipped]
        named = {(p, offset) for p, start, stop in gaps for offset in range(start, stop)}
        optional = set()
        for expected_range in expected:
            if self._isolation == "read_committed" and expected_range.truth.missing:
                optional |= {
                    (expected_range.key.partition, row.offset)
                    for row in expected_range.truth.log.all_rows
                    if row.transaction is not None
                }
        unnamed = [row for row in visible - fresh if row[:2] not in named | optional]
        assert not unnamed, f"rows skipped but not reported: {unnamed}"
        written = {
            (span.partition, offset)
            for span in report.ranges
            for offset in range(span.start, span.stop)
        }
        assert not written & named
        assert {row[:2] for row in fresh} <= written | named
        self._outcomes["rows named as lost"] += len(visible - fresh)
        self._move(self._with_skipped_ends(expected, named))
        self._table.rows = rows

    def _with_skipped_ends(
        self, expected: Sequence[Expected], named: set[tuple[int, int]]
    ) -> list[Expected]:
        """Returns the `expected` ranges, each extended to the offset at which the table now ends.

        With `failOnDataLoss=false`, a run skips a transaction without a known end and continues
        after it. The run must have reported all offsets of the extensions as skipped, that is, in
        `named`.
        """
        table = self._lake.table()
        committed = table.load().committed
        table.close()
        extended = []
        for expected_range in expected:
            committed_state = committed.get(expected_range.key)
            # The table may contain more offsets than a log that became shorter.
            end = max(expected_range.stop, self._table.ranges.get(expected_range.key, (0, 0))[1])
            stop = end if committed_state is None else committed_state.stop
            assert {(expected_range.key.partition, offset) for offset in range(end, stop)} <= named
            extended.append(replace(expected_range, stop=stop) if stop > end else expected_range)
        return extended

    def _reload(self, expected: Sequence[Expected]) -> None:
        """Reads from the table which offsets a failed run committed. Checks that they are within
        the `expected` ranges, and adds them to the model.
        """
        table = self._lake.table()
        committed = table.load().committed
        table.close()
        reached = []
        for expected_range in expected:
            committed_state = committed.get(expected_range.key)
            if committed_state is None:
                assert expected_range.key not in self._table.ranges
                continue
            before = self._table.ranges.get(
                expected_range.key, (expected_range.first, expected_range.first)
            )
            assert committed_state.start == before[0]
            assert before[1] <= committed_state.stop <= max(before[1], expected_range.stop)
            reached.append(
                Expected(expected_range.key, expected_range.truth, before[1], committed_state.stop)
            )
        self._committed(reached)

    def _compare(self) -> None:
        rows = table_rows(self._lake)
        lacking, extra = self._table.rows - rows, rows - self._table.rows
        assert not lacking, f"missing rows: {sorted(lacking.elements())[:4]}"
        assert not extra, f"extra rows: {sorted(extra.elements())[:4]}"
        self._outcomes["rows"] += rows.total()


def check_export_history(
    history: History, seed: int, table_format: str, outcomes: Counter[str] | None = None
) -> None:
    """Runs a history with a new table. The table is in `/dev/shm`, or in the default temporary
    folder if `/dev/shm` does not exist.

    Raises:
        AssertionError: The table has wrong rows, or an expected error was not raised.
    """
    counted = Counter() if outcomes is None else outcomes
    in_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as folder:
        Exporting(history, seed, Path(folder), table_format, counted).check()
