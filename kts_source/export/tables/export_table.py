"""Base class of export targets. Opens a table of any format, reads its state, commits to it and
removes files of failed runs.

A commit adds files and extends the recorded offset ranges in one atomic step. Before a commit, the
state of the current snapshot is compared with the commit. The commit succeeds only if this snapshot
is still current. If another writer committed first, the newer snapshot is compared and the commit
is tried again.

While a run writes, the target has a mark of the run, so that `clean` does not delete files of the
run:

    _kts/runs/<run id>

In a local folder, the run locks the mark (`flock`), and the lock ends with the process. On a file
system without locks, every mark counts as a running export. In a bucket, the run renews its mark
every minute. A run counts as dead if its mark is older than ten minutes.
"""

from __future__ import annotations

import fcntl
import logging
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kts_source.errors import (
    CommitConflictError,
    ExportError,
    InvalidOptionError,
    TieredKafkaError,
    UnsupportedTargetError,
)
from kts_source.export.dead_letters import PendingLetters, check_replayed, publish_recorded
from kts_source.export.fingerprint import check_fingerprint
from kts_source.export.ranges import OffsetRange, PartitionKey, advance_ranges
from kts_source.export.row_schema import unite_schemas
from kts_source.export.settings import ADD_FIELDS
from kts_source.export.tables.library_errors import library_error
from kts_source.export.tables.target_store import open_target
from kts_source.export.task import WriteTarget
from kts_source.store.local_store import local_root
from kts_source.store.open_store import scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from kts_source.export.fingerprint import Fingerprint
    from kts_source.export.parquet_file import DataFile
    from kts_source.export.partitioning import ValuesIn
    from kts_source.export.ranges import CommittedRanges, RangeAdvance, Rollback
    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.target_store import TargetStore
    from kts_source.export.task import WrittenFile
    from kts_source.store.object_store import ObjectInfo


Snapshot: TypeAlias = Any
"""Snapshot of a table, in the type of its format."""
Owner: TypeAlias = "tuple[str, int]"
"""Name of a topic and number of a partition."""
RowCounts: TypeAlias = "Callable[[str, int], RowCount | None]"
"""Returns the number of rows that all commits wrote for a topic and a partition; `None` if no
commit wrote any.
"""

log = logging.getLogger(__name__)

MARKS: Final = "_kts/runs/"
_RENEW_SECONDS: Final = 60.0
_LEASE_SECONDS: Final = 600.0
STATE_VERSION: Final = 2
"""Version of what an export records in its table. Version 1 was never released."""


@dataclass(frozen=True, slots=True)
class RowCount:
    """Number of rows that all commits of an export wrote for a partition of a topic.

    Attributes:
        rows: Number of rows, including rows of earlier topics with the same name.
        restarts: How often the topic was deleted and created again between two commits.
    """

    rows: int
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class TableState:
    """State of an export, as recorded in its table. Some attributes are functions, because not
    every caller needs these values.

    Attributes:
        committed: The offset ranges that the table has.
        fingerprint: Settings that determine the rows of the table, by name; empty if the export
            committed nothing.
        newest_ms: Returns the newest timestamp of a partition of a compacted table, in ms since the
            epoch.
        letters: Number of the list of dead letters of the last commit that had dead letters; `None`
            if there was no such commit.
        schema: Returns the columns of the table; `None` if they are unknown.
        topic_id: Returns the id that a topic had in its last commit. If the table records only a
            digest of this id, returns the digest as a number.
        rollback: Returns what the table lost if it was restored to a state before commits of this
            export; otherwise `None`.
        counts: Returns the number of rows that all commits wrote for a partition.
        rule_texts: Returns texts of settings for messages, if `fingerprint` has only digests.
        holder: Returns the id of another export that has offsets of a partition in the table;
            otherwise `None`.
        is_replayed: Returns True if the rows of a file of dead letters are in the table.
        pending: Files of dead letters that are not replayed.
    """

    committed: CommittedRanges = field(default_factory=dict[PartitionKey, OffsetRange])
    fingerprint: Fingerprint = field(default_factory=dict[str, str])
    newest_ms: Callable[[PartitionKey], int | None] = lambda _key: None
    letters: int | None = None
    schema: Callable[[], pa.Schema | None] = lambda: None
    topic_id: Callable[[str], str | None] = lambda _topic: None
    rollback: Callable[[], Rollback | None] = lambda: None
    counts: RowCounts = lambda _topic, _partition: None
    rule_texts: Callable[[], Mapping[str, str]] = dict[str, str]
    holder: Callable[[PartitionKey], str | None] = lambda _key: None
    is_replayed: Callable[[str], bool] = lambda _name: False
    pending: PendingLetters = field(default_factory=PendingLetters)


