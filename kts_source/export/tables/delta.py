"""Delta tables: files and ranges in one entry of the table's log.

Every partition has a `txn` action of its own, `kts/<export>/<topic id>/<partition>`, whose version
is the exclusive end offset; `…/start` holds the first offset, `…/newest` the newest timestamp of a
compacted table, `…/epoch` the leader epoch of the last offset below the end `…/epoch-stop`.
`kts/<export>/rules/<name>` is a digest of each rule, `kts/<export>/topics/<name>` a digest of the
id that a topic had last, and `kts/<export>/letters` the list of dead letters of the last commit
with such. `kts/<export>/rows/<topic>/<partition>` counts the rows of all commits up to the end
`…/stop`, `…/restarts` how often the topic was created again; `kts/<export>/counted` says that all
commits did. The log keeps the newest of each through checkpoints and log clean-up.

A commit is written as the one version behind the snapshot whose ranges were compared, so nothing
can come between.

What an existing Delta table must be, so that an export's files are whole in it.

delta-rs adds files as it is told: it compares neither partition columns nor constraints with them.
So whatever a table may ask of its writers beyond plain files and bounds is refused here, by name.

Source: Delta's PROTOCOL.md, "Requirements for Writers" and "Table Features".
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa

from kts_source.errors import ExportError, InvalidOptionError, UnsupportedTargetError
from kts_source.export.fingerprint import number
from kts_source.export.partitioning import value_text, with_made_columns
from kts_source.export.ranges import OffsetRange, PartitionKey
from kts_source.export.row_schema import lacks
from kts_source.export.tables.delta_history import (
    commit_id_of,
    exported_partitions,
    exporting,
    history,
    removal_of,
    rollback_of,
)
from kts_source.export.tables.export_table import (
    BaseFile,
    Commit,
    ExportTable,
    TableState,
    WritePlace,
    partitioned_otherwise,
)
from kts_source.export.tables.open_target import open_target
from kts_source.export.tables.row_counts import RowCount, TableContents, without_other_exports
from kts_source.store.local_store import local_root
from kts_source.store.open_store import scheme_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from deltalake import CommitProperties, DeltaTable, Schema
    from deltalake.transaction import AddAction

    from kts_source.export.files import WrittenFile
    from kts_source.export.settings import ExportSettings


_WRITABLE: Final = frozenset(
    {
        # These ask nothing of files that are added.
        "appendOnly",
        "changeDataFeed",
        "deletionVectors",
        "timestampNanos",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        # These do where a column or a property uses them, which is looked for.
        "checkConstraints",
        "columnMapping",
        "generatedColumns",
        "invariants",
    }
)
_LAST_LEGACY_VERSION: Final = 5
"""Writer version 6 asks for identity columns; from 7 on tables list their features."""
_TXN_RETENTION: Final = "delta.setTransactionRetentionDuration"
_ELSEWHERE: Final = "Export into another table"


def check_demands(table: DeltaTable, settings: ExportSettings, uri: str) -> None:
    """Looks for what a table asks of its writers.

    Raises:
        UnsupportedTargetError: More than an export does.
    """
    metadata = table.metadata()
    if wanting := ", ".join(_unwritable(table, metadata.configuration)):
        raise UnsupportedTargetError(
            f"the table asks its writers for {wanting}, and an export writes plain files only."
            f" {_ELSEWHERE}",
            uri=uri,
        )
    if duration := metadata.configuration.get(_TXN_RETENTION):
        raise UnsupportedTargetError(
            f"the table forgets txn actions after a while ({_TXN_RETENTION} = {duration}), and with"
            " them the offsets that were exported: they would be written again. Unset the property",
            uri=uri,
        )
    append_only = metadata.configuration.get("delta.appendOnly", "").lower() == "true"
    if settings.compaction is not None and append_only:
        raise UnsupportedTargetError(
            "the table is only appended to (delta.appendOnly), and compact=True replaces its files."
            " Unset the property, or export without compact",
            uri=uri,
        )


def check_schema(table: DeltaTable, schema: pa.Schema, uri: str) -> None:
    """Compares the columns of the rows, partition columns included, with the table's.

    Raises:
        ExportError: The table lacks a column, or has it otherwise, or needs one that they lack.
    """
    rows = {field.name: field for field in delta_schema(schema, uri).fields}
    known = {field.name: field for field in table.schema().fields}
    different = [f"it has no column {name}" for name in rows if name not in known]
    for name, field in known.items():
        if name not in rows:
            if not field.nullable:
                different.append(f"its column {name} must not be null, and the rows have none")
        elif rows[name].type != field.type:
            different.append(f"{name} is {_type(field)} there and {_type(rows[name])} in the rows")
        elif rows[name].nullable and not field.nullable:
            different.append(f"{name} must not be null there and may be null in the rows")
    if different:
        raise ExportError(
            f"the rows do not fit the table: {'; '.join(different)}. {_ELSEWHERE}, or give the rows"
            " its columns with columns=… or a transform",
            uri=uri,
        )


def delta_schema(schema: pa.Schema, uri: str) -> Schema:
    """Returns the columns as Delta has them.

    Raises:
        ExportError: Delta lacks the type of a column.
    """
    from deltalake import Schema

    try:
        return Schema.from_arrow(schema)
    except Exception as error:  # noqa: BLE001  # delta-rs raises Exception itself
        reason = str(error).partition("\n")[0]
        raise ExportError(
            f"Delta cannot hold the columns of the rows: {reason}. Cast them to other types in the"
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
    """Invariants, generated and identity columns and the like, of columns at any depth."""
    if isinstance(value, list):
        for one in value:
            yield from _column_rules(one)
    elif isinstance(value, dict):
        for rule in value.get("metadata", {}):
            if rule.startswith("delta."):
                yield f"a rule of column {value['name']} ({rule})"
        for name, one in value.items():
            if name != "metadata":
                yield from _column_rules(one)


def _type(field: Any) -> str:  # noqa: ANN401  # delta-rs has no name for a field's type
    return str(json.loads(field.to_json())["type"])


log = logging.getLogger(__name__)

RULES: Final = ("isolationLevel", "columns", "transform", "partitionBy", "where", "compact")


@dataclass(frozen=True, slots=True)
class _Transactions:
    """The `txn` actions of an export in one snapshot."""

    table: DeltaTable
    export_id: str

    def version(self, name: str) -> int | None:
        return self.table.transaction_version(f"kts/{self.export_id}/{name}")

    def get(self, key: PartitionKey, /) -> OffsetRange | None:
        stop = self.version(_name(key))
        if stop is None:
            return None
        start = self.version(f"{_name(key)}/start")
        # Earlier versions move the end and leave the epoch.
        is_known = self.version(f"{_name(key)}/epoch-stop") == stop
        epoch = self.version(f"{_name(key)}/epoch") if is_known else None
        return OffsetRange(stop if start is None else start, stop, epoch)

    def counts(self, topic: str, partition: int) -> RowCount | None:
        name = f"rows/{topic}/{partition}"
        rows, stop = self.version(name), self.version(f"{name}/stop")
        if rows is None or stop is None:
            return None
        return RowCount(rows, stop, self.version(f"{name}/restarts") or 0)

    def newest_ms(self, key: PartitionKey) -> int | None:
        return self.version(f"{_name(key)}/newest")


def _name(key: PartitionKey) -> str:
    return f"{key.topic_id}/{key.partition}"


class DeltaExportTable(ExportTable):
    """See the module's text."""

    _values_in = "log"

    def __init__(self, settings: ExportSettings) -> None:
        super().__init__(settings)
        self._target = open_target(self._root(), settings.storage)
        if scheme_of(settings.target) == "file":
            self._uri = str(local_root(settings.target))
        self._prefix = f"kts/{settings.export_id}/"
        self._folders = (self._prefix, "_kts/")
        self._columns = [field.name for field in settings.partition_by]

    def place(self, run_id: str) -> WritePlace:
        """See `ExportTable.place`: a partitioned table has its files in Hive folders.

        The run's id is in front of the folders, since `clean` knows the run of a file by the first
        such number in its key, and partition values may look like one.
        """
        place = super().place(run_id)
        return replace(place, prefix=f"{self._folders[0]}{run_id}/") if self._columns else place

    def _open(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self._uri, storage_options=self._storage_options())
        except TableNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            raise self._failed("the Delta table cannot be opened", error) from None

    def _state(self, snapshot: DeltaTable) -> TableState:
        # First, since transactions that expire say nothing.
        check_demands(snapshot, self._settings, self._uri)
        transactions = _Transactions(snapshot, self._settings.export_id)
        fingerprint = {
            name: str(version)
            for name in RULES
            if (version := transactions.version(f"rules/{name}")) is not None
        }
        if not fingerprint and any(key.startswith(self._prefix) for key in self._known(snapshot)):
            raise ExportError(
                f"the table holds files of the export {self._settings.export_id!r} and no longer"
                " says which offsets are in them: its txn actions have expired, or it is a copy"
                " without them. Export into another table",
                uri=self._uri,
            )
        letters = transactions.version("letters")
        return TableState(
            transactions,
            fingerprint,
            transactions.newest_ms,
            letters,
            lambda: arrow_schema(snapshot),
            lambda topic, topic_id: self._previous_id(snapshot, topic, topic_id),
            lambda topic: transactions.version(f"topics/{topic}") is not None,
            lambda: rollback_of(
                history(self._target, snapshot.version()), self._settings.export_id
            ),
            transactions.counts,
            transactions.version("counted") is not None,
        )

    def _previous_id(self, snapshot: DeltaTable, topic: str, topic_id: str) -> str | None:
        """See `TableState.previous_id`."""
        transactions = _Transactions(snapshot, self._settings.export_id)
        recorded = transactions.version(f"topics/{topic}")
        if recorded is None:  # commits of earlier versions have names of topics without their ids
            entries = history(self._target, snapshot.version())
            numbers = exported_partitions(entries, self._settings.export_id, topic)
            held = (transactions.get(PartitionKey(topic_id, number)) for number in numbers)
            is_other = bool(numbers) and all(span is None for span in held)
        else:
            is_other = recorded != number(topic_id)
        return "another topic id" if is_other else None

    def _check(self, snapshot: DeltaTable) -> None:
        there = snapshot.metadata().partition_columns
        if sorted(there) != sorted(self._columns):
            raise partitioned_otherwise(", ".join(there), ", ".join(self._columns), self._uri)

    def _files(self, snapshot: DeltaTable) -> tuple[BaseFile, ...]:
        try:
            snapshot.to_pyarrow_dataset()  # refuses what plain files do not show: deletion vectors
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            raise self._failed(
                "the data files of the Delta table cannot be read alone", error
            ) from None
        files = []
        for row in _actions(snapshot).to_pylist():
            if "://" in row["path"] or row["path"].startswith("/"):
                raise ExportError(f"the table has a file elsewhere: {row['path']}", uri=self._uri)
            values = {name: value_text(row[f"partition.{name}"]) for name in self._columns}
            files.append(BaseFile(unquote(row["path"]), row["size_bytes"], values))
        return tuple(files)

    def _contents(self, snapshot: DeltaTable) -> TableContents:
        export_id, version = self._settings.export_id, snapshot.version()
        listed = self._files(snapshot)
        files, is_shared, is_rewritten = without_other_exports(listed, "kts/", export_id)
        if is_rewritten and not is_shared:
            entries = history(self._target, version)
            is_shared = bool(exporting(entries) - {export_id})
        return TableContents(
            self._target,
            tuple(files),
            is_shared and is_rewritten,
            _Transactions(snapshot, export_id).counts,
            lambda: removal_of(self._target, version, export_id, self._prefix),
        )

    def _known(self, snapshot: DeltaTable) -> set[str]:
        # The log has paths as URLs have them.
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
        actions = [self._add(file, names) for file in commit.files]
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
                    storage_options=self._storage_options(),
                    commit_properties=properties,
                )
            else:
                if commit.schema is not None and schema is not None:
                    there = arrow_schema(snapshot)
                    if lacks(there, commit.schema, commit.typed):
                        self._add_fields(snapshot, commit)
                        return False  # what stands there now is compared, whoever added them
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
        except (DeltaError, OSError) as error:  # the latter where its store does not answer
            if snapshot is None and self._open() is not None:
                return False
            raise self._failed("the Delta table did not take the commit", error) from None
        return True

    def _has_commit(self, before: DeltaTable | None, after: DeltaTable, commit: Commit) -> bool:
        version = 0 if before is None else before.version() + 1
        if after.version() < version:
            return False
        entry = next(history(self._target, version), {})
        return commit_id_of(entry) == commit.commit_id

    def _add_fields(self, snapshot: DeltaTable, commit: Commit) -> None:
        """Adds the fields that the table lacks, in a commit of their own.

        It comes before the data: who dies between leaves columns without values, and the next run
        finds them there. delta-rs writes no metadata with files that have more columns.

        Raises:
            deltalake.exceptions.CommitFailedError: Another writer came before.
        """
        from deltalake import CommitProperties

        assert commit.schema is not None
        rows = {field.name: field for field in delta_schema(commit.schema, self._uri).fields}
        fields = [rows[name] for name in commit.typed if name in rows]
        log.info("the table gets the new fields of %s", ", ".join(commit.typed))
        snapshot.alter.add_columns(fields, commit_properties=CommitProperties(max_commit_retries=0))

    def _properties(
        self, commit: Commit, moved: Mapping[PartitionKey, OffsetRange]
    ) -> CommitProperties:
        from deltalake import CommitProperties, Transaction

        export_id = self._settings.export_id
        versions = {f"rules/{name}": number(text) for name, text in commit.fingerprint.items()}
        for key, span in moved.items():
            versions[_name(key)] = span.stop
            versions[f"{_name(key)}/start"] = span.start
            if span.epoch is not None:
                versions[f"{_name(key)}/epoch"] = span.epoch
                versions[f"{_name(key)}/epoch-stop"] = span.stop
        for advance in commit.advances:
            versions[f"topics/{advance.topic}"] = number(advance.key.topic_id)
        for key, newest_ms in commit.newest_ms.items():
            versions[f"{_name(key)}/newest"] = newest_ms
        if commit.letters is not None:
            versions["letters"] = commit.letters
        if commit.is_counted:
            versions["counted"] = 1
        for (topic, partition), count in commit.counts.items():
            name = f"rows/{topic}/{partition}"
            versions |= {name: count.rows, f"{name}/stop": count.stop}
            if count.restarts:
                versions[f"{name}/restarts"] = count.restarts
        # Where txn actions expire, Delta in Spark forgets at once those that do not say their age.
        now_ms = time.time_ns() // 1_000_000
        return CommitProperties(
            # The transactions hold the state. This identifies the commit in the table's history.
            custom_metadata={
                "kts": {
                    "exportId": export_id,
                    "runId": commit.run_id,
                    "commitId": commit.commit_id,
                    "ranges": [str(advance) for advance in commit.advances],
                    "rules": dict(commit.fingerprint),
                }
            },
            # A retry would commit behind a snapshot whose ranges nobody compared.
            max_commit_retries=0,
            app_transactions=[
                Transaction(f"kts/{export_id}/{name}", version, now_ms)
                for name, version in versions.items()
            ],
        )

    def _add(self, file: WrittenFile, names: Collection[str]) -> AddAction:
        from deltalake.transaction import AddAction

        values = dict(zip(self._columns, file.values, strict=True))
        found = file.statistics.items()
        bounded = [
            (name, one) for name, one in found if one.low is not None and one.high is not None
        ]
        statistics = {
            "numRecords": file.rows,
            "minValues": _nested({name: one.low for name, one in bounded}, names),
            "maxValues": _nested({name: one.high for name, one in bounded}, names),
            "nullCount": _nested(
                {name: one.nulls for name, one in found if one.nulls is not None}, names
            ),
        }
        return AddAction(
            file.key, file.size, values, file.modified_ms, True, json.dumps(statistics)
        )

    def _table_schema(self, schema: pa.Schema) -> pa.Schema:
        return with_made_columns(schema, self._settings.partition_by, self._values_in)

    def _storage_options(self) -> dict[str, str] | None:
        if scheme_of(self._settings.target) != "s3":
            return None
        return delta_storage_options(self._settings.storage.reveal())


def _nested(found: Mapping[str, Any], columns: Collection[str]) -> dict[str, Any]:
    """Figures of columns, and of fields by their paths, as Delta nests them."""
    nested: dict[str, Any] = {}
    for path, value in found.items():
        *outer, last = [path] if path in columns else path.split(".")
        place = nested
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = value
    return nested


def arrow_schema(table: DeltaTable) -> pa.Schema:
    """The columns of a table."""
    return pa.schema(table.schema().to_arrow())


def _actions(table: DeltaTable) -> pa.Table:
    """The files of a snapshot."""
    actions: Any = table.get_add_actions(flatten=True)
    return pa.table(actions)


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
