"""What an existing Iceberg table must be, so that an export's files are whole in it, and stay until
they are committed.

The files hold no field ids: readers find columns by the table's name mapping. PyIceberg takes
partition values from the bounds of the files. Both are compared before a row is read.
"""

from __future__ import annotations

import os
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import UnsupportedTargetError
from kts_source.export.tables.export_table import partitioned_otherwise
from kts_source.store.storage_options import CHECKSUM_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyiceberg.table import CommitTableResponse, Table
    from pyiceberg.table.name_mapping import MappedField
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from kts_source.export.partitioning import PartitionField

_NEWEST_FORMAT: Final = 2
_METRICS: Final = "write.metadata.metrics."


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
        default = table.properties.get(f"{_METRICS}default", "")
        mode = table.properties.get(f"{_METRICS}column.{field.column}", default)
        if mode.strip().lower() in ("none", "counts"):
            raise UnsupportedTargetError(
                f"the table keeps no bounds of {field.column} ({_METRICS}… = {mode}), and partition"
                " values are taken from them. Unset the property, or export into another table",
                uri=uri,
            )
    mapping = table.name_mapping()
    # Without one the first commit writes one.
    if mapping is not None and (
        wrong := set(_fields(schema.name_mapping.root)) - set(_fields(mapping.root))
    ):
        names = ", ".join(sorted(name for name, _ in wrong))
        raise UnsupportedTargetError(
            f"the table's name mapping (schema.name-mapping.default) does not lead to its columns"
            f" {names}: readers would find nulls there. Correct the property, or export into"
            " another table",
            uri=uri,
        )


def _fields(mapping: Sequence[MappedField], prefix: str = "") -> Iterator[tuple[str, int | None]]:
    """Every name at any depth and the field it leads to."""
    for field in mapping:
        for name in field.names:
            yield f"{prefix}{name}", field.field_id
            yield from _fields(field.fields, f"{prefix}{name}.")


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