@dataclass(frozen=True, slots=True)
class TableContents:
    """The files of a table and the recorded row counts; the input of `verify`.

    Attributes:
        store: The store of the files.
        files: All data files except the files of other exports.
        is_shared: True if a file may contain rows of several exports. This happens if several
            exports write to the table and another writer has rewritten its files.
        counts: Returns the number of rows that all commits wrote for a partition.
        removal: Returns a message if another writer removed files of the export; otherwise `None`.
    """

    store: TargetStore
    files: tuple[DataFile, ...]
    is_shared: bool
    counts: RowCounts
    removal: Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that adds data files and extends offset ranges.

    Attributes:
        advances: The offsets that the commit adds to each partition.
        files: The data files that the commit adds.
        fingerprint: Settings that determine the rows of the table, by name.
        schema: Columns of the rows, including the partition columns. `None` if they are unknown,
            because no row was written.
        run_id: Run that wrote the files.
        base: Keys of all data files of the table. The new files replace them, and the commit fails
            if the table has other files. `None` = add files without replacing any.
        newest_ms: Timestamp of the newest record of each partition in ms; only for a compaction.
        letters: Number of the commit's list of dead letters. The table records only one number, so
            the previous list is published before the commit replaces its number.
        typed: Names of decoded columns. `schema` may have fields in them that the table lacks.
        replayed: Names of the files of dead letters whose rows the commit adds.
        letter_files: Number of files in the commit's list of dead letters.
        kept_letters: Number of existing files of dead letters by run id, if the commit accepts the
            loss of all other files.
        pending: Number of files of dead letters that are not replayed after the commit, for each
            run whose number changes. `ExportTable.commit` sets it, and `pending_total`.
        pending_total: Number of files of all runs.
        counts: Number of rows of each partition of the commit, including earlier commits.
            `ExportTable.commit` sets it.
        commit_id: Id that the table records. If the response to the commit is lost, this id shows
            whether the table has the commit.
    """

    advances: tuple[RangeAdvance, ...]
    files: tuple[WrittenFile, ...]
    fingerprint: Fingerprint
    schema: pa.Schema | None
    run_id: str
    base: frozenset[str] | None = None
    newest_ms: Mapping[PartitionKey, int] = field(default_factory=dict[PartitionKey, int])
    letters: int | None = None
    typed: tuple[str, ...] = ()
    replayed: tuple[str, ...] = ()
    letter_files: int = 0
    kept_letters: Mapping[str, int] | None = None
    pending: Mapping[str, int] = field(default_factory=dict[str, int])
    pending_total: int = 0
    counts: Mapping[Owner, RowCount] = field(default_factory=dict[Owner, RowCount])
    commit_id: str = field(default_factory=lambda: uuid.uuid4().hex)


def other_format_error(present: str, wanted: str, uri: str) -> UnsupportedTargetError:
    """Returns the error for a target whose table has the format `present`, not `wanted`."""
    return UnsupportedTargetError(
        f"the target has a table of format {present}, but the export writes {wanted}: all rows"
        f" would be written again. Set table_format={present}, or export into another folder",
        uri=uri,
    )


class ExportTable(ABC):
    """Base class of export targets. There is a subclass for each table format.

    Args:
        settings: Settings of the export.

    Attributes:
        version: The version of the table that this object committed last, for logs; empty if it
            committed none.
        created: True if this object created the table.
    """

    version: str
    created: bool
    _folders: tuple[str, ...]
    """Folders of the export's files, which are searched for orphans; tasks write to the first."""
    _values_in: ValuesIn
    _suffix = ".parquet"
    _commit_attempts = 20

    def __init__(self, settings: ExportSettings) -> None:
        self.version = ""
        self.created = False
        self._settings = settings
        self._uri = settings.target

    def load(self, rules: Fingerprint | None = None) -> TableState:
        """Returns the state of the table. Before that, completes commits of exports that died
        during the commit.

        Args:
            rules: Settings of the export that determine its rows. They must equal the settings in
                the table. `None` = do not compare them.

        Raises:
            FingerprintError: The table was written with other settings.
            UnsupportedTargetError: Readers would not read all rows of the export's files.
            ExportError: The state of the table has another version, or is lost.
        """
        snapshot = self._open()
        if snapshot is None:
            return TableState()
        return self._state(snapshot) if rules is None else self._checked_state(snapshot, rules)

    def write_target(self, run_id: str) -> WriteTarget:
        """Returns location and names for the files that the tasks of a run write."""
        prefix, storage = self._key_prefix(run_id), self._settings.storage
        return WriteTarget(self._root(), storage, prefix, self._suffix, self._values_in)

    @contextmanager
    def marked(self, run_id: str) -> Iterator[None]:
        """Marks a run as running while the block runs, so that `clean` does not delete its
        files.
        """
        root = self._root()
        if scheme_of(root) == "file":
            with _locked(local_root(root) / MARKS / run_id):
                yield
            return
        self._key_prefix(run_id)  # checks the store, so that its errors name the problem
        with (
            closing(open_target(root, self._settings.storage)) as target,
            _renewed(target, f"{MARKS}{run_id}"),
        ):
            yield

    def running(self) -> set[str]:
        """Returns the ids of the runs that are writing to the table at the moment."""
        root = self._root()
        if scheme_of(root) == "file":
            folder = local_root(root) / MARKS
            marks = list(folder.iterdir()) if folder.is_dir() else []
            return {mark.name for mark in marks if _is_locked(mark)}
        oldest_ms = (time.time() - _LEASE_SECONDS) * 1000
        with closing(open_target(root, self._settings.storage)) as target:
            return {
                mark.key.removeprefix(MARKS)
                for mark in target.list_objects(MARKS)
                if (mark.last_modified_ms or 0) >= oldest_ms
            }

    def base_files(self) -> tuple[DataFile, ...]:
        """Returns the data files that the table has now.

        Raises:
            ExportError: The table hides rows of its files (for example with deletion vectors), a
                file is outside of the table's folder, or the files cannot be replaced in one step.
        """
        snapshot = self._open()
        return () if snapshot is None else self._files(snapshot)

    def contents(self) -> TableContents | None:
        """Returns the data files of the table and the recorded row counts. Returns `None` if the
        table does not exist.

        Raises:
            DataLossError: A file that a commit added is missing or was replaced.
            ExportError: The table hides rows of its files, for example with deletion vectors.
        """
        snapshot = self._open()
        return None if snapshot is None else self._contents(snapshot)

    def commit(self, commit: Commit) -> bool:
        """Adds files and extends the recorded offset ranges in one atomic step.

        Returns:
            True if the commit was made. False if the table does not exist, and cannot be created
            because the columns are unknown. The caller must then include the ranges in its next
            commit.

        Raises:
            CommitConflictError: Another export extended the same ranges, or changed the files that
                the commit replaces.
            ExportError: A file of the commit no longer exists.
        """
        is_attempted = False
        before: Snapshot | None = None
        for _ in range(self._commit_attempts):
            snapshot = self._open()
            if snapshot is None and commit.schema is None:
                return False
            if is_attempted and snapshot is not None and self._has_commit(before, snapshot, commit):
                log.info("commit %s succeeded although its response was lost", commit.commit_id)
                return True
            state = TableState()
            if snapshot is not None:
                state = self._checked_state(snapshot, commit.fingerprint)
            if commit.base is not None:
                self._check_base(commit.base, snapshot, state)
            if not self._settings.second_copy:
                check_holders(state, {a.key: a.topic for a in commit.advances}, self._uri)
            check_replayed(state, commit.replayed, self._uri)
            moved = advance_ranges(state.committed, commit.advances)
            if commit.letters is not None:
                publish_recorded(self._settings, state)
            self._require_files(commit)
            is_attempted, before = True, snapshot
            commit = self._with_table_columns(commit, state)
            pending, total = state.pending.changed(
                commit.run_id, commit.letter_files, commit.replayed, commit.kept_letters
            )
            counts = add_counts(commit, state.counts)
            commit = replace(commit, counts=counts, pending=pending, pending_total=total)
            try:
                if self._try_commit(snapshot, commit, moved):
                    return True
            except TieredKafkaError:
                if not self._is_committed(before, commit):
                    raise
                return True
        raise CommitConflictError(
            f"the commit was tried {self._commit_attempts} times, and each time another writer"
            " committed first. Nothing was committed: run again",
            uri=self._uri,
        )

    def discard(self, files: Iterable[WrittenFile]) -> None:
        """Deletes files of tasks that run again."""
        for file in files:
            self._target.delete(file.key)

    def written(self, commits: Iterable[Commit]) -> tuple[int, int]:
        """Returns the number of data files that commits of this object added, and their bytes."""
        sizes = [file.size for commit in commits for file in commit.files]
        return len(sizes), sum(sizes)

    def orphans(self) -> list[ObjectInfo]:
        """Lists files in the export's folders that belong to no commit. Failed attempts have left
        them, or active runs are writing them.

        For a Delta table, the list includes files that a compaction has replaced. If they are
        removed, time travel to versions before the compaction fails, as after Delta's vacuum.
        """
        return self._unknown_files(
            [entry for folder in self._folders for entry in self._target.list_objects(folder)]
        )

    def remove(self, orphans: Sequence[ObjectInfo]) -> None:
        """Deletes the files in `orphans`, except files that were committed after `orphans` was
        listed.
        """
        for orphan in self._unknown_files(orphans):
            self._target.delete(orphan.key)

    def close(self) -> None:
        """Closes connections."""
        if "_target" in vars(self):
            self._target.close()

    @cached_property
    def _target(self) -> TargetStore:
        return open_target(self._root(), self._settings.storage)

    # -- steps of a format

    def _root(self) -> str:
        """Returns the path or URL of the folder that contains the files of the table."""
        return self._settings.target

    def _key_prefix(self, run_id: str) -> str:
        return f"{self._folders[0]}{run_id}-"

    @abstractmethod
    def _open(self) -> Snapshot | None:
        """Returns the current snapshot of the table. Returns `None` if the table does not exist."""

    @abstractmethod
    def _state(self, snapshot: Snapshot) -> TableState:
        """Reads the state of this export from a snapshot."""

    @abstractmethod
    def _check(self, snapshot: Snapshot) -> None:
        """Raises `UnsupportedTargetError` if readers would not read all rows of the export's
        files.
        """

    @abstractmethod
    def _files(self, snapshot: Snapshot) -> tuple[DataFile, ...]:
        """See `base_files`."""

    @abstractmethod
    def _contents(self, snapshot: Snapshot) -> TableContents:
        """See `contents`."""

    @abstractmethod
    def _committed_keys(self, snapshot: Snapshot) -> Collection[str]:
        """Returns the keys of all files that belong to a commit."""

    @abstractmethod
    def _try_commit(
        self,
        snapshot: Snapshot,
        commit: Commit,
        moved: Mapping[PartitionKey, OffsetRange],
    ) -> bool:
        """Tries to commit. The commit succeeds only if `snapshot` is still current. Creates the
        table if `snapshot` is `None`.

        Args:
            snapshot: The current snapshot.
            commit: The commit.
            moved: The offset ranges of the table after the commit, for the partitions of the
                commit.

        Returns:
            False if the commit must be tried again with a newer snapshot.
        """

    @abstractmethod
    def _has_commit(self, before: Snapshot | None, after: Snapshot, commit: Commit) -> bool:
        """Returns True if the snapshot `after` contains this commit. The commit was tried with the
        snapshot `before`.
        """

    # -- steps that formats share

    def _is_committed(self, before: Snapshot | None, commit: Commit) -> bool:
        try:
            after = self._open()
        except TieredKafkaError:
            return False  # the error of the attempt has more details
        return after is not None and self._has_commit(before, after, commit)

    def _require_files(self, commit: Commit) -> None:
        if not commit.files:
            return
        prefix = self._key_prefix(commit.run_id)
        sizes = {entry.key: entry.size for entry in self._target.list_objects(prefix)}
        for file in commit.files:
            size = sizes.get(file.key)
            if size == file.size:
                continue
            state = "no longer exists" if size is None else f"has {size} bytes"
            raise ExportError(
                f"a file of this run {state}, but was written with {file.size} bytes, so nothing"
                " was committed. Another process deleted or replaced files of a running export."
                " Run the export again",
                uri=self._target.uri(file.key),
            )

    def _checked_state(self, snapshot: Snapshot, rules: Fingerprint) -> TableState:
        state = self._state(snapshot)
        # Compare the settings first, because their error message is clearer than an error about
        # partitions.
        check_fingerprint(state.fingerprint, rules, state.rule_texts)
        self._check(snapshot)
        return state

    def _with_table_columns(self, commit: Commit, state: TableState) -> Commit:
        """Adds the fields of the table to the decoded columns in `schema` of the commit."""
        there = state.schema() if commit.typed else None
        if there is None or commit.schema is None:
            return commit
        evolves = self._settings.schema_evolution == ADD_FIELDS
        schema = unite_schemas(there, commit.schema, commit.typed, self._uri, evolves=evolves)
        return replace(commit, schema=schema)

    def _check_base(
        self, base: frozenset[str], snapshot: Snapshot | None, state: TableState
    ) -> None:
        keys = set() if snapshot is None else {file.key for file in self._files(snapshot)}
        if keys and not state.fingerprint:
            raise ExportError(
                "the table has rows of another writer, which a compaction would remove. Export"
                " into another table",
                uri=self._uri,
            )
        if keys != base:
            raise CommitConflictError(
                "the table's files changed during the merge: another writer changed the table in"
                " the meantime. Run again to merge its current files",
                uri=self._uri,
            )

    def _unknown_files(self, listed: Sequence[ObjectInfo]) -> list[ObjectInfo]:
        # Open the table after the listing, so that it includes files committed in between.
        snapshot = self._open()
        committed = () if snapshot is None else self._committed_keys(snapshot)
        return [entry for entry in listed if entry.key not in committed]

    def _library_error(self, text: str, error: Exception) -> TieredKafkaError:
        settings = self._settings
        return library_error(text, error, settings.storage, settings.catalog, self._uri)


