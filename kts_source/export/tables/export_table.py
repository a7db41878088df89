"""A table that an export commits to: what it holds, and one atomic step forward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from kts_source.errors import CommitConflictError, ExportError
from kts_source.export.ranges import PartitionKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kts_source.export.files import WrittenFile
    from kts_source.export.fingerprint import Fingerprint
    from kts_source.export.partitioning import ValuesIn
    from kts_source.export.ranges import CommittedRanges, RangeAdvance
    from kts_source.export.tables.target_store import TargetObject
    from kts_source.secret import Secret


class NewestTimes(Protocol):
    """Timestamps of the newest records that a compacted table was built from, by partition."""

    def get(self, key: PartitionKey, /) -> int | None:
        """In ms since the epoch; `None` = not known."""
        ...


@dataclass(frozen=True, slots=True)
class TableState:
    """What a table says of itself.

    Attributes:
        committed: Offsets it holds.
        fingerprint: The rules it was begun with; empty for a table that holds nothing.
        newest_ms: Of a compacted table.
        letters: The list of dead letters that the last commit with such left; see `dead_letters`.
    """

    committed: CommittedRanges
    fingerprint: Fingerprint
    newest_ms: NewestTimes = field(default_factory=dict[PartitionKey, int])
    letters: int | None = None


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
    """

    advances: tuple[RangeAdvance, ...]
    files: tuple[WrittenFile, ...]
    fingerprint: Fingerprint
    schema: pa.Schema | None
    run_id: str
    base: frozenset[str] | None = None
    newest_ms: Mapping[PartitionKey, int] = field(default_factory=dict[PartitionKey, int])
    letters: int | None = None

    @property
    def replace(self) -> bool:
        """Whether the files are all that the table shall hold."""
        return self.base is not None


class ExportTable(Protocol):
    """A target of any format."""

    def load(self) -> TableState:
        """What the table holds now. Finishes first what a dead export left half-done."""
        ...

    def place(self, run_id: str) -> WritePlace:
        """Where the tasks of a run write."""
        ...

    def base_files(self) -> tuple[BaseFile, ...]:
        """The data files of the table as it is now.

        Raises:
            ExportError: They do not hold exactly the table's rows, or lie elsewhere.
        """
        ...

    def commit(self, commit: Commit) -> bool:
        """Adds files and moves the ranges, both or neither.

        Returns:
            Whether it did. False where there is no table yet, and no columns to make one with: then
            the ranges are to be committed with the next rows.

        Raises:
            CommitConflictError: Another export moved the same ranges.
        """
        ...

    def orphans(self) -> list[TargetObject]:
        """Files that no commit knows: of attempts that died, or of runs under way."""
        ...

    def remove(self, orphans: Sequence[TargetObject]) -> None:
        """Deletes them, but for those that a commit knows by now."""
        ...

    def close(self) -> None:
        """Lets connections go."""
        ...


def check_base(commit: Commit, files: Iterable[str], uri: str) -> None:
    """Makes sure that a table is what a merge was made from.

    Raises:
        CommitConflictError: It has got other files meanwhile.
    """
    if commit.base is not None and commit.base != frozenset(files):
        raise CommitConflictError(
            "the table's files are not those that were merged: another writer changed the table in"
            " the meantime. Run again to merge what it holds now",
            uri=uri,
        )


def check_signs(schema: pa.Schema, uri: str) -> None:
    """Refuses types that Delta and Iceberg lack, and their libraries take for others.

    Raises:
        ExportError: A column's numbers could be beyond those of the table's column.
    """
    for column in schema:
        if pa.types.is_unsigned_integer(column.type):
            raise ExportError(
                f"column {column.name} is {column.type}, and tables have signed numbers only: cast"
                " it in the transform, to int64 for example",
                uri=uri,
            )
