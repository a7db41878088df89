"""How many rows of each partition the commits of an export wrote.

A commit adds its rows to the count of the topic's name and the partition, and records the end
offset that the count belongs to. Earlier versions move the end and leave the count, so a count
whose end is not the table's is ignored.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kts_source.export.files import WrittenFile
    from kts_source.export.ranges import RangeAdvance
    from kts_source.export.tables.export_table import BaseFile
    from kts_source.export.tables.target_store import TargetStore

Owner: TypeAlias = "tuple[str, int]"
"""Name of a topic and number of a partition."""

ALWAYS: Final = -1
"""End of a count that every version of this package keeps."""
UNKNOWN: Final = -2
"""End of a count that missed rows; it stays unknown until the table is compacted."""


@dataclass(frozen=True, slots=True)
class RowCount:
    """Rows that commits wrote of one partition.

    Attributes:
        rows: Of all topics that had the name.
        stop: One past the last offset that was committed with them, `ALWAYS` or `UNKNOWN`.
        restarts: How often the topic was created again and continued in the table.
    """

    rows: int
    stop: int
    restarts: int = 0


RowCounts: TypeAlias = "Callable[[str, int], RowCount | None]"


@dataclass(frozen=True, slots=True)
class TableContents:
    """What a check of a table reads.

    Attributes:
        store: Has the files.
        files: All data files except those of other exports.
        is_shared: True if files may also have rows of other exports: another writer has rewritten
            a table that several exports write to.
        counts: Rows that commits wrote, by topic and partition; `None` if unknown.
        removal: Returns what removed files of the export from the table, in words; `None` if only
            commits of the export did.
    """

    store: TargetStore
    files: tuple[BaseFile, ...]
    is_shared: bool
    counts: RowCounts
    removal: Callable[[], str | None]


def counted(
    advances: Iterable[RangeAdvance],
    files: Iterable[WrittenFile],
    counts: RowCounts,
    *,
    is_counted: bool,
    replaces: bool,
) -> dict[Owner, RowCount]:
    """Returns the counts that a commit changes, as they are after it.

    Args:
        advances: The ranges that it moves.
        files: Those that it adds.
        counts: Before the commit.
        is_counted: True if every commit of the table has counted its rows.
        replaces: True if the files replace all files of the table.
    """
    rows = Counter[Owner]()
    for file in files:
        rows[file.topic, file.partition] += file.rows
    changed: dict[Owner, RowCount] = {}
    for advance in advances:
        owner = (advance.topic, advance.key.partition)
        before = counts(*owner)
        is_new = advance.expected is None
        if before is None:
            if replaces or (is_counted and is_new):
                changed[owner] = RowCount(rows[owner], advance.stop)
            continue
        held = 0 if replaces else before.rows
        restarts = before.restarts + is_new
        # Two topics of one name by turns, or a commit of an earlier version.
        is_behind = before.stop != advance.expected and not is_new
        is_known = replaces or not (is_behind or before.stop == UNKNOWN)
        stop = advance.stop if is_known else UNKNOWN
        changed[owner] = RowCount(held + rows[owner], stop, restarts)
    return changed


def without_other_exports(
    files: Iterable[BaseFile], folder: str, export_id: str
) -> tuple[list[BaseFile], bool, bool]:
    """Returns the files that other exports did not write, whether other exports wrote any, and
    whether a writer that is no export wrote any.

    Args:
        files: Of the table.
        folder: The one that has a folder for each export.
        export_id: Of this export.
    """
    kept: list[BaseFile] = []
    others = rewritten = False
    for file in files:
        owner, slash, _ = file.key.removeprefix(folder).partition("/")
        is_export = file.key.startswith(folder) and bool(slash)
        if is_export and owner != export_id:
            others = True
            continue
        rewritten = rewritten or not is_export
        kept.append(file)
    return kept, others, rewritten


def to_json(counts: Mapping[Owner, RowCount]) -> dict[str, dict[str, list[int]]]:
    """Returns counts as JSON can hold them."""
    result: dict[str, dict[str, list[int]]] = {}
    for (topic, partition), count in counts.items():
        numbers = [count.rows, count.stop, count.restarts]
        result.setdefault(topic, {})[str(partition)] = numbers
    return result


def from_json(value: Mapping[str, Mapping[str, list[int]]]) -> dict[Owner, RowCount]:
    """Returns the counts that `to_json` was called with."""
    return {
        (topic, int(partition)): RowCount(*numbers)
        for topic, partitions in value.items()
        for partition, numbers in partitions.items()
    }
