"""Uses PyIceberg for exports: commits only if the loaded state is current, adds files with bounds
of fields, and sends requests without checksum headers.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, cast

from kts_source.errors import ExportError
from kts_source.store.storage_options import CHECKSUM_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow.parquet as pq
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import CommitTableResponse, Table, Transaction
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.types import NestedField, StructType

COLUMN_METRICS: Final = "write.metadata.metrics."


class _ChecksumsWhenRequired:
    """Context manager that sets the AWS checksum variables to `when_required`. They stay set while
    at least one thread is inside the context.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._added: tuple[str, ...] = ()

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                # Do not change variables that the user has set.
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

Stores other than AWS may reject the headers `x-amz-checksum-*`. PyIceberg's file systems have no
setting for them, but follow the environment variables of the AWS SDKs.
"""


class PinnedCatalog:
    """Wraps a catalog. It commits only if the table is still in the state that was loaded.

    PyIceberg checks this in its first attempt, but not when it retries.
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

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # any attribute of a catalog
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
_COLUMN: Final = "column"
_FIRST_SURROGATE: Final = 0xD800
_AFTER_SURROGATES: Final = 0xE000


def add_files(
    table: Table, transaction: Transaction, paths: Sequence[str], properties: Mapping[str, str]
) -> None:
    """Adds a snapshot with the data files `paths` and the summary `properties`, even without files.

    Raises:
        ValueError: The columns of a file do not fit the table.
    """
    from pyiceberg.table import TableProperties

    if transaction.table_metadata.name_mapping() is None:
        mapping = transaction.table_metadata.schema().name_mapping
        transaction.set_properties(
            {TableProperties.DEFAULT_NAME_MAPPING: mapping.model_dump_json()}
        )
    with ThreadPoolExecutor(_THREADS, "kts-iceberg") as pool:
        data_files = list(pool.map(lambda path: _data_file(table, transaction, path), paths))
    with transaction.update_snapshot(dict(properties)).fast_append() as append:
        for file in data_files:
            append.append_data_file(file)


def _data_file(table: Table, transaction: Transaction, path: str) -> IcebergFile:
    from pyarrow.parquet import read_metadata
    from pyiceberg.io import pyarrow as files
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.manifest import DataFileContent, FileFormat

    metadata = transaction.table_metadata
    schema, spec = metadata.schema(), metadata.spec()
    file = table.io.new_input(path)
    with file.open() as stream:
        parquet = read_metadata(stream)
    files._check_pyarrow_schema_compatible(  # noqa: SLF001  # as add_files of PyIceberg does
        schema, parquet.schema.to_arrow_schema(), format_version=metadata.format_version
    )
    columns = files.parquet_path_to_id_mapping(schema)
    statistics = files.data_file_statistics_from_parquet_metadata(
        parquet_metadata=parquet,
        stats_columns=_metrics_plan(schema, metadata.properties),
        parquet_column_mapping=columns,
    )
    for field_id in _without_bounds(parquet, columns):
        statistics.column_aggregates.pop(field_id, None)
    for field in spec.fields:
        nulls = statistics.null_value_counts.get(field.source_id)
        if field.source_id not in statistics.column_aggregates and nulls != parquet.num_rows:
            raise ExportError(
                f"a file has no bounds of column {schema.find_column_name(field.source_id)}, but"
                " an export takes partition values from these bounds. Partition by another column",
                uri=path,
            )
    partition = statistics.partition(spec, schema)  # before texts are truncated
    for aggregate in statistics.column_aggregates.values():
        if isinstance(aggregate.current_max, str):
            aggregate.current_max = upper_bound(aggregate.current_max, aggregate.trunc_length)
    return IcebergFile.from_args(
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
    """Yields the ids of fields that have values but no bounds in at least one row group.

    Arrow writes no bounds of long texts. PyIceberg ignores row groups without bounds. So the bounds
    of the file would not cover the values in these row groups, and readers would skip the file
    although it has matching rows.
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
    """Returns a text of at most `length` characters that is not less than `text`. Returns `None` if
    no such text exists.

    PyIceberg increments the last character, which turns U+D7FF into a surrogate that UTF-8 cannot
    encode. Like Iceberg for Java, this function skips the surrogates.
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


def _metrics_plan(schema: Schema, properties: Mapping[str, str]) -> dict[int, Any]:
    """Returns, for each field id, which metrics (such as bounds) are recorded.

    PyIceberg would record only counts for every nested field. This function keeps this rule for
    items of lists and maps, but gives fields of structs the same metrics as columns.
    """
    from pyiceberg.io import pyarrow as files
    from pyiceberg.schema import Schema as PlanSchema

    plan: dict[int, Any] = files.compute_statistics_plan(schema, dict(properties))
    for path, field in _fields(schema.as_struct(), ""):
        # Compute the metrics of a column of this type, with the properties of the field's path.
        column = PlanSchema(field.model_copy(update={"name": _COLUMN}))
        own = {
            name: text for name, text in properties.items() if name == f"{COLUMN_METRICS}default"
        }
        if (mode := properties.get(f"{COLUMN_METRICS}column.{path}")) is not None:
            own[f"{COLUMN_METRICS}column.{_COLUMN}"] = mode
        column_plan = files.compute_statistics_plan(column, own)[field.field_id]
        plan[field.field_id] = replace(plan[field.field_id], mode=column_plan.mode)
    return plan


def _fields(struct: StructType, outer: str) -> Iterator[tuple[str, NestedField]]:
    """Yields the dotted path and the field of each primitive field that is inside a struct."""
    for field in struct.fields:
        kind = field.field_type
        if kind.is_struct:
            yield from _fields(cast("StructType", kind), f"{outer}{field.name}.")
        elif outer and kind.is_primitive:
            yield f"{outer}{field.name}", field
