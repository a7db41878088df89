"""Iceberg tables: files and ranges in one commit of the catalog.

Table properties hold the ranges, `kts.<export>.<topic id>.<partition>` = `start:stop`, the newest
timestamps of a compacted table, `kts.<export>.<topic id>.<partition>.newest`, the leader epoch of
the last offset, `kts.<export>.<topic id>.<partition>.epoch` = `epoch@stop`, the rules,
`kts.<export>.rules.<name>`, the id that each topic had last, `kts.<export>.topics` (JSON), the
last commit, `kts.<export>.commit` = `commit id@ms`, and the list of dead letters of the last commit
with such, `kts.<export>.letters`, and the rows of all commits, `kts.<export>.counts` (JSON, see
`row_counts`); expiring snapshots does not touch them. They are set in the transaction that adds the
files. Every commit adds a snapshot, even an empty one, and requires of the catalog that the
snapshot, schema and partitioning that were compared are still the newest, so nothing can come
between.

What an existing Iceberg table must be, so that an export's files are whole in it, and stay until
they are committed.

The files hold no field ids: readers find columns by the table's name mapping. PyIceberg takes
partition values from the bounds of the files. Both are compared before a row is read.

Parquet files as an Iceberg table is told of them.

As PyIceberg's `Transaction.add_files`, with bounds of fields of structs, too: without them no file
is left out by a condition on one, and PyIceberg takes partition values from bounds.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from kts_source.errors import (
    ExportError,
    InvalidOptionError,
    TieredKafkaError,
    UnsupportedTargetError,
)
from kts_source.export.partitioning import with_made_columns
from kts_source.export.ranges import OffsetRange, PartitionKey
from kts_source.export.row_schema import lacks
from kts_source.export.tables.export_table import (
    BaseFile,
    Commit,
    ExportTable,
    TableState,
    partitioned_otherwise,
)
from kts_source.export.tables.iceberg_history import (
    COMMIT,
    check_no_files,
    has_snapshot,
    removal_of,
    rollback_of,
)
from kts_source.export.tables.row_counts import (
    Owner,
    RowCount,
    TableContents,
    from_json,
    to_json,
    without_other_exports,
)
from kts_source.libraries import errors_only
from kts_source.store.storage_options import CHECKSUM_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow.parquet as pq
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import CommitTableResponse, Table, Transaction
    from pyiceberg.table.name_mapping import MappedField
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.types import NestedField, StructType

    from kts_source.export.partitioning import PartitionField
    from kts_source.export.settings import ExportSettings


_NEWEST_FORMAT: Final = 2
_COLUMN_METRICS: Final = "write.metadata.metrics."


def check_table(table: Table, partition_by: Sequence[PartitionField], uri: str) -> None:
    """Compares what is known before any row is read.

    Raises:
        UnsupportedTargetError: The table is partitioned otherwise, or its readers would not find
            the columns or the partitions of plain files.
    """
    if table.format_version > _NEWEST_FORMAT:
        raise UnsupportedTargetError(
            f"the table has format version {table.format_version}, and an export writes versions up"
            f" to {_NEWEST_FORMAT}. Export into another table",
            uri=uri,
        )
    schema = table.schema()
    there = sorted(
        f"{field.transform}({schema.find_column_name(field.source_id)})"
        for field in table.spec().fields
    )
    asked = sorted(
        f"{'day' if field.is_date and not field.is_inner else 'identity'}({field.column})"
        for field in partition_by
    )
    if there != asked:
        raise partitioned_otherwise(", ".join(there), ", ".join(asked), uri)
    for field in partition_by:
        default = table.properties.get(f"{_COLUMN_METRICS}default", "")
        mode = table.properties.get(f"{_COLUMN_METRICS}column.{field.column}", default)
        if mode.strip().lower() in ("none", "counts"):
            raise UnsupportedTargetError(
                f"the table keeps no bounds of {field.column} ({_COLUMN_METRICS}… = {mode}), and"
                " partition values are taken from them. Unset the property, or export into another"
                " table",
                uri=uri,
            )
    mapping = table.name_mapping()
    # Without one the first commit writes one.
    if mapping is not None and (
        wrong := set(_nested_fields(schema.name_mapping.root)) - set(_nested_fields(mapping.root))
    ):
        names = ", ".join(sorted(name for name, _ in wrong))
        raise UnsupportedTargetError(
            f"the table's name mapping (schema.name-mapping.default) does not lead to its columns"
            f" {names}: readers would find nulls there. Correct the property, or export into"
            " another table",
            uri=uri,
        )


def _nested_fields(
    mapping: Sequence[MappedField], prefix: str = ""
) -> Iterator[tuple[str, int | None]]:
    """Every name at any depth and the field it leads to."""
    for field in mapping:
        for name in field.names:
            yield f"{prefix}{name}", field.field_id
            yield from _nested_fields(field.fields, f"{prefix}{name}.")


class _ChecksumsWhenRequired:
    """Sets the environment variables while at least one thread is in the context."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._added: tuple[str, ...] = ()

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                # Variables that the user has set stay.
                self._added = tuple(name for name in CHECKSUM_VARIABLES if name not in os.environ)
                os.environ.update(dict.fromkeys(self._added, "when_required"))

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                for name in self._added:
                    os.environ.pop(name, None)


