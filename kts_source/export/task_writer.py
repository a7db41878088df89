"""Runs export tasks. A task reads its slices of segments and writes their rows to Parquet files.

Every attempt uses unique file names, so retries and speculative copies never conflict. Only files
that the driver commits become part of the table. The number of open files and the bytes in memory
are limited.

A task also finds fields of keys and values that producers have added and the schema of the export
lacks. The export does not write these fields. For Avro with a registry, the writer's schema of
every value is compared with the schema of the export. For JSON, a sample of the values is parsed.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

import pyarrow as pa

from kts_source.columns import PARTITION, RAW_COLUMNS, TOPIC
from kts_source.errors import ExportError, InvalidValueError, TieredKafkaError, TransformError
from kts_source.export.dead_letters import RECORD_COLUMNS, DeadLetters
from kts_source.export.fingerprint import digest_number
from kts_source.export.parquet_file import ParquetFile
from kts_source.export.partitioning import (
    AS_IS,
    folder,
    log_folder,
    partition_values,
    split,
    value_text,
)
from kts_source.export.rejections import RecordCounts, sum_counts
from kts_source.export.row_schema import check_columns, conform_rows, decoded_schema
from kts_source.export.settings import ADD
from kts_source.export.tables.target_store import open_target
from kts_source.export.task import OFFSET, TOPIC_ID, TaskReport, WrittenFile
from kts_source.export.transforms import Rejected, RowTransform
from kts_source.processes import in_processes
from kts_source.read.read_settings import FOR_SPARK, BatchLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from kts_source.export.new_fields import NewFields
    from kts_source.export.partitioning import PartitionValue
    from kts_source.export.tables.target_store import TargetStore
    from kts_source.export.task import ExportJob, RunnableTask
    from kts_source.read.task import ScanTask
    from kts_source.read.task_metrics import TaskMetrics
    from kts_source.read.typed_rows import SetAside


MAX_OPEN_FILES: Final = 8
"""Maximum open files of a task. Each combination of partition values has its own file. Before
another file is opened, the least recently used file is closed.
"""
MAX_HELD_BYTES: Final = 128 << 20
"""Maximum bytes of rows in memory, over all open files."""


class Owner(NamedTuple):
    """The topic and partition whose rows a file contains. A file contains rows of one partition."""

    topic: str
    partition: int
    topic_id: str


@dataclass(slots=True)
class _OpenFile:
    """A file that is being written.

    Attributes:
        file: Writes the file.
        owner: Partition of its rows.
        start: First offset that was read for the file so far.
        stop: One past the last offset that was read for the file so far.
    """

    key: str
    file: ParquetFile
    owner: Owner
    start: int
    stop: int


class TaskWriter:
    """Writes the rows of batches to files, with one file for each combination of partition values.
    Batches of a Kafka partition must be in offset order.

    The end of the `with` block closes the store. If the block raised an error, the files of this
    attempt are deleted before that, if possible.

    Args:
        topic_ids: Topic id by topic and partition, for batches without a column of topic ids.
        origin: Name of the file of dead letters from which the rows come; empty for rows of the
            source.
    """

    def __init__(
        self,
        number: int,
        topic_ids: Mapping[tuple[str, int], str],
        job: ExportJob,
        *,
        origin: str = "",
    ) -> None:
        self._began = time.monotonic()
        self._topic_ids = topic_ids
        self._job = job
        self._settings = job.settings
        # A compacted table may have rows of several ids of a topic, so rows need a column of topic
        # ids.
        self._columns = [*job.options.columns, *((TOPIC_ID,) if job.settings.compaction else ())]
        self._conformed = job.columns
        if job.settings.transform is not None and job.options.has_formats_by_topic:
            # A transform gets the same columns for all topics.
            self._conformed = decoded_schema(job.options)
        self._letters = DeadLetters(job)
        self._origin = origin
        self._fields = new_fields_of(job)
        self._attempt = f"{number:06d}-{uuid.uuid4().hex}"
        self._open: dict[tuple[PartitionValue, ...], _OpenFile] = {}
        self._owner: Owner | None = None
        self._counts: dict[Owner, RecordCounts] = {}
        self._done: list[WrittenFile] = []
        self._count = 0
        self._schema: pa.Schema | None = None
        self._seconds = 0.0

    @property
    def field_columns(self) -> tuple[str, ...]:
        """Columns that batches need so that fields outside the schema are reported."""
        return () if self._fields is None else self._fields.columns

    @cached_property
    def target(self) -> TargetStore:
        """Store of the files. Opened at first use, because Spark may write the rows instead."""
        return open_target(self._job.target.path, self._job.target.storage)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._abandon()
        if "target" in vars(self):
            self.target.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Transforms the rows of a batch and writes them to files. All rows must be of one Kafka
        partition.

        Raises:
            TransformError: The transform failed.
            ExportError: A row has a partition value that readers would not read unchanged.
        """
        if batch.num_rows == 0:
            return
        started = time.monotonic()
        if self._fields is not None:
            self._fields.add_unknown(batch)
        owner = self._owner_of(batch)
        self._count_records(owner, batch.num_rows)
        start, stop = _offsets(batch)
        if owner != self._owner:
            self._close_all()
            self._owner = owner
        rows = self._transformed(batch, owner, start, stop)
        if rows is not None and rows.num_rows:
            self._check_schema(rows)
            self._write_rows(owner, rows, batch)
        self._seconds += time.monotonic() - started

    def _write_rows(self, owner: Owner, rows: pa.RecordBatch, batch: pa.RecordBatch) -> None:
        """Writes transformed rows to the files of their partition values. `batch` has the rows
        before the transform.
        """
        start, stop = _offsets(batch)
        fields, values_in = self._settings.partition_by, self._job.target.values_in
        any_text = self._settings.text_partitions == AS_IS
        columns = [field.values(rows) for field in fields]
        if values_in == "file":
            for field, column in zip(fields, columns, strict=True):
                if field.needs_own_column:
                    rows = rows.append_column(field.name, column)
        for row, part_rows in split(rows, columns):
            try:
                values = partition_values(fields, columns, row, values_in, any_text=any_text)
            except ValueError as error:
                raise self._partitioning_error(error, batch, row, owner) from None
            self._add(owner, values, part_rows, start, stop)

    def set_aside(self, batch: pa.RecordBatch, reasons: Mapping[int, str]) -> None:
        """Writes rows that cannot be decoded to the dead letters. `batch` contains their stored
        bytes. `reasons` maps the number of each undecodable row in the batch to the reason.
        """
        owner = self._owner_of(batch)
        self._count_records(owner, len(reasons))
        rejected = [Rejected(row, reason) for row, reason in reasons.items()]
        self._letters.add(batch, rejected, owner.topic_id)

    def completed(self, report: TaskReport) -> TaskReport:
        """Closes all open files. Returns `report` with the files of the task added."""
        started = time.monotonic()
        self._close_all()
        self._seconds += time.monotonic() - started
        return replace(
            report,
            files=tuple(self._done),
            schema=self._schema,
            dead_letters=self._letters.close(),
            new_fields={} if self._fields is None else self._fields.found,
            new_schemas={} if self._fields is None else self._fields.schemas(),
            topic_fields=() if self._fields is None else tuple(self._fields.topics.values()),
            counts=sum_counts((*self._counts.values(), *self._letters.counts)),
            seconds=time.monotonic() - self._began,
            seconds_writing=self._seconds,
        )

    def _abandon(self) -> None:
        for opened in self._open.values():
            opened.file.abandon()
        for key in [*(opened.key for opened in self._open.values()), *(f.key for f in self._done)]:
            with contextlib.suppress(Exception):
                self.target.delete(key)
        self._letters.abandon()

    def _count_records(self, owner: Owner, records: int) -> None:
        more = RecordCounts(owner.topic, owner.partition, records)
        self._counts[owner] = self._counts[owner] + more if owner in self._counts else more

    def _owner_of(self, batch: pa.RecordBatch) -> Owner:
        topic, partition = batch.column(TOPIC)[0].as_py(), batch.column(PARTITION)[0].as_py()
        if TOPIC_ID in batch.schema.names:
            return Owner(topic, partition, batch.column(TOPIC_ID)[0].as_py())
        return Owner(topic, partition, self._topic_ids[topic, partition])

    def _transformed(
        self, batch: pa.RecordBatch, owner: Owner, start: int, stop: int
    ) -> pa.RecordBatch | None:
        transform = self._settings.transform
        selected = batch.select(self._columns)
        if self._conformed is not None:
            selected = conform_rows(selected, self._conformed)
        if transform is None:
            return selected
        try:
            if isinstance(transform, RowTransform):
                result = transform.apply(selected)
                self._letters.add(batch, result.rejected, owner.topic_id)
                return result.rows
            rows = transform(selected)
        except TieredKafkaError:
            raise
        except Exception as error:
            raise TransformError(
                f"the transform failed on offsets [{start}, {stop}): {type(error).__name__}:"
                f" {error}",
                topic=owner.topic,
                partition=owner.partition,
                offset=start,
            ) from error
        if rows is not None and not isinstance(rows, pa.RecordBatch):
            raise TransformError(
                f"the transform must return a RecordBatch or None, not {type(rows).__name__}"
            )
        return rows

    def _check_schema(self, rows: pa.RecordBatch) -> None:
        if self._schema is None:
            check_columns(rows.schema, self._settings, self._job.target.values_in)
            self._schema = rows.schema.remove_metadata()
        elif self._settings.transform is not None and not rows.schema.equals(self._schema):
            raise TransformError(
                f"the transform must always return the same columns. First it returned"
                f" {self._schema}, then {rows.schema}"
            )

    def _partitioning_error(
        self, error: ValueError, batch: pa.RecordBatch, row: int, owner: Owner
    ) -> ExportError:
        offsets = batch.column(OFFSET)
        text = f"the row cannot be partitioned: {error}. "
        if self._settings.transform is not None:
            # The transform may have changed the number of rows, so the offset of this row is
            # unknown.
            text += f"It was produced from offsets {offsets[0]} to {offsets[len(offsets) - 1]}. "
            row = 0
        return ExportError(
            f"{text}Partition by another column, change the value in a transform, or drop such rows"
            " with option where",
            topic=owner.topic,
            partition=owner.partition,
            offset=offsets[row].as_py(),
        )

    def _add(
        self,
        owner: Owner,
        values: tuple[PartitionValue, ...],
        rows: pa.RecordBatch,
        start: int,
        stop: int,
    ) -> None:
        if self._job.target.values_in != "file":
            dropped = {field.name for field in self._settings.partition_by}
            rows = rows.select([name for name in rows.schema.names if name not in dropped])
        opened = self._open.pop(values, None)
        if opened is None:
            if len(self._open) >= MAX_OPEN_FILES:
                self._close(next(iter(self._open)))
            opened = self._begin(owner, values, rows.schema.remove_metadata(), start)
        self._open[values] = opened  # last = most recently used
        opened.stop = stop
        opened.file.add(rows)
        is_full = opened.file.written_bytes >= self._settings.target_file_bytes
        if is_full or opened.file.is_full_to_sort:
            self._close(values)
        self._bound_memory()

    def _begin(
        self, owner: Owner, values: tuple[PartitionValue, ...], schema: pa.Schema, start: int
    ) -> _OpenFile:
        settings, target = self._settings, self._job.target
        folders = log_folder(settings.partition_by, values) if target.values_in == "log" else ""
        key = f"{target.prefix}{folders}{self._attempt}-{self._count:04d}{target.suffix}"
        self._count += 1
        # A transform may have changed the column `topic`, so it may not be constant.
        is_constant = settings.transform is None and TOPIC in schema.names
        file = ParquetFile(
            self.target.open_output(key),
            schema,
            compression=settings.compression,
            row_group_rows=settings.row_group_rows,
            sort_by=settings.sort_within_files,
            bounded={
                name for field in settings.partition_by for name in (field.source, field.column)
            },
            constants={TOPIC: owner.topic} if is_constant else {},
        )
        return _OpenFile(key, file, owner, start, start)

    def _bound_memory(self) -> None:
        while sum(opened.file.held_bytes for opened in self._open.values()) > MAX_HELD_BYTES:
            values = max(self._open, key=lambda values: self._open[values].file.held_bytes)
            if self._settings.sort_within_files:
                self._close(values)
            else:
                self._open[values].file.flush()

    def _close_all(self) -> None:
        for values in list(self._open):
            self._close(values)

    def _close(self, values: tuple[PartitionValue, ...]) -> None:
        opened = self._open[values]
        size, statistics = opened.file.close()
        del self._open[values]
        owner = opened.owner
        # All attempts that write these offsets use the same final name. Replayed rows need another
        # name, because the table may have a file of the same offsets.
        source = owner.topic_id
        if self._origin:
            source = f"{digest_number(f'{self._origin} {source}'):016x}"
        name = (
            f"{self._settings.export_id}-{source}-{owner.partition}"
            f"-{opened.start:020d}-{opened.stop:020d}.parquet"
        )
        self._done.append(
            WrittenFile(
                key=opened.key,
                name=f"{folder(self._settings.partition_by, values)}{name}",
                **owner._asdict(),
                start=opened.start,
                stop=opened.stop,
                rows=opened.file.rows,
                size=size,
                modified_ms=time.time_ns() // 1_000_000,
                values=tuple(value_text(value) for value in values),
                statistics=statistics,
            )
        )