def check_holders(state: TableState, topics: Mapping[PartitionKey, str], uri: str) -> None:
    """Checks that no other export has written the same partitions into the table. Their rows would
    be in the table twice.

    Args:
        state: State of this export. Partitions that it has written already are not checked.
        topics: Name of the topic of each partition to write.
        uri: The table, for the message.

    Raises:
        ExportError: Another export has written one of the partitions.
    """
    for key, topic in topics.items():
        is_own = state.committed.get(key) is not None
        holder = None if is_own else state.holder(key)
        if holder is not None:
            raise ExportError(
                f"the export {holder!r} has written this partition into the table already, so"
                f" the table would have its rows twice. Set export_id={holder!r} to continue that"
                " export, or export into another table. Set second_copy=True only if you want all"
                " rows a second time",
                topic=topic,
                partition=key.partition,
                uri=uri,
            )


def check_state_version(version: object, uri: str) -> None:
    """Raises `ExportError` if `version`, the version of the recorded state of an export, is not
    `STATE_VERSION`.
    """
    if version != STATE_VERSION:
        raise ExportError(
            f"the table records the state of its exports in format version {version!r}, but this"
            f" version of the package reads only format version {STATE_VERSION}. Export into"
            " another table, or continue with the version of the package that wrote it",
            uri=uri,
        )


