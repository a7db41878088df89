"""Iceberg tables as targets: each commit to the catalog adds files and records offsets.

An export records its state in the table properties `kts.<export>.…`. They remain in the table when
snapshots expire:

    <topic id>.<partition>             `start:stop:epoch`, with the leader epoch of the last offset,
                                       empty if unknown
    <topic id>.<partition>.newest      newest timestamp of a compacted table
    version                            version of this state
    rules.<name>                       each setting
    topics                             JSON: the id that each topic had last
    counts                             JSON: rows of all commits, by topic and partition
    commit                             last commit, `commit id@ms`
    letters                            number of the newest list of dead letters
    replayed                           ids of replayed files of dead letters
    pending                            JSON: number and folder of the files of dead letters that are
                                       not replayed, by run

The properties are set in the transaction that adds the files. Every commit adds a snapshot, even if
it has no files. The commit fails unless the catalog still has the snapshot, schema and partitioning
that were compared, so no other commit can be in between.

The files have no field ids: readers find columns by the table's name mapping. PyIceberg takes
partition values from the bounds (min and max) of a file's columns. An export checks the name
mapping and the settings of bounds before it reads a row. It adds files like PyIceberg's
`Transaction.add_files`, but also records bounds for fields of structs.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import time
import zlib
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from kts_source.errors import (
    ExportError,
    InvalidOptionError,
    ObjectNotFoundError,
    TieredKafkaError,
    UnsupportedTargetError,
)
from kts_source.export.dead_letters import PendingLetters, replay_id, with_pending
from kts_source.export.parquet_file import DataFile
from kts_source.export.partitioning import with_made_columns
from kts_source.export.ranges import OffsetRange, PartitionKey, Rollback, parse_ranges
from kts_source.export.row_schema import lacks_fields
from kts_source.export.tables.export_table import (
    STATE_VERSION,
    Commit,
    ExportTable,
    Owner,
    RowCount,
    TableContents,
    TableState,
    check_state_version,
    partitioning_error,
    without_other_exports,
)
from kts_source.export.tables.iceberg_library import (
    CHECKSUMS_WHEN_REQUIRED,
    COLUMN_METRICS,
    PinnedCatalog,
    add_files,
)
from kts_source.libraries import errors_only

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.name_mapping import MappedField
    from pyiceberg.table.snapshots import Snapshot

    from kts_source.export.partitioning import PartitionField
    from kts_source.export.settings import ExportSettings
    from kts_source.store.object_store import ObjectInfo

_NO_RETRIES: Final = "commit.retry.num-retries"
_RANGE: Final = re.compile(r"(?P<start>\d+):(?P<stop>\d+):(?P<epoch>\d*)")
_OFFSETS: Final = re.compile(r"kts\.(?P<export_id>[^.]+)\.(?P<topic_id>.+)\.(?P<partition>\d+)")
"""Name of a property with the offsets of a partition."""
_LOCAL: Final = re.compile("^file:/(?!/)")
"""Begin of the paths of local files that Spark has written."""
_CLOCK_SKEW_MS: Final = 60_000
_MAX_METADATA_BYTES: Final = 256 << 20


class IcebergExportTable(ExportTable):
    """An Iceberg table; see the module docstring."""

    _values_in = "file"

    def __init__(self, settings: ExportSettings) -> None:
        super().__init__(settings)
        self._own = f"kts.{settings.export_id}."
        self._folders = (f"data/kts/{settings.export_id}/", "_kts/")
        if "." not in settings.target:
            raise InvalidOptionError(
                f"an Iceberg target is a table's name, namespace.table, not {settings.target!r}"
            )

    def orphans(self) -> list[ObjectInfo]:
        """See `ExportTable.orphans`.

        Raises:
            ExportError: The folder may contain files of another table.
        """
        orphans = super().orphans()
        if orphans:
            self._require_own_folder()
        return orphans

    def _require_own_folder(self) -> None:
        """Raises `ExportError` if the folder of the table has metadata of another table. Two
        catalogs, or two names of a SQL catalog, give tables of one name the same folder. The files
        of the other table are in no commit of this one.
        """
        table = self._open()
        own_id, own_keys = None, set[str]()
        if table is not None:
            own_id = str(table.metadata.table_uuid)
            versions = [entry.metadata_file for entry in table.metadata.metadata_log]
            own_keys = {path.rpartition("/")[2] for path in (*versions, table.metadata_location)}
        for entry in self._target.list_objects("metadata/"):
            name = entry.key.rpartition("/")[2]
            if ".metadata.json" not in name or name in own_keys:
                continue
            try:
                other_id = _table_id(self._target.read(entry.key))
            except ObjectNotFoundError:  # expired in the meantime
                continue
            except (ValueError, KeyError, OSError, EOFError, zlib.error) as error:
                raise ExportError(
                    f"this metadata of a table cannot be read ({type(error).__name__}), so its"
                    " files look unused. Nothing was removed. If no table uses this file, delete it"
                    " and run again",
                    uri=self._target.uri(entry.key),
                ) from None
            if other_id not in (None, own_id):
                raise ExportError(
                    f"the folder also has metadata of the table {other_id}, which is not"
                    f" {self._settings.target} in this catalog, so its files look unused. Nothing"
                    " was removed. Check the property 'name' of the catalog. If the other table was"
                    f" dropped, delete all files with this id in {self._target.uri('metadata/')}"
                    " and run again",
                    uri=self._target.uri(entry.key),
                )

    def close(self) -> None:
        """See `ExportTable.close`."""
        super().close()
        if "_catalog" in vars(self):
            self._catalog.close()

    @cached_property
    def _catalog(self) -> Catalog:
        from pyiceberg.catalog import load_catalog

        properties = dict(self._settings.catalog.reveal())
        try:
            return load_catalog(properties.pop("name", "kts"), **properties)
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            raise self._library_error("the catalog cannot be opened", error) from None

    @contextmanager
    def marked(self, run_id: str) -> Iterator[None]:
        """See `ExportTable.marked`. Creates the namespace of a new table first, because a REST
        catalog chooses no location in a missing namespace.
        """
        if self._open() is None:
            self._create_namespace()
        with super().marked(run_id):
            yield

    def _create_namespace(self) -> None:
        from pyiceberg.exceptions import NoSuchNamespaceError

        namespace = self._settings.target.rpartition(".")[0]
        try:
            try:
                # Creating an existing namespace would need a permission that the user may lack.
                self._catalog.load_namespace_properties(namespace)
            except NoSuchNamespaceError:
                self._catalog.create_namespace_if_not_exists(namespace)
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            raise self._library_error("the namespace cannot be created", error) from None

    def _root(self) -> str:
        """Returns the root of the table. If the table does not exist, returns the root that the
        catalog defines for it.

        Raises:
            InvalidOptionError: The table does not exist, and the catalog does not define where new
                tables are created.
        """
        from pyiceberg.catalog.rest import RestCatalog
        from pyiceberg.exceptions import NoSuchNamespaceError

        if (table := self._open()) is not None:
            return table.location().rstrip("/")
        if isinstance(self._catalog, RestCatalog):
            return self._chosen_location
        namespace, _, name = self._settings.target.rpartition(".")
        try:
            properties = self._catalog.load_namespace_properties(namespace)
        except NoSuchNamespaceError:
            properties = {}
        if location := properties.get("location"):
            return f"{location.rstrip('/')}/{name}"
        if warehouse := self._catalog.properties.get("warehouse"):
            return f"{warehouse.rstrip('/')}/{namespace.replace('.', '/')}/{name}"
        raise InvalidOptionError(
            "the catalog does not define the location of new tables: create"
            f" {self._settings.target} first, or set the property warehouse in catalog=…"
        )

    @cached_property
    def _chosen_location(self) -> str:
        """The location that a REST catalog chooses for the new table.

        The property `warehouse` of such a catalog may be a name instead of a URL. Some catalogs
        choose another location at each request.
        """
        from pyiceberg.exceptions import TableAlreadyExistsError

        try:
            # Stages the creation with any schema. The catalog stores nothing.
            staged = self._catalog.create_table_transaction(
                self._settings.target, pa.schema([("offset", pa.int64())])
            )
        except TableAlreadyExistsError:  # another export created it first
            return self._root()
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            raise self._library_error(
                "the catalog does not choose the location of the new table. Create it first", error
            ) from None
        return staged.table_metadata.location.rstrip("/")

    def _open(self) -> Table | None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        catalog = self._catalog
        try:
            with CHECKSUMS_WHEN_REQUIRED:
                return catalog.load_table(self._settings.target)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            raise self._library_error("the Iceberg table cannot be loaded", error) from None

    def _state(self, snapshot: Table) -> TableState:
        own = self._properties(snapshot)
        ranges: dict[PartitionKey, OffsetRange] = {}
        rules: dict[str, str] = {}
        newest: dict[PartitionKey, int] = {}
        for name, text in own.items():
            owner, _, last = name.rpartition(".")
            if owner == "rules":
                rules[last] = text
            elif last == "newest":
                topic_id, _, number = owner.rpartition(".")
                newest[PartitionKey(topic_id, int(number))] = int(text)
            elif match := _RANGE.fullmatch(text):
                epoch = int(match["epoch"]) if match["epoch"] else None
                span = OffsetRange(int(match["start"]), int(match["stop"]), epoch)
                ranges[PartitionKey(owner, int(last))] = span
        if rules:
            version = own.get("version", "1")
            check_state_version(int(version) if version.isdigit() else version, self._uri)
        if not ranges or not rules:
            self._check_no_files(snapshot)
        topics: dict[str, str] = json.loads(own.get("topics", "{}"))
        counts = _counts(own)
        return TableState(
            ranges,
            rules,
            newest.get,
            int(own["letters"]) if "letters" in own else None,
            lambda: _arrow_schema(snapshot),
            topics.get,
            lambda: _rollback_of(snapshot, own.get("commit", ""), f"{self._own}ranges"),
            lambda topic, partition: counts.get((topic, partition)),
            holder=self._holders(snapshot).get,
            is_replayed=lambda name: replay_id(name) in own.get("replayed", "").split(","),
            pending=PendingLetters.from_json(json.loads(own.get("pending", "{}"))),
        )

    def _holders(self, snapshot: Table) -> dict[PartitionKey, str]:
        """Returns the partitions of other exports in the table, and the id of their export."""
        holders: dict[PartitionKey, str] = {}
        for name, text in snapshot.properties.items():
            if not name.startswith(self._own) and (match := _OFFSETS.fullmatch(name)):
                key = PartitionKey(match["topic_id"], int(match["partition"]))
                if _RANGE.fullmatch(text):
                    holders[key] = match["export_id"]
        return holders

    def _properties(self, snapshot: Table) -> dict[str, str]:
        """Returns the properties of this export, without the prefix `kts.<export>.`."""
        return {
            name.removeprefix(self._own): text
            for name, text in snapshot.properties.items()
            if name.startswith(self._own)
        }

    def _check_no_files(self, snapshot: Table) -> None:
        """Raises `ExportError` if the table has files of the export, but lacks its properties."""
        if snapshot.current_snapshot() is None:
            return
        export_id = self._settings.export_id
        prefix = f"{snapshot.location().rstrip('/')}/{self._folders[0]}"
        if self._has_files(snapshot, prefix):
            raise ExportError(
                f"the table has files of the export {export_id!r}, but its properties"
                f" kts.{export_id}.… are missing. They record which offsets are in these files, so"
                " all rows would be written again. Set the properties again, or export into"
                " another table",
                uri=self._uri,
            )

    def _has_files(self, snapshot: Table, prefix: str) -> bool:
        """Returns True if the URL of a data file of the table begins with `prefix`."""
        files = (task.file.file_path for task in snapshot.scan().plan_files())
        return any(path.startswith(prefix) for path in files)

    def _check(self, snapshot: Table) -> None:
        check_table(snapshot, self._settings.partition_by, self._uri)

    def _files(self, snapshot: Table) -> tuple[DataFile, ...]:
        location = f"{snapshot.location().rstrip('/')}/"
        files = []
        for task in snapshot.scan().plan_files():
            path = _LOCAL.sub("file:///", task.file.file_path)
            if task.delete_files:
                raise ExportError(
                    "the table has delete files, which hide rows of its data files: rewrite the"
                    " data files first",
                    uri=path,
                )
            if not path.startswith(location):
                raise ExportError(
                    "a data file is not in the location of the table. Export into another table",
                    uri=path,
                )
            files.append(DataFile(path.removeprefix(location), task.file.file_size_in_bytes, {}))
        return tuple(files)

    def _contents(self, snapshot: Table) -> TableContents:
        export_id = self._settings.export_id
        listed = self._files(snapshot)
        files, is_shared, is_rewritten = without_other_exports(listed, "data/kts/", export_id)
        is_shared = is_shared or any(
            name.startswith("kts.") and name.endswith(".topics") and name != f"{self._own}topics"
            for name in snapshot.properties
        )
        counts = _counts(self._properties(snapshot))
        return TableContents(
            self._target,
            tuple(files),
            is_shared and is_rewritten,
            lambda topic, partition: counts.get((topic, partition)),
            lambda: _removal_of(snapshot),
        )

    def _committed_keys(self, snapshot: Table) -> set[str]:
        """Returns the keys of the files in all snapshots that have not expired."""
        # PyIceberg raises an error if no snapshot of the table has files.
        if not any(entry.manifests(snapshot.io) for entry in snapshot.metadata.snapshots):
            return set()
        location = f"{snapshot.location().rstrip('/')}/"
        paths = snapshot.inspect.all_data_files()["file_path"].to_pylist()
        return {path.removeprefix(location) for path in paths}

    def _try_commit(
        self,
        snapshot: Table | None,
        commit: Commit,
        moved: Mapping[PartitionKey, OffsetRange],
    ) -> bool:
        from pyiceberg.exceptions import CommitFailedException

        columns = None
        if commit.schema is not None:
            fields = self._settings.partition_by
            columns = with_made_columns(commit.schema, fields, self._values_in)
            if snapshot is None:
                self._create(columns)
                return (
                    False  # the next attempt compares the table, even if another export created it
                )
        assert snapshot is not None
        if columns is not None:
            table_columns = snapshot.schema().column_names
            if missing := [name for name in columns.names if name not in table_columns]:
                raise ExportError(
                    f"the table lacks the columns {', '.join(missing)}. Add them, drop them in the"
                    " transform, or export into another table",
                    uri=self._uri,
                )
        try:
            self._commit_once(snapshot, commit, moved)
        except CommitFailedException:
            return False
        current = snapshot.current_snapshot()
        self.version = "" if current is None else f"snapshot {current.snapshot_id}"
        return True

    def _has_commit(self, before: Table | None, after: Table, commit: Commit) -> bool:
        del before
        snapshots = after.metadata.snapshots
        return any(summary_of(entry, "kts.commit") == commit.commit_id for entry in snapshots)

    def _create(self, schema: pa.Schema) -> None:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
        from pyiceberg.transforms import parse_transform

        target = self._settings.target
        try:
            with (
                CHECKSUMS_WHEN_REQUIRED,
                self._catalog.create_table_transaction(
                    target, schema, location=self._root()
                ) as transaction,
                transaction.update_spec() as spec,
            ):
                for field in self._settings.partition_by:
                    transform = parse_transform(field.transform)
                    spec.add_field(field.column, transform, field.name)
            self.created = True
        except (TableAlreadyExistsError, CommitFailedException):
            pass  # another export created it first
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            failure = self._library_error("the Iceberg table cannot be created", error)
            if not self._exists():  # if it exists, only the response was lost
                raise failure from None

    def _exists(self) -> bool:
        try:
            return self._open() is not None
        except TieredKafkaError:
            return False

    def _commit_once(
        self, table: Table, commit: Commit, moved: Mapping[PartitionKey, OffsetRange]
    ) -> None:
        """Commits once; raises `CommitFailedException` if another writer committed first."""
        from pyiceberg.exceptions import CommitFailedException

        pinned: Any = PinnedCatalog(table)
        table.catalog = pinned
        # Set this only in memory, not in the table. PyIceberg must not retry, because the catalog
        # would reject every retry.
        table.metadata.properties[_NO_RETRIES] = "0"
        try:
            self._commit_transaction(table, commit, moved)
        except CommitFailedException:
            raise
        except ValueError as error:  # PyIceberg compares columns, types and nulls with the files
            raise self._library_error(
                "the rows do not fit the Iceberg table: export into another table, or change the"
                " columns of the rows with columns=… or a transform",
                error,
            ) from None
        except OverflowError as error:
            # PyIceberg cannot store bounds outside the years 1 to 9999, so try again without bounds
            # of date and timestamp columns.
            unbounded = self._without_time_bounds(table)
            if unbounded.items() <= table.metadata.properties.items():
                raise self._commit_error(error) from None
            table.metadata.properties.update(unbounded)
            self._commit_once(table, commit, moved)
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            raise self._commit_error(error) from None

    def _commit_error(self, error: Exception) -> TieredKafkaError:
        return self._library_error("the commit to the Iceberg table failed", error)

    def _commit_transaction(
        self, table: Table, commit: Commit, moved: Mapping[PartitionKey, OffsetRange]
    ) -> None:
        from pyiceberg.expressions import AlwaysTrue

        location = table.location().rstrip("/")
        # PyIceberg logs a warning for every column without bounds. Keys and values have no bounds
        # on purpose.
        with (
            errors_only("pyiceberg.io.pyarrow"),
            CHECKSUMS_WHEN_REQUIRED,
            table.transaction() as transaction,
        ):
            if commit.schema is not None and lacks_fields(
                _arrow_schema(table), commit.schema, commit.typed
            ):
                new = pa.schema([commit.schema.field(name) for name in commit.typed])
                with transaction.update_schema() as update:
                    update.union_by_name(new)
            transaction.set_properties(self._new_properties(table, commit, moved))
            if commit.base is not None and table.current_snapshot() is not None:
                transaction.delete(AlwaysTrue())
            paths = [f"{location}/{file.key}" for file in commit.files]
            summary = commit_summary(commit, self._own)
            add_files(table, transaction, paths, summary)

    def _new_properties(
        self, table: Table, commit: Commit, moved: Mapping[PartitionKey, OffsetRange]
    ) -> dict[str, str]:
        own = self._properties(table)
        topics = json.loads(own.get("topics", "{}"))
        topics |= {advance.topic: advance.key.topic_id for advance in commit.advances}
        counts: dict[str, dict[str, list[int]]] = {}
        for (topic, partition), count in {**_counts(own), **commit.counts}.items():
            counts.setdefault(topic, {})[str(partition)] = [count.rows, count.restarts]
        properties = {
            "version": str(STATE_VERSION),
            "commit": f"{commit.commit_id}@{time.time_ns() // 1_000_000}",
            "topics": json.dumps(topics),
            "counts": json.dumps(counts),
        }
        for name, text in commit.fingerprint.items():
            properties[f"rules.{name}"] = text
        for key, span in moved.items():
            epoch = "" if span.epoch is None else span.epoch
            properties[f"{key.topic_id}.{key.partition}"] = f"{span.start}:{span.stop}:{epoch}"
        for key, newest_ms in commit.newest_ms.items():
            properties[f"{key.topic_id}.{key.partition}.newest"] = str(newest_ms)
        if commit.replayed:
            ids = map(replay_id, commit.replayed)
            properties["replayed"] = ",".join((*filter(None, [own.get("replayed")]), *ids))
        if commit.letters is not None:
            properties["letters"] = str(commit.letters)
        if commit.pending:
            runs = json.loads(own.get("pending", "{}"))
            runs = with_pending(runs, commit.pending, self._settings.dead_letters)
            properties["pending"] = json.dumps(runs)
        return {f"{self._own}{name}": text for name, text in properties.items()}

    def _without_time_bounds(self, table: Table) -> dict[str, str]:
        """Returns properties that disable bounds of date and timestamp columns, except for
        partition columns.

        Partition columns need bounds, because partition values are taken from them. PyIceberg can
        store these bounds, because partition values are within the years 1 to 9999.
        """
        from pyiceberg.types import DateType, TimestampType, TimestamptzType

        days = {field.column for field in self._settings.partition_by}
        times = (DateType, TimestampType, TimestamptzType)
        schema = table.schema()
        names = {schema.find_column_name(number): number for number in schema.field_ids}
        return {
            f"{COLUMN_METRICS}column.{name}": "none"
            for name, number in names.items()
            if isinstance(schema.find_type(number), times) and name not in days
        }


def _counts(own: Mapping[str, str]) -> dict[Owner, RowCount]:
    """Parses the property `counts` of an export."""
    return {
        (topic, int(partition)): RowCount(*numbers)
        for topic, partitions in json.loads(own.get("counts", "{}")).items()
        for partition, numbers in partitions.items()
    }


def _arrow_schema(table: Table) -> pa.Schema:
    return table.schema().as_arrow()


# -- checks of existing tables

_MAX_FORMAT: Final = 2
_MAX_RANGES: Final = 256
"""Maximum number of partitions of a commit whose offsets its snapshot records, because the metadata
file repeats the summaries of all snapshots.
"""


def check_table(table: Table, partition_by: Sequence[PartitionField], uri: str) -> None:
    """Checks a table before any row is read.

    Raises:
        UnsupportedTargetError: The table has other partition columns than `partition_by`, its
            format version is not supported, or readers of the table could not find columns or
            partition values in the export's files.
    """
    if table.format_version > _MAX_FORMAT:
        raise UnsupportedTargetError(
            f"the table has format version {table.format_version}, but an export supports versions"
            f" up to {_MAX_FORMAT}. Export into another table",
            uri=uri,
        )
    check_partitioning(table, partition_by, uri)
    for field in partition_by:
        default = table.properties.get(f"{COLUMN_METRICS}default", "")
        mode = table.properties.get(f"{COLUMN_METRICS}column.{field.column}", default)
        if mode.strip().lower() in ("none", "counts"):
            raise UnsupportedTargetError(
                f"the table records no bounds of column {field.column} ({COLUMN_METRICS}… ="
                f" {mode}), but an export takes partition values from these bounds. Unset the"
                " property, or export into another table",
                uri=uri,
            )
    mapping = table.name_mapping()
    # If the table has no name mapping, the first commit sets one.
    if mapping is not None and (
        wrong := set(_nested_fields(table.schema().name_mapping.root))
        - set(_nested_fields(mapping.root))
    ):
        names = ", ".join(sorted(name for name, _ in wrong))
        raise UnsupportedTargetError(
            "the table's name mapping (schema.name-mapping.default) does not map the names"
            f" {names} to columns of the table: readers would return nulls. Correct the property,"
            " or export into another table",
            uri=uri,
        )


def check_partitioning(table: Table, partition_by: Sequence[PartitionField], uri: str) -> None:
    """Raises `UnsupportedTargetError` if the partition columns are not those of `partition_by`."""
    schema = table.schema()
    there = sorted(
        f"{field.transform}({schema.find_column_name(field.source_id)})"
        for field in table.spec().fields
    )
    asked = sorted(f"{field.transform}({field.column})" for field in partition_by)
    if there != asked:
        raise partitioning_error(", ".join(there), ", ".join(asked), uri)


def _nested_fields(
    mapping: Sequence[MappedField], prefix: str = ""
) -> Iterator[tuple[str, int | None]]:
    """Yields the dotted path and the field id of each name at any depth of a name mapping."""
    for field in mapping:
        for name in field.names:
            yield f"{prefix}{name}", field.field_id
            yield from _nested_fields(field.fields, f"{prefix}{name}.")


# -- history


def _rollback_of(table: Table, last_commit: str, name: str) -> Rollback | None:
    """Returns what a table lost if a rollback removed rows of an export; otherwise `None`.

    A rollback makes an earlier snapshot current, but keeps the properties. So the properties then
    record offsets without rows.

    Args:
        table: Current state of the table.
        last_commit: Value of the property `commit`.
        name: Name of the offsets of a commit in the summary of its snapshot.
    """
    commit_id, _, committed_ms = last_commit.partition("@")
    if not committed_ms.isdigit():
        return Rollback("the property that records the export's last commit is missing or invalid")
    current = table.current_snapshot()
    line = list(ancestors(table, current))
    if any(summary_of(snapshot, "kts.commit") == commit_id for snapshot in line):
        return None
    ids = {snapshot.snapshot_id for snapshot in line}
    for snapshot in table.metadata.snapshots:
        if snapshot.snapshot_id not in ids and summary_of(snapshot, "kts.commit") == commit_id:
            state = "has no snapshot"
            if current is not None:
                state = f"was rolled back to {current.snapshot_id}"
            removed = [each for each in ancestors(table, snapshot) if each.snapshot_id not in ids]
            ranges = (summary_of(each, name) or "" for each in removed)
            return Rollback(
                f"the table {state}, which removed snapshot {snapshot.snapshot_id} of the export",
                parse_ranges(text for each in ranges for text in each.split("; ")),
            )
    # The snapshot of the commit has expired. The current snapshot is newer, unless the table was
    # rolled back to it.
    if current is None or current.timestamp_ms < int(committed_ms) - _CLOCK_SKEW_MS:
        return Rollback("the current snapshot is older than the last commit of the export")
    return None


def _removal_of(table: Table) -> str | None:
    """Returns a message about the newest snapshot in which another writer removed rows or files.
    Returns `None` if there is no such snapshot in the table.
    """
    for snapshot in ancestors(table, table.current_snapshot()):
        summary = snapshot.summary
        if summary is None or summary_of(snapshot, "kts.run") is not None:
            continue
        if summary.operation.value in ("delete", "overwrite"):
            files = summary_of(snapshot, "deleted-data-files") or "some"
            return (
                f"snapshot {snapshot.snapshot_id} of the table ({summary.operation.value}, by"
                f" another writer) removed {files} files"
            )
    return None


def ancestors(table: Table, current: Snapshot | None) -> Iterator[Snapshot]:
    """Yields a snapshot and its ancestors that have not expired, newest first."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    while current is not None:
        yield current
        parent = current.parent_snapshot_id
        current = None if parent is None else by_id.get(parent)


