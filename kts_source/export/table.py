"""A table that an export commits to: what it holds, and one atomic step forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kts_source.export.settings import DELTA, ICEBERG

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from kts_source.export.files import WrittenFile
    from kts_source.export.fingerprint import Fingerprint
    from kts_source.export.ranges import CommittedRanges, RangeAdvance
    from kts_source.export.settings import ExportSettings
    from kts_source.export.target_store import TargetObject
    from kts_source.secret import Secret


@dataclass(frozen=True, slots=True)
class TableState:
    """What a table says of itself.

    Attributes:
        committed: Offsets it holds.
        fingerprint: The rules it was begun with; empty for a table that holds nothing.
    """

    committed: CommittedRanges
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True)
class WritePlace:
    """Where tasks write.

    Attributes:
        path: Root of the target.
        storage: What opens its door.
        prefix: Folder below the root, empty or ending in a slash.
        suffix: End of file names.
        in_folders: Whether files of different partition values lie in folders of their own.
        drops_partition_columns: Whether partition columns live in the path or the table's log
            only.
    """

    path: str
    storage: Secret[Mapping[str, str]]
    prefix: str
    suffix: str
    in_folders: bool
    drops_partition_columns: bool


@dataclass(frozen=True, slots=True)
class Commit:
    """One step forward.

    Attributes:
        schema: Of the rows written, partition columns included; `None` when no row was written.
        run_id: Of the run that wrote the files.
        replace: Whether the files are all that the table shall hold.
    """

    advances: tuple[RangeAdvance, ...]
    files: tuple[WrittenFile, ...]
    fingerprint: Fingerprint
    schema: pa.Schema | None
    run_id: str
    replace: bool = False


class ExportTable(Protocol):
    """A target of any format."""

    def load(self) -> TableState:
        """What the table holds now. Finishes first what a dead export left half-done."""
        ...

    def place(self, run_id: str) -> WritePlace:
        """Where the tasks of a run write."""
        ...

    def commit(self, commit: Commit) -> None:
        """Adds files and moves the ranges, both or neither.

        Raises:
            CommitConflictError: Another export moved the same ranges.
        """
        ...

    def orphans(self, older_than_ms: int) -> Iterator[TargetObject]:
        """Files that no commit knows, written by attempts that died.

        Args:
            older_than_ms: Only those last modified before this, in ms since the epoch: younger
                ones may belong to a run under way.
        """
        ...

    def remove(self, orphans: Sequence[TargetObject]) -> None:
        """Deletes them."""
        ...

    def close(self) -> None:
        """Lets connections go."""
        ...


def open_table(settings: ExportSettings) -> ExportTable:
    """The target of an export.

    Raises:
        UnsupportedTargetError: It cannot keep the promise of exactly once.
    """
    if settings.table_format == DELTA:
        from kts_source.export.delta import DeltaExportTable

        return DeltaExportTable(settings)
    if settings.table_format == ICEBERG:
        from kts_source.export.iceberg import IcebergExportTable

        return IcebergExportTable(settings)
    from kts_source.export.parquet_folder import ParquetFolder
    from kts_source.export.target_store import open_target

    return ParquetFolder(settings, open_target(settings.target, settings.storage))
