"""A table that an export commits to: what it holds, and one atomic step forward."""

from __future__ import annotations

import logging
import re
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kts_source.errors import (
    CommitConflictError,
    ExportError,
    StoreUnavailableError,
    TieredKafkaError,
    UnsupportedTargetError,
)
from kts_source.export.fingerprint import check_fingerprint
from kts_source.export.outages import is_outage
from kts_source.export.ranges import OffsetRange, PartitionKey, advanced
from kts_source.export.row_schema import united
from kts_source.export.settings import ADD_FIELDS
from kts_source.export.tables.open_target import open_target
from kts_source.export.tables.row_counts import Owner, RowCount, TableContents, counted
from kts_source.export.tables.run_marks import marked, running
from kts_source.export.transforms.dead_letters import publish_dead_letters
from kts_source.secret import scrub
from kts_source.store.storage_options import secret_values

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from kts_source.export.files import WrittenFile
    from kts_source.export.fingerprint import Fingerprint
    from kts_source.export.partitioning import ValuesIn
    from kts_source.export.ranges import CommittedRanges, RangeAdvance
    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.row_counts import RowCounts
    from kts_source.export.tables.target_store import TargetStore
    from kts_source.secret import Secret
    from kts_source.store.object_store import ObjectInfo

Snapshot: TypeAlias = Any
"""A table as it stood when it was looked at, by the type that its format has for this."""

log = logging.getLogger(__name__)

_CREDENTIAL: Final = re.compile("key|secret|token|password|credential")


@dataclass(frozen=True, slots=True)
class TableState:
    """What a table says of itself.

    Attributes:
        committed: Offsets it holds.
        fingerprint: The rules it was begun with; empty for a table that holds nothing.
        newest_ms: Of a compacted table: the timestamp of a partition's newest record, in ms since
            the epoch; `None` where it is not known.
        letters: The list of dead letters that the last commit with such left; see `dead_letters`.
        schema: Its columns, as Arrow has them; `None` where they are not known.
        previous_id: Called with a topic and its id; returns the id under which the table has the
            topic, or words for it, where that is another one. `None` otherwise.
        has_recorded: Called with a topic; returns whether a commit recorded the id of the topic,
            and so where all its partitions began.
        rollback: Returns what undid commits of this export, in words; `None` where nothing did.
        counts: Rows that commits wrote of a topic's name and partition; `None` if unknown.
        is_counted: True if every commit of the table has counted its rows.
    """

    committed: CommittedRanges = field(default_factory=dict[PartitionKey, OffsetRange])
    fingerprint: Fingerprint = field(default_factory=dict[str, str])
    newest_ms: Callable[[PartitionKey], int | None] = lambda _key: None
    letters: int | None = None
    schema: Callable[[], pa.Schema | None] = lambda: None
    previous_id: Callable[[str, str], str | None] = lambda _topic, _topic_id: None
    has_recorded: Callable[[str], bool] = lambda _topic: False
    rollback: Callable[[], str | None] = lambda: None
    counts: RowCounts = lambda _topic, _partition: None
    is_counted: bool = False


@dataclass(frozen=True, slots=True)
class BaseFile:
    """A data file of a table as it stands.

    Attributes:
        key: Below the target's root.
        values: Texts of the partition columns that are not in the file, by name.
    """

    key: str
    size: int
    values: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class WritePlace:
    """Where tasks write.

    Attributes:
        path: Root of the target.
        storage: Its credentials and settings.
        prefix: Folder below the root, empty or ending in a slash.
        suffix: End of file names.
        values_in: Where readers will find the partition values of a file.
    """

    path: str
    storage: Secret[Mapping[str, str]]
    prefix: str
    suffix: str
    values_in: ValuesIn


