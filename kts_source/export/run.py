"""Runs one export: plans it in waves, runs the tasks of each wave, commits their files, and returns
a report.

A wave is a group of tasks with one common commit.

All log lines of a run begin with its run id, which its report and its metrics have, too.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from kts_source.errors import (
    CommitConflictError,
    ExportError,
    FingerprintError,
    InvalidOptionError,
    RangeOverlapError,
    SchemaChangedError,
    TransformError,
)
from kts_source.export.compaction import (
    BASE_RATIO,
    SpreadTask,
    base_tasks,
    bucket_count,
    bucket_tasks,
    can_merge,
    check_lost,
    check_rebuild,
    newest_timestamps,
    spill_folder,
)
from kts_source.export.dead_letters import (
    check_dead_letters,
    drop_dead_letters,
    is_unpublished,
    list_dead_letters,
    publish_dead_letters,
    remove_dead_letters,
    unpublished_dead_letters,
)
from kts_source.export.export_plan import Wave, check_rollback, plan_export, plan_rebuild
from kts_source.export.fingerprint import fingerprint
from kts_source.export.progress import NO_PROGRESS
from kts_source.export.ranges import PartitionKey, held_range, merge_advances, partition_key
from kts_source.export.rejections import check_rejected
from kts_source.export.replay import (
    finish_replay,
    kept_letters,
    pending_letters,
    replay_tasks,
)
from kts_source.export.report import (
    BackfillReport,
    dry_report,
    lost_offsets,
    newest_ms,
    written_ranges,
)
from kts_source.export.row_schema import (
    canonical_type,
    check_columns,
    check_typed,
    decoded_schema,
    schema_without_rows,
    typed_columns,
    unite_schemas,
)
from kts_source.export.settings import ADD, ADD_FIELDS, FAIL, SPARK
from kts_source.export.tables import open_table
from kts_source.export.tables.export_table import Commit, check_holders
from kts_source.export.tables.target_store import open_target
from kts_source.export.task import STAGES_OF_TASKS, ExportJob
from kts_source.export.topic_fields import check_fields
from kts_source.export.verify import verify
from kts_source.options.scan_options import refuse_durations
from kts_source.options.times import TIME_RANGE
from kts_source.options.value_formats import JSON, JSON_CONFLUENT
from kts_source.planning.estimate import estimate
from kts_source.planning.topic_options import options_by_topic
from kts_source.texts import counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from kts_source.export.export_plan import ExportPlan
    from kts_source.export.fingerprint import Fingerprint
    from kts_source.export.parquet_file import DataFile
    from kts_source.export.progress import Progress
    from kts_source.export.ranges import CommittedRanges, RangeAdvance
    from kts_source.export.report import Skipped
    from kts_source.export.settings import Compaction, ExportSettings
    from kts_source.export.tables.export_table import ExportTable, TableState
    from kts_source.export.task import RunnableTask, TaskReport
    from kts_source.export.task_writer import ExportExecutor
    from kts_source.options import Options, ScanOptions
    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.store.object_store import ObjectInfo


log = logging.getLogger(__name__)

DEFAULT_CLEAN_HOURS: Final = 7 * 24.0


def export(
    source: Options,
    settings: ExportSettings,
    executor: ExportExecutor,
    *,
    progress: Progress = NO_PROGRESS,
    table: ExportTable | None = None,
) -> BackfillReport:
    """Writes all records of the source that are not in the table yet.

    Args:
        source: Options as for `spark.read.format("tiered-kafka")`.
        settings: Settings of the export.
        executor: Runs the tasks.
        progress: Receives the progress of the run.
        table: The target; by default it is opened from the settings.

    Raises:
        ExportError: Offsets have gaps or overlaps, the table was written with other settings, or
            another export committed first. Commits before the error remain in the table; run again
            to continue.
        TieredKafkaError: The source cannot be read.
    """
    options = options_by_topic(source, settings.topic_options.reveal())
    check_typed(options, settings)
    refuse_durations(options, {TIME_RANGE}, "all runs of an export must have the same filter")
    options = replace(options, key_ring=options.key_ring.loaded())
    with _opened(table, settings) as opened:
        try:
            rules = fingerprint(options, settings)
            run = _Run(options, settings, executor, opened, progress, rules)
            if settings.dry_run:
                return run.check()
            return run.replay() if settings.replay else run.export()
        except KeyboardInterrupt:
            log.warning("interrupted: commits are kept, and the same call continues after them")
            raise


def clean(
    settings: ExportSettings,
    *,
    older_than_hours: float = DEFAULT_CLEAN_HOURS,
    remove: bool = False,
    table: ExportTable | None = None,
) -> tuple[ObjectInfo, ...]:
    """Lists files of failed attempts that are still in a target or in its folder of dead letters.
    Deletes them if `remove` is True.

    Files of a running export are never listed, because a running export marks its run in the
    target. Files of a run without a mark are listed only if the newest file of the run is old
    enough.

    Args:
        settings: The target.
        older_than_hours: Minimum age of the newest file of a run without a mark.
        remove: True to delete the listed files.
        table: The target; by default it is opened from the settings.
    """
    with _opened(table, settings) as opened:
        if settings.dead_letters is not None:
            publish_dead_letters(settings, opened.load().letters)
        before_ms = round((time.time() - older_than_hours * 3600) * 1000)
        # If target and dead letters share a folder, the table cannot show which dead letters are
        # committed.
        files = [entry for entry in opened.orphans() if not is_unpublished(entry.key)]
        letters = unpublished_dead_letters(settings)
        active = {
            _run_id_in(entry.key)
            for entry in (*files, *letters)
            if (entry.last_modified_ms or 0) >= before_ms
        }
        # Read the marks after the listing. If a listed run has no mark by then, it has committed
        # its files or has died.
        running = opened.running()

        def is_active(entry: ObjectInfo) -> bool:
            # Do not compare the result of `_run_id_in`: the key has the export_id before the run
            # id, and an export_id may look like a run id.
            is_running = any(run_id in entry.key for run_id in running)
            return is_running or _run_id_in(entry.key) in active

        files = [entry for entry in files if not is_active(entry)]
        letters = [entry for entry in letters if not is_active(entry)]
        if remove:
            opened.remove(files)
            remove_dead_letters(settings, letters)
        return (*files, *letters)


def _opened(
    table: ExportTable | None, settings: ExportSettings
) -> AbstractContextManager[ExportTable]:
    return closing(open_table(settings)) if table is None else nullcontext(table)


def _run_id_in(key: str) -> str:
    """Returns the run id in the key of a file. Returns the key itself if it contains no run id."""
    run_id = re.search("[0-9a-f]{32}", key)
    return key if run_id is None else run_id[0]


@dataclass(slots=True)
class _Run:
    """One run of an export, and the results of its tasks so far.

    Attributes:
        rules: Settings that determine the rows of the table, such as filter and transform.
        base: Files of the table that a compaction replaces.
        merges: True if a compaction merges `base` with new records instead of rebuilding the table.
        waiting: Offset ranges and task reports that the next commit includes. Used while the table
            does not exist, because its columns are not known before a task writes rows.
        waves: Number of waves that have ended.
        verified: Results of `verify`, as sentences.
        new_fields: Fields of keys and values that are not written, because the schema lacks them.
        added_fields: Fields that this run added to the table.
    """

    options: ScanOptions
    settings: ExportSettings
    executor: ExportExecutor
    table: ExportTable
    progress: Progress
    rules: Fingerprint
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    reports: list[TaskReport] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    waiting: tuple[list[RangeAdvance], list[TaskReport]] = field(default_factory=lambda: ([], []))
    waves: int = 0
    base: Sequence[DataFile] = ()
    merges: bool = False
    verified: tuple[str, ...] = ()
    new_fields: tuple[str, ...] = ()
    added_fields: tuple[str, ...] = ()
    seconds: dict[str, float] = field(
        default_factory=lambda: {"planning": 0.0, "running": 0.0, "committing": 0.0}
    )

    def export(self) -> BackfillReport:
        started = time.monotonic()
        state = self.table.load(self.rules)
        self._check_exists(state)
        publish_dead_letters(self.settings, state.letters)
        columns = self._typed_columns(state)
        plan = self._plan(state)
        log_run_start(self.run_id, self.settings.target, plan, state.committed)
        self._check_holders(plan, state)
        self.seconds["planning"] = time.monotonic() - started
        if self.settings.verify:
            started = time.monotonic()
            self.verified = verify(
                self.table.contents(),
                self.table.load().committed,
                plan.scan.partitions,
                self.options,
                self.settings,
            )
            self.seconds["verifying"] = time.monotonic() - started
        self.progress.begin(len(plan.scan.tasks), plan.scan.nominal_bytes)
        try:
            if plan.waves:
                with self.table.marked(self.run_id):
                    check_dead_letters(self.settings)
                    self._write(plan, columns, state)
        finally:
            self.progress.end()
        if self.waiting[0]:
            log.warning(
                "no row was written, and there is no table yet whose columns are known, so the"
                " offsets are not recorded and the next run reads them again"
            )
        report = replace(
            self._report(plan.waves, plan.skipped, state),
            newest_ms=newest_ms(plan.scan.partitions),
        )
        log_run_end(report, plan.scan.partitions)
        return report

    def _check_exists(self, state: TableState) -> None:
        following = self.settings.following
        if following is not None and following.has_table and not state.fingerprint:
            raise ExportError(
                "the table no longer exists, although this export has written to it: it was dropped"
                " or moved. Restore it and start the export again. Without the table, a new start"
                " creates it again, with the records that the tier still has",
                uri=self.settings.target,
            )

    def check(self) -> BackfillReport:
        """Plans the run, and reports what it would write; see `dry_report`."""
        started = time.monotonic()
        state = self.table.load(self.rules)
        self._typed_columns(state)
        plan = self._plan(state)
        self._check_holders(plan, state)
        seconds = {"planning": time.monotonic() - started}
        is_first = not state.fingerprint
        return dry_report(self.options, self.settings, plan, seconds, is_first=is_first)

    def replay(self) -> BackfillReport:
        """Replays the dead letters of the table in one commit; see the module `replay`."""
        state = self.table.load(self.rules)
        if not state.fingerprint:
            raise ExportError(
                "the table has no commit of this export, so it has no dead letters to replay. Run"
                " the export first",
                uri=self.settings.target,
            )
        check_rollback(self.options, state)
        publish_dead_letters(self.settings, state.letters)
        columns = self._typed_columns(state)
        tasks = replay_tasks(self.options, self.settings, state)
        kept = kept_letters(self.options, self.settings, state)
        self.progress.begin(len(tasks), sum(task.letters.size for task in tasks))
        try:
            if tasks or kept is not None:
                with self.table.marked(self.run_id):
                    target = self.table.write_target(self.run_id)
                    job = ExportJob(self.options, target, self.run_id, self.settings, columns)
                    names = tuple(task.letters.key for task in tasks)
                    reports, job = self._run_wave(tasks, job, state)
                    self._commit(Wave((), ()), reports, job, replayed=names, kept=kept)
                finish_replay(self.settings, tasks)
        finally:
            self.progress.end()
        lost = 0 if kept is None else state.pending.total - sum(kept.values())
        report = replace(self._report((), (), state), replayed=len(tasks), lost_letters=lost)
        log_run_end(report, ())
        return report

    def _write(self, plan: ExportPlan, columns: pa.Schema | None, state: TableState) -> None:
        settings, target = self.settings, self.table.write_target(self.run_id)
        job = ExportJob(self.options, target, self.run_id, settings, columns)
        if settings.compaction is not None:
            self._compact(plan, job, settings.compaction, state)
            return
        for wave in plan.waves:
            reports, job = self._run_wave(wave.tasks, job, state)
            self._commit(wave, reports, job)
            # A round ends after one commit. If nothing was committed, continue, because the next
            # round would read the same offsets again.
            if settings.following is not None and not self.waiting[0]:
                break

    def _typed_columns(self, state: TableState) -> pa.Schema | None:
        """Returns the columns of the rows; decoded columns also have the fields that only the table
        has. Returns `None` if no column is decoded, or if a transform may change the columns.

        Raises `SchemaChangedError` if the columns do not fit the columns of the table.
        """
        typed = typed_columns(self.options)
        if not typed or self.settings.transform is not None:
            return None
        there = state.schema()
        if self.settings.on_new_fields == ADD and there is not None:
            self._use_fields_of(there)
        columns = decoded_schema(self.options)
        if there is None:
            return columns
        evolves = self.settings.schema_evolution == ADD_FIELDS
        return unite_schemas(there, columns, typed, self.settings.target, evolves=evolves)

    def _use_fields_of(self, table: pa.Schema) -> None:
        """Adds the fields of the table to the schemas of JSON formats. Otherwise, the tasks of each
        run would find the fields again that an earlier run added.
        """
        from kts_source.export.new_fields import with_json_fields

        formats = tuple(
            with_json_fields(form, canonical_type(table.field(form.column).type))
            if form.format in (JSON, JSON_CONFLUENT) and form.column in table.names
            else form
            for form in self.options.formats
        )
        self.options = replace(self.options, formats=formats)

    def _run_wave(
        self, tasks: Sequence[RunnableTask], job: ExportJob, state: TableState
    ) -> tuple[list[TaskReport], ExportJob]:
        """Runs the tasks of a wave. If the tasks find fields to add to the table, deletes their
        files and runs them again with these fields. Returns the reports and the job of the last
        run.
        """
        while True:
            reports = self._run_tasks(tasks, job)
            if not self.commits and not state.fingerprint:
                samples = (each for report in reports for each in report.topic_fields)
                try:
                    check_fields(samples, self.options.formats)
                except InvalidOptionError:
                    self._discard(reports)
                    raise
            schemas = [report.new_schemas for report in reports]
            if not any(schemas):
                return reports, job
            from kts_source.export.new_fields import add_fields, first_places

            self._discard(reports)
            found: dict[str, str] = {}
            for report in reports:
                for name, place in report.new_fields.items():
                    found.setdefault(name, place)
            try:
                formats = add_fields(self.options.formats, job.base_formats, schemas)
                self.options = replace(self.options, formats=formats)
                check_typed(self.options, self.settings)
                columns = self._typed_columns(state)
                if self.commits and job.columns is not None and columns is not None:
                    # `state` is older than the commits of this run.
                    typed, target = typed_columns(self.options), self.settings.target
                    columns = unite_schemas(job.columns, columns, typed, target, evolves=True)
            except (InvalidOptionError, SchemaChangedError) as error:
                raise error.extended(first_places(found, error.message)) from None
            job = replace(job, options=self.options, columns=columns)
            self.added_fields = (*self.added_fields, *found)
            log.info("reading the wave again with the new fields %s", ", ".join(found))

    def _discard(self, reports: Sequence[TaskReport]) -> None:
        """Deletes the files that tasks wrote before they run again."""
        letters = list_dead_letters(self.settings, (report.dead_letters for report in reports))
        drop_dead_letters(self.settings, letters)
        self.table.discard([file for report in reports for file in report.files])

    def _plan(self, state: TableState) -> ExportPlan:
        options, settings, committed = self.options, self.settings, state.committed
        following = settings.following
        if settings.compaction is None:
            commit_bytes = settings.commit_bytes if following is None else following.round_bytes
            return plan_export(options, state, resume=settings.resume, commit_bytes=commit_bytes)
        # A compaction has only one wave, which either merges new records or rebuilds the table.
        if not state.fingerprint or can_merge(options, settings):
            self.merges = bool(state.fingerprint)
            self.base = self.table.base_files() if self.merges else ()
            commit_bytes = 1 << 62 if following is None else following.round_bytes
            return plan_export(options, state, resume=True, commit_bytes=commit_bytes)
        plan = plan_rebuild(options, committed)
        if plan.waves:
            self.base = self.table.base_files()
            planned = {
                partition_key(partition.topic, partition.topic_id, partition.partition)
                for partition in plan.scan.partitions
            }
            target = self.table.write_target(self.run_id)
            check_rebuild(options, target, self.base, committed, planned)
            self._check_lost(plan.skipped, plan, state)
        return plan

    def _check_holders(self, plan: ExportPlan, state: TableState) -> None:
        """Checks before any row is read that no other export has written the same topics. A commit
        checks this again.
        """
        if not self.settings.second_copy:
            topics = {a.key: a.topic for wave in plan.waves for a in wave.advances}
            check_holders(state, topics, self.settings.target)

    def _check_lost(self, skipped: Iterable[Skipped], plan: ExportPlan, state: TableState) -> None:
        """Checks that the table has no rows with the offsets in `skipped`, because a rebuild could
        not read these rows again.
        """
        topic_ids = {
            (partition.topic, partition.partition): partition.topic_id
            for partition in plan.scan.partitions
        }
        lost: dict[PartitionKey, list[tuple[int, int]]] = {}
        for gap in skipped:
            topic_id = topic_ids[gap.topic, gap.partition]
            key = partition_key(gap.topic, topic_id, gap.partition)
            lost.setdefault(key, []).append((gap.start, gap.stop))
        target = self.table.write_target(self.run_id)
        check_lost(self.options, target, self.base, state.committed, lost)

    def _compact(
        self, plan: ExportPlan, job: ExportJob, compaction: Compaction, state: TableState
    ) -> None:
        wave = plan.waves[0]
        base = self.base if self.merges else ()
        nominal = sum(task.scan.nominal_bytes for task in wave.tasks)
        buckets = bucket_count(nominal + BASE_RATIO * sum(file.size for file in base))
        spread: list[RunnableTask] = [
            SpreadTask(task.number, task.scan, task.topic_ids, buckets) for task in wave.tasks
        ]
        spread += base_tasks(base, 1 + max((t.number for t in spread), default=-1), buckets)
        reports = self._run_tasks(spread, job)
        if not self.merges:
            self._check_lost(lost_offsets(reports), plan, state)
        newest = newest_timestamps(reports, state.newest_ms)
        merging = bucket_tasks(reports, len(spread), buckets, compaction, newest)
        reports += self._run_tasks(merging, job)
        replaced = frozenset(file.key for file in self.base)
        self._commit(wave, reports, job, base=replaced, newest_ms=newest)
        with closing(open_target(job.target.path, job.target.storage)) as target:
            for spilled in list(target.list_objects(spill_folder(job))):
                target.delete(spilled.key)

    def _run_tasks(self, tasks: Sequence[RunnableTask], job: ExportJob) -> list[TaskReport]:
        """Runs tasks and returns their reports, ordered by task number. Raises `ExportError` if a
        report is missing or occurs twice.
        """
        started = time.monotonic()
        reports: dict[int, TaskReport] = {}
        if tasks:
            for report in self.executor.run(tasks, job):
                if report.number in reports:
                    raise ExportError(
                        f"the executor returned two reports of task {report.number}, so its files"
                        " were not committed. Run again to continue"
                    )
                reports[report.number] = report
                self.progress.task_done(report)
        if missing := {task.number for task in tasks} - reports.keys():
            raise ExportError(
                f"the executor returned no report of tasks {sorted(missing)[:5]}, so the files of"
                " all tasks of this step were not committed. Run again to continue"
            )
        self.seconds["running"] += time.monotonic() - started
        return [reports[number] for number in sorted(reports)]

    def _commit(
        self,
        wave: Wave,
        ordered: Sequence[TaskReport],
        job: ExportJob,
        *,
        base: frozenset[str] | None = None,
        newest_ms: Mapping[PartitionKey, int] = MappingProxyType({}),
        replayed: tuple[str, ...] = (),
        kept: Mapping[str, int] | None = None,
    ) -> None:
        started = time.monotonic()
        counts = (count for report in ordered for count in report.counts)
        check_rejected(counts, self.settings.max_rejected)
        self._check_new_fields(ordered)
        advances = merge_advances(self.waiting[0], wave.advances)
        reports = [*self.waiting[1], *ordered]
        letters = [each.dead_letters for each in reports if each.dead_letters is not None]
        commit = Commit(
            tuple(advances),
            tuple(file for report in reports for file in report.files),
            self.rules,
            self._schema(reports, job),
            self.run_id,
            base,
            newest_ms,
            list_dead_letters(self.settings, letters),
            () if job.columns is None else typed_columns(self.options),
            replayed,
            0 if self.settings.writer == SPARK else len(letters),  # no replay
            kept,
        )
        try:
            committed = self.table.commit(commit)
        except (CommitConflictError, FingerprintError, RangeOverlapError):
            # If an earlier attempt succeeded but its response was lost, the table already records
            # the list of dead letters of this commit.
            publish_dead_letters(self.settings, self.table.load().letters)
            drop_dead_letters(self.settings, commit.letters)
            raise
        if committed:
            publish_dead_letters(self.settings, commit.letters)
            self.commits.append(commit)
            log_commit(self.run_id, self.table, commit, time.monotonic() - started)
            self.waiting = [], []
        else:
            self.waiting = advances, reports
        self.reports.extend(ordered)
        self.waves += 1
        self.seconds["committing"] += time.monotonic() - started

    def _check_new_fields(self, reports: Sequence[TaskReport]) -> None:
        """Reports fields that the schema lacks, each of them once per run. If `on_new_fields` is
        `fail`, raises `SchemaChangedError` instead.
        """
        found = dict.fromkeys(name for report in reports for name in report.new_fields)
        new = [name for name in found if name not in self.new_fields]
        self.new_fields = (*self.new_fields, *new)
        if not new:
            return
        text = (
            f"the records have fields that the schema lacks: {', '.join(new)}. Set"
            " on_new_fields='add' to add them to the table"
        )
        if self.settings.on_new_fields == FAIL:
            raise SchemaChangedError(
                f"{text}; on_new_fields='warn' exports the records without these fields",
                uri=self.settings.target,
            )
        adds = self.settings.on_new_fields == ADD
        for name in new:
            reason = ", and no record shows its type" if adds else ""
            log.warning("%s is not in the schema%s, so it is not written", name, reason)

    def _schema(self, reports: Sequence[TaskReport], job: ExportJob) -> pa.Schema | None:
        """Returns the columns of the rows that tasks wrote. If they wrote no rows, returns the
        columns that rows would have, or `None` if these are unknown.
        """
        schemas = [report.schema for report in reports if report.schema is not None]
        if schemas:
            if not all(schema.equals(schemas[0], check_metadata=True) for schema in schemas):
                raise TransformError(
                    "the transform returned different columns in different tasks: it must always"
                    " return the same columns"
                )
            return schemas[0]
        schema = job.columns or schema_without_rows(self.options, self.settings)
        if schema is not None:  # before a table is created with columns that it cannot have
            check_columns(schema, self.settings, job.target.values_in)
        return schema

    def _report(
        self, planned_waves: Sequence[Wave], planned: Sequence[Skipped], state: TableState
    ) -> BackfillReport:
        reports = self.reports
        files = [file for report in reports for file in report.files]
        file_count, file_bytes = self.table.written(self.commits)
        waves, later = planned_waves[: self.waves], planned_waves[self.waves :]
        if later:  # later rounds report the later gaps
            ends = {(a.topic, a.key.partition): a.stop for wave in waves for a in wave.advances}
            planned = tuple(g for g in planned if g.start < ends.get((g.topic, g.partition), 0))
        skipped = (*planned, *lost_offsets(reports))
        advances = (advance for commit in self.commits for advance in commit.advances)
        is_changed = any(
            commit.letter_files or commit.replayed or commit.kept_letters is not None
            for commit in self.commits
        )
        load = self.table.load if is_changed else lambda: state
        return BackfillReport(
            target=self.settings.target,
            table_format=self.settings.table_format,
            ranges=written_ranges(advances, skipped),
            rows=sum(file.rows for file in files),
            rows_read=sum(report.rows_read for report in reports),
            rejected=sum(r.dead_letters.rows for r in reports if r.dead_letters is not None),
            files=file_count,
            file_bytes=file_bytes,
            segment_bytes=sum(report.segment_bytes for report in reports),
            left_bytes=sum(task.scan.nominal_bytes for wave in later for task in wave.tasks),
            commits=len(self.commits),
            requests=sum(report.requests for report in reports),
            bytes_read=sum(report.bytes_read for report in reports),
            retries=sum(report.retries for report in reports),
            cost=estimate([task.scan for wave in waves for task in wave.tasks]).cost(),
            skipped=skipped,
            verified=self.verified,
            new_fields=self.new_fields,
            added_fields=tuple(name for name in self.added_fields if name not in self.new_fields),
            seconds={
                **self.seconds,
                "tasks": sum(report.seconds for report in reports),
                **{
                    stage: sum(report.seconds_of.get(stage, 0.0) for report in reports)
                    for stage in STAGES_OF_TASKS
                },
                "writing": sum(report.seconds_writing for report in reports),
            },
            run_id=self.run_id,
            pending_letters=pending_letters(self.settings, load, self.run_id),
            created=self.table.created,
            malformed=sum(report.malformed for report in reports),
            mirrored=sum(report.mirrored for report in reports),
            ended_ms=time.time_ns() // 1_000_000,
        )


_MAX_NAMED: Final = 8
"""Maximum number of partitions in a log line."""


def log_run_start(run_id: str, target: str, plan: ExportPlan, committed: CommittedRanges) -> None:
    """Logs the offsets that a run will write, and the committed offsets that it continues after."""
    log.info(
        "run %s: export to %s begins: %s planned, %s, %s of segments",
        *(run_id, target, counted(len(plan.waves), "commit")),
        *(counted(len(plan.scan.tasks), "task"), format_bytes(plan.scan.nominal_bytes)),
    )
    for topic in dict.fromkeys(partition.topic for partition in plan.scan.partitions):
        lines = []
        for partition in plan.scan.partitions:
            if partition.topic == topic:
                held = held_range(committed, topic, partition.topic_id, partition.partition)
                after = "a new partition" if held is None else f"resumes at offset {held.stop}"
                span = f"[{partition.start}, {partition.stop})"
                if partition.start >= partition.stop:
                    span = "no new offsets"
                lines.append(f"{topic}-{partition.partition} {span}, {after}")
        log.info("run %s: offsets to write: %s", run_id, _joined(lines, "partitions"))


def log_commit(run_id: str, table: ExportTable, commit: Commit, seconds: float) -> None:
    """Logs a commit, and the offsets that it added to the table."""
    files, size = table.written([commit])
    log.info(
        "run %s: committed %s: %d rows in %s, %s, %.1f s: %s",
        *(run_id, table.version, sum(file.rows for file in commit.files), counted(files, "file")),
        *(format_bytes(size), seconds),
        _joined(
            [
                f"{step.topic}-{step.key.partition} [{step.start}, {step.stop})"
                for step in commit.advances
                if step.start < step.stop
            ],
            "partitions",
        ),
    )


def log_run_end(report: BackfillReport, partitions: Sequence[PartitionPlan]) -> None:
    """Logs the figures of a run, and the offsets that it skipped. Lost offsets are logged as a
    warning; offsets after an open transaction are not, because the next run reads them.

    Warns if the newest timestamp of a tier is unknown or in the future, because alerts on it cannot
    fire then.
    """
    log.info(
        "run %s: export to %s ended: %d rows, %d rejected, %d dropped as malformed, %s, %s"
        " received%s",
        *(report.run_id, report.target, report.rows, report.rejected, report.malformed),
        *(counted(report.commits, "commit"), format_bytes(report.bytes_read)),
        f"; {report.freshness}" if report.freshness else "",
    )
    # The tier may have no segment yet if brokers serve the offsets.
    if report.newest_ms is None and any(each.brokers is None for each in partitions):
        log.warning(
            "run %s: the report and the metrics have no time of the newest record, because no"
            " segment of the tier has a timestamp",
            report.run_id,
        )
    elif report.is_ahead:
        log.warning("run %s: %s: a clock is wrong", report.run_id, report.freshness)
    stops = {(each.topic, each.partition): each.stop for each in partitions}
    lost: list[str] = []
    later: list[str] = []
    for gap in report.skipped:
        is_later = gap.start >= stops.get((gap.topic, gap.partition), gap.stop)
        (later if is_later else lost).append(str(gap))
    for level, action, gaps in (
        (logging.WARNING, "lost offsets were skipped", lost),
        (logging.INFO, "left for a later run", later),
    ):
        if gaps:
            log.log(level, "run %s: %s: %s", report.run_id, action, _joined(gaps, "ranges"))


def _joined(texts: Sequence[str], noun: str) -> str:
    """Joins the first texts, and appends how many texts were omitted."""
    named: Iterable[str] = texts[:_MAX_NAMED]
    more = len(texts) - _MAX_NAMED
    return "; ".join([*named, *([f"and {more:,} more {noun}"] if more > 0 else [])])
