"""Delta tables as targets: each commit adds files and records offsets in one entry of the log.

An export records its state in `txn` actions, which the log keeps through checkpoints and clean-up.
A `txn` action has a key (`appId`) and a version, which is a number. The version for the key
`kts/<export>/<topic id>/<partition>` is the exclusive end offset. The other keys and their
versions:

    …/start, …/epoch, …/newest         first offset; leader epoch of the last offset, -1 if unknown;
                                       newest timestamp of a compacted table
    kts/<export>/version               version of this state
    kts/<export>/rules/<name>          digest of each setting
    kts/<export>/topics/<name>         digest of the topic's last id
    kts/<export>/rows/<topic>/<partition>, …/restarts
                                       rows of all commits; how often the topic was created again
    kts/<export>/replayed/<id>         1 for each replayed file of dead letters
    kts/<export>/letters               number of the list of dead letters of the last commit
                                       that had dead letters
    kts/<export>/pending, …/<run>      files of dead letters that are not replayed; those of a run

A commit is written as the version right after the compared snapshot, so no other commit can be in
between. The entry `kts` in its `commitInfo` identifies the export in the history.

delta-rs does not check partition columns and constraints of added files. So an export accepts a
table only if plain files with column bounds satisfy all requirements of the table for writers. For
any other table it raises an error that names the required feature. Source: PROTOCOL.md of Delta,
"Requirements for Writers" and "Table Features".
"""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa

from kts_source.errors import (
    ExportError,
    ObjectNotFoundError,
    UnsupportedTargetError,
)
from kts_source.export.dead_letters import PendingLetters, replay_id
from kts_source.export.fingerprint import digest_number
from kts_source.export.parquet_file import DataFile
from kts_source.export.partitioning import value_text, with_made_columns
from kts_source.export.ranges import OffsetRange, PartitionKey, Rollback, parse_ranges
from kts_source.export.row_schema import lacks_fields
from kts_source.export.settings import DELTA, PARQUET
from kts_source.export.tables.export_table import (
    STATE_VERSION,
    Commit,
    ExportTable,
    RowCount,
    TableContents,
    TableState,
    check_state_version,
    other_format_error,
    partitioning_error,
    without_other_exports,
)
from kts_source.export.tables.parquet_folder import COMMITS as PARQUET_COMMITS
from kts_source.export.tables.target_store import open_target, require_create
from kts_source.store.local_store import local_root
from kts_source.store.open_store import scheme_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from deltalake import CommitProperties, DeltaTable, Schema
    from deltalake.transaction import AddAction

    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.target_store import TargetStore
    from kts_source.export.task import WrittenFile

log = logging.getLogger(__name__)

RULES: Final = ("isolationLevel", "columns", "transform", "partitionBy", "where", "compact")
_MAX_HISTORY: Final = 256
"""Number of newest versions whose commits are read to find other exports and texts of settings."""
_UNKNOWN_EPOCH: Final = -1
SPARK_APP_ID: Final = "kts"
"""Key of the `txn` action in commits of `kts_source.spark.named_delta`."""
_LOCKS: Final = "AWS_S3_LOCKING_PROVIDER"
"""Environment variable that makes delta-rs commit with locks, for stores without conditions."""


@dataclass(frozen=True, slots=True)
class _Transactions:
    """Reads the `txn` actions of an export from one snapshot of the table."""

    table: DeltaTable
    export_id: str

    def version(self, name: str) -> int | None:
        return self.table.transaction_version(f"kts/{self.export_id}/{name}")

    def get(self, key: PartitionKey, /) -> OffsetRange | None:
        stop, start = self.version(_name(key)), self.version(f"{_name(key)}/start")
        if stop is None:
            return None
        epoch = self.version(f"{_name(key)}/epoch")
        if epoch == _UNKNOWN_EPOCH:
            epoch = None
        return OffsetRange(stop if start is None else start, stop, epoch)

    def counts(self, topic: str, partition: int) -> RowCount | None:
        name = f"rows/{topic}/{partition}"
        rows = self.version(name)
        return None if rows is None else RowCount(rows, self.version(f"{name}/restarts") or 0)

    def newest_ms(self, key: PartitionKey) -> int | None:
        return self.version(f"{_name(key)}/newest")

    def topic_id(self, topic: str) -> str | None:
        digest = self.version(f"topics/{topic}")
        return None if digest is None else str(digest)


