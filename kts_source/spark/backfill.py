"""`backfill(spark, source=…, target=…)`: writes the history of topics to a table exactly once."""

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

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from kts_source.export.progress import Progress
    from kts_source.export.report import BackfillReport
    from kts_source.export.task import ExportJob, RunnableTask
    from kts_source.export.task_writer import ExportExecutor


def backfill(
    spark: SparkSession | None,
    *,
    source: Mapping[str, str],
    target: str,
    progress: bool = True,
    **arguments: Unpack[ExportArguments],
) -> BackfillReport:
    """Writes a source to a table: the first run everything, later runs only new records.

    Each commit moves the offsets and adds the files in one step. Restart a killed run to continue.

    Args:
        spark: Runs the tasks; `None` runs them in processes of this machine.
        source: Options as for `spark.read.format("tiered-kafka")`.
        target: A folder, `s3://bucket/prefix`, or an Iceberg table's name (`namespace.table`).
        progress: Show the progress on stderr; not with `follow`.
        table_format: `parquet` (default), `delta` or `iceberg`.
        partition_by: Columns, fields of decoded columns, or `date(column)`; for example `["topic",
            "value.country", "date(timestamp)"]`.
        transform: A picklable function from record batch to record batch (or `None`), applied in
            the tasks to at most a few thousand rows at a time. It must be deterministic. A
            `kts_source.export.transforms.RowTransform` can reject single rows.
        sort_within_files: Columns, or fields of decoded columns, by which each file is sorted.
        target_file_bytes: A file is closed when it reaches this size; default 256 MiB.
        row_group_rows: Maximum rows of a row group; default 1,048,576.
        compression: `zstd` (default), `snappy`, `lz4`, `gzip` or `none`.
        resume: Continue after the target's offsets (default); else overlaps are errors.
        export_id: Distinguishes exports into the same target; default `kts`.
        commit_bytes: Minimum original bytes of a commit; default 64 GiB.
        target_options: `s3.*` options of the target; default: options of the source.
        catalog: Properties for PyIceberg's `load_catalog`.
        dead_letters: Folder for rows that a `RowTransform` rejects or that cannot be decoded, as
            stored bytes with the reason. Without it, such rows are errors.
        compact: Keep only the latest record of each (topic, partition, key), as Kafka's cleaner
            does. Later runs rewrite all files of the table; plain Parquet needs a new folder.
        tombstones: Latest records with a null value: `keep` (default), `remove`, or `remove-old`
            for tombstones older than `delete_retention_ms` before the newest record.
        delete_retention_ms: See `tombstones`; default: one day.
        follow: Repeat until SIGTERM or SIGINT, then return a report of all rounds. Logger
            `kts_source.export.follow` logs each round as JSON.
        interval: With `follow`, time between rounds: `60s` (default), `15m`, `1h`; at least `1s`.
        round_bytes: With `follow`, instead of `commit_bytes`: bytes of a round; default 8 GiB.
        schema_evolution: With `add`, new fields of typed columns are added and missing fields are
            null; with `none` (default), both are errors.
        text_partitions: `checked` (default) rejects partition texts that look like other types.
        verify: First compare the table's rows with the offsets and counts of its commits. This
            reads `topic`, `partition` and `offset` of the whole table.

    Raises:
        InvalidOptionError: Arguments or options contradict each other or the table.
        ExportError: Offsets have gaps or overlaps, the table's rules differ, or a commit conflicts.
        TieredKafkaError: The source cannot be read.
        TypeError: An unknown argument.
    """
    settings = export_settings(target, source=source, **arguments)
    if settings.following is not None:
        return follow(source, settings, _executor(spark, NO_PROGRESS))
    shown = default_progress() if progress else NO_PROGRESS
    return export(source, settings, _executor(spark, shown), progress=shown)


def _executor(spark: SparkSession | None, progress: Progress) -> ExportExecutor:
    return LocalExecutor() if spark is None else SparkExecutor(spark, progress)


class SparkExecutor:
    """Runs export tasks as Spark jobs, one per wave."""

    def __init__(self, spark: SparkSession, progress: Progress = NO_PROGRESS) -> None:
        # Fails early if Spark is missing; a backfill without Spark does not need it.
        importlib.import_module("kts_source.spark.jobs")
        self._spark = spark
        self._progress = progress
        self._tag = f"tiered-kafka-export-{uuid.uuid4().hex}"

    def run(self, tasks: Sequence[RunnableTask], job: ExportJob) -> Iterator[TaskReport]:
        """See `ExportExecutor.run`. Yields the reports after all tasks have ended."""
        from kts_source.spark.jobs import run_tasks

        texts = run_tasks(self._spark, self._tag, tasks, job, self._progress)
        return map(TaskReport.from_text, texts)
