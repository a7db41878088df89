"""A folder of Parquet files with a commit log of its own.

    _kts/attempts/<run>/…part       what tasks write; no reader of the folder takes it for data
    _kts/commits/<n>.json           created-if-absent: files of commit n, all ranges after it
    _kts/commits/<n>.published      every file of commit n has its final name
    [column=value/…]<export>-<topic id>-<partition>-<start>-<stop>.parquet

A commit counts once its JSON exists. Its files are then moved to their final names, which anybody
may do and repeat; whoever comes next does it first. Readers see a file under no data name or under
one, so each row at most once at every instant, and all of them once the commit is published.
"""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import ExportError, UnsupportedTargetError
from kts_source.export.files import WrittenFile
from kts_source.export.fingerprint import check_fingerprint
from kts_source.export.partitioning import partition_rule
from kts_source.export.ranges import OffsetRange, PartitionKey, advanced
from kts_source.export.tables.export_table import BaseFile, Commit, TableState, WritePlace
from kts_source.export.transforms.dead_letters import publish_dead_letters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.target_store import TargetObject, TargetStore

ATTEMPTS: Final = "_kts/attempts/"
COMMITS: Final = "_kts/commits/"
# No glob for *.parquet finds them.
ATTEMPT_SUFFIX: Final = ".part"
FORMAT_VERSION: Final = 1

_COMMIT = re.compile(r"(?P<number>\d{10})\.(?P<kind>json|published)")
_PUBLISHING_THREADS = 16


@dataclass(frozen=True, slots=True)
class _Log:
    """The commit log as it stands.

    Attributes:
        last: Number of the newest commit, 0 for none.
        document: Its JSON.
    """

    last: int
    document: Mapping[str, Any]
    unpublished: tuple[int, ...]


