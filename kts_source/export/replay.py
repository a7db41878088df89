"""Replays dead letters: decodes and transforms their records again, and adds the rows to the table.

The offsets of dead letters are already recorded in the table. So the commit of a replay records the
names of the files instead, and a file with a recorded name is never read again. After the commit,
the files are moved to `_kts/replayed/`. If a run dies before that, the next replay moves them.
"""

from __future__ import annotations

import logging
import re
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kts_source.columns import PARTITION, TOPIC
from kts_source.errors import ExportError
from kts_source.export.dead_letters import table_identity
from kts_source.export.parquet_file import DataFile, open_parquet
from kts_source.export.ranges import PartitionKey
from kts_source.export.tables.target_store import open_target
from kts_source.export.task import OFFSET, TOPIC_ID, TaskReport
from kts_source.export.task_writer import TaskWriter, dead_letter_columns
from kts_source.predicate.model import split_by_fields
from kts_source.read.read_settings import read_schema
from kts_source.secret import scrub
from kts_source.store.storage_options import secret_values
from kts_source.texts import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.export_table import TableState
    from kts_source.export.tables.target_store import TargetStore
    from kts_source.export.task import ExportJob
    from kts_source.options import ScanOptions

log = logging.getLogger(__name__)

REPLAYED: Final = "_kts/replayed/"
_NAME: Final = re.compile(r"[0-9a-f]{32}-[0-9a-f]{32}\.parquet")
_OWNER: Final = ("target", "exportId")
_LOCATION: Final = (TOPIC, TOPIC_ID, PARTITION, OFFSET)
_BATCH_ROWS: Final = 16384
_MAX_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """Reads a file of dead letters and writes its rows to files of the table.

    Attributes:
        topic_ids: Topic id by topic and partition.
    """

    number: int
    letters: DataFile
    topic_ids: Mapping[tuple[str, int], str]

    def run(self, job: ExportJob) -> TaskReport:
        """See `RunnableTask.run`.

        Raises:
            ExportError: The file cannot be read, or lacks columns of the table.
        """
        rows_read = 0
        with TaskWriter(self.number, self.topic_ids, job, origin=self.letters.key) as writer:
            for batch in _decoded(self._batches(job), job, writer):
                rows_read += batch.num_rows
                writer.write(batch)
            return writer.completed(TaskReport(number=self.number, rows_read=rows_read))

    def _batches(self, job: ExportJob) -> Iterator[pa.RecordBatch]:
        """Yields the rows ordered by partition and offset. Each batch has rows of one partition."""
        assert job.settings.dead_letters is not None
        with closing(open_target(job.settings.dead_letters, job.settings.storage)) as store:
            with open_parquet(store, self.letters, is_dead_letters=True) as parquet:
                table = parquet.read()
            uri = store.uri(self.letters.key)
        names = [name for name in job.options.columns if name in table.schema.names]
        schema = read_schema(tuple(dict.fromkeys((*dead_letter_columns(), *names))))
        if missing := [name for name in schema.names if name not in table.schema.names]:
            raise ExportError(
                f"the file of dead letters lacks the columns {', '.join(missing)}. Restore it from"
                " a backup",
                uri=uri,
            )
        table = table.select(schema.names).cast(schema)
        table = table.sort_by([(name, "ascending") for name in (TOPIC, PARTITION, OFFSET)])
        for topic, partition in sorted(self.topic_ids):
            mask = pc.and_(pc.equal(table[TOPIC], topic), pc.equal(table[PARTITION], partition))
            yield from table.filter(mask).combine_chunks().to_batches(_BATCH_ROWS)


