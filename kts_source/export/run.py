"""One export from options to a report: plan, run wave by wave, commit each wave."""

from __future__ import annotations

import logging
import re
import time
import uuid
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from kts_source.errors import (
    CommitConflictError,
    ExportError,
    FingerprintError,
    RangeOverlapError,
    TransformError,
)
from kts_source.export.compaction.merge import can_merge, check_lost, check_rebuild
from kts_source.export.export_plan import plan_export, plan_rebuild
from kts_source.export.fingerprint import fingerprint
from kts_source.export.job import ExportJob
from kts_source.export.progress import NO_PROGRESS
from kts_source.export.ranges import PartitionKey, joined
from kts_source.export.report import BackfillReport, lost_offsets, written_ranges
from kts_source.export.row_schema import check_columns, schema_without_rows
from kts_source.export.tables.export_table import Commit
from kts_source.export.tables.open_table import open_table
from kts_source.export.tables.open_target import open_target
from kts_source.export.transforms.dead_letters import (
    drop_dead_letters,
    is_unnamed,
    list_dead_letters,
    publish_dead_letters,
    remove_dead_letters,
    unnamed_dead_letters,
)
from kts_source.options import parse_options
from kts_source.planning.estimate import estimate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from kts_source.export.executor import ExportExecutor
    from kts_source.export.export_plan import ExportPlan, Wave
    from kts_source.export.files import TaskReport
    from kts_source.export.job import RunnableTask
    from kts_source.export.progress import Progress
    from kts_source.export.ranges import RangeAdvance
    from kts_source.export.report import Skipped
    from kts_source.export.settings import Compaction, ExportSettings
    from kts_source.export.tables.export_table import BaseFile, ExportTable, TableState
    from kts_source.options import ScanOptions
    from kts_source.store.object_store import ObjectInfo

log = logging.getLogger(__name__)

DEFAULT_CLEAN_HOURS: Final = 7 * 24.0


def export(
    source: Mapping[str, str],
    settings: ExportSettings,
    executor: ExportExecutor,
    *,
    progress: Progress = NO_PROGRESS,
    table: ExportTable | None = None,
) -> BackfillReport:
    """Writes what the table lacks of the source.

    Args:
        source: Options as for the data source.
        settings: Where and how to write.
        executor: What runs the tasks.
        progress: Told how it goes.
        table: The target; opened from the settings when not given.

    Raises:
        ExportError: Gaps, overlaps, other rules than the table was begun with, a commit that
            another export came before. What was committed stays; run again to go on.
        TieredKafkaError: The source cannot be read.
    """
    options = parse_options(source)
    options = replace(options, key_ring=options.key_ring.loaded())
    opened = table or open_table(settings)
    try:
        return _Run(options, settings, executor, opened, progress).export()
    except KeyboardInterrupt:
        log.warning("interrupted: what is committed stays; the same call goes on behind it")
        raise
    finally:
        if table is None:
            opened.close()


def clean(
    settings: ExportSettings,
    *,
    older_than_hours: float = DEFAULT_CLEAN_HOURS,
    remove: bool = False,
    table: ExportTable | None = None,
) -> tuple[ObjectInfo, ...]:
    """Lists what attempts that died left in a target and among its dead letters, and removes it
    where asked to.

    A run under way keeps its first files until they are committed, however old they get: what a run
    left is removed once its newest file is old enough.

    Args:
        settings: The target.
        older_than_hours: A run that wrote a file since then may be under way.
        remove: Whether to delete them.
        table: The target; opened from the settings when not given.
    """
    opened = table or open_table(settings)
    try:
        if settings.dead_letters is not None:
            publish_dead_letters(settings, opened.load().letters)
        before_ms = round((time.time() - older_than_hours * 3600) * 1000)
        # Where both are one folder, the table does not know what of dead letters is committed.
        found = [entry for entry in opened.orphans() if not is_unnamed(entry.key)]
        letters = unnamed_dead_letters(settings)
        active = {
            _run_of(entry.key)
            for entry in (*found, *letters)
            if (entry.last_modified_ms or 0) >= before_ms
        }
        found = [entry for entry in found if _run_of(entry.key) not in active]
        letters = [entry for entry in letters if _run_of(entry.key) not in active]
        if remove:
            opened.remove(found)
            remove_dead_letters(settings, letters)
        return (*found, *letters)
    finally:
        if table is None:
            opened.close()


def _run_of(key: str) -> str:
    """What is the same for all files of one run."""
    run_id = re.search("[0-9a-f]{32}", key)
    return key if run_id is None else run_id[0]


