"""Implements `backfill(spark, source=…, target=…)`: writes the history of topics to a table, each
record exactly once.
"""

from __future__ import annotations

import importlib
import uuid
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Unpack

from kts_source.export.by_topic import exports_of, run_exports
from kts_source.export.follow import follow
from kts_source.export.progress import NO_PROGRESS, default_progress
from kts_source.export.run import export
from kts_source.export.settings import ICEBERG, SPARK
from kts_source.export.task import TaskReport
from kts_source.export.task_writer import LocalExecutor
from kts_source.libraries import require

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from kts_source.export.by_topic import TableExport
    from kts_source.export.progress import Progress
    from kts_source.export.report import BackfillReport
    from kts_source.export.settings import ExportArguments, ExportSettings
    from kts_source.export.tables.export_table import ExportTable
    from kts_source.export.task import ExportJob, RunnableTask
    from kts_source.export.task_writer import ExportExecutor
    from kts_source.options import Options


def backfill(
    spark: SparkSession | None,
    *,
    source: Options,
    target: str | os.PathLike[str],
    progress: bool = True,
    topic_options: Mapping[str, Options] = MappingProxyType({}),
    **arguments: Unpack[ExportArguments],
) -> BackfillReport:
    """Writes the records of topics to a table. A later run adds only records that are missing.

    Args:
        spark: Session that runs the tasks; `None` for local processes.
        source: Options of `spark.read.format("tiered-kafka")`.
        target: A folder, a URL or a table's name; `{topic}`: a table per topic.
        progress: True to show the progress on stderr. Ignored with `follow`.
        topic_options: Options of single topics, by topic. In one table, only `key.*`, `value.*`.
        table_format: `parquet` (default), `delta` or `iceberg`.
        writer: `path` (default), or `spark`: Spark appends rows to its table `target`.
        partition_by: Columns, fields, or times: `hour(timestamp)`, `date(timestamp, Asia/Tokyo)`.
        transform: A picklable, deterministic function from a record batch to a record batch or
            `None`. To reject single rows, use a `kts_source.export.transforms.RowTransform`.
        sort_within_files: Columns, or fields of decoded columns, by which each file is sorted.
        target_file_bytes: Size in bytes after which the next file begins; default 256 MiB.
        row_group_rows: Maximum number of rows in a row group; default 1,048,576.
        compression: `zstd` (default), `snappy`, `lz4`, `gzip` or `none`.
        resume: False to fail if the target has some of the offsets; default True.
        export_id: Distinguishes this export from others into the same target; default `kts`.
        second_copy: True to write partitions that another export wrote into the same target.
        commit_bytes: Original bytes of segments after which a commit is made; default 64 GiB.
        target_options: `s3.*` and `storageOptions` for the target; default: those of the source.
        catalog: Properties for PyIceberg's `load_catalog`; `name` is the catalog's name.
        dead_letters: Folder for rows that are rejected or cannot be decoded; without it, an error.
        max_rejected: Maximum share of rejected rows in a commit; default `1%`. `100%` accepts all;
            otherwise a run also fails if all rows of a partition are rejected.
        replay: True to replay the dead letters: to add those rows that are valid now, exactly once.
        compact: True to keep only the latest record of each (topic, partition, key). Later runs
            rewrite all files of the table. With `parquet`, each run needs a new folder.
        tombstones: With `compact`, `keep` (default) latest records with a null value, `remove`
            them, or `remove-old`: those `delete_retention_ms` older than the newest record.
        delete_retention_ms: Time in ms for `tombstones="remove-old"`; default one day.
        follow: True to repeat the export until SIGTERM or SIGINT, with a JSON log line per round.
        interval: With `follow`, time between rounds; default `60s`.
        round_bytes: With `follow`, replaces `commit_bytes`; default 8 GiB.
        schema_evolution: `add` adds new fields to the table, and writes null for missing fields;
            by default, both are errors.
        on_new_fields: `warn` (default) about fields that the schema lacks, `fail`, or `add` them.
        text_partitions: `checked` (default) rejects partition texts that look like another type.
        verify: True to first compare the rows of the table with the row counts of its commits.
        dry_run: True to only report what a run would write, with a sample of rejected rows.

    Raises:
        InvalidOptionError: Arguments or options contradict each other or the table.
        ExportError: Offsets have gaps or overlap, or the table has other settings or writers.
        TieredKafkaError: The source cannot be read.
    """
    exports = exports_of(source, target, topic_options, **arguments)
    is_shown = progress and exports[0].settings.following is None
    shown = default_progress() if is_shown else NO_PROGRESS
    return _run(spark, source, target, exports, shown)


def _run(
    spark: SparkSession | None,
    source: Options,
    target: str | os.PathLike[str],
    exports: Sequence[TableExport],
    progress: Progress,
) -> BackfillReport:
    settings = exports[0].settings
    executor, opened = _tables(spark, progress, settings)
    if settings.following is not None:
        return follow(source, settings, executor, opened=opened)
    return run_exports(target, exports, partial(_export, executor, opened, progress))


def _export(
    executor: ExportExecutor,
    opened: Callable[[ExportSettings], ExportTable | None],
    progress: Progress,
    planned: TableExport,
) -> BackfillReport:
    settings = planned.settings
    return export(planned.source, settings, executor, progress=progress, table=opened(settings))


def _tables(
    spark: SparkSession | None, progress: Progress, settings: ExportSettings
) -> tuple[ExportExecutor, Callable[[ExportSettings], ExportTable | None]]:
    """Returns the executor of the tasks, and a function for the argument `table` of `export`."""
    if spark is None:
        return LocalExecutor(), lambda _settings: None
    if settings.writer != SPARK:
        return SparkExecutor(spark, progress), lambda _settings: None
    from kts_source.spark.row_frames import RowExecutor

    executor = RowExecutor(spark, progress)
    if settings.table_format == ICEBERG:
        require("pyiceberg", "iceberg", "an Iceberg table")
        from kts_source.spark.named_iceberg import NamedIcebergTable

        return executor, lambda each: NamedIcebergTable(each, executor)
    from kts_source.spark.named_delta import NamedDeltaTable

    return executor, lambda each: NamedDeltaTable(each, executor)


class SparkExecutor:
    """Runs export tasks in Spark. Each call of `run` is one Spark job."""

    def __init__(self, spark: SparkSession, progress: Progress = NO_PROGRESS) -> None:
        # Import here to fail early if Spark is missing. A backfill without Spark does not need it.
        importlib.import_module("kts_source.spark.jobs")
        self._spark = spark
        self._progress = progress
        self._tag = f"tiered-kafka-export-{uuid.uuid4().hex}"

    def run(self, tasks: Sequence[RunnableTask], job: ExportJob) -> Iterator[TaskReport]:
        """Runs the tasks in one Spark job, and yields the report of each task after all tasks have
        ended. `job` has the settings that all tasks share.
        """
        from kts_source.spark.jobs import run_tasks

        texts = run_tasks(self._spark, self._tag, tasks, job, self._progress)
        return map(TaskReport.from_text, texts)