def _name(key: PartitionKey) -> str:
    return f"{key.topic_id}/{key.partition}"


class DeltaExportTable(ExportTable):
    """A Delta table; see the module docstring."""

    _values_in = "log"

    def __init__(self, settings: ExportSettings) -> None:
        super().__init__(settings)
        self._target = open_target(self._root(), settings.storage)
        if scheme_of(settings.target) == "file":
            self._uri = str(local_root(settings.target))
        self._prefix = f"kts/{settings.export_id}/"
        self._folders = (self._prefix, "_kts/")
        self._columns = [field.name for field in settings.partition_by]
        self._is_probed = False

    def _key_prefix(self, run_id: str) -> str:
        if not self._is_probed:
            if scheme_of(self._settings.target) != "file" and _LOCKS not in os.environ:
                require_create(self._target, for_delta=True)
            self._is_probed = True
        # The run id comes before the Hive folders, because `clean` takes the first 32 hex digits of
        # a key as the run id, and a partition value may consist of 32 hex digits, too.
        return f"{self._prefix}{run_id}/" if self._columns else super()._key_prefix(run_id)

    def _open(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self._uri, storage_options=self._target.delta_options())
        except TableNotFoundError:
            if next(iter(self._target.list_objects(PARQUET_COMMITS)), None) is not None:
                raise other_format_error(PARQUET, DELTA, self._uri) from None
            return None
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            raise self._library_error("the Delta table cannot be opened", error) from None

    def _state(self, snapshot: DeltaTable) -> TableState:
        # Check the demands first: if txn actions expire, missing actions do not prove that nothing
        # was exported.
        check_demands(snapshot, self._settings, self._uri)
        export_id = self._settings.export_id
        transactions = _Transactions(snapshot, export_id)
        fingerprint = {
            name: str(version)
            for name in RULES
            if (version := transactions.version(f"rules/{name}")) is not None
        }
        if fingerprint:
            check_state_version(transactions.version("version") or 1, self._uri)
        elif snapshot.transaction_version(SPARK_APP_ID) is not None:
            raise ExportError(
                "the table has rows of an export by name, whose offsets this export cannot read,"
                " so all rows would be written again. Continue with writer='spark' and the name of"
                " the table, or export into another table",
                uri=self._uri,
            )
        elif any(key.startswith(self._prefix) for key in self._committed_keys(snapshot)):
            raise ExportError(
                f"the table has files of the export {export_id!r} but no longer records which"
                " offsets are in them: its txn actions have expired, or it is a copy without them."
                " Export into another table",
                uri=self._uri,
            )
        others = cache(lambda: self._other_exports(snapshot))

        def holder(key: PartitionKey) -> str | None:
            held = (name for name in others() if _Transactions(snapshot, name).get(key) is not None)
            return min(held, default=None)

        return TableState(
            transactions,
            fingerprint,
            transactions.newest_ms,
            transactions.version("letters"),
            lambda: arrow_schema(snapshot),
            transactions.topic_id,
            lambda: _rollback_of(_history(self._target, snapshot.version()), export_id),
            transactions.counts,
            lambda: self._rule_texts(snapshot),
            holder,
            lambda name: transactions.version(f"replayed/{replay_id(name)}") is not None,
            PendingLetters(
                transactions.version("pending") or 0,
                lambda run_id: transactions.version(f"pending/{run_id}") or 0,
                lambda: self._letter_folders(snapshot, transactions),
            ),
        )

    def _letter_folders(
        self, snapshot: DeltaTable, transactions: _Transactions
    ) -> Mapping[str, str]:
        """Returns the folders of pending dead letters by run id, of commits still in the log."""
        folders: dict[str, str] = {}
        for entry in islice(_history(self._target, snapshot.version()), _MAX_HISTORY):
            details = _details(entry)
            run_id = details.get("runId", "")
            is_own = details.get("exportId") == self._settings.export_id
            if is_own and "deadLetters" in details and transactions.version(f"pending/{run_id}"):
                folders.setdefault(run_id, details["deadLetters"])
        return folders

    def _rule_texts(self, snapshot: DeltaTable) -> Mapping[str, str]:
        """Returns the settings in the newest commit of this export that is still in the log."""
        for entry in islice(_history(self._target, snapshot.version()), _MAX_HISTORY):
            details = _details(entry)
            if details.get("exportId") == self._settings.export_id:
                rules: dict[str, str] = details.get("rules", {})
                return rules
        return {}

    def _other_exports(self, snapshot: DeltaTable) -> frozenset[str]:
        """Returns the ids of other exports into the table.

        The library cannot list `txn` actions, so this uses files and commits. An export is not
        found if others have rewritten its files and its commits have expired.
        """
        paths = (key.split("/") for key in self._committed_keys(snapshot))
        ids = {path[1] for path in paths if path[0] == "kts" and len(path) > 2}
        entries = islice(_history(self._target, snapshot.version()), _MAX_HISTORY)
        ids |= {str(_details(entry).get("exportId", "")) for entry in entries}
        return frozenset(ids - {"", self._settings.export_id})

    def _check(self, snapshot: DeltaTable) -> None:
        there = snapshot.metadata().partition_columns
        if sorted(there) != sorted(self._columns):
            raise partitioning_error(", ".join(there), ", ".join(self._columns), self._uri)

    def _files(self, snapshot: DeltaTable) -> tuple[DataFile, ...]:
        try:
            snapshot.to_pyarrow_dataset()  # raises for deletion vectors
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            raise self._library_error(
                "the rows of the Delta table cannot be read from its data files alone", error
            ) from None
        files = []
        for row in _actions(snapshot).to_pylist():
            if "://" in row["path"] or row["path"].startswith("/"):
                raise ExportError(
                    f"the data file {row['path']} is not in the folder of the table. Export into"
                    " another table",
                    uri=self._uri,
                )
            values = {name: value_text(row[f"partition.{name}"]) for name in self._columns}
            files.append(DataFile(unquote(row["path"]), row["size_bytes"], values))
        return tuple(files)

    def _contents(self, snapshot: DeltaTable) -> TableContents:
        export_id, version = self._settings.export_id, snapshot.version()
        listed = self._files(snapshot)
        files, is_shared, is_rewritten = without_other_exports(listed, "kts/", export_id)
        if is_rewritten and not is_shared:
            entries = islice(_history(self._target, version), _MAX_HISTORY)
            exports = {_details(entry).get("exportId") for entry in entries}
            is_shared = bool(exports - {None, export_id})
        return TableContents(
            self._target,
            tuple(files),
            is_shared and is_rewritten,
            _Transactions(snapshot, export_id).counts,
            lambda: _removal_of(self._target, version, export_id, self._prefix),
        )

    def _committed_keys(self, snapshot: DeltaTable) -> set[str]:
        # Paths in the log are escaped as in URLs.
        return {unquote(path) for path in _actions(snapshot)["path"].to_pylist()}

    def _try_commit(
        self,
        snapshot: DeltaTable | None,
        commit: Commit,
        moved: Mapping[PartitionKey, OffsetRange],
    ) -> bool:
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import create_table_with_add_actions

        schema = None if commit.schema is None else self._table_schema(commit.schema)
        names = frozenset(() if commit.schema is None else commit.schema.names)
        actions = [self._add_action(file, names) for file in commit.files]
        properties = self._properties(commit, moved)
        try:
            if snapshot is None:
                assert schema is not None
                create_table_with_add_actions(
                    self._uri,
                    delta_schema(schema, self._uri),
                    actions,
                    mode="error",
                    partition_by=self._columns,
                    storage_options=self._target.delta_options(),
                    commit_properties=properties,
                )
            else:
                if commit.schema is not None and schema is not None:
                    if lacks_fields(arrow_schema(snapshot), commit.schema, commit.typed):
                        self._add_fields(snapshot, commit)
                        return False  # the next attempt compares the new columns
                    check_schema(snapshot, schema, self._uri)
                snapshot.create_write_transaction(
                    [*actions],
                    "append" if commit.base is None else "overwrite",
                    snapshot.schema(),
                    snapshot.metadata().partition_columns,
                    commit_properties=properties,
                )
        except CommitFailedError:
            return False
        except (DeltaError, OSError) as error:  # OSError if the store is unavailable
            if snapshot is None and self._open() is not None:
                return False
            raise self._library_error("the commit to the Delta table failed", error) from None
        self.created = self.created or snapshot is None
        self.version = f"version {0 if snapshot is None else snapshot.version() + 1}"
        return True

    def _has_commit(self, before: DeltaTable | None, after: DeltaTable, commit: Commit) -> bool:
        version = 0 if before is None else before.version() + 1
        if after.version() < version:
            return False
        entry = next(_history(self._target, version), {})
        return _details(entry).get("commitId") == commit.commit_id

    def _add_fields(self, snapshot: DeltaTable, commit: Commit) -> None:
        """Adds the fields that the table lacks. This is a separate commit before the commit of the
        data files, because delta-rs cannot change the schema in a commit that adds files.

        If the run dies between the two commits, the new columns are null until the next run.

        Raises:
            deltalake.exceptions.CommitFailedError: Another writer committed first.
        """
        from deltalake import CommitProperties

        assert commit.schema is not None
        rows = {field.name: field for field in delta_schema(commit.schema, self._uri).fields}
        fields = [rows[name] for name in commit.typed if name in rows]
        log.info("adding new fields of %s to the table", ", ".join(commit.typed))
        snapshot.alter.add_columns(fields, commit_properties=CommitProperties(max_commit_retries=0))

    def _properties(
        self, commit: Commit, moved: Mapping[PartitionKey, OffsetRange]
    ) -> CommitProperties:
        from deltalake import CommitProperties, Transaction

        export_id = self._settings.export_id
        versions = {"version": STATE_VERSION}
        for name, text in commit.fingerprint.items():
            versions[f"rules/{name}"] = digest_number(text)
        for key, span in moved.items():
            versions[_name(key)] = span.stop
            versions[f"{_name(key)}/start"] = span.start
            versions[f"{_name(key)}/epoch"] = _UNKNOWN_EPOCH if span.epoch is None else span.epoch
        for advance in commit.advances:
            versions[f"topics/{advance.topic}"] = digest_number(advance.key.topic_id)
        for key, newest_ms in commit.newest_ms.items():
            versions[f"{_name(key)}/newest"] = newest_ms
        versions |= {f"replayed/{replay_id(name)}": 1 for name in commit.replayed}
        if commit.letters is not None:
            versions["letters"] = commit.letters
        if commit.pending:
            versions["pending"] = commit.pending_total
        versions |= {f"pending/{run_id}": count for run_id, count in commit.pending.items()}
        for (topic, partition), count in commit.counts.items():
            versions[f"rows/{topic}/{partition}"] = count.rows
            versions[f"rows/{topic}/{partition}/restarts"] = count.restarts
        # Record the time of the actions. If txn actions expire in a table, Delta in Spark
        # immediately drops actions without a time.
        now_ms = time.time_ns() // 1_000_000
        letters = {"deadLetters": self._settings.dead_letters} if commit.letter_files else {}
        return CommitProperties(
            custom_metadata={
                "kts": {
                    "exportId": export_id,
                    "runId": commit.run_id,
                    "commitId": commit.commit_id,
                    "ranges": [str(advance) for advance in commit.advances],
                    "rules": dict(commit.fingerprint),
                    **letters,
                }
            },
            # Do not retry: a retry would commit on top of a snapshot that was not compared.
            max_commit_retries=0,
            app_transactions=[
                Transaction(f"kts/{export_id}/{name}", version, now_ms)
                for name, version in versions.items()
            ],
        )

    def _add_action(self, file: WrittenFile, names: Collection[str]) -> AddAction:
        from deltalake.transaction import AddAction

        values = dict(zip(self._columns, file.values, strict=True))
        columns = file.statistics.items()
        bounded = {
            path: bounds
            for path, bounds in columns
            if bounds.low is not None and bounds.high is not None
        }
        nulls = {path: bounds.nulls for path, bounds in columns if bounds.nulls is not None}
        lows = {path: bounds.low for path, bounds in bounded.items()}
        highs = {path: bounds.high for path, bounds in bounded.items()}
        statistics = {
            "numRecords": file.rows,
            "minValues": _nested(lows, names),
            "maxValues": _nested(highs, names),
            "nullCount": _nested(nulls, names),
        }
        return AddAction(
            file.key, file.size, values, file.modified_ms, True, json.dumps(statistics)
        )

    def _table_schema(self, schema: pa.Schema) -> pa.Schema:
        return with_made_columns(schema, self._settings.partition_by, self._values_in)