CHECKSUMS_WHEN_REQUIRED: Final = _ChecksumsWhenRequired()
"""Context for calls of PyIceberg that may open a store.

Stores other than AWS may refuse the headers `x-amz-checksum-*`. Neither of PyIceberg's file systems
takes a setting for them; both follow the environment variables of the AWS SDKs.
"""


class PinnedCatalog:
    """A table's catalog that commits only onto what was loaded, whatever else a library requires.

    PyIceberg requires it too, and drops it when it tries again.
    """

    def __init__(self, table: Table) -> None:
        from pyiceberg.table.update import (
            AssertCurrentSchemaId,
            AssertDefaultSpecId,
            AssertRefSnapshotId,
            AssertTableUUID,
        )

        self._catalog = table.catalog
        loaded = table.metadata
        self._required: tuple[TableRequirement, ...] = (
            AssertTableUUID(uuid=loaded.table_uuid),
            AssertRefSnapshotId.model_validate(
                {"ref": "main", "snapshot-id": loaded.current_snapshot_id}
            ),
            AssertCurrentSchemaId.model_validate({"current-schema-id": loaded.current_schema_id}),
            AssertDefaultSpecId.model_validate({"default-spec-id": loaded.default_spec_id}),
        )

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # whatever PyIceberg asks it for
        return getattr(self._catalog, name)

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """See `Catalog.commit_table`."""
        return self._catalog.commit_table(table, (*self._required, *requirements), updates)


_THREADS: Final = 16
_ALONE: Final = "column"
_FIRST_SURROGATE: Final = 0xD800
_AFTER_SURROGATES: Final = 0xE000


def add_files(
    table: Table, transaction: Transaction, paths: Sequence[str], properties: Mapping[str, str]
) -> None:
    """Adds a snapshot with files of the table's columns, even with none.

    Args:
        table: As it was loaded.
        transaction: Of the table; what it has changed of the columns counts.
        paths: None of them is in the table.
        properties: Of the snapshot.

    Raises:
        ValueError: A file does not fit the table.
    """
    from pyiceberg.table import TableProperties

    if transaction.table_metadata.name_mapping() is None:
        mapping = transaction.table_metadata.schema().name_mapping
        transaction.set_properties(
            {TableProperties.DEFAULT_NAME_MAPPING: mapping.model_dump_json()}
        )
    with ThreadPoolExecutor(_THREADS, "kts-iceberg") as pool:
        found = list(pool.map(lambda path: _data_file(table, transaction, path), paths))
    with transaction.update_snapshot(dict(properties)).fast_append() as append:
        for file in found:
            append.append_data_file(file)


def _data_file(table: Table, transaction: Transaction, path: str) -> DataFile:
    from pyarrow.parquet import read_metadata
    from pyiceberg.io import pyarrow as files
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    metadata = transaction.table_metadata
    schema, spec = metadata.schema(), metadata.spec()
    file = table.io.new_input(path)
    with file.open() as stream:
        parquet = read_metadata(stream)
    files._check_pyarrow_schema_compatible(  # noqa: SLF001  # add_files of PyIceberg asks it, too
        schema, parquet.schema.to_arrow_schema(), format_version=metadata.format_version
    )
    columns = files.parquet_path_to_id_mapping(schema)
    statistics = files.data_file_statistics_from_parquet_metadata(
        parquet_metadata=parquet,
        stats_columns=_plan(schema, metadata.properties),
        parquet_column_mapping=columns,
    )
    for field_id in _without_bounds(parquet, columns):
        statistics.column_aggregates.pop(field_id, None)
    for field in spec.fields:
        nulls = statistics.null_value_counts.get(field.source_id)
        if field.source_id not in statistics.column_aggregates and nulls != parquet.num_rows:
            raise ExportError(
                f"a file has no bounds of {schema.find_column_name(field.source_id)}, and partition"
                " values are taken from them",
                uri=path,
            )
    partition = statistics.partition(spec, schema)  # of the whole texts
    for aggregate in statistics.column_aggregates.values():
        if isinstance(aggregate.current_max, str):
            aggregate.current_max = upper_bound(aggregate.current_max, aggregate.trunc_length)
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=len(file),
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _without_bounds(parquet: pq.FileMetaData, columns: Mapping[str, int]) -> Iterator[int]:
    """Yields the fields that have values, but no bounds, in at least one row group.

    Arrow writes no bounds of long texts. PyIceberg skips such a row group, so its bounds would not
    cover the values there, and readers would skip files that hold matching rows.
    """
    for group in range(parquet.num_row_groups):
        row_group = parquet.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            bounds = column.statistics
            if bounds is None or bounds.has_min_max:
                continue
            if not bounds.has_null_count or bounds.null_count < column.num_values:
                yield columns[column.path_in_schema]


