"""Spreads the rows of one task over Parquet files, in bounded memory."""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from kts_source.columns import PARTITION, TOPIC
from kts_source.errors import (
    ExportError,
    TieredKafkaError,
    TransformError,
)
from kts_source.export.files import WrittenFile
from kts_source.export.job import OFFSET, TOPIC_ID
from kts_source.export.parquet_file import ParquetFile
from kts_source.export.partitioning import folder, partition_values, split, value_text
from kts_source.export.row_schema import check_columns
from kts_source.export.transforms.row_transform import RowTransform

if TYPE_CHECKING:
    from kts_source.export.job import ExportJob, WritingTask
    from kts_source.export.partitioning import PartitionValue
    from kts_source.export.tables.target_store import TargetStore
    from kts_source.export.transforms.dead_letters import DeadLetters


MAX_OPEN_FILES: Final = 8
"""Files of different partition values that a task writes at a time; the longest unused is closed
for another."""
MAX_HELD_BYTES: Final = 128 << 20
"""Rows that wait in memory, over all open files."""


class _Owner(NamedTuple):
    """Whose rows a file holds."""

    topic: str
    partition: int
    topic_id: str


@dataclass(slots=True)
class _OpenFile:
    """A file under way and the offsets that went into it."""

    key: str
    file: ParquetFile
    topic: str
    topic_id: str
    partition: int
    values: tuple[PartitionValue, ...]
    start: int
    stop: int