def _table_id(metadata: bytes) -> str | None:
    """Returns the id of a table from a metadata file. Returns `None` if the table has no snapshot,
    like one whose creation failed.

    Raises:
        ValueError: The bytes are not the metadata of a table, or more than 256 MiB.
        KeyError: The metadata has no id.
        OSError, EOFError, zlib.error: The compressed bytes are damaged.
    """
    if metadata.startswith(b"\x1f\x8b"):
        with gzip.open(io.BytesIO(metadata)) as file:
            metadata = file.read(_MAX_METADATA_BYTES + 1)
    if len(metadata) > _MAX_METADATA_BYTES:
        raise ValueError("the metadata is too large")
    fields = json.loads(metadata)
    if not isinstance(fields, dict):
        raise ValueError("the metadata is no JSON object")
    return str(fields["table-uuid"]) if fields.get("snapshots") else None


def commit_summary(commit: Commit, own: str) -> dict[str, str]:
    """Returns the properties that the summary of a commit's snapshot has. `own` is the prefix of
    names of this export.
    """
    summary = {"kts.run": commit.run_id, "kts.commit": commit.commit_id}
    if 0 < len(commit.advances) <= _MAX_RANGES:
        summary[f"{own}ranges"] = "; ".join(map(str, commit.advances))
    return summary


def summary_of(snapshot: Snapshot, name: str) -> str | None:
    """Returns a property of a snapshot's summary."""
    summary = snapshot.summary
    value: str | None = None if summary is None else summary.additional_properties.get(name)
    return value