def _nested(figures: Mapping[str, Any], columns: Collection[str]) -> dict[str, Any]:
    """Converts statistics to the form of Delta's log. `figures` has a value for each dotted path of
    a field, and the result has nested objects instead.
    """
    nested: dict[str, Any] = {}
    for path, value in figures.items():
        *outer, last = [path] if path in columns else path.split(".")
        struct = nested
        for name in outer:
            struct = struct.setdefault(name, {})
        struct[last] = value
    return nested


def arrow_schema(table: DeltaTable) -> pa.Schema:
    """Returns the columns of a Delta table as an Arrow schema."""
    return pa.schema(table.schema().to_arrow())


def _actions(table: DeltaTable) -> pa.Table:
    """Returns a table that describes the data files of a snapshot, with one row per file."""
    actions: Any = table.get_add_actions(flatten=True)
    return pa.table(actions)


# -- requirements of existing tables

_WRITABLE: Final = frozenset(
    {
        # Features that add no requirements for the files of an export.
        "appendOnly",
        "changeDataFeed",
        "deletionVectors",
        "timestampNanos",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        # Features that add requirements only if a column or a property uses them, which
        # `_unwritable` checks.
        "checkConstraints",
        "columnMapping",
        "generatedColumns",
        "invariants",
    }
)
_LAST_LEGACY_VERSION: Final = 5
"""Highest supported writer version without a list of features. Version 6 requires identity columns;
from version 7 on, tables list their features.
"""
TXN_RETENTION: Final = "delta.setTransactionRetentionDuration"
_ELSEWHERE: Final = "Export into another table"


