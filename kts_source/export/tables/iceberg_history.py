"""What the snapshots of an Iceberg table say about the commits of an export.

Table properties hold the offsets. A rollback makes an earlier snapshot current and keeps the
properties, so they then count offsets whose rows are gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kts_source.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

COMMIT: Final = "commit"
"""End of the property's name that holds the last commit of an export, `commit id@ms`."""
_CLOCK_SKEW_MS: Final = 60_000


def has_snapshot(table: Table, commit_id: str) -> bool:
    """Returns whether a commit of this id is among the snapshots of a table."""
    return any(_summary(one, "kts.commit") == commit_id for one in table.metadata.snapshots)


def rollback_of(table: Table, last_commit: str | None) -> str | None:
    """Returns what removed rows of an export, in words; `None` if all its commits are kept.

    Args:
        table: As it is now.
        last_commit: The property `COMMIT`; `None` for tables that earlier versions wrote.
    """
    current = table.current_snapshot()
    ancestors = list(_ancestors(table))
    ids = {snapshot.snapshot_id for snapshot in ancestors}
    undone = [one for one in table.metadata.snapshots if one.snapshot_id not in ids]
    lost: Snapshot | None = None
    if last_commit is None:
        lost = next((one for one in undone if _summary(one, "kts.run") is not None), None)
    else:
        commit_id, _, committed_ms = last_commit.partition("@")
        if any(_summary(one, "kts.commit") == commit_id for one in ancestors):
            return None
        lost = next((one for one in undone if _summary(one, "kts.commit") == commit_id), None)
        # Otherwise the snapshot expired. The current one is newer, unless it was rolled back to.
        if lost is None and (
            current is None or current.timestamp_ms < int(committed_ms) - _CLOCK_SKEW_MS
        ):
            return "the current snapshot is older than the last commit of the export"
    if lost is None:
        return None
    state = "has no snapshot" if current is None else f"was rolled back to {current.snapshot_id}"
    return f"the table {state}, which removed snapshot {lost.snapshot_id} of the export"


def removal_of(table: Table) -> str | None:
    """Returns the newest snapshot in which another writer removed rows or files, in words; `None`
    if none did, as far as snapshots are kept.

    Args:
        table: As it is now.
    """
    for snapshot in _ancestors(table):
        summary = snapshot.summary
        if summary is None or _summary(snapshot, "kts.run") is not None:
            continue
        if summary.operation.value in ("delete", "overwrite"):
            files = _summary(snapshot, "deleted-data-files") or "some"
            return (
                f"snapshot {snapshot.snapshot_id} of the table ({summary.operation.value}, by"
                f" another writer) removed {files} files"
            )
    return None


def check_no_files(table: Table, folder: str, export_id: str, uri: str) -> None:
    """Refuses a table that has files of an export and no longer records its offsets.

    Args:
        table: As it is now.
        folder: The export's own, below the table's location.
        export_id: Of the export.
        uri: The table, for the error.

    Raises:
        ExportError: It has some.
    """
    if table.current_snapshot() is None:
        return
    prefix = f"{table.location().rstrip('/')}/{folder}"
    for task in table.scan().plan_files():
        if task.file.file_path.startswith(prefix):
            raise ExportError(
                f"the table holds files of the export {export_id!r}, and its properties"
                f" kts.{export_id}.… that record which offsets are in them are gone. All rows would"
                " be written again next to these files. Set the properties again, or export into"
                " another table; another export_id accepts the files and writes all rows again",
                uri=uri,
            )


def _ancestors(table: Table) -> Iterator[Snapshot]:
    """Yields the current snapshot and those that it was made from, as far as they are kept."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    current = table.current_snapshot()
    while current is not None:
        yield current
        parent = current.parent_snapshot_id
        current = None if parent is None else by_id.get(parent)


def _summary(snapshot: Snapshot, name: str) -> str | None:
    summary = snapshot.summary
    value: str | None = None if summary is None else summary.additional_properties.get(name)
    return value