def _offsets(batch: pa.RecordBatch) -> tuple[int, int]:
    """Returns the first offset of a batch, and one past the last offset."""
    offsets = batch.column(OFFSET)
    return offsets[0].as_py(), offsets[len(offsets) - 1].as_py() + 1


_NEEDED: Final[tuple[str, ...]] = (TOPIC, PARTITION, OFFSET)
_BATCHES: Final = BatchLimits(16384, 8 << 20)
"""Larger than batches for Spark, because the writer has a fixed cost per batch."""


@dataclass(frozen=True, slots=True)
class ExportTask:
    """Reads the records of a scan task and writes them to Parquet files.

    Attributes:
        scan: The slices to read.
        topic_ids: Topic id by topic and partition, for all slices.
    """

    number: int
    scan: ScanTask
    topic_ids: Mapping[tuple[str, int], str]

    def run(self, job: ExportJob) -> TaskReport:
        """Runs the task and returns the report with its files.

        Raises:
            TieredKafkaError: The bytes differ from the plan, the transform fails, or the store does
                not accept the files.
        """
        with TaskWriter(self.number, self.topic_ids, job) as writer:
            return _result(self.steps(job, writer, _BATCHES))

    def steps(
        self, job: ExportJob, writer: TaskWriter, batches: BatchLimits
    ) -> Generator[None, None, TaskReport]:
        """Runs the task in steps: passes a batch to `writer` before each `yield`. The generator
        returns the report of the task. Raises the errors of `run`.
        """
        needed, set_aside = (*_NEEDED, *writer.field_columns), None
        if job.settings.dead_letters is not None:
            needed += dead_letter_columns(raw=bool(job.options.formats))
            set_aside = writer.set_aside
        try:
            read = yield from _read_steps(
                self.number, self.scan, job, writer.write, needed, batches, set_aside
            )
        except InvalidValueError as error:
            raise InvalidValueError(
                f"{error.fault}. Set dead_letters to a folder to store such rows there, with"
                " the reason. If all rows fail, correct the schema",
                fault=error.fault,
                topic=error.topic,
                partition=error.partition,
                offset=error.offset,
            ) from None
        return writer.completed(read)