def check_demands(table: DeltaTable, settings: ExportSettings, uri: str) -> None:
    """Raises `UnsupportedTargetError` if the table requires more of its writers than an export can
    do.
    """
    metadata = table.metadata()
    if demands := ", ".join(_unwritable(table, metadata.configuration)):
        raise UnsupportedTargetError(
            f"the table requires {demands} of its writers, but an export writes only plain files."
            f" {_ELSEWHERE}",
            uri=uri,
        )
    if duration := metadata.configuration.get(TXN_RETENTION):
        raise UnsupportedTargetError(
            f"the table deletes txn actions after a time ({TXN_RETENTION} = {duration}). They"
            " record which offsets were exported, so the same records would be written again."
            " Unset the property",
            uri=uri,
        )
    append_only = metadata.configuration.get("delta.appendOnly", "").lower() == "true"
    if settings.compaction is not None and append_only:
        raise UnsupportedTargetError(
            "the table accepts only appends (delta.appendOnly), but compact=True replaces files."
            " Unset the property, or export without compact",
            uri=uri,
        )


def check_schema(table: DeltaTable, schema: pa.Schema, uri: str) -> None:
    """Checks that the columns of the rows and the columns of the table are the same. `schema`
    includes the partition columns.

    Raises:
        ExportError: A column is missing in the table or in the rows, or its type or nullability
            differs.
    """
    rows = {field.name: field for field in delta_schema(schema, uri).fields}
    columns = {field.name: field for field in table.schema().fields}
    different = [f"it has no column {name}" for name in rows if name not in columns]
    for name, field in columns.items():
        if name not in rows:
            if not field.nullable:
                different.append(f"its column {name} must not be null, and the rows have none")
        elif rows[name].type != field.type:
            different.append(f"{name} is {_type(field)} there and {_type(rows[name])} in the rows")
        elif rows[name].nullable and not field.nullable:
            different.append(f"{name} must not be null there and may be null in the rows")
    if different:
        raise ExportError(
            f"the rows do not fit the table: {'; '.join(different)}. {_ELSEWHERE}, or"
            " change the columns of the rows with columns=… or a transform",
            uri=uri,
        )