def upper_bound(text: str, length: int | None) -> str | None:
    """Returns a text of at most `length` characters that is not below `text`; `None` if none is.

    PyIceberg counts the last character up by one, which makes a surrogate of U+D7FF: no UTF-8 text
    can hold it. Java's Iceberg skips the surrogates, and so does this.
    """
    if length is None or len(text) <= length:
        return text
    for end in range(length, 0, -1):
        code = ord(text[end - 1]) + 1
        if code == _FIRST_SURROGATE:
            code = _AFTER_SURROGATES
        if code <= sys.maxunicode:
            return text[: end - 1] + chr(code)
    return None


def _plan(schema: Schema, properties: Mapping[str, str]) -> dict[int, Any]:
    """What is kept of each column: of fields of structs as much as of columns.

    PyIceberg keeps only counts of whatever is in something. Of items of lists and maps that is
    right: a row has many.
    """
    from pyiceberg.io import pyarrow as files
    from pyiceberg.schema import Schema as OneColumn

    plan: dict[int, Any] = files.compute_statistics_plan(schema, dict(properties))
    for path, field in _fields(schema.as_struct(), ""):
        # What PyIceberg says of a column of this type, by the properties of the field's path.
        alone = OneColumn(field.model_copy(update={"name": _ALONE}))
        own = {
            name: text for name, text in properties.items() if name == f"{_COLUMN_METRICS}default"
        }
        if (mode := properties.get(f"{_COLUMN_METRICS}column.{path}")) is not None:
            own[f"{_COLUMN_METRICS}column.{_ALONE}"] = mode
        found = files.compute_statistics_plan(alone, own)[field.field_id]
        plan[field.field_id] = replace(plan[field.field_id], mode=found.mode)
    return plan


def _fields(struct: StructType, outer: str) -> Iterator[tuple[str, NestedField]]:
    """Fields of structs in a struct that hold one value, and their paths."""
    for field in struct.fields:
        kind = field.field_type
        if kind.is_struct:
            yield from _fields(cast("StructType", kind), f"{outer}{field.name}.")
        elif outer and kind.is_primitive:
            yield f"{outer}{field.name}", field


_NO_RETRIES: Final = "commit.retry.num-retries"
_METRICS: Final = "write.metadata.metrics.column."
_RANGE: Final = re.compile(r"(?P<start>\d+):(?P<stop>\d+)")