def new_fields_of(job: ExportJob) -> NewFields | None:
    """Returns a collector of new fields; `None` if no column is decoded."""
    if not job.options.formats:
        return None
    from kts_source.export.new_fields import NewFields  # imports value decoders

    adds = job.settings.on_new_fields == ADD
    return NewFields(job.options.formats, job.base_formats, adds=adds)


def dead_letter_columns(*, raw: bool = False) -> tuple[str, ...]:
    """Returns the columns that a task must read so that dead letters contain whole records.

    If `raw` is True, keys or values are decoded, and the result contains the names of the columns
    with their bytes. A name such as `value` would decode the value even if the table has no column
    for it.
    """
    return tuple(RAW_COLUMNS.get(name, name) if raw else name for name in RECORD_COLUMNS)


def read_rows(
    number: int,
    scan: ScanTask,
    job: ExportJob,
    take: Callable[[pa.RecordBatch], None],
    needed: Iterable[str],
    batches: BatchLimits = FOR_SPARK,
    set_aside: SetAside | None = None,
) -> TaskReport:
    """Reads the slices of a task and calls `take` with every batch. Returns a report without times
    and files.

    Args:
        number: Number of the task within the run.
        scan: The slices to read.
        job: Values that all tasks of the run share.
        take: Receives the batches.
        needed: Columns that batches must have, in addition to the columns in the options.
        batches: Limits of a batch.
        set_aside: Called with rows that cannot be decoded. If `None`, such rows raise an error.
    """
    return _result(_read_steps(number, scan, job, take, needed, batches, set_aside))