def add_counts(commit: Commit, counts: RowCounts) -> dict[Owner, RowCount]:
    """Returns the number of rows that all commits wrote, including `commit`, for each partition of
    `commit`. `counts` returns the numbers before this commit.
    """
    rows = Counter[Owner]()
    for file in commit.files:
        rows[file.topic, file.partition] += file.rows
    changed: dict[Owner, RowCount] = {}
    advanced = {(advance.topic, advance.key.partition) for advance in commit.advances}
    for owner in rows.keys() - advanced:  # replayed rows of offsets that the table records already
        known = counts(*owner) or RowCount(0)
        changed[owner] = RowCount(known.rows + rows[owner], known.restarts)
    for advance in commit.advances:
        owner = (advance.topic, advance.key.partition)
        before = counts(*owner)
        if before is None:
            changed[owner] = RowCount(rows[owner])
            continue
        kept = before.rows if commit.base is None else 0
        is_new = advance.expected is None
        changed[owner] = RowCount(kept + rows[owner], before.restarts + is_new)
    return changed


def without_other_exports(
    files: Iterable[DataFile], folder: str, export_id: str
) -> tuple[list[DataFile], bool, bool]:
    """Drops the files of other exports. `folder` is the folder that contains a subfolder for each
    export.

    Returns three values: the remaining files; True if other exports wrote files; True if a writer
    that is no export wrote files.
    """
    kept: list[DataFile] = []
    has_other_exports = is_rewritten = False
    for file in files:
        owner, slash, _ = file.key.removeprefix(folder).partition("/")
        is_export = file.key.startswith(folder) and bool(slash)
        if is_export and owner != export_id:
            has_other_exports = True
            continue
        is_rewritten = is_rewritten or not is_export
        kept.append(file)
    return kept, has_other_exports, is_rewritten


