"""Delta tables: files and ranges in one entry of the table's log.

Every partition has a `txn` action of its own, `kts/<export>/<topic id>/<partition>`, whose version
is the exclusive end offset; `…/start` holds the first offset, `…/newest` the newest timestamp of a
compacted table, `kts/<export>/rules/<name>` a digest of each rule, and `kts/<export>/letters` the
list of dead letters of the last commit with such. The log keeps the newest of each through
checkpoints and log clean-up.

A commit is written as the one version behind the snapshot whose ranges were compared, so nothing
can come between.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kts_source.errors import CommitConflictError, ExportError, InvalidOptionError
from kts_source.export.fingerprint import check_fingerprint, number
from kts_source.export.partitioning import partition_rule, value_text
from kts_source.export.ranges import OffsetRange, PartitionKey, advanced
from kts_source.export.tables.delta_checks import (
    check_demands,
    check_partitioning,
    check_schema,
)
from kts_source.export.tables.export_table import (
    BaseFile,
    Commit,
    TableState,
    WritePlace,
    check_base,
    check_signs,
)
from kts_source.export.tables.open_target import open_target
from kts_source.export.tables.target_store import both_listed
from kts_source.export.transforms.dead_letters import publish_dead_letters
from kts_source.secret import scrub
from kts_source.store.local_store import local_root
from kts_source.store.open_store import scheme_of
from kts_source.store.storage_options import secret_values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

    from kts_source.export.files import WrittenFile
    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.target_store import TargetObject

RULES: Final = ("isolationLevel", "columns", "transform", "partitionBy", "where", "compact")
_COMMIT_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class _TxnRanges:
    """The ranges of one snapshot, looked up in its `txn` actions."""

    table: DeltaTable
    export_id: str

    def get(self, key: PartitionKey, /) -> OffsetRange | None:
        stop = self.table.transaction_version(app_id(self.export_id, key))
        if stop is None:
            return None
        start = self.table.transaction_version(f"{app_id(self.export_id, key)}/start")
        return OffsetRange(stop if start is None else start, stop)


@dataclass(frozen=True, slots=True)
class _TxnTimes:
    """The newest timestamps of one snapshot, likewise."""

    table: DeltaTable
    export_id: str

    def get(self, key: PartitionKey, /) -> int | None:
        return self.table.transaction_version(f"{app_id(self.export_id, key)}/newest")


def app_id(export_id: str, key: PartitionKey) -> str:
    """The `txn` action whose version is the exclusive end offset of a partition."""
    return f"kts/{export_id}/{key.topic_id}/{key.partition}"


class DeltaExportTable:
    """See the module's text."""

    def __init__(self, settings: ExportSettings) -> None:
        self._settings = settings
        self._target = open_target(settings.target, settings.storage)
        is_local = scheme_of(settings.target) == "file"
        self._uri = str(local_root(settings.target)) if is_local else settings.target
        self._prefix = f"kts/{settings.export_id}/"

    def load(self) -> TableState:
        """See `ExportTable.load`. Nothing is ever half-done here."""
        table = self._open()
        if table is None:
            return TableState({}, {})
        check_demands(table, self._settings, self._uri)
        state = self._state(table)
        # Before the table's own partitioning: of an export that has begun, this says more.
        rule = {"partitionBy": partition_rule(self._settings.partition_by)}
        check_fingerprint(state.fingerprint, rule)
        check_partitioning(table, self._settings, self._uri)
        return state

    def place(self, run_id: str) -> WritePlace:
        """See `ExportTable.place`."""
        return WritePlace(
            self._settings.target,
            self._settings.storage,
            f"{self._prefix}{run_id}-",
            ".parquet",
            "log",
        )

    def base_files(self) -> tuple[BaseFile, ...]:
        """See `ExportTable.base_files`."""
        table = self._open()
        if table is None:
            return ()
        try:
            table.to_pyarrow_dataset()  # refuses what plain files do not show: deletion vectors
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            raise self._failed("the Delta table cannot be merged into", error) from None
        columns = [field.name for field in self._settings.partition_by]
        files = []
        actions: Any = table.get_add_actions(flatten=True)
        for row in pa.table(actions).to_pylist():
            if "://" in row["path"] or row["path"].startswith("/"):
                raise ExportError(f"the table has a file elsewhere: {row['path']}", uri=self._uri)
            values = {name: value_text(row[f"partition.{name}"]) for name in columns}
            files.append(BaseFile(row["path"], row["size_bytes"], values))
        return tuple(files)

    def commit(self, commit: Commit) -> bool:
        """See `ExportTable.commit`."""
        for _ in range(_COMMIT_ATTEMPTS):
            table = self._open()
            if table is None and commit.schema is None:
                return False  # no table and no columns to make one with: the offsets hold no row
            if table is not None:
                check_demands(table, self._settings, self._uri)
            state = TableState({}, {}) if table is None else self._state(table)
            check_fingerprint(state.fingerprint, commit.fingerprint)
            if table is not None:
                check_partitioning(table, self._settings, self._uri)
            if commit.replace and not state.fingerprint and table is not None:
                _refuse_strangers(table, self._uri)
            check_base(commit, () if table is None else _paths(table), self._uri)
            moved = advanced(state.committed, commit.advances)
            if commit.letters is not None:
                publish_dead_letters(self._settings, state.letters)
            if self._try_commit(table, commit, moved):
                return True
        raise CommitConflictError(
            f"other writers came before {_COMMIT_ATTEMPTS} times; nothing was committed",
            uri=self._uri,
        )

    def orphans(self) -> list[TargetObject]:
        """See `ExportTable.orphans`.

        A file that was compacted away counts too: once it is removed, time travel behind that ends
        as it does after Delta's own vacuum.
        """
        return self._unknown(list(both_listed(self._target, self._prefix)))

    def remove(self, orphans: Sequence[TargetObject]) -> None:
        """See `ExportTable.remove`."""
        for orphan in self._unknown(orphans):
            self._target.delete(orphan.key)

    def _unknown(self, listed: Sequence[TargetObject]) -> list[TargetObject]:
        """Those that the table as it is now does not know. They are listed before: what is
        committed in between is known.
        """
        table = self._open()
        known = set() if table is None else set(_paths(table))
        return [found for found in listed if found.key not in known]

    def close(self) -> None:
        """See `ExportTable.close`."""
        self._target.close()

    def _open(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self._uri, storage_options=self._storage_options())
        except TableNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            raise self._failed("the Delta table cannot be opened", error) from None

    def _state(self, table: DeltaTable) -> TableState:
        fingerprint = {}
        for name in RULES:
            version = table.transaction_version(self._rule(name))
            if version is not None:
                fingerprint[name] = str(version)
        if not fingerprint and any(path.startswith(self._prefix) for path in _paths(table)):
            raise ExportError(
                f"the table holds files of the export {self._settings.export_id!r} and no longer"
                " says which offsets are in them: its txn actions have expired, or it is a copy"
                " without them. Export into another table",
                uri=self._uri,
            )
        export_id = self._settings.export_id
        return TableState(
            _TxnRanges(table, export_id),
            fingerprint,
            _TxnTimes(table, export_id),
            table.transaction_version(f"kts/{export_id}/letters"),
        )

    def _rule(self, name: str) -> str:
        return f"kts/{self._settings.export_id}/rules/{name}"

    def _try_commit(
        self,
        table: DeltaTable | None,
        commit: Commit,
        moved: Mapping[PartitionKey, OffsetRange],
    ) -> bool:
        """Whether the commit became the next version; False when another writer's did."""
        from deltalake import Schema
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import create_table_with_add_actions

        columns = [field.name for field in self._settings.partition_by]
        properties = self._properties(commit, moved)
        if commit.schema is not None:
            check_signs(commit.schema, self._uri)
        try:
            if table is None:
                assert commit.schema is not None
                create_table_with_add_actions(
                    self._uri,
                    Schema.from_arrow(self._table_schema(commit.schema)),
                    [self._add(file) for file in commit.files],
                    mode="error",
                    partition_by=columns,
                    storage_options=self._storage_options(),
                    commit_properties=properties,
                )
            else:
                schema = table.schema()
                actions: list[AddAction | RemoveAction] = [self._add(file) for file in commit.files]
                if commit.schema is not None:
                    check_schema(table, self._table_schema(commit.schema), self._uri)
                table.create_write_transaction(
                    actions,
                    "overwrite" if commit.replace else "append",
                    schema,
                    table.metadata().partition_columns,
                    commit_properties=properties,
                )
        except CommitFailedError:
            return False
        except DeltaError as error:
            if table is None and self._open() is not None:
                return False
            raise self._failed("the Delta table did not take the commit", error) from None
        return True

    def _properties(
        self, commit: Commit, moved: Mapping[PartitionKey, OffsetRange]
    ) -> CommitProperties:
        from deltalake import CommitProperties, Transaction

        export_id = self._settings.export_id
        # Where txn actions expire, Delta in Spark forgets at once those that do not say their age.
        now_ms = time.time_ns() // 1_000_000
        transactions = [
            Transaction(self._rule(name), number(text), now_ms)
            for name, text in commit.fingerprint.items()
        ]
        for key, span in moved.items():
            transactions.append(Transaction(app_id(export_id, key), span.stop, now_ms))
            transactions.append(Transaction(f"{app_id(export_id, key)}/start", span.start, now_ms))
        for key, newest_ms in commit.newest_ms.items():
            transactions.append(Transaction(f"{app_id(export_id, key)}/newest", newest_ms, now_ms))
        if commit.letters is not None:
            transactions.append(Transaction(f"kts/{export_id}/letters", commit.letters, now_ms))
        return CommitProperties(
            # For people; what counts are the transactions.
            custom_metadata={
                "kts": {
                    "exportId": export_id,
                    "runId": commit.run_id,
                    "ranges": [str(advance) for advance in commit.advances],
                    "rules": dict(commit.fingerprint),
                }
            },
            # A retry would commit behind a snapshot whose ranges nobody compared.
            max_commit_retries=0,
            app_transactions=transactions,
        )

    def _add(self, file: WrittenFile) -> AddAction:
        from deltalake.transaction import AddAction

        values = dict(
            zip((field.name for field in self._settings.partition_by), file.values, strict=True)
        )
        bounds = {
            name: found
            for name, found in file.statistics.items()
            if found.low is not None and found.high is not None
        }
        statistics = {
            "numRecords": file.rows,
            "minValues": {name: found.low for name, found in bounds.items()},
            "maxValues": {name: found.high for name, found in bounds.items()},
            "nullCount": {
                name: found.nulls
                for name, found in file.statistics.items()
                if found.nulls is not None
            },
        }
        return AddAction(
            file.key, file.size, values, file.modified_ms, True, json.dumps(statistics)
        )

    def _table_schema(self, schema: pa.Schema) -> pa.Schema:
        dates = (
            pa.field(field.name, pa.date32())
            for field in self._settings.partition_by
            if field.name not in schema.names
        )
        return pa.schema([*schema, *dates])

    def _storage_options(self) -> dict[str, str] | None:
        if scheme_of(self._settings.target) != "s3":
            return None
        return delta_storage_options(self._settings.storage.reveal())

    def _failed(self, text: str, error: Exception) -> ExportError:
        hidden = secret_values(self._settings.storage.reveal())
        return ExportError(
            f"{text}: {scrub(f'{type(error).__name__}: {error}', hidden)}", uri=self._uri
        )