def _decoded(
    batches: Iterator[pa.RecordBatch], job: ExportJob, writer: TaskWriter
) -> Iterator[pa.RecordBatch]:
    options = job.options
    if not options.formats:
        return batches
    from kts_source.read.typed_rows import TypedRows  # as in `read_task`

    _, where = split_by_fields(options.where)
    needed = (*dead_letter_columns(raw=True), *writer.field_columns)
    columns = tuple(dict.fromkeys((*options.columns, *needed)))
    typed = TypedRows(columns, options.formats, where, writer.set_aside)
    return typed.decoded(batches, None)


def replay_tasks(
    options: ScanOptions, settings: ExportSettings, state: TableState
) -> list[ReplayTask]:
    """Returns a task for each file of dead letters that must be replayed into a table. Moves files
    that were already replayed to `_kts/replayed/`.

    Skips files of other tables and of topics that the options do not select.

    Raises:
        ExportError: The table does not contain the offset of a dead letter, two files contain the
            same offset, or the folder never had a file of this table, and data loss is not allowed.
    """
    assert settings.dead_letters is not None
    tasks: list[ReplayTask] = []
    seen: dict[tuple[str, int, int], str] = {}
    others: set[str] = set()
    with closing(open_target(settings.dead_letters, settings.storage)) as store:
        entries = list(store.list_objects(""))
        files = [DataFile(e.key, e.size, {}) for e in entries if _NAME.fullmatch(e.key)]
        names = (entry.key.removeprefix(REPLAYED) for entry in entries)
        is_done = any(state.is_replayed(name) for name in names)
        _move(store, (file for file in files if state.is_replayed(file.key)))
        for file in sorted(files, key=lambda file: file.key):
            if state.is_replayed(file.key):
                continue
            rows = _locations(store, file, settings, options, others)
            for row in rows:
                _check_row(row, state, store.uri(file.key))
                key = row[TOPIC_ID], row[PARTITION], row[OFFSET]
                if (other := seen.setdefault(key, file.key)) != file.key:
                    raise ExportError(
                        f"the files of dead letters {other} and {file.key} contain the same record."
                        " Move one of them away",
                        topic=row[TOPIC],
                        partition=row[PARTITION],
                        offset=row[OFFSET],
                    )
            if rows:
                topic_ids = {(row[TOPIC], row[PARTITION]): row[TOPIC_ID] for row in rows}
                tasks.append(ReplayTask(len(tasks), file, topic_ids))
    is_required = options.fail_on_data_loss and state.letters is not None
    if not tasks and not is_done and is_required:
        text = f" It has dead letters of {', '.join(sorted(others))}." if others else ""
        raise ExportError(
            f"the table records rejected rows, but the folder {settings.dead_letters} has no dead"
            f" letters of table {settings.target}, export {settings.export_id!r}, and of the"
            f" selected topics.{text} Set dead_letters, target, export_id and the topics of the run"
            " that rejected them. If the files no longer exist, failOnDataLoss=false accepts their"
            " loss"
        )
    return tasks


def _locations(
    store: TargetStore,
    file: DataFile,
    settings: ExportSettings,
    options: ScanOptions,
    others: set[str],
) -> list[dict[str, Any]]:
    """Returns topic, partition and offset of each row of a file. Returns no rows if the file
    belongs to another table, or if the options select none of its topics. Raises `ExportError` if
    the options select only some of its topics.

    Adds the names of other tables to `others`.
    """
    with open_parquet(store, file, is_dead_letters=True) as parquet:
        if not {*_OWNER, *_LOCATION} <= {*parquet.schema_arrow.names}:
            log.warning("%s is not replayed: it does not name its table", store.uri(file.key))
            return []
        rows: list[dict[str, Any]] = parquet.read([*_OWNER, *_LOCATION]).to_pylist()
    owner = table_identity(settings.target, settings.table_format), settings.export_id
    owners = {(row["target"], row["exportId"]) for row in rows}
    if any((table_identity(name, settings.table_format), id_) != owner for name, id_ in owners):
        log.info("%s is not replayed: it belongs to another table", store.uri(file.key))
        others.update(f"table {name}, export {export_id!r}" for name, export_id in owners)
        return []
    topics = {row[TOPIC] for row in rows}
    wanted = topics.intersection(options.selection.wanted(sorted(topics)))
    if wanted and wanted != topics:
        raise ExportError(
            f"a file of dead letters is replayed in one step, and this one has records of"
            f" {', '.join(sorted(topics))}: select all of these topics",
            uri=store.uri(file.key),
        )
    return rows if wanted else []