def delta_schema(schema: pa.Schema, uri: str) -> Schema:
    """Converts an Arrow schema to a Delta schema.

    Raises:
        ExportError: Delta has no type for a column.
    """
    from deltalake import Schema

    try:
        return Schema.from_arrow(schema)
    except Exception as error:  # noqa: BLE001  # delta-rs raises Exception itself
        reason = str(error).partition("\n")[0]
        raise ExportError(
            f"Delta cannot store the columns of the rows: {reason}. Cast them to other types in the"
            " transform, or drop them",
            uri=uri,
        ) from None


def _unwritable(table: DeltaTable, properties: dict[str, str]) -> Iterator[str]:
    protocol: Any = table.protocol()
    features = set(protocol.writer_features or ()) | set(protocol.reader_features or ())
    yield from sorted(features - _WRITABLE)
    if not features and protocol.min_writer_version > _LAST_LEGACY_VERSION:
        yield f"writer version {protocol.min_writer_version}"
    for name in sorted(properties):
        if name.startswith("delta.constraints."):
            yield f"a constraint ({name})"
    if properties.get("delta.columnMapping.mode", "none").lower() != "none":
        yield "column mapping (delta.columnMapping.mode)"
    yield from sorted(set(_column_rules(json.loads(table.schema().to_json()))))