class IcebergExportTable(ExportTable):
    """See the module's text."""

    _values_in = "file"

    def __init__(self, settings: ExportSettings) -> None:
        super().__init__(settings)
        self._own = f"kts.{settings.export_id}."
        self._folders = (f"data/kts/{settings.export_id}/", "_kts/")
        if "." not in settings.target:
            raise InvalidOptionError(
                f"an Iceberg target is a table's name, namespace.table, not {settings.target!r}"
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
            raise self._failed("the catalog cannot be opened", error) from None

    def _root(self) -> str:
        """The table's root, also of one that will be created with the first commit.

        Raises:
            InvalidOptionError: The catalog alone decides where tables go.
        """
        from pyiceberg.exceptions import NoSuchNamespaceError

        if (table := self._open()) is not None:
            return table.location().rstrip("/")
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
            f"the catalog does not say where new tables go: create {self._settings.target} first,"
            " or give catalog a warehouse"
        )

    # -- the steps of ExportTable

    def _open(self) -> Table | None:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        catalog = self._catalog
        try:
            with CHECKSUMS_WHEN_REQUIRED:
                return catalog.load_table(self._settings.target)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            raise self._failed("the Iceberg table cannot be loaded", error) from None

    def _state(self, snapshot: Table) -> TableState:
        ranges: dict[PartitionKey, OffsetRange] = {}
        rules: dict[str, str] = {}
        newest: dict[PartitionKey, int] = {}
        epochs: dict[tuple[PartitionKey, int], int] = {}
        for name, text in snapshot.properties.items():
            if not name.startswith(self._own):
                continue
            owner, _, last = name.removeprefix(self._own).rpartition(".")
            if owner == "rules":
                rules[last] = text
            elif last == "newest":
                topic_id, _, number = owner.rpartition(".")
                newest[PartitionKey(topic_id, int(number))] = int(text)
            elif last == "epoch":
                topic_id, _, number = owner.rpartition(".")
                epoch, _, stop = text.partition("@")
                epochs[PartitionKey(topic_id, int(number)), int(stop)] = int(epoch)
            elif match := _RANGE.fullmatch(text):
                span = OffsetRange(int(match["start"]), int(match["stop"]))
                ranges[PartitionKey(owner, int(last))] = span
        if not ranges or not rules:
            check_no_files(snapshot, self._folders[0], self._settings.export_id, self._uri)
        # Earlier versions move the end and leave the epoch.
        ranges = {
            key: replace(span, epoch=epochs.get((key, span.stop))) for key, span in ranges.items()
        }
        letters = snapshot.properties.get(f"{self._own}letters")
        return TableState(
            ranges,
            rules,
            newest.get,
            None if letters is None else int(letters),
            lambda: _arrow_schema(snapshot),
            lambda topic, topic_id: self._previous_id(snapshot, topic, topic_id),
            lambda topic: topic in self._topics(snapshot),
            lambda: rollback_of(snapshot, snapshot.properties.get(f"{self._own}{COMMIT}")),
            lambda topic, partition: self._counts(snapshot).get((topic, partition)),
            f"{self._own}counts" in snapshot.properties,
        )

    def _previous_id(self, snapshot: Table, topic: str, topic_id: str) -> str | None:
        """See `TableState.previous_id`."""
        before = self._topics(snapshot).get(topic, topic_id)
        return None if before == topic_id else before

    def _counts(self, snapshot: Table) -> dict[Owner, RowCount]:
        return from_json(json.loads(snapshot.properties.get(f"{self._own}counts", "{}")))

    def _topics(self, snapshot: Table) -> dict[str, str]:
        topics: dict[str, str] = json.loads(snapshot.properties.get(f"{self._own}topics", "{}"))
        return topics

    def _check(self, snapshot: Table) -> None:
        check_table(snapshot, self._settings.partition_by, self._uri)

    def _files(self, snapshot: Table) -> tuple[BaseFile, ...]:
        location = f"{snapshot.location().rstrip('/')}/"
        files = []
        for task in snapshot.scan().plan_files():
            path = task.file.file_path
            if task.delete_files:
                raise ExportError(
                    "the table has delete files: rewrite its data files first", uri=path
                )
            if not path.startswith(location):
                raise ExportError("the table has a file elsewhere", uri=path)
            files.append(BaseFile(path.removeprefix(location), task.file.file_size_in_bytes, {}))
        return tuple(files)

    def _contents(self, snapshot: Table) -> TableContents:
        export_id = self._settings.export_id
        listed = self._files(snapshot)
        files, is_shared, is_rewritten = without_other_exports(listed, "data/kts/", export_id)
        others = (name for name in snapshot.properties if name.endswith(".topics"))
        is_shared = is_shared or any(
            name.startswith("kts.") and name != f"{self._own}topics" for name in others
        )
        counts = self._counts(snapshot)
        return TableContents(
            self._target,
            tuple(files),
            is_shared and is_rewritten,
            lambda topic, partition: counts.get((topic, partition)),
            lambda: removal_of(snapshot),
        )

    def _known(self, snapshot: Table) -> set[str]:
        """Files of any snapshot that has not expired."""
        # PyIceberg fails on a table whose snapshots have no files.
        if not any(one.manifests(snapshot.io) for one in snapshot.metadata.snapshots):
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
                return False  # what stands there now is compared, whoever created it
        assert snapshot is not None
        if columns is not None:
            known = snapshot.schema().column_names
            if missing := [name for name in columns.names if name not in known]:
                raise ExportError(
                    f"the table lacks the columns {', '.join(missing)}", uri=self._uri
                )
        try:
            self._commit_once(snapshot, commit, moved)
        except CommitFailedException:
            return False
        return True

    def _has_commit(self, before: Table | None, after: Table, commit: Commit) -> bool:
        del before
        return has_snapshot(after, commit.commit_id)

    def _create(self, schema: pa.Schema) -> None:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
        from pyiceberg.transforms import DayTransform, IdentityTransform

        target = self._settings.target
        try:
            self._catalog.create_namespace_if_not_exists(target.rpartition(".")[0])
            with (
                CHECKSUMS_WHEN_REQUIRED,
                self._catalog.create_table_transaction(
                    target, schema, location=self._root()
                ) as transaction,
                transaction.update_spec() as spec,
            ):
                for field in self._settings.partition_by:
                    is_day = field.is_date and not field.is_inner
                    transform: Any = DayTransform() if is_day else IdentityTransform()
                    spec.add_field(field.column, transform, field.name)
        except (TableAlreadyExistsError, CommitFailedException):
            pass  # another export was first; its table is as good
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            failure = self._failed("the Iceberg table cannot be created", error)
            if not self._exists():  # otherwise only the answer was lost
                raise failure from None

    def _exists(self) -> bool:
        try:
            return self._open() is not None
        except TieredKafkaError:
            return False

    def _commit_once(
        self, table: Table, commit: Commit, moved: Mapping[PartitionKey, OffsetRange]
    ) -> None:
        """Raises PyIceberg's CommitFailedException when another writer came before."""
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.types import DateType, TimestampType, TimestamptzType

        own = self._own
        properties = {f"{own}rules.{name}": text for name, text in commit.fingerprint.items()}
        for key, span in moved.items():
            properties[f"{own}{key.topic_id}.{key.partition}"] = f"{span.start}:{span.stop}"
            if span.epoch is not None:
                epoch = f"{span.epoch}@{span.stop}"
                properties[f"{own}{key.topic_id}.{key.partition}.epoch"] = epoch
        topics = {advance.topic: advance.key.topic_id for advance in commit.advances}
        properties[f"{own}topics"] = json.dumps(self._topics(table) | topics)
        properties[f"{own}{COMMIT}"] = f"{commit.commit_id}@{time.time_ns() // 1_000_000}"
        if commit.is_counted:
            counts = {**self._counts(table), **commit.counts}
            properties[f"{own}counts"] = json.dumps(to_json(counts))
        for key, newest_ms in commit.newest_ms.items():
            properties[f"{own}{key.topic_id}.{key.partition}.newest"] = str(newest_ms)
        if commit.letters is not None:
            properties[f"{own}letters"] = str(commit.letters)
        location = table.location().rstrip("/")
        pinned: Any = PinnedCatalog(table)
        table.catalog = pinned
        # In this process only: every retry would meet the same refusal.
        table.metadata.properties[_NO_RETRIES] = "0"
        try:
            # PyIceberg warns of every column without bounds: keys and values have none on purpose.
            with (
                errors_only("pyiceberg.io.pyarrow"),
                CHECKSUMS_WHEN_REQUIRED,
                table.transaction() as transaction,
            ):
                if commit.schema is not None and lacks(
                    _arrow_schema(table), commit.schema, commit.typed
                ):
                    new = pa.schema([commit.schema.field(name) for name in commit.typed])
                    with transaction.update_schema() as update:
                        update.union_by_name(new)
                transaction.set_properties(properties)
                if commit.base is not None and table.current_snapshot() is not None:
                    transaction.delete(AlwaysTrue())
                paths = [f"{location}/{file.key}" for file in commit.files]
                summary = {"kts.run": commit.run_id, "kts.commit": commit.commit_id}
                add_files(table, transaction, paths, summary)
        except CommitFailedException:
            raise
        except ValueError as error:  # PyIceberg compares columns, types and nulls with the files'
            raise self._failed(
                "the rows do not fit the Iceberg table: export into another table, or give the rows"
                " its columns with columns=… or a transform",
                error,
            ) from None
        except OverflowError as error:
            # PyIceberg has no bounds outside the years 1 to 9999, so the files are added without,
            # in this process only. Days that rows are partitioned by need bounds, and are within.
            days = {field.column for field in self._settings.partition_by}
            times = (DateType, TimestampType, TimestamptzType)
            schema = table.schema()
            names = {schema.find_column_name(number): schema.find_type(number)
                     for number in schema.field_ids}  # fmt: skip
            unbounded = {
                f"{_METRICS}{name}": "none"
                for name, kind in names.items()
                if isinstance(kind, times) and name not in days
            }
            if unbounded.items() <= table.metadata.properties.items():
                raise self._failed("the Iceberg table did not take the commit", error) from None
            table.metadata.properties.update(unbounded)
            self._commit_once(table, commit, moved)
        except Exception as error:  # noqa: BLE001  # every library error becomes one of ours
            raise self._failed("the Iceberg table did not take the commit", error) from None


def _arrow_schema(table: Table) -> pa.Schema:
    """The columns of a table."""
    return table.schema().as_arrow()
