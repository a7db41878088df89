"""`backfill(spark, source=…, target=…)`: a topic's history into a table, exactly once."""

from __future__ import annotations

import importlib
import uuid
from typing import TYPE_CHECKING, Unpack

from kts_source.export.follow import follow
from kts_source.export.progress import NO_PROGRESS, default_progress
from kts_source.export.run import export
from kts_source.export.settings import ExportArguments, export_settings
from kts_source.export.task import TaskReport
from kts_source.export.task_writer import LocalExecutor
from kts_source.spark.running import run_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from kts_source.export.progress import Progress
    from kts_source.export.report import BackfillReport
    from kts_source.export.task import ExportJob, RunnableTask


def backfill(
    spark: SparkSession | None,
    *,
    source: Mapping[str, str],
    target: str,
    progress: bool = True,
    **arguments: Unpack[ExportArguments],
) -> BackfillReport:
    """Writes what `target` lacks of a source into it: the first run all, later runs what is new.

    The tasks that decode also write, so rows do not pass through the JVM. Every commit moves the
    committed offsets and adds the files in one step; a run that was killed is simply started again.

    Args:
        spark: Runs the tasks; `None` runs them in processes of this machine.
        source: Options as for `spark.read.format("tiered-kafka")`.
        target: A folder, `s3://bucket/prefix`, or an Iceberg table's name (`namespace.table`).
        progress: Whether to show how it goes, on stderr; not with `follow`.
        table_format: `parquet` (default), `delta` or `iceberg`.
        partition_by: Columns, fields of decoded ones, or `date(column)`; for example `["topic",
            "value.country", "date(timestamp)"]`.
        transform: A picklable function from record batch to record batch (or `None`), applied in
            the tasks to at most a few thousand rows at a time. It must be deterministic. A
            `kts_source.export.transforms.RowTransform` can reject single rows.
        sort_within_files: Columns, or fields of decoded ones, every file is sorted by.
        target_file_bytes: A file is closed once it has as many bytes; default 256 MiB.
        row_group_rows: Rows of a row group, at most; default 1,048,576.
        compression: `zstd` (default), `snappy`, `lz4`, `gzip` or `none`.
        resume: Continue behind what the target holds (default); False makes any overlap an error.
        export_id: Tells exports into the same target apart; default `kts`.
        commit_bytes: Original bytes per commit, at least; bounds what a killed run repeats; default
            64 GiB.
        target_options: `s3.*` options of the target; default: those of the source.
        catalog: Properties for PyIceberg's `load_catalog`; only for Iceberg.
        dead_letters: Folder for Parquet files with the rows that a ready transform rejects, or
            whose typed key or value cannot be decoded, as they are stored, and why; without it such
            a row is an error.
        compact: Keep the latest record of every (topic, partition, key) only, as Kafka's cleaner
            does; a column `topicId` is added. Later runs read what is new and merge it with the
            table's own files, all of which they rewrite and replace in the step that moves the
            offsets: the work grows with the table, not with what is new. Plain Parquet cannot do
            that: there it needs a new folder.
        tombstones: What becomes of latest records whose value is null: `keep` (default), `remove`,
            or `remove-old`: only those older than `delete_retention_ms` before the newest record.
        delete_retention_ms: See `tombstones`; default one day.
        follow: Go on with what is new, round by round, until SIGTERM or SIGINT comes; then the
            report of all rounds is returned. A round is a run and a commit; while nothing is new,
            nothing is committed. Outages of the source are waited out. The log has a line of JSON a
            round (logger `kts_source.export.follow`, level INFO).
        interval: With `follow`: from one round to the next once nothing is left: `60s` (default),
            `15m`, `1h`; at least a second.
        round_bytes: With `follow`, in place of `commit_bytes`: a round ends with the segment that
            reaches so many original bytes, and the next begins at once; default 8 GiB.
        schema_evolution: With typed columns (options `key.format` and `value.format`): `none`
            (default), fields that are new or gone end the run; `add`: new ones are added to the
            table, nullable, and those that are gone are null in new rows.
        text_partitions: Of a Parquet folder that is partitioned by texts: `checked` (default)
            refuses texts that readers take for numbers, dates, times or booleans, such as `01`;
            `as-is` writes them, and readers need the type of the column.
        verify: Before anything is written, compare the rows of the table with the offsets and row
            counts that its commits recorded, and raise an error if another writer deleted,
            replaced or copied some. It reads the columns `topic`, `partition` and `offset` of the
            whole table. With `follow`, once at the start.

    Raises:
        InvalidOptionError: Arguments or options that do not fit.
        ExportError: Gaps, overlaps, other rules than the target was begun with, a commit that
            another export came before. What was committed stays.
        TieredKafkaError: The source cannot be read.
        TypeError: No such argument.
    """
    settings = export_settings(target, source=source, **arguments)
    follows = settings.following is not None
    shown = default_progress() if progress and not follows else NO_PROGRESS
    executor = LocalExecutor() if spark is None else SparkExecutor(spark, shown)
    if follows:
        return follow(source, settings, executor)
    return export(source, settings, executor, progress=shown)


class SparkExecutor:
    """Runs export tasks as Spark jobs, one per wave.

    Args:
        spark: The session.
        progress: Told of tasks that are done before they report, where Spark counts them (not
            through Spark Connect).
    """

    def __init__(self, spark: SparkSession, progress: Progress = NO_PROGRESS) -> None:
        # Now, before any work; not on top, so that a backfill without Spark needs none.
        importlib.import_module("kts_source.spark.export_source")
        self._spark = spark
        self._progress = progress
        self._tag = f"tiered-kafka-export-{uuid.uuid4().hex}"

    def run(self, tasks: Sequence[RunnableTask], job: ExportJob) -> Iterator[TaskReport]:
        """See `ExportExecutor.run`. Reports come when all tasks are done."""
        texts = run_tasks(self._spark, self._tag, tasks, job, self._progress)
        return map(TaskReport.from_text, texts)