def _refuse_strangers(table: DeltaTable, uri: str) -> None:
    if next(_paths(table), None) is not None:
        raise ExportError("the table holds rows that a rebuild would remove", uri=uri)


def _paths(table: DeltaTable) -> Iterator[str]:
    """Keys of the files of the newest snapshot."""
    actions: Any = table.get_add_actions(flatten=True)
    yield from pa.table(actions)["path"].to_pylist()


def delta_storage_options(storage: Mapping[str, str]) -> dict[str, str]:
    """The `s3.*` options by the names of delta-rs.

    Raises:
        InvalidOptionError: An option it has no name for.
    """
    names = {
        "s3.endpoint": "AWS_ENDPOINT_URL",
        "s3.access-key-id": "AWS_ACCESS_KEY_ID",
        "s3.secret-access-key": "AWS_SECRET_ACCESS_KEY",
        "s3.session-token": "AWS_SESSION_TOKEN",
        "s3.region": "AWS_REGION",
        "s3.anonymous": "AWS_SKIP_SIGNATURE",
        "s3.proxy-uri": "PROXY_URL",
        "s3.profile-name": "AWS_PROFILE",
    }
    options: dict[str, str] = {}
    for name, value in storage.items():
        if name in names:
            options[names[name]] = value
        elif name == "s3.path-style-access":
            options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = (
                "false" if value.strip().lower() == "true" else "true"
            )
        elif name == "s3.force-virtual-addressing":
            options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = value.strip().lower()
        elif name not in ("s3.connect-timeout", "s3.request-timeout"):
            raise InvalidOptionError(f"{name} cannot be used with a Delta table on S3")
    if options.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        options["AWS_ALLOW_HTTP"] = "true"
    return options
