"""What an export writes, where and how: the arguments of `backfill`, checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from kts_source.errors import InvalidOptionError
from kts_source.export.partitioning import PartitionField, parse_partition_by
from kts_source.secret import Secret
from kts_source.store.storage_options import S3_OPTIONS, storage_options_from

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    import pyarrow as pa

    from kts_source.export.transforms.row_transform import RowTransform

PARQUET: Final = "parquet"
DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
TABLE_FORMATS: Final = (PARQUET, DELTA, ICEBERG)

COMPRESSIONS: Final = ("zstd", "snappy", "lz4", "gzip", "none")

DEFAULT_TARGET_FILE_BYTES: Final = 256 << 20
DEFAULT_ROW_GROUP_ROWS: Final = 1 << 20
DEFAULT_COMMIT_BYTES: Final = 64 << 30

Transform: TypeAlias = "Callable[[pa.RecordBatch], pa.RecordBatch | None] | RowTransform"
"""Rows in, rows out, within a task; `None` drops them all. Must be picklable and deterministic."""


KEEP: Final = "keep"
REMOVE: Final = "remove"
REMOVE_OLD: Final = "remove-old"
TOMBSTONES: Final = (KEEP, REMOVE, REMOVE_OLD)

DEFAULT_DELETE_RETENTION_MS: Final = 86_400_000
"""Kafka's `delete.retention.ms`."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """How to compact.

    Attributes:
        tombstones: `keep`, `remove`, or `remove-old`: those older than `delete_retention_ms`
            before the newest record of their partition.
    """

    tombstones: str
    delete_retention_ms: int


@dataclass(frozen=True, slots=True)
class ExportSettings:
    """One target and how it is written.

    Attributes:
        target: A folder, `s3://bucket/prefix`, or an Iceberg table's name.
        storage: What opens the target's door.
        catalog: PyIceberg's properties of the catalog.
        export_id: Tells exports into the same table apart.
        commit_bytes: Original bytes after which what is written is committed; bounds what a
            killed run has to do again.
        dead_letters: Folder of the files with rows that a transform rejects; `None` = a rejected
            row is an error.
        compaction: How to keep the latest record of every key only; `None` keeps all records.
    """

    target: str
    table_format: str
    partition_by: tuple[PartitionField, ...]
    transform: Transform | None
    sort_within_files: tuple[str, ...]
    target_file_bytes: int
    row_group_rows: int
    compression: str
    resume: bool
    export_id: str
    commit_bytes: int
    dead_letters: str | None
    compaction: Compaction | None
    storage: Secret[Mapping[str, str]]
    catalog: Secret[Mapping[str, str]]


def export_settings(
    target: str,
    *,
    table_format: str = PARQUET,
    partition_by: Sequence[str] = (),
    transform: Transform | None = None,
    sort_within_files: Sequence[str] = (),
    target_file_bytes: int = DEFAULT_TARGET_FILE_BYTES,
    row_group_rows: int = DEFAULT_ROW_GROUP_ROWS,
    compression: str = "zstd",
    resume: bool = True,
    export_id: str = "kts",
    commit_bytes: int = DEFAULT_COMMIT_BYTES,
    target_options: Mapping[str, str] | None = None,
    catalog: Mapping[str, Any] | None = None,
    dead_letters: str | None = None,
    compact: bool = False,
    tombstones: str = KEEP,
    delete_retention_ms: int = DEFAULT_DELETE_RETENTION_MS,
    source: Mapping[str, str] | None = None,
) -> ExportSettings:
    """Checks the arguments of an export.

    Args:
        target: Folder, `s3://bucket/prefix`, or an Iceberg table's name (`namespace.table`).
        table_format: `parquet`, `delta` or `iceberg`.
        partition_by: Columns, or `date(column)`.
        transform: Applied to every batch within the tasks.
        sort_within_files: Columns every file is sorted by; files are then smaller, since they are
            sorted in memory.
        target_file_bytes: A file is closed once it has as many bytes.
        row_group_rows: Rows of a row group, at most.
        compression: Codec of the Parquet pages.
        resume: Whether to continue behind what the table holds; False makes any overlap an error.
        export_id: Tells exports into the same table apart.
        commit_bytes: Original bytes per commit, at least.
        target_options: `s3.*` options of the target; default: those of the source.
        catalog: Properties for PyIceberg's `load_catalog`; only for Iceberg.
        dead_letters: Folder for the rows that a transform rejects; without one they are an error.
        compact: Keep the latest record of every (topic, partition, key) only.
        tombstones: What becomes of the latest record where its value is null: `keep`, `remove`, or
            `remove-old`: only those older than `delete_retention_ms`.
        delete_retention_ms: Milliseconds before the newest record of a partition.
        source: The source's options.

    Raises:
        InvalidOptionError: Anything that does not fit.
    """
    if table_format not in TABLE_FORMATS:
        raise InvalidOptionError(
            f"table_format must be one of {', '.join(TABLE_FORMATS)}, not {table_format!r}"
        )
    if compression not in COMPRESSIONS:
        raise InvalidOptionError(
            f"compression must be one of {', '.join(COMPRESSIONS)}, not {compression!r}"
        )
    for name, value in (
        ("target_file_bytes", target_file_bytes),
        ("row_group_rows", row_group_rows),
        ("commit_bytes", commit_bytes),
    ):
        if value < 1:
            raise InvalidOptionError(f"{name} must be positive, not {value}")
    if (catalog is not None) != (table_format == ICEBERG):
        raise InvalidOptionError("Iceberg needs catalog=…, and only Iceberg takes it")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", export_id):
        raise InvalidOptionError(
            f"export_id must be letters, digits, - and _, beginning with a letter or digit, not"
            f" {export_id!r}"
        )
    for name, columns in (("partition_by", partition_by), ("sort_within_files", sort_within_files)):
        if isinstance(columns, str):
            raise InvalidOptionError(f"{name} is a list of columns, not {columns!r}")
    if tombstones not in TOMBSTONES:
        raise InvalidOptionError(
            f"tombstones must be one of {', '.join(TOMBSTONES)}, not {tombstones!r}"
        )
    if compact and (transform is not None or sort_within_files):
        raise InvalidOptionError("compact=True goes with neither transform nor sort_within_files")
    given = _target_options(target_options, catalog, source)
    return ExportSettings(
        target=target,
        table_format=table_format,
        partition_by=parse_partition_by(partition_by),
        transform=transform,
        sort_within_files=tuple(sort_within_files),
        target_file_bytes=target_file_bytes,
        row_group_rows=row_group_rows,
        compression=compression,
        resume=resume,
        export_id=export_id,
        commit_bytes=commit_bytes,
        dead_letters=dead_letters,
        compaction=Compaction(tombstones, delete_retention_ms) if compact else None,
        storage=storage_options_from(given),
        catalog=Secret({name: str(value) for name, value in (catalog or {}).items()}),
    )


def _target_options(
    given: Mapping[str, str] | None,
    catalog: Mapping[str, Any] | None,
    source: Mapping[str, str] | None,
) -> Mapping[str, str]:
    """What was given, or else the catalog's `s3.*` properties, or else the source's options."""
    if given is not None:
        return given
    of_catalog = {
        name: str(value) for name, value in (catalog or {}).items() if name in dict(S3_OPTIONS)
    }
    return of_catalog or source or {}
