"""Stores rejected rows in separate files: each row with its key, value and headers as stored, its
location in Kafka, the table, the run, the time and the reason.

The files are published with these steps:

1. Tasks write the files under temporary names below `_kts/`.
2. The driver writes a list of the files of successful task attempts.
3. The commit records the number of the list in the table, together with the offsets.
4. The driver publishes the list: it moves the listed files to their final names.

If the driver dies before step 4, the next run reads the number of the list from the table and
publishes the list. A commit also does this before it records another number. So each rejected row
is in exactly one published file, and files of failed commits are never published.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import os
import time
import uuid
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kts_source.columns import DEFAULT_COLUMNS, HEADERS, LINEAGE_COLUMNS
from kts_source.errors import (
    CommitConflictError,
    ExportError,
    InvalidOptionError,
    ObjectNotFoundError,
    TieredKafkaError,
    TransformError,
)
from kts_source.export.fingerprint import digest_number
from kts_source.export.parquet_file import ParquetFile
from kts_source.export.rejections import RecordCounts
from kts_source.export.settings import ICEBERG
from kts_source.export.tables.target_store import open_target
from kts_source.export.task import DeadLetterFile
from kts_source.store.local_store import local_root
from kts_source.store.open_store import scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.export_table import TableState
    from kts_source.export.tables.target_store import TargetStore
    from kts_source.export.task import ExportJob
    from kts_source.export.transforms import Rejected
    from kts_source.store.object_store import ObjectInfo

log = logging.getLogger(__name__)

REASON: Final = "reason"
RECORD_COLUMNS: Final = (*DEFAULT_COLUMNS, HEADERS)
"""Columns of a record in dead letters. Keys and values are the stored bytes."""
ATTEMPTS: Final = "_kts/attempts/"
LIST_VERSION: Final = 1
_SUFFIX: Final = ".letters.part"
_LIST_SUFFIX: Final = ".letters.json"
_RUN_ID_LENGTH: Final = 32


@dataclass(frozen=True, slots=True)
class PendingLetters:
    """Files of dead letters that an export recorded in its table, and that are not replayed.

    Attributes:
        total: Number of files.
        of_run: Returns the number of files of a run.
        folders: Returns the folders of the files by run id, as far as they are known.
    """

    total: int = 0
    of_run: Callable[[str], int] = lambda _run_id: 0
    folders: Callable[[], Mapping[str, str]] = dict[str, str]

    @classmethod
    def from_json(cls, runs: Mapping[str, Any]) -> PendingLetters:
        """Reads the result of `with_pending`."""
        counts = {run_id: count for run_id, (count, _) in runs.items()}
        folders = {run_id: folder for run_id, (_, folder) in runs.items()}
        return cls(sum(counts.values()), lambda run_id: counts.get(run_id, 0), lambda: folders)

    def present(self, names: Iterable[str]) -> dict[str, int]:
        """Returns how many of the files `names` the table records, by run id."""
        counts = Counter(run_of(name) for name in names)
        known = {run_id: min(count, self.of_run(run_id)) for run_id, count in counts.items()}
        return {run_id: count for run_id, count in known.items() if count}

    def changed(
        self, run_id: str, added: int, replayed: Iterable[str], kept: Mapping[str, int] | None
    ) -> tuple[dict[str, int], int]:
        """Returns the number of files after a commit: of each run that changes, and the total.

        Args:
            run_id: Run of the commit.
            added: Number of files that the commit adds.
            replayed: Names of the files whose rows the commit adds to the table.
            kept: Number of existing files by run id, if the loss of all other files is accepted.
        """
        changes: dict[str, int] = {}
        total = self.total
        if kept is not None:
            changes = {**dict.fromkeys(self.folders(), 0), **kept}
            total = sum(kept.values())
        steps = [(run_of(name), -1) for name in replayed]
        for owner, step in (*steps, *([(run_id, added)] if added else [])):
            before = changes.get(owner, self.of_run(owner))
            changes[owner] = max(0, before + step)
            total += changes[owner] - before
        return changes, total


def with_pending(
    runs: Mapping[str, Any], changes: Mapping[str, int], folder: str | None
) -> dict[str, Any]:
    """Returns `runs`, the recorded number and folder of pending files by run id, after `changes` by
    a commit whose dead letters are in `folder`.
    """
    after = {
        **runs,
        **{
            run_id: [count, runs[run_id][1] if run_id in runs else folder]
            for run_id, count in changes.items()
        },
    }
    return {run_id: value for run_id, value in after.items() if value[0]}


def run_of(name: str) -> str:
    """Returns the run id in the name of a published file of dead letters."""
    return name[:_RUN_ID_LENGTH]


class DeadLetters:
    """Writes the rejected rows of one attempt of a task to a file. Creates the file when the first
    row is added.
    """

    def __init__(self, job: ExportJob) -> None:
        self._job = job
        self.counts: list[RecordCounts] = []
        self._target: TargetStore | None = None
        self._file: ParquetFile | None = None
        self._name = f"{job.run_id}-{uuid.uuid4().hex}"
        self._key = f"{ATTEMPTS}{job.run_id}/{self._name}{_SUFFIX}"

    def add(self, batch: pa.RecordBatch, rejected: Sequence[Rejected], topic_id: str) -> None:
        """Writes the rejected rows of `batch` and counts them. `batch` contains the rows as they
        were before the transform. All rows are of one Kafka partition, whose topic id is
        `topic_id`.

        Raises:
            TransformError: The export has no folder for rejected rows.
        """
        if not rejected:
            return
        first = rejected[0]
        topic = batch.column("topic")[first.row].as_py()
        partition = batch.column("partition")[first.row].as_py()
        offset = batch.column("offset")[first.row].as_py()
        if self._job.settings.dead_letters is None:
            raise TransformError(
                f"a record cannot be transformed: {first.reason}. Set dead_letters=… to store such"
                " records in a separate folder",
                topic=topic,
                partition=partition,
                offset=offset,
            )
        self.counts.append(RecordCounts(topic, partition, 0, len(rejected), offset, first.reason))
        rows = self._rows(batch, rejected, topic_id)
        if self._file is None:
            self._target = open_target(self._job.settings.dead_letters, self._job.target.storage)
            self._file = ParquetFile(
                self._target.open_output(self._key),
                rows.schema,
                compression=self._job.settings.compression,
            )
        self._file.add(rows)

    def _rows(
        self, batch: pa.RecordBatch, rejected: Sequence[Rejected], topic_id: str
    ) -> pa.RecordBatch:
        lineage = [name for name in self._job.options.columns if name in LINEAGE_COLUMNS]
        names = [*RECORD_COLUMNS, *lineage]
        rows = batch.select(names).take(pa.array([entry.row for entry in rejected], pa.int64()))
        settings, count = self._job.settings, len(rejected)
        now_us = time.time_ns() // 1000
        table = table_identity(settings.target, settings.table_format)
        facts = {
            "topicId": pa.array([topic_id] * count, pa.string()),
            "target": pa.array([table] * count, pa.string()),
            "exportId": pa.array([settings.export_id] * count, pa.string()),
            "runId": pa.array([self._job.run_id] * count, pa.string()),
            "rejectedAt": pa.array([now_us] * count, pa.timestamp("us", "UTC")),
            REASON: pa.array([entry.reason for entry in rejected], pa.string()),
        }
        return pa.RecordBatch.from_arrays([*rows.columns, *facts.values()], names=[*names, *facts])

    def close(self) -> DeadLetterFile | None:
        """Completes the file and returns its description. Returns `None` if no row was rejected,
        because there is no file.
        """
        if self._file is None or self._target is None:
            return None
        size, _ = self._file.close()
        self._target.close()
        return DeadLetterFile(self._key, f"{self._name}.parquet", self._file.rows, size)

    def abandon(self) -> None:
        """Deletes the incomplete file. Does nothing if no row was rejected."""
        if self._file is not None and self._target is not None:
            self._file.abandon()
            with contextlib.suppress(Exception):
                self._target.delete(self._key)
                self._target.close()


def table_identity(target: str, table_format: str) -> str:
    """Returns a text that is equal for all spellings of a target: a relative path, an absolute path
    and a `file:` URL can name the same folder.
    """
    if table_format == ICEBERG:
        return target
    if scheme_of(target) == "file":
        return os.path.normpath(local_root(target))
    return target.strip().rstrip("/")


def check_dead_letters(settings: ExportSettings) -> None:
    """Writes a file to the folder of rejected rows and deletes it, before tasks do their work.

    Raises:
        InvalidOptionError: The folder cannot be written.
        ExportError: The disk is full.
        StoreError: The store does not accept the file.
    """
    if settings.dead_letters is None:
        return
    key = f"{ATTEMPTS}probe-{uuid.uuid4().hex}{_SUFFIX}"  # `clean` removes it after a kill
    with closing(open_target(settings.dead_letters, settings.storage)) as target:
        try:
            with closing(target.open_output(key)) as output:
                output.write(b"1")
            target.delete(key)
        except ExportError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError):
                raise
            if cause.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ExportError(
                    f"the folder dead_letters {settings.dead_letters} cannot be written:"
                    f" {cause.strerror}. Free space there and run again. Keep its files, because"
                    " they are not replayed yet"
                ) from None
            raise InvalidOptionError(
                f"the folder dead_letters {settings.dead_letters} cannot be written:"
                f" {cause.strerror}. Correct its path or its permissions. Earlier dead letters"
                " stay in the folder of their run"
            ) from None


def list_dead_letters(
    settings: ExportSettings, files: Iterable[DeadLetterFile | None]
) -> int | None:
    """Writes a list of `files`, the files of rejected rows that belong to the next commit.

    Returns:
        The number of the list, which the commit records in the table; `None` if there are no files.
    """
    entries = [dataclasses.asdict(file) for file in files if file is not None]
    if not entries or settings.dead_letters is None:
        return None
    number = digest_number(uuid.uuid4().hex)
    document = {"version": LIST_VERSION, "owner": _owner(settings), "files": entries}
    data = json.dumps(document, ensure_ascii=False).encode()
    with (
        closing(open_target(settings.dead_letters, settings.storage)) as target,
        closing(target.open_output(_list_key(number))) as output,
    ):
        output.write(data)
    return number


def publish_dead_letters(settings: ExportSettings, letters: int | None) -> None:
    """Moves the files of rejected rows in list number `letters` to their final names, and then
    deletes the list. Does nothing if `letters` is `None`, or if the list was already published or
    dropped.

    Raises:
        ExportError: A file in the list is missing, or this version of the package cannot read the
            list.
    """
    _settle(settings, letters, lambda target, file: target.publish(file.key, file.name, file.size))


def publish_recorded(settings: ExportSettings, state: TableState) -> None:
    """Publishes the list that the table records, before a commit records another one. If an earlier
    run had another folder of dead letters, publishes the list there.
    """
    publish_dead_letters(settings, state.letters)
    if state.letters is None or not state.pending.total:
        return
    for folder in sorted({*filter(None, state.pending.folders().values())}):
        if folder != settings.dead_letters:
            try:
                publish_dead_letters(
                    dataclasses.replace(settings, dead_letters=folder), state.letters
                )
            except (TieredKafkaError, OSError) as error:
                log.warning("dead letters in %s cannot be published: %s", folder, error)


def drop_dead_letters(settings: ExportSettings, letters: int | None) -> None:
    """Deletes the files of rejected rows in list number `letters` and the list, because the commit
    of the list failed. Does nothing if `letters` is `None` or the list no longer exists.
    """
    _settle(settings, letters, lambda target, file: target.delete(file.key))


def _settle(
    settings: ExportSettings,
    letters: int | None,
    settle: Callable[[TargetStore, DeadLetterFile], None],
) -> None:
    """Calls `settle` for every file in list number `letters`, and then deletes the list. Does
    nothing if `letters` is `None`.
    """
    if letters is None or settings.dead_letters is None:
        return
    with closing(open_target(settings.dead_letters, settings.storage)) as target:
        for file in _listed_files(target, letters):
            settle(target, file)
        target.delete(_list_key(letters))


def _listed_files(target: TargetStore, letters: int) -> list[DeadLetterFile]:
    """Returns the files in list number `letters`. Returns no files if the list does not exist,
    because it was already published or dropped.
    """
    key = _list_key(letters)
    try:
        document = json.loads(target.read(key))
    except ObjectNotFoundError:
        return []
    if document.get("version") != LIST_VERSION:
        raise ExportError(
            f"the list of dead letters has version {document.get('version')!r}, and this version of"
            f" the package reads version {LIST_VERSION}. Run the export with the version that wrote"
            " it",
            uri=target.uri(key),
        )
    return [DeadLetterFile(**file) for file in document["files"]]


def _list_key(letters: int) -> str:
    return f"{ATTEMPTS}{letters}{_LIST_SUFFIX}"


def _owner(settings: ExportSettings) -> list[str]:
    """Returns values that identify the table of this export. They are stored in each list of
    rejected rows, because several exports may use one folder for rejected rows.
    """
    warehouse = settings.catalog.reveal().get("warehouse", "")
    return [settings.table_format, warehouse, settings.target, settings.export_id]


def is_unpublished(key: str) -> bool:
    """Returns True if `key` is the key of an unpublished file of rejected rows, or of a list of
    unpublished files.
    """
    return key.endswith((_SUFFIX, _LIST_SUFFIX))


def unpublished_dead_letters(settings: ExportSettings) -> list[ObjectInfo]:
    """Returns the unpublished files of rejected rows, and the lists of unpublished files. Omits the
    lists of other tables and the files in these lists, because the other tables may have committed
    them.
    """
    if settings.dead_letters is None:
        return []
    with closing(open_target(settings.dead_letters, settings.storage)) as target:
        files = [file for file in target.list_objects(ATTEMPTS) if is_unpublished(file.key)]
        kept: set[str] = set()
        for key in (file.key for file in files if file.key.endswith(_LIST_SUFFIX)):
            # A list that cannot be parsed is incomplete, so it was never committed.
            with contextlib.suppress(ObjectNotFoundError, ValueError):
                document = json.loads(target.read(key))
                if document.get("owner") != _owner(settings):
                    kept |= {key, *(file["key"] for file in document["files"])}
        return [file for file in files if file.key not in kept]


def remove_dead_letters(settings: ExportSettings, files: Sequence[ObjectInfo]) -> None:
    """Deletes `files`, the result of `unpublished_dead_letters`, from the folder of rejected
    rows.
    """
    if settings.dead_letters is not None and files:
        with closing(open_target(settings.dead_letters, settings.storage)) as target:
            for file in files:
                target.delete(file.key)


def replay_id(name: str) -> str:
    """Returns the id under which a table records a replayed file of dead letters."""
    return f"{digest_number(name):016x}"


def check_replayed(state: TableState, names: Iterable[str], uri: str) -> None:
    """Raises `CommitConflictError` if a file of dead letters in `names` was replayed already."""
    for name in names:
        if state.is_replayed(name):
            raise CommitConflictError(
                f"the dead letters in {name} are in the table already: another run replayed them in"
                " the meantime. Run again to replay the other files",
                uri=uri,
            )