class TaskWriter:
    """Spreads batches over files. Batches come in offset order within a partition."""

    def __init__(
        self,
        task: WritingTask,
        job: ExportJob,
        target: TargetStore,
        letters: DeadLetters,
    ) -> None:
        self._letters = letters
        self._task = task
        self._job = job
        self._target = target
        self._attempt = uuid.uuid4().hex
        self._open: dict[tuple[PartitionValue, ...], _OpenFile] = {}
        self._owner: _Owner | None = None
        self._done: list[WrittenFile] = []
        self._count = 0
        self.schema: pa.Schema | None = None
        self.seconds = 0.0

    def write(self, batch: pa.RecordBatch) -> None:
        """Writes the rows of one partition.

        Raises:
            TransformError: The transform failed.
        """
        if batch.num_rows == 0:
            return
        started = time.monotonic()
        owner = self._owner_of(batch)
        offsets = batch.column(OFFSET)
        start, stop = offsets[0].as_py(), offsets[len(offsets) - 1].as_py() + 1
        if owner != self._owner:
            self._close_all()
            self._owner = owner
        rows = self._transformed(batch, owner, start, stop)
        if rows is not None and rows.num_rows:
            self._check_schema(rows)
            columns = [field.values(rows) for field in self._job.settings.partition_by]
            for row, part in split(rows, columns):
                try:
                    values = partition_values(
                        self._job.settings.partition_by, columns, row, self._job.place.values_in
                    )
                except ValueError as error:
                    raise self._unreadable(error, batch, row, owner) from None
                self._add(owner, values, part, start, stop)
        self.seconds += time.monotonic() - started

    def _unreadable(
        self, error: ValueError, batch: pa.RecordBatch, row: int, owner: _Owner
    ) -> ExportError:
        offsets = batch.column(OFFSET)
        text = f"the row cannot be partitioned: {error}. "
        if self._job.settings.transform is not None:
            # Only the transform knows which of its rows came of which record.
            text += f"It came of offsets {offsets[0]} to {offsets[len(offsets) - 1]}. "
            row = 0
        return ExportError(
            f"{text}Partition by another column, change the value in a transform, or leave such"
            " rows out with option where",
            topic=owner.topic,
            partition=owner.partition,
            offset=offsets[row].as_py(),
        )

    def _owner_of(self, batch: pa.RecordBatch) -> _Owner:
        place = (batch.column(TOPIC)[0].as_py(), batch.column(PARTITION)[0].as_py())
        if TOPIC_ID in batch.schema.names:  # a compacted table may hold several ids of a topic
            return _Owner(*place, batch.column(TOPIC_ID)[0].as_py())
        return _Owner(*place, self._task.topic_ids[place])

    def close(self) -> tuple[WrittenFile, ...]:
        """Completes all files."""
        started = time.monotonic()
        self._close_all()
        self.seconds += time.monotonic() - started
        return tuple(self._done)

    def abandon(self) -> None:
        """Gives up all files of this attempt and removes what can be removed."""
        for opened in self._open.values():
            opened.file.abandon()
        for key in [*(opened.key for opened in self._open.values()), *(f.key for f in self._done)]:
            with contextlib.suppress(Exception):
                self._target.delete(key)

    def _transformed(
        self, batch: pa.RecordBatch, owner: _Owner, start: int, stop: int
    ) -> pa.RecordBatch | None:
        transform = self._job.settings.transform
        selected = batch.select([*self._job.options.columns, *self._job.extra_columns])
        if transform is None:
            return selected
        try:
            if isinstance(transform, RowTransform):
                result = transform.apply(selected)
                self._letters.add(batch, result.rejected)
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
        if self.schema is None:
            check_columns(rows.schema, self._job.settings, self._job.place.values_in)
            self.schema = rows.schema.remove_metadata()
        elif self._job.settings.transform is not None and not rows.schema.equals(self.schema):
            raise TransformError(
                f"the transform must always return the same columns: first {self.schema}, then"
                f" {rows.schema}"
            )

    def _add(
        self,
        owner: _Owner,
        values: tuple[PartitionValue, ...],
        rows: pa.RecordBatch,
        start: int,
        stop: int,
    ) -> None:
        if self._job.place.values_in != "file":
            dropped = {field.name for field in self._job.settings.partition_by}
            rows = rows.select([name for name in rows.schema.names if name not in dropped])
        opened = self._open.pop(values, None)
        if opened is None:
            if len(self._open) >= MAX_OPEN_FILES:
                self._close(next(iter(self._open)))
            opened = self._begin(owner, values, rows.schema.remove_metadata(), start)
        self._open[values] = opened  # last = most recently used
        opened.stop = stop
        opened.file.add(rows)
        self._bound_memory()
        if (
            opened.file.is_full_to_sort
            or opened.file.written_bytes >= self._job.settings.target_file_bytes
        ):
            self._close(values)

    def _begin(
        self,
        owner: _Owner,
        values: tuple[PartitionValue, ...],
        schema: pa.Schema,
        start: int,
    ) -> _OpenFile:
        place = self._job.place
        # A transform may put anything there.
        is_constant = self._job.settings.transform is None and TOPIC in schema.names
        name = f"{self._task.number:06d}-{self._attempt}-{self._count:04d}{place.suffix}"
        key = f"{place.prefix}{name}"
        self._count += 1
        file = ParquetFile(
            self._target.open_output(key),
            schema,
            compression=self._job.settings.compression,
            row_group_rows=self._job.settings.row_group_rows,
            sort_by=self._job.settings.sort_within_files,
            bounded={field.source for field in self._job.settings.partition_by},
            constants={TOPIC: owner.topic} if is_constant else {},
        )
        return _OpenFile(
            key, file, owner.topic, owner.topic_id, owner.partition, values, start, start
        )

    def _bound_memory(self) -> None:
        while sum(opened.file.held_bytes for opened in self._open.values()) > MAX_HELD_BYTES:
            values = max(self._open, key=lambda values: self._open[values].file.held_bytes)
            if self._job.settings.sort_within_files:
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
        self._done.append(
            WrittenFile(
                key=opened.key,
                name=final_name(self._job, opened),
                topic=opened.topic,
                topic_id=opened.topic_id,
                partition=opened.partition,
                start=opened.start,
                stop=opened.stop,
                rows=opened.file.rows,
                size=size,
                modified_ms=time.time_ns() // 1_000_000,
                values=tuple(value_text(value) for value in values),
                statistics=statistics,
            )
        )


def final_name(job: ExportJob, opened: _OpenFile) -> str:
    """The one name that these offsets have in a folder, whoever wrote them."""
    return (
        f"{folder(job.settings.partition_by, opened.values)}"
        f"{job.settings.export_id}-{opened.topic_id}-{opened.partition}"
        f"-{opened.start:020d}-{opened.stop:020d}.parquet"
    )