@dataclass(frozen=True, slots=True)
class Commit:
    """One step forward.

    Attributes:
        schema: Of the rows written, partition columns included; `None` where no row told it.
        run_id: Of the run that wrote the files.
        base: Keys of all files that the table must hold until then, and that the new ones replace;
            `None` where they are added.
        newest_ms: Of a compaction: timestamps of the newest records, in ms.
        letters: The list of dead letters whose offsets it accepts. The table publishes the list of
            an earlier commit before it forgets it.
        typed: Names of columns that are decoded: of these the table may lack fields.
        counts: Rows of the partitions that it moves, with all commits before; see `row_counts`.
        is_counted: True if that is known of all partitions.
        commit_id: Identifies this commit in the table, so a commit whose answer was lost is
            recognized.
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
    counts: Mapping[Owner, RowCount] = field(default_factory=dict[Owner, RowCount])
    is_counted: bool = False
    commit_id: str = field(default_factory=lambda: uuid.uuid4().hex)


class ExportTable(ABC):
    """A target of any format: the order of steps that all formats share.

    Args:
        settings: What to write and where.
    """

    _folders: tuple[str, ...]
    """Prefixes that are searched for orphans; tasks write below the first."""
    _values_in: ValuesIn
    """See `WritePlace`."""
    _commit_attempts = 20

    def __init__(self, settings: ExportSettings) -> None:
        self._settings = settings
        self._uri = settings.target

    def load(self, rules: Fingerprint | None = None) -> TableState:
        """What the table holds now. Finishes first what a dead export left half-done.

        Args:
            rules: Of an export that shall go on; the table is compared with them and its settings.

        Raises:
            FingerprintError: The table was begun with other rules.
            UnsupportedTargetError: The export's files would not be whole in the table.
        """
        snapshot = self._open()
        if snapshot is None:
            return TableState()
        return self._state(snapshot) if rules is None else self._checked(snapshot, rules)

    def place(self, run_id: str) -> WritePlace:
        """Where the tasks of a run write."""
        prefix = f"{self._folders[0]}{run_id}-"
        storage = self._settings.storage
        return WritePlace(self._root(), storage, prefix, ".parquet", self._values_in)

    def marked(self, run_id: str) -> AbstractContextManager[None]:
        """Marks a run as running, so that no `clean` deletes its files."""
        return marked(self._root(), self._settings.storage, run_id)

    def running(self) -> set[str]:
        """Returns the ids of the runs that write to the table now."""
        return running(self._root(), self._settings.storage)

    def base_files(self) -> tuple[BaseFile, ...]:
        """The data files of the table as it is now.

        Raises:
            ExportError: They do not hold exactly the table's rows, lie elsewhere, or cannot be
                replaced in one step.
        """
        snapshot = self._open()
        return () if snapshot is None else self._files(snapshot)

    def contents(self) -> TableContents | None:
        """Returns the files of the table and what its commits recorded of them; `None` if there is
        no table.

        Raises:
            DataLossError: A file that a commit added is missing or was replaced.
            ExportError: The files do not hold exactly the table's rows.
        """
        snapshot = self._open()
        return None if snapshot is None else self._contents(snapshot)

    def commit(self, commit: Commit) -> bool:
        """Adds files and moves the ranges, both or neither.

        Returns:
            Whether it did. False where there is no table yet, and no columns to make one with: then
            the ranges are to be committed with the next rows.

        Raises:
            CommitConflictError: Another export moved the same ranges, or changed the files that
                were merged.
            ExportError: A file of the commit no longer exists.
        """
        attempted = False
        before: Snapshot | None = None
        for _ in range(self._commit_attempts):
            snapshot = self._open()
            if snapshot is None and commit.schema is None:
                return False
            if attempted and snapshot is not None and self._has_commit(before, snapshot, commit):
                log.info("commit %s succeeded although its answer was lost", commit.commit_id)
                return True
            state = TableState()
            if snapshot is not None:
                state = self._checked(snapshot, commit.fingerprint)
            if commit.base is not None:
                self._check_base(commit.base, snapshot, state)
            moved = advanced(state.committed, commit.advances)
            if commit.letters is not None:
                publish_dead_letters(self._settings, state.letters)
            self._require_files(commit)
            attempted, before = True, snapshot
            commit = self._with_table_columns(_with_counts(commit, state), state)
            try:
                if self._try_commit(snapshot, commit, moved):
                    return True
            except TieredKafkaError:
                if not self._is_committed(before, commit):
                    raise
                return True
        raise CommitConflictError(
            f"other writers came before {self._commit_attempts} times; nothing was committed",
            uri=self._uri,
        )

    def orphans(self) -> list[ObjectInfo]:
        """Files that no commit knows: of attempts that died, or of runs under way.

        Of a Delta table, a file that was compacted away counts too: once it is removed, time travel
        behind that ends as it does after Delta's own vacuum.
        """
        folders = self._folders
        return self._unknown([one for name in folders for one in self._target.list_objects(name)])

    def remove(self, orphans: Sequence[ObjectInfo]) -> None:
        """Deletes them, but for those that a commit knows by now."""
        for orphan in self._unknown(orphans):
            self._target.delete(orphan.key)

    def close(self) -> None:
        """Closes connections."""
        if "_target" in vars(self):
            self._target.close()

    @cached_property
    def _target(self) -> TargetStore:
        return open_target(self._root(), self._settings.storage)

    # -- the steps of a format

    def _root(self) -> str:
        """Path of the folder that the table's files are in."""
        return self._settings.target

    @abstractmethod
    def _open(self) -> Snapshot | None:
        """The table as it is now; `None` where there is none."""

    @abstractmethod
    def _state(self, snapshot: Snapshot) -> TableState:
        """What it says of this export."""

    @abstractmethod
    def _check(self, snapshot: Snapshot) -> None:
        """Raises unless the export's files would be whole in it."""

    @abstractmethod
    def _files(self, snapshot: Snapshot) -> tuple[BaseFile, ...]:
        """See `base_files`."""

    @abstractmethod
    def _contents(self, snapshot: Snapshot) -> TableContents:
        """See `contents`."""

    @abstractmethod
    def _known(self, snapshot: Snapshot) -> Collection[str]:
        """Keys of files that are no orphans."""

    @abstractmethod
    def _try_commit(
        self,
        snapshot: Snapshot,
        commit: Commit,
        moved: Mapping[PartitionKey, OffsetRange],
    ) -> bool:
        """Commits right behind the snapshot, or begins the table where that is `None`; False where
        the table is another by now.
        """

    @abstractmethod
    def _has_commit(self, before: Snapshot | None, after: Snapshot, commit: Commit) -> bool:
        """Returns whether `after` contains this commit, which was attempted on top of `before`."""

    # -- what formats share

    def _is_committed(self, before: Snapshot | None, commit: Commit) -> bool:
        """Returns whether a failed commit attempt changed the table anyway."""
        try:
            after = self._open()
        except TieredKafkaError:
            return False  # the error of the attempt says more
        return after is not None and self._has_commit(before, after, commit)

    def _require_files(self, commit: Commit) -> None:
        """Checks that all files of a commit still exist with the size they were written with.

        Raises:
            ExportError: A file was deleted or replaced.
        """
        if not commit.files:
            return
        prefix = self.place(commit.run_id).prefix
        sizes = {entry.key: entry.size for entry in self._target.list_objects(prefix)}
        for file in commit.files:
            if sizes.get(file.key) == file.size:
                continue
            size = sizes.get(file.key)
            state = "no longer exists" if size is None else f"has {size} bytes"
            raise ExportError(
                f"a file of this run {state} and was written with {file.size} bytes; nothing was"
                " committed. Another process deleted or replaced files of a running export. Run the"
                " export again",
                uri=self._target.uri(file.key),
            )

    def _checked(self, snapshot: Snapshot, rules: Fingerprint) -> TableState:
        state = self._state(snapshot)
        # Before the table's own partitioning: of an export that has begun, this says more.
        check_fingerprint(state.fingerprint, rules)
        self._check(snapshot)
        return state

    def _with_table_columns(self, commit: Commit, state: TableState) -> Commit:
        """The commit with typed columns that have all fields of the table's, too.

        Raises:
            SchemaChangedError: They are not the table's, and may not be.
        """
        there = state.schema() if commit.typed else None
        if there is None or commit.schema is None:
            return commit
        evolves = self._settings.schema_evolution == ADD_FIELDS
        schema = united(there, commit.schema, commit.typed, self._uri, evolves=evolves)
        return replace(commit, schema=schema)

    def _check_base(
        self, base: frozenset[str], snapshot: Snapshot | None, state: TableState
    ) -> None:
        there = set() if snapshot is None else {file.key for file in self._files(snapshot)}
        if there and not state.fingerprint:
            raise ExportError("the table holds rows that a rebuild would remove", uri=self._uri)
        if there != base:
            raise CommitConflictError(
                "the table's files are not those that were merged: another writer changed the table"
                " in the meantime. Run again to merge what it holds now",
                uri=self._uri,
            )

    def _unknown(self, listed: Sequence[ObjectInfo]) -> list[ObjectInfo]:
        """Those that the table does not know, looked at after they were listed: what is committed
        in between is known.
        """
        snapshot = self._open()
        known = () if snapshot is None else self._known(snapshot)
        return [found for found in listed if found.key not in known]

    def _failed(self, text: str, error: Exception) -> TieredKafkaError:
        """The error for what a library raised, without credentials."""
        catalog = self._settings.catalog.reveal().items()
        hidden = {value for name, value in catalog if _CREDENTIAL.search(name)}
        hidden |= secret_values(self._settings.storage.reveal())
        kind = StoreUnavailableError if is_outage(error) else ExportError
        return kind(f"{text}: {scrub(f'{type(error).__name__}: {error}', hidden)}", uri=self._uri)


def _with_counts(commit: Commit, state: TableState) -> Commit:
    replaces = commit.base is not None
    is_counted = replaces or state.is_counted or not state.fingerprint
    counts = counted(
        commit.advances, commit.files, state.counts, is_counted=is_counted, replaces=replaces
    )
    return replace(commit, counts=counts, is_counted=is_counted)


def partitioned_otherwise(
    there: str, asked: str, uri: str, owner: str = "the table"
) -> UnsupportedTargetError:
    """The error for partition columns that are not those of the export."""
    return UnsupportedTargetError(
        f"{owner} is partitioned by {there or 'no column'}, and partition_by makes"
        f" {asked or 'no column'}: readers would mix them up. Give partition_by as it is"
        " there, or export into another table or folder",
        uri=uri,
    )
