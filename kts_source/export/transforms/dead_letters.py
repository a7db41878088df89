"""Rows that a transform rejects: files of their own, each row with its offset and the reason.

Tasks write them as attempts below `_kts/`; the driver gives those of successful attempts their
names right before the commit. A run that dies between the two may leave a rejected row in two
files; topic, partition and offset tell.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from kts_source.errors import TransformError
from kts_source.export.files import DeadLetterFile
from kts_source.export.parquet_file import ParquetFile
from kts_source.export.tables.open_target import open_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kts_source.export.job import ExportJob
    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.target_store import TargetObject, TargetStore
    from kts_source.export.transforms.row_transform import Rejected

REASON: Final = "reason"
ATTEMPTS: Final = "_kts/attempts/"
_SUFFIX: Final = ".letters.part"
_ROW_GROUP_ROWS: Final = 1 << 16


class DeadLetters:
    """The rejected rows of one attempt of a task."""

    def __init__(self, job: ExportJob) -> None:
        self._job = job
        self._target: TargetStore | None = None
        self._file: ParquetFile | None = None
        self._name = f"{job.run_id}-{uuid.uuid4().hex}"
        self.rows = 0

    @property
    def _key(self) -> str:
        return f"{ATTEMPTS}{self._job.run_id}/{self._name}{_SUFFIX}"

    def add(self, batch: pa.RecordBatch, rejected: Sequence[Rejected]) -> None:
        """Takes rows of a batch as it was before the transform.

        Raises:
            TransformError: There is no place for rejected rows.
        """
        if not rejected:
            return
        first = rejected[0]
        if self._job.settings.dead_letters is None:
            raise TransformError(
                f"a record cannot be transformed: {first.reason} (dead_letters=… would set such"
                " records aside)",
                topic=batch.column("topic")[first.row].as_py(),
                partition=batch.column("partition")[first.row].as_py(),
                offset=batch.column("offset")[first.row].as_py(),
            )
        names = [name for name in batch.schema.names if name != "headers"]
        rows = batch.select(names).take(pa.array([found.row for found in rejected], pa.int64()))
        reasons = pa.array([found.reason for found in rejected], pa.string())
        rows = pa.RecordBatch.from_arrays([*rows.columns, reasons], names=[*names, REASON])
        if self._file is None:
            self._target = open_target(self._job.settings.dead_letters, self._job.target_storage)
            self._file = ParquetFile(
                self._target.open_output(self._key),
                rows.schema,
                compression=self._job.settings.compression,
                row_group_rows=_ROW_GROUP_ROWS,
                sort_by=(),
            )
        self._file.add(rows)
        self.rows += rows.num_rows

    def close(self) -> DeadLetterFile | None:
        """Completes the file, if there is one."""
        if self._file is None or self._target is None:
            return None
        size, _ = self._file.close()
        self._target.close()
        return DeadLetterFile(self._key, f"{self._name}.parquet", self.rows, size)

    def abandon(self) -> None:
        """Gives up what was written."""
        if self._file is not None and self._target is not None:
            self._file.abandon()
            with contextlib.suppress(Exception):
                self._target.delete(self._key)
                self._target.close()


def publish_dead_letters(settings: ExportSettings, files: Iterable[DeadLetterFile]) -> None:
    """Gives the files of successful attempts their names."""
    found = list(files)
    if not found or settings.dead_letters is None:
        return
    target = open_target(settings.dead_letters, settings.storage)
    try:
        for file in found:
            target.publish(file.key, file.name, file.size)
    finally:
        target.close()


def unnamed_dead_letters(settings: ExportSettings) -> list[TargetObject]:
    """Files of rejected rows that have no name yet; without a folder of dead letters none."""
    if settings.dead_letters is None:
        return []
    target = open_target(settings.dead_letters, settings.storage)
    try:
        return [one for one in target.list_objects(ATTEMPTS) if one.key.endswith(_SUFFIX)]
    finally:
        target.close()


def remove_dead_letters(settings: ExportSettings, files: Iterable[TargetObject]) -> None:
    """Deletes some of them."""
    found = list(files)
    if not found or settings.dead_letters is None:
        return
    target = open_target(settings.dead_letters, settings.storage)
    try:
        for entry in found:
            target.delete(entry.key)
    finally:
        target.close()