class ParquetFolder:
    """See the module's text.

    Args:
        settings: What to write and where.
        target: The store below `settings.target`.
    """

    def __init__(self, settings: ExportSettings, target: TargetStore) -> None:
        self._settings = settings
        self._target = target
        self._probed = False

    def load(self) -> TableState:
        """See `ExportTable.load`."""
        log = self._recovered()
        self._check_exports(log)
        if not log.last:
            self._check_strangers()
        return self._state(log)

    def place(self, run_id: str) -> WritePlace:
        """See `ExportTable.place`."""
        if not self._probed:
            self._target.require_create()
            self._probed = True
        return WritePlace(
            self._settings.target,
            self._settings.storage,
            f"{ATTEMPTS}{run_id}/",
            ATTEMPT_SUFFIX,
            "path",
        )

    def base_files(self) -> tuple[BaseFile, ...]:
        """See `ExportTable.base_files`.

        Raises:
            UnsupportedTargetError: Always: they cannot be replaced in one step.
        """
        raise _cannot_be_replaced(self._settings.target)

    def commit(self, commit: Commit) -> bool:
        """See `ExportTable.commit`."""
        self._require_written(commit)
        while True:
            log = self._recovered()
            self._check_exports(log)
            state = self._state(log)
            check_fingerprint(state.fingerprint, commit.fingerprint)
            if commit.replace and state.fingerprint:
                raise _cannot_be_replaced(self._settings.target)
            document = self._document(log, commit, advanced(state.committed, commit.advances))
            if commit.letters is not None:
                publish_dead_letters(self._settings, state.letters)
            number = log.last + 1
            data = json.dumps(document, ensure_ascii=False, indent=1).encode()
            if self._target.create(f"{COMMITS}{number:010d}.json", data):
                self._publish(number, document)
                return True

    def orphans(self) -> list[TargetObject]:
        """See `ExportTable.orphans`."""
        return self._unknown(list(self._target.list_objects("_kts/")))

    def remove(self, orphans: Sequence[TargetObject]) -> None:
        """See `ExportTable.remove`."""
        for orphan in self._unknown(orphans):
            self._target.delete(orphan.key)

    def _unknown(self, listed: Sequence[TargetObject]) -> list[TargetObject]:
        """Those that are not of the log as it is now. What is committed has another name after it
        was published, and its first name is gone.
        """
        self._recovered()
        return [found for found in listed if not _COMMIT.fullmatch(found.key.removeprefix(COMMITS))]

    def close(self) -> None:
        """See `ExportTable.close`."""
        self._target.close()

    def _check_exports(self, log: _Log) -> None:
        """Readers find the partition columns of a folder in all of its paths, or in none.

        Raises:
            UnsupportedTargetError: Other exports into the folder file their rows otherwise.
        """
        asked = partition_rule(self._settings.partition_by)
        for name, export in log.document.get("exports", {}).items():
            there = export.get("fingerprint", {}).get("partitionBy", asked)
            if name != self._settings.export_id and there != asked:
                raise self._partitioned(f"the export {name!r} in the folder", there, asked)

    def _check_strangers(self) -> None:
        """The same for the files of other writers, before a folder's first commit."""
        asked = ",".join(field.name for field in self._settings.partition_by)
        for found in self._target.list_objects(""):
            *folders, name = found.key.split("/")
            there = ",".join(one.partition("=")[0] for one in folders if "=" in one)
            # What begins so, readers of folders leave out.
            hidden = any(one.startswith(("_", ".")) for one in (*folders, name))
            if not hidden and there != asked:
                raise self._partitioned(f"the file {found.key} in the folder", there, asked)

    def _partitioned(self, owner: str, there: str, asked: str) -> UnsupportedTargetError:
        return UnsupportedTargetError(
            f"{owner} is partitioned by {there or 'no column'}, and partition_by makes"
            f" {asked or 'no column'}: readers would mix them up. Give partition_by as the folder"
            " has it, or export into another folder",
            uri=self._settings.target,
        )

    # -- the log

    def _recovered(self) -> _Log:
        """The log after every half-published commit was finished."""
        log = self._read_log()
        for number in log.unpublished:
            self._publish(number, self._read(number))
        return log

    def _read_log(self) -> _Log:
        commits: set[int] = set()
        published: set[int] = set()
        for found in self._target.list_objects(COMMITS):
            match = _COMMIT.fullmatch(found.key.removeprefix(COMMITS))
            if match:
                (commits if match["kind"] == "json" else published).add(int(match["number"]))
        last = max(commits, default=0)
        if missing := set(range(1, last + 1)) - commits:
            raise ExportError(
                f"the commit log lacks number {min(missing)}: what the folder holds cannot be told",
                uri=self._target.uri(COMMITS),
            )
        document = self._read(last) if last else {}
        return _Log(last, document, tuple(sorted(commits - published)))

    def _read(self, number: int) -> dict[str, Any]:
        key = f"{COMMITS}{number:010d}.json"
        document: dict[str, Any] = json.loads(self._target.read(key))
        if document.get("version") != FORMAT_VERSION:
            raise ExportError(
                f"a commit of unknown version {document.get('version')!r}",
                uri=self._target.uri(key),
            )
        return document

    def _state(self, log: _Log) -> TableState:
        export = self._export(log)
        return TableState(
            self._ranges(log), export.get("fingerprint", {}), letters=export.get("letters")
        )

    def _ranges(self, log: _Log) -> dict[PartitionKey, OffsetRange]:
        return {
            PartitionKey(entry["topicId"], entry["partition"]): OffsetRange(
                entry["start"], entry["stop"]
            )
            for entry in self._export(log).get("ranges", ())
        }

    def _export(self, log: _Log) -> dict[str, Any]:
        export: dict[str, Any] = log.document.get("exports", {}).get(self._settings.export_id, {})
        return export

    def _document(
        self, log: _Log, commit: Commit, moved: Mapping[PartitionKey, OffsetRange]
    ) -> dict[str, Any]:
        ranges = {**self._ranges(log), **moved}
        return {
            "version": FORMAT_VERSION,
            "exportId": self._settings.export_id,
            "runId": commit.run_id,
            "committedAtMs": time.time_ns() // 1_000_000,
            "files": [file.to_json() for file in commit.files],
            # All ranges, so that the newest commit alone tells what the folder holds.
            "exports": {
                **log.document.get("exports", {}),
                self._settings.export_id: {
                    "fingerprint": dict(commit.fingerprint),
                    # The list of dead letters of the last commit with such.
                    "letters": self._export(log).get("letters")
                    if commit.letters is None
                    else commit.letters,
                    "ranges": [
                        {
                            "topicId": key.topic_id,
                            "partition": key.partition,
                            "start": span.start,
                            "stop": span.stop,
                        }
                        for key, span in sorted(ranges.items())
                    ],
                },
            },
        }

    # -- files

    def _require_written(self, commit: Commit) -> None:
        """What is committed must be there: `clean` may have taken a slow run's files."""
        place = f"{ATTEMPTS}{commit.run_id}/"
        found = (
            {entry.key: entry.size for entry in self._target.list_objects(place)}
            if commit.files
            else {}
        )
        for file in commit.files:
            if found.get(file.key) != file.size:
                raise ExportError(
                    f"a file of this run has {found.get(file.key)} bytes and was written with"
                    f" {file.size}; nothing was committed",
                    uri=self._target.uri(file.key),
                )

    def _publish(self, number: int, document: Mapping[str, Any]) -> None:
        files = [WrittenFile.from_json(value) for value in document["files"]]

        def publish(file: WrittenFile) -> None:
            self._target.publish(file.key, file.name, file.size)

        if len(files) <= _PUBLISHING_THREADS:
            for file in files:
                publish(file)
        else:
            with ThreadPoolExecutor(_PUBLISHING_THREADS, "kts-publish") as pool:
                list(pool.map(publish, files))
        self._target.create(f"{COMMITS}{number:010d}.published", b"")


def _cannot_be_replaced(target: str) -> UnsupportedTargetError:
    return UnsupportedTargetError(
        "a folder of Parquet files cannot be replaced in one step: compact into a new folder, or"
        " into a Delta or Iceberg table",
        uri=target,
    )