def _check_row(row: Mapping[str, Any], state: TableState, uri: str) -> None:
    held = state.committed.get(PartitionKey(row[TOPIC_ID], row[PARTITION]))
    if held is None or not held.start <= row[OFFSET] < held.stop:
        raise ExportError(
            "the table does not contain the offset of this dead letter; probably the table was"
            " restored to an earlier state. The next export reads the offset again, so replaying"
            " this file could write the row twice: move this file of dead letters away",
            topic=row[TOPIC],
            partition=row[PARTITION],
            offset=row[OFFSET],
            uri=uri,
        )


def kept_letters(
    options: ScanOptions, settings: ExportSettings, state: TableState
) -> Mapping[str, int] | None:
    """Returns the number of existing files of dead letters by run id, if the table records more
    files and their loss is allowed; otherwise `None`.
    """
    if options.fail_on_data_loss:
        return None
    present = state.pending.present(
        name for name in _published(settings) if not state.is_replayed(name)
    )
    return present if sum(present.values()) < state.pending.total else None


def pending_letters(
    settings: ExportSettings, load: Callable[[], TableState], run_id: str
) -> int | None:
    """Returns the number of files of dead letters that are not replayed: the files in the folder,
    of all tables that use it, and the files that the table records and the folder lacks. Warns
    about the latter, with `follow` only in the first round.

    Returns `None` if there is neither a folder nor a recorded file, or if the files cannot be
    counted. `load` returns the state of the table.
    """
    try:
        names, pending = _published(settings), load().pending
        present = pending.present(names)
        missing = pending.total - sum(present.values())
        following = settings.following
        if missing > 0 and (following is None or not following.has_table):
            folders = pending.folders()
            lost = [each for each in folders if present.get(each, 0) < pending.of_run(each)]
            log.warning(
                "run %s: the table records %s of dead letters that %s lacks%s. Replay them"
                " with the dead_letters of these runs. If they no longer exist, run once with"
                " replay=True and failOnDataLoss=false to accept their loss",
                *(
                    run_id,
                    counted(missing, "file"),
                    settings.dead_letters or "this run, without a folder for them,",
                ),
                "".join(f"; run {each} wrote to {folders[each]}" for each in lost[:_MAX_NAMED]),
            )
    except Exception as error:  # noqa: BLE001  # a count must not fail a run whose rows are committed
        reason = scrub(str(error), secret_values(settings.storage.reveal()))
        log.warning("the files in %s cannot be counted: %s", settings.dead_letters, reason)
        return None
    if settings.dead_letters is None and missing <= 0:
        return None
    return len(names) + max(0, missing)


def _published(settings: ExportSettings) -> list[str]:
    """Returns the names of the files in the folder of dead letters that were not moved yet."""
    if settings.dead_letters is None:
        return []
    with closing(open_target(settings.dead_letters, settings.storage)) as store:
        return [entry.key for entry in store.list_objects("") if _NAME.fullmatch(entry.key)]


def finish_replay(settings: ExportSettings, tasks: Sequence[ReplayTask]) -> None:
    """Moves the files of `tasks` to `_kts/replayed/`. Call it after the commit of their rows."""
    assert settings.dead_letters is not None
    with closing(open_target(settings.dead_letters, settings.storage)) as store:
        _move(store, (task.letters for task in tasks))


def _move(store: TargetStore, files: Iterable[DataFile]) -> None:
    for file in files:
        store.publish(file.key, f"{REPLAYED}{file.key}", file.size)