def _result(steps: Generator[None, None, TaskReport]) -> TaskReport:
    """Runs all steps of a generator, and returns its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            report: TaskReport = end.value
            return report


def _read_steps(
    number: int,
    scan: ScanTask,
    job: ExportJob,
    take: Callable[[pa.RecordBatch], None],
    needed: Iterable[str],
    batches: BatchLimits,
    set_aside: SetAside | None,
) -> Generator[None, None, TaskReport]:
    """Does the work of `read_rows`, with a `yield` after each batch."""
    from kts_source.read.read_task import run_task
    from kts_source.read.task_metrics import TaskPlace

    columns = tuple(dict.fromkeys((*job.options.columns, *needed)))
    options = replace(job.options, columns=columns)
    identity = TaskPlace(job.settings.export_id, partition=number, run_id=job.run_id)
    ended: list[TaskMetrics] = []
    rows = run_task(
        scan, options, identity, batches=batches, on_end=ended.append, set_aside=set_aside
    )
    with closing(rows):
        for batch in rows:
            take(batch)
            yield
    (metrics,) = ended
    return TaskReport(
        number=number,
        rows_read=metrics.rows,
        segment_bytes=scan.nominal_bytes,
        requests=metrics.requests,
        bytes_read=metrics.bytes,
        retries=metrics.retries,
        mirrored=metrics.mirrored,
        lost=metrics.lost_ranges,
        malformed=metrics.malformed if set_aside is None else 0,
        seconds_of={
            "fetching": metrics.wait_seconds,
            "compiling": metrics.compile_seconds,
            "decoding": metrics.decrypt_seconds
            + metrics.decompress_seconds
            + metrics.decode_seconds,
        },
    )


class ExportExecutor(Protocol):
    """Interface for running tasks whose files are committed together."""

    def run(self, tasks: Sequence[RunnableTask], job: ExportJob) -> Iterator[TaskReport]:
        """Runs the tasks. Yields the report of a task when the task ends, so reports are in any
        order.

        Close the iterator to stop tasks that are running.

        Raises:
            Exception: A task failed in all its attempts.
        """
        ...


class LocalExecutor:
    """Runs tasks in worker processes on this machine, or in the current process if there is only
    one worker.

    Args:
        workers: Number of processes; `None` for the number of cores.
    """

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers or os.cpu_count() or 1

    def run(self, tasks: Sequence[RunnableTask], job: ExportJob) -> Iterator[TaskReport]:
        """See `ExportExecutor.run`."""
        workers = min(self._workers, len(tasks))
        if workers <= 1:
            yield from (task.run(job) for task in tasks)
            return
        yield from in_processes(partial(_run, job), tasks, workers)


def _run(job: ExportJob, task: RunnableTask) -> TaskReport:
    return task.run(job)