def partitioning_error(
    there: str, asked: str, uri: str, owner: str = "the table"
) -> UnsupportedTargetError:
    """Returns the error for a target that has other partition columns than the export.

    Args:
        there: Partition columns of the target.
        asked: Partition columns of the export.
        uri: The target.
        owner: Owner of the partition columns `there`, for the message.
    """
    return UnsupportedTargetError(
        f"{owner} is partitioned by {there or 'no column'}, but the export has partition_by"
        f" {asked or 'no column'}: readers cannot read both in one table. Use the existing"
        " partition_by, or export into another table or folder",
        uri=uri,
    )


@contextmanager
def _locked(mark: Path) -> Iterator[None]:
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        file = mark.open("ab")
    except OSError as error:
        folder = mark.parents[MARKS.count("/")]
        raise InvalidOptionError(
            f"the target {folder} cannot be written: {error.strerror}. Correct this and run again,"
            " or choose another folder"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            log.warning(
                "%s cannot be locked (%s): clean keeps the files of this run as long as this file"
                " exists. Delete it if the run dies",
                mark,
                error.strerror,
            )
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)


def _is_locked(mark: Path) -> bool:
    try:
        with mark.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # it is locked, or the file system has no locks
        return True
    return False


@contextmanager
def _renewed(target: TargetStore, key: str) -> Iterator[None]:
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(_RENEW_SECONDS):
            try:
                target.put(key, b"1")
            except Exception as error:  # noqa: BLE001  # a commit checks its files anyway
                log.warning("the mark %s of this run cannot be renewed: %s", key, error)

    target.put(key, b"1")
    thread = threading.Thread(target=renew, name="kts-run-mark", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        try:
            target.delete(key)
        except Exception as error:  # noqa: BLE001  # the commits are complete
            log.warning(
                "the mark %s of this run cannot be deleted, so clean keeps its files for %d s: %s",
                key,
                _LEASE_SECONDS,
                error,
            )