class _Run:
    """One run and what it has done so far."""

    def __init__(
        self,
        options: ScanOptions,
        settings: ExportSettings,
        executor: ExportExecutor,
        table: ExportTable,
        progress: Progress,
    ) -> None:
        self._options = options
        self._settings = settings
        self._executor = executor
        self._table = table
        self._progress = progress
        self._run_id = uuid.uuid4().hex
        self._fingerprint = fingerprint(options, settings)
        self._reports: list[TaskReport] = []
        self._seconds = {"planning": 0.0, "running": 0.0, "committing": 0.0}
        self._commits: list[Commit] = []
        self._waiting: tuple[list[RangeAdvance], list[TaskReport]] = [], []
        self._merges = False
        self._base: Sequence[BaseFile] = ()

    def export(self) -> BackfillReport:
        started = time.monotonic()
        state = self._table.load(self._fingerprint)
        publish_dead_letters(self._settings, state.letters)
        plan = self._plan(state)
        self._seconds["planning"] = time.monotonic() - started
        predicted = estimate(plan.scan.tasks)
        self._progress.begin(len(plan.scan.tasks), plan.scan.nominal_bytes)
        try:
            if plan.waves:
                job = ExportJob.of(
                    self._options, self._settings, self._table.place(self._run_id), self._run_id
                )
                for wave in plan.waves:
                    if self._settings.compaction is None:
                        self._run_wave(wave, job)
                    else:
                        self._run_compaction(wave, job, self._settings.compaction, state)
        finally:
            self._progress.end()
        if self._waiting[0]:
            log.warning(
                "no row was written, and there is no table yet: nothing tells its columns, so the"
                " offsets are not recorded, and the next run reads them again"
            )
        return self._report(plan, predicted.cost())

    def _plan(self, state: TableState) -> ExportPlan:
        if self._settings.compaction is not None:
            return self._plan_compaction(state)
        return plan_export(
            self._options,
            state.committed,
            resume=self._settings.resume,
            commit_bytes=self._settings.commit_bytes,
        )

    def _run_wave(self, wave: Wave, job: ExportJob) -> None:
        started = time.monotonic()
        ordered = self._run_tasks(wave.tasks, job)
        self._seconds["running"] += time.monotonic() - started
        self._commit(wave, ordered)

    def _plan_compaction(self, state: TableState) -> ExportPlan:
        """One wave: a merge behind what the table holds, or all of it anew."""
        if not state.fingerprint or can_merge(self._options, self._settings):
            self._merges = bool(state.fingerprint)
            self._base = self._table.base_files() if self._merges else ()
            return plan_export(self._options, state.committed, resume=True, commit_bytes=1 << 62)
        plan = plan_rebuild(self._options, state.committed)
        if plan.waves:
            self._base = self._table.base_files()
            check_rebuild(
                self._options,
                self._table.place(self._run_id),
                self._base,
                state.committed,
                {PartitionKey(part.topic_id, part.partition) for part in plan.scan.partitions},
            )
            topic_ids = {(p.topic, p.partition): p.topic_id for p in plan.scan.partitions}
            self._check_lost(plan.skipped, topic_ids, state)
        return plan

    def _check_lost(
        self,
        skipped: Iterable[Skipped],
        topic_ids: Mapping[tuple[str, int], str],
        state: TableState,
    ) -> None:
        """A rebuild may lack what is new to the table, and nothing that it has."""
        lost: dict[PartitionKey, list[tuple[int, int]]] = {}
        for gap in skipped:
            key = PartitionKey(topic_ids[gap.topic, gap.partition], gap.partition)
            lost.setdefault(key, []).append((gap.start, gap.stop))
        place = self._table.place(self._run_id)
        check_lost(self._options, place, self._base, state.committed, lost)

    def _run_compaction(
        self, wave: Wave, job: ExportJob, compaction: Compaction, state: TableState
    ) -> None:
        from kts_source.export.compaction.buckets import spill_folder
        from kts_source.export.compaction.compact import (
            SpreadTask,
            bucket_count,
            bucket_tasks,
            newest_of,
        )
        from kts_source.export.compaction.merge import BASE_RATIO, base_tasks

        started = time.monotonic()
        base = self._base if self._merges else ()
        nominal = sum(task.scan.nominal_bytes for task in wave.tasks)
        buckets = bucket_count(nominal + BASE_RATIO * sum(file.size for file in base))
        spread: list[RunnableTask] = [
            SpreadTask(task.number, task.scan, task.topic_ids, buckets) for task in wave.tasks
        ]
        spread += base_tasks(base, 1 + max((t.number for t in spread), default=-1), buckets)
        topic_ids = {place: name for task in wave.tasks for place, name in task.topic_ids.items()}
        reports = self._run_tasks(spread, job)
        if not self._merges:
            self._check_lost(lost_offsets(reports), topic_ids, state)
        newest = newest_of(reports, state.newest_ms)
        merging = bucket_tasks(reports, len(spread), topic_ids, buckets, compaction, newest)
        reports += self._run_tasks(merging, job)
        self._seconds["running"] += time.monotonic() - started
        held = frozenset(file.key for file in self._base)
        self._commit(wave, reports, base=held, newest_ms=newest)
        target = open_target(job.place.path, job.place.storage)
        for found in list(target.list_objects(spill_folder(job))):
            target.delete(found.key)
        target.close()

    def _run_tasks(self, tasks: Sequence[RunnableTask], job: ExportJob) -> list[TaskReport]:
        """The reports of all tasks, in their order."""
        reports: dict[int, TaskReport] = {}
        if tasks:
            for report in self._executor.run(tasks, job):
                if report.number in reports:
                    raise ExportError(f"task {report.number} reported twice")
                reports[report.number] = report
                self._progress.task_done(report)
        if missing := {task.number for task in tasks} - reports.keys():
            raise ExportError(f"tasks {sorted(missing)[:5]} did not report; nothing was committed")
        return [reports[number] for number in sorted(reports)]

    def _commit(
        self,
        wave: Wave,
        ordered: Sequence[TaskReport],
        *,
        base: frozenset[str] | None = None,
        newest_ms: Mapping[PartitionKey, int] = MappingProxyType({}),
    ) -> None:
        started = time.monotonic()
        advances = joined(self._waiting[0], wave.advances)
        reports = [*self._waiting[1], *ordered]
        commit = Commit(
            tuple(advances),
            tuple(file for report in reports for file in report.files),
            self._fingerprint,
            _common_schema(reports) or self._schema_without_rows(),
            self._run_id,
            base,
            newest_ms,
            list_dead_letters(self._settings, (report.dead_letters for report in reports)),
        )
        try:
            committed = self._table.commit(commit)
        except (CommitConflictError, FingerprintError, RangeOverlapError):
            # Refused, unless the answer that it counts was lost: then the table has the number.
            publish_dead_letters(self._settings, self._table.load().letters)
            drop_dead_letters(self._settings, commit.letters)
            raise
        if committed:
            publish_dead_letters(self._settings, commit.letters)
            self._commits.append(commit)
            self._waiting = [], []
        else:
            self._waiting = advances, reports
        self._reports.extend(ordered)
        self._seconds["committing"] += time.monotonic() - started

    def _schema_without_rows(self) -> pa.Schema | None:
        schema = schema_without_rows(self._options, self._settings)
        if schema is not None:  # a table must not begin with what no row will fit
            check_columns(schema, self._settings, self._table.place(self._run_id).values_in)
        return schema

    def _report(self, plan: ExportPlan, cost: float) -> BackfillReport:
        reports = self._reports
        files = [file for report in reports for file in report.files]
        skipped = (*plan.skipped, *lost_offsets(reports))
        return BackfillReport(
            target=self._settings.target,
            table_format=self._settings.table_format,
            ranges=written_ranges(
                (advance for commit in self._commits for advance in commit.advances), skipped
            ),
            rows=sum(file.rows for file in files),
            rows_read=sum(report.rows_read for report in reports),
            rejected=sum(report.rejected for report in reports),
            files=len(files),
            file_bytes=sum(file.size for file in files),
            segment_bytes=sum(report.segment_bytes for report in reports),
            commits=len(self._commits),
            requests=sum(report.requests for report in reports),
            bytes_read=sum(report.bytes_read for report in reports),
            retries=sum(report.retries for report in reports),
            cost=cost,
            skipped=skipped,
            seconds={
                **self._seconds,
                "tasks": sum(report.seconds for report in reports),
                "writing": sum(report.seconds_writing for report in reports),
            },
        )


def _common_schema(reports: Sequence[TaskReport]) -> pa.Schema | None:
    schemas = {report.schema for report in reports if report.schema is not None}
    if len(schemas) > 1:
        raise TransformError("the transform gave different columns in different tasks")
    for report in reports:
        if report.schema is not None:
            return report.arrow_schema
    return None
