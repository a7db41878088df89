"""What the history of a Delta table says about the commits of an export.

Every commit of an export has an entry `kts` in its `commitInfo` (see `delta`). `RESTORE` brings
back the files of an earlier version and keeps the `txn` actions of later ones, which then count
offsets whose rows are gone.
"""

from __future__ import annotations

import json
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from kts_source.errors import ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kts_source.export.tables.target_store import TargetStore

_MOST_ENTRIES: Final = 256


def history(target: TargetStore, version: int) -> Iterator[dict[str, Any]]:
    """Yields the `commitInfo` of a version and of those before it, newest first, as far as the log
    is kept; each has its version as `version`.

    The log is read here, since `DeltaTable.history` keeps Python's lock while it waits for a store.
    """
    for number in range(version, -1, -1):
        try:
            lines = target.read(f"_delta_log/{number:020d}.json").splitlines()
        except ObjectNotFoundError:
            return
        actions = (json.loads(line) for line in lines if b'"commitInfo"' in line)
        entry: dict[str, Any] = next(
            (action["commitInfo"] for action in actions if "commitInfo" in action), {}
        )
        yield {**entry, "version": number}


def commit_id_of(entry: Mapping[str, Any]) -> str | None:
    """Returns the id of the export commit that made a version; `None` if another writer did."""
    commit_id: str | None = _details(entry).get("commitId")
    return commit_id


def exported_partitions(
    entries: Iterable[Mapping[str, Any]], export_id: str, topic: str
) -> set[int]:
    """Returns the partitions that an export committed offsets of, by topics of a name, as far as
    recent history says.
    """
    names = (
        text.partition(" ")[0].rpartition("-")
        for entry in islice(entries, _MOST_ENTRIES)
        if _details(entry).get("exportId") == export_id
        for text in _details(entry).get("ranges", ())
    )
    return {int(number) for name, _, number in names if name == topic}


def exporting(entries: Iterable[Mapping[str, Any]]) -> set[str]:
    """Returns the ids of the exports that committed, as far as recent history says."""
    found = {_details(entry).get("exportId") for entry in islice(entries, _MOST_ENTRIES)}
    return {str(export_id) for export_id in found if export_id is not None}


def removal_of(target: TargetStore, version: int, export_id: str, prefix: str) -> str | None:
    """Returns the newest version in which another writer removed files of an export together with
    rows or values, in words; `None` if none did, as far as the log is kept.

    Compaction by other tools removes files without a change of data.

    Args:
        target: The table's root.
        version: The newest one.
        export_id: Of the export.
        prefix: Folder of its files.
    """
    for number in range(version, -1, -1):
        try:
            lines = target.read(f"_delta_log/{number:020d}.json").splitlines()
        except ObjectNotFoundError:
            return None
        actions = [json.loads(line) for line in lines]
        entry: dict[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
        if _details(entry).get("exportId") == export_id:
            continue
        removed = [
            unquote(action["remove"]["path"])
            for action in actions
            if "remove" in action and action["remove"].get("dataChange", True)
        ]
        own = [path for path in removed if path.startswith(prefix)] or removed
        if own:
            operation = entry.get("operation", "an operation")
            return (
                f"version {number} of the table ({operation}, by another writer) removed"
                f" {len(removed)} files, among them {own[0]}"
            )
    return None


def rollback_of(entries: Iterable[Mapping[str, Any]], export_id: str) -> str | None:
    """Returns the `RESTORE` that removed rows of an export, in words; `None` if there is none."""
    restored: Mapping[str, Any] | None = None
    for entry in entries:
        is_own = _details(entry).get("exportId") == export_id
        if restored is not None and _is_after_target(entry, restored):
            if is_own:
                return (
                    f"RESTORE in version {restored.get('version')} of the table removed what"
                    f" version {entry.get('version')} and later ones added"
                )
        elif is_own:
            return None
        elif str(entry.get("operation", "")).upper() == "RESTORE":
            restored = entry
    return None


def _is_after_target(entry: Mapping[str, Any], restored: Mapping[str, Any]) -> bool:
    """Returns whether a version is above the one that a `RESTORE` brought back."""
    parameters = restored.get("operationParameters", {})
    version = parameters.get("version")
    if version not in (None, "", "null"):
        return int(entry.get("version", 0)) > int(version)
    return int(entry.get("timestamp", 0)) > _milliseconds(
        parameters.get("datetime") or parameters.get("timestamp")
    )


def _milliseconds(value: Any) -> int:  # noqa: ANN401  # JSON of whichever writer
    """Returns a point in time in ms since the epoch; 0 where the text is not understood."""
    if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
        return int(value)
    try:
        return round(datetime.fromisoformat(str(value)).timestamp() * 1000)
    except ValueError:
        return 0


def _details(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    details = entry.get("kts")
    return details if isinstance(details, dict) else {}