def _column_rules(value: object) -> Iterator[str]:
    """Yields a description of each rule that writers of a column or nested field must obey.
    Examples are invariants and identity columns. `value` is a part of the table's schema as JSON.
    """
    if isinstance(value, list):
        for item in value:
            yield from _column_rules(item)
    elif isinstance(value, dict):
        for rule in value.get("metadata", {}):
            if rule.startswith("delta."):
                yield f"a rule of column {value['name']} ({rule})"
        for name, item in value.items():
            if name != "metadata":
                yield from _column_rules(item)


def _type(field: Any) -> str:  # noqa: ANN401  # a field of delta-rs
    return str(json.loads(field.to_json())["type"])


# -- history


def _history(target: TargetStore, version: int) -> Iterator[dict[str, Any]]:
    """Yields the `commitInfo` of version `version`, and then of all older versions that are still
    in the log, newest first. The item `version` of each `commitInfo` is set to the version number.

    Does not use `DeltaTable.history`, because it blocks other threads while it waits for a store.
    """
    for number, lines in _log_entries(target, version):
        actions = (json.loads(line) for line in lines if b'"commitInfo"' in line)
        yield {**_commit_info(actions), "version": number}


def _log_entries(target: TargetStore, version: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yields two values for version `version`, and then for each older version that is still in the
    log: the version number, and the actions as lines of JSON.
    """
    for number in range(version, -1, -1):
        try:
            yield number, target.read(f"_delta_log/{number:020d}.json").splitlines()
        except ObjectNotFoundError:
            return


def _commit_info(actions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def _details(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the details in a `commitInfo` that only exports record. Returns an empty mapping if
    another writer made the commit.
    """
    details = entry.get("kts")
    return details if isinstance(details, dict) else {}


def _removal_of(target: TargetStore, version: int, export_id: str, prefix: str) -> str | None:
    """Finds the newest version in which another writer removed files and their rows. Returns a
    message about it, which names a removed file, preferably of this export. Returns `None` if there
    is no such version in the log.

    Ignores removals that are marked with `dataChange: false`, such as a compaction by another tool.
    """
    for number, lines in _log_entries(target, version):
        actions = [json.loads(line) for line in lines]
        entry = _commit_info(actions)
        if _details(entry).get("exportId") == export_id:
            continue
        removed = [
            unquote(action["remove"]["path"])
            for action in actions
            if "remove" in action and action["remove"].get("dataChange", True)
        ]
        own = [path for path in removed if path.startswith(prefix)] or removed
        if own:
            operation = entry.get("operation", "an operation")
            return (
                f"version {number} of the table ({operation}, by another writer) removed"
                f" {len(removed)} files, among them {own[0]}"
            )
    return None


def _rollback_of(entries: Iterable[Mapping[str, Any]], export_id: str) -> Rollback | None:
    """Returns what the table lost if a `RESTORE` removed rows of the export. Returns `None` if no
    `RESTORE` did so. `entries` is a result of `_history`.

    `RESTORE` brings back the files of an earlier version, but keeps all `txn` actions. So the later
    `txn` actions record offsets without rows.
    """
    restored: Mapping[str, Any] | None = None
    accepted: Mapping[str, Any] | None = None  # an earlier `RESTORE`, with a later commit
    removed: list[Mapping[str, Any]] = []
    for entry in entries:
        is_own = _details(entry).get("exportId") == export_id
        is_restore = str(entry.get("operation", "")).upper() == "RESTORE"
        if restored is None or not is_after_target(entry, restored):
            if is_own or removed:
                break
            restored = entry if is_restore else restored
        elif accepted is not None and is_after_target(entry, accepted):
            continue
        elif is_own:
            removed.append(entry)
        elif is_restore and removed:
            accepted = entry
    if restored is None or not removed:
        return None
    last, first = removed[0].get("version"), removed[-1].get("version")
    versions = f"version {last}" if first == last else f"versions {first} to {last}"
    ranges = (text for entry in removed for text in _details(entry).get("ranges", ()))
    return Rollback(
        f"RESTORE in version {restored.get('version')} of the table removed what {versions} added",
        parse_ranges(ranges),
    )


def is_after_target(entry: Mapping[str, Any], restored: Mapping[str, Any]) -> bool:
    """Returns True if the version `entry` is newer than the version whose files the `RESTORE` in
    `restored` brought back.
    """
    parameters = restored.get("operationParameters", {})
    version = parameters.get("version")
    if version not in (None, "", "null"):
        return int(entry.get("version", 0)) > int(version)
    return int(entry.get("timestamp", 0)) > _milliseconds(
        parameters.get("datetime") or parameters.get("timestamp")
    )


def _milliseconds(value: Any) -> int:  # noqa: ANN401  # JSON of any writer
    """Converts a time to ms since 1970. `value` is a number of ms, or an ISO 8601 text. Returns 0
    for other values.
    """
    if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
        return int(value)
    try:
        return round(datetime.fromisoformat(str(value)).timestamp() * 1000)
    except ValueError:
        return 0
