"""Rows that a transform rejects: files of their own, each row with its offset and the reason.

Tasks write them as attempts below `_kts/`. The driver lists those of successful attempts, and the
commit that accepts their offsets leaves the list's number in the table. Right behind the commit the
listed files get their names. A driver may die between the two: so every run first names the files
of the list that the table knows, and so does a commit before it leaves another number. Each
rejected row is in one named file, and in none that a refused commit left.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from kts_source.errors import ExportError, ObjectNotFoundError, TransformError
from kts_source.export.files import DeadLetterFile
from kts_source.export.fingerprint import number
from kts_source.export.parquet_file import ParquetFile
from kts_source.export.tables.open_target import open_target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kts_source.export.job import ExportJob
    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.target_store import TargetStore
    from kts_source.export.transforms.row_transform import Rejected
    from kts_source.store.object_store import ObjectInfo

REASON: Final = "reason"
ATTEMPTS: Final = "_kts/attempts/"
LIST_VERSION: Final = 1
_SUFFIX: Final = ".letters.part"
_LIST_SUFFIX: Final = ".letters.json"


class DeadLetters:
    """The rejected rows of one attempt of a task."""

    def __init__(self, job: ExportJob) -> None:
        self._job = job
        self._target: TargetStore | None = None
        self._file: ParquetFile | None = None
        self._name = f"{job.run_id}-{uuid.uuid4().hex}"
        self._key = f"{ATTEMPTS}{job.run_id}/{self._name}{_SUFFIX}"

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
            self._target = open_target(self._job.settings.dead_letters, self._job.place.storage)
            self._file = ParquetFile(
                self._target.open_output(self._key),
                rows.schema,
                compression=self._job.settings.compression,
            )
        self._file.add(rows)

    def close(self) -> DeadLetterFile | None:
        """Completes the file, if there is one."""
        if self._file is None or self._target is None:
            return None
        size, _ = self._file.close()
        self._target.close()
        return DeadLetterFile(self._key, f"{self._name}.parquet", self._file.rows, size)

    def abandon(self) -> None:
        """Gives up what was written."""
        if self._file is not None and self._target is not None:
            self._file.abandon()
            with contextlib.suppress(Exception):
                self._target.delete(self._key)
                self._target.close()


def list_dead_letters(
    settings: ExportSettings, files: Iterable[DeadLetterFile | None]
) -> int | None:
    """Lists files of successful attempts for the commit that accepts their offsets.

    Returns:
        The list's number, which the commit is to leave in the table; `None` for no file.
    """
    found = [dataclasses.asdict(file) for file in files if file is not None]
    if not found or settings.dead_letters is None:
        return None
    name = number(uuid.uuid4().hex)
    document = {"version": LIST_VERSION, "owner": _owner(settings), "files": found}
    data = json.dumps(document, ensure_ascii=False).encode()
    with (
        closing(open_target(settings.dead_letters, settings.storage)) as target,
        closing(target.open_output(_list_key(name))) as output,
    ):
        output.write(data)
    return name


def publish_dead_letters(settings: ExportSettings, letters: int | None) -> None:
    """Gives the files of the list that a table names their names, unless that was done before.

    Raises:
        ExportError: A file of the list is gone, or the list is of another version.
    """
    _settle(settings, letters, lambda target, file: target.publish(file.key, file.name, file.size))


def drop_dead_letters(settings: ExportSettings, letters: int | None) -> None:
    """Removes a list that was not committed, and its files."""
    _settle(settings, letters, lambda target, file: target.delete(file.key))


def _settle(
    settings: ExportSettings,
    letters: int | None,
    settle: Callable[[TargetStore, DeadLetterFile], None],
) -> None:
    """Does something to every file of a list, then removes the list."""
    if letters is None or settings.dead_letters is None:
        return
    with closing(open_target(settings.dead_letters, settings.storage)) as target:
        for file in _listed(target, letters):
            settle(target, file)
        target.delete(_list_key(letters))


def _listed(target: TargetStore, letters: int) -> list[DeadLetterFile]:
    """The files of a list; none when it was published or dropped before."""
    key = _list_key(letters)
    try:
        document = json.loads(target.read(key))
    except ObjectNotFoundError:
        return []
    if document.get("version") != LIST_VERSION:
        raise ExportError(
            f"a list of dead letters of unknown version {document.get('version')!r}",
            uri=target.uri(key),
        )
    return [DeadLetterFile(**file) for file in document["files"]]


def _list_key(letters: int) -> str:
    return f"{ATTEMPTS}{letters}{_LIST_SUFFIX}"


def _owner(settings: ExportSettings) -> list[str]:
    """Which table knows whether a list was committed: exports may share a folder."""
    warehouse = settings.catalog.reveal().get("warehouse", "")
    return [settings.table_format, warehouse, settings.target, settings.export_id]


def is_unnamed(key: str) -> bool:
    """Whether a file is of rejected rows that have no name yet, or a list of such."""
    return key.endswith((_SUFFIX, _LIST_SUFFIX))


def unnamed_dead_letters(settings: ExportSettings) -> list[ObjectInfo]:
    """Files of rejected rows that have no name yet, and lists of them, but for what other exports
    may have committed; without a folder of dead letters none.
    """
    if settings.dead_letters is None:
        return []
    with closing(open_target(settings.dead_letters, settings.storage)) as target:
        found = [one for one in target.list_objects(ATTEMPTS) if is_unnamed(one.key)]
        kept: set[str] = set()
        for key in (one.key for one in found if one.key.endswith(_LIST_SUFFIX)):
            # One that was not written to its end was never committed.
            with contextlib.suppress(ObjectNotFoundError, ValueError):
                document = json.loads(target.read(key))
                if document.get("owner") != _owner(settings):
                    kept |= {key, *(file["key"] for file in document["files"])}
        return [one for one in found if one.key not in kept]


def remove_dead_letters(settings: ExportSettings, files: Sequence[ObjectInfo]) -> None:
    """Deletes some of them."""
    if settings.dead_letters is not None and files:
        with closing(open_target(settings.dead_letters, settings.storage)) as target:
            for file in files:
                target.delete(file.key)
