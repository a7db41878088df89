"""A folder of Parquet files as target, with its own commit log.

    _kts/attempts/<run>/…part       files that tasks write; readers of the folder skip them
    _kts/commits/<n>.json           files of commit n, and the offset ranges of the table after
                                    commit n; created only if it does not exist
    _kts/commits/<n>.published      every file of commit n has its final name
    [column=value/…]<export>-<topic id>-<partition>-<start>-<stop>.parquet

A commit is complete as soon as its JSON exists. Then its files are published: they are moved to
their final names. Any process may publish a commit, and may repeat this. A process that opens the
folder first publishes commits that are not published yet.

At any time, a file has at most one name that readers accept. So readers see each row at most once,
and they see all rows after the commit is published.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from kts_source.errors import DataLossError, ExportError, UnsupportedTargetError
from kts_source.export.dead_letters import PendingLetters, replay_id, with_pending
from kts_source.export.parquet_file import DataFile, count_rows
from kts_source.export.partitioning import NULL_FOLDER, partition_rule
from kts_source.export.ranges import OffsetRange, PartitionKey
from kts_source.export.settings import DELTA, ICEBERG
from kts_source.export.tables.export_table import (
    STATE_VERSION,
    Commit,
    ExportTable,
    Owner,
    RowCount,
    TableContents,
    TableState,
    check_state_version,
    other_format_error,
    partitioning_error,
)
from kts_source.export.tables.target_store import open_target, require_create
from kts_source.export.task import WrittenFile, schema_from_text, schema_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.export.settings import ExportSettings

ATTEMPTS: Final = "_kts/attempts/"
COMMITS: Final = "_kts/commits/"

_COMMIT: Final = re.compile(r"(?P<number>\d{10})\.(?P<kind>json|published)")
_FILE: Final = re.compile(r"-\d+-\d{20}-\d{20}\.parquet\Z")
_PUBLISHING_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class _Log:
    """State of the commit log.

    Attributes:
        last: Number of the newest commit; 0 if there is no commit.
        document: JSON of the newest commit.
    """

    last: int
    document: Mapping[str, Any]


class ParquetFolder(ExportTable):
    """A folder of Parquet files; see the module docstring."""

    _values_in = "path"
    _folders = ("_kts/",)
    _suffix = ".part"  # so that no glob for *.parquet finds them
    # A commit attempt fails only if the attempt of another export succeeds.
    _commit_attempts = sys.maxsize

    def __init__(self, settings: ExportSettings) -> None:
        super().__init__(settings)
        self._target = open_target(settings.target, settings.storage)
        self._is_probed = False

    def _key_prefix(self, run_id: str) -> str:
        if not self._is_probed:
            require_create(self._target)
            self._is_probed = True
        return f"{ATTEMPTS}{run_id}/"

    def _open(self) -> _Log:
        """Reads the commit log. Publishes the files of commits that are not published yet."""
        commits: set[int] = set()
        published: set[int] = set()
        for entry in self._target.list_objects(COMMITS):
            match = _COMMIT.fullmatch(entry.key.removeprefix(COMMITS))
            if match:
                (commits if match["kind"] == "json" else published).add(int(match["number"]))
        last = max(commits, default=0)
        if missing := set(range(1, last + 1)) - commits:
            raise ExportError(
                f"commit {min(missing)} is missing in the commit log, so the content of the folder"
                " is unknown. Restore the log, or export into another folder",
                uri=self._target.uri(COMMITS),
            )
        log = _Log(last, self._read(last) if last else {})
        for number in sorted(commits - published):
            self._publish(number, self._read(number))
        return log

    def _state(self, snapshot: _Log) -> TableState:
        export = self._export(snapshot)
        if not export:
            self._check_no_files(snapshot)
        schema = export.get("schema")
        return TableState(
            self._ranges(snapshot),
            export.get("fingerprint", {}),
            letters=export.get("letters"),
            schema=lambda: None if schema is None else schema_from_text(schema),
            topic_id=export.get("topics", {}).get,
            holder={
                PartitionKey(entry["topicId"], entry["partition"]): export_id
                for export_id, other in snapshot.document.get("exports", {}).items()
                for entry in other.get("ranges", ())
                if export_id != self._settings.export_id
            }.get,
            is_replayed=lambda name: replay_id(name) in export.get("replayed", ()),
            pending=PendingLetters.from_json(export.get("pending", {})),
        )

    def _check(self, snapshot: _Log) -> None:
        self._check_exports(snapshot)
        if not snapshot.last:
            self._check_other_writers()

    def _files(self, snapshot: _Log) -> tuple[DataFile, ...]:
        if self._export(snapshot):
            raise UnsupportedTargetError(
                "the files of a Parquet folder cannot be replaced in one step: compact into a new"
                " folder, or into a Delta or Iceberg table",
                uri=self._uri,
            )
        return ()

    def _contents(self, snapshot: _Log) -> TableContents:
        """See `ExportTable.contents`. Raises `DataLossError` if a committed file is missing or was
        changed.
        """
        listed = {entry.key: entry.size for entry in self._target.list_objects("")}
        ids: dict[Owner, set[str]] = {}
        rows = Counter[Owner]()
        files: list[DataFile] = []
        for number in range(1, snapshot.last + 1):
            document = self._read(number)
            for file in map(WrittenFile.from_json, document["files"]):
                size = listed.pop(file.name, None)
                if document["exportId"] != self._settings.export_id:
                    continue
                self._check_file(file, size)
                files.append(DataFile(file.name, file.size, _path_values(file.name)))
                owner = (file.topic, file.partition)
                rows[owner] += file.rows
                ids.setdefault(owner, set()).add(file.topic_id)
        for key, size in listed.items():
            if key.lower().endswith((".parquet", ".parq", ".pq")) and not _is_hidden(key):
                files.append(DataFile(key, size, _path_values(key)))

        def counts(topic: str, partition: int) -> RowCount:
            owner = (topic, partition)
            return RowCount(rows[owner], max(0, len(ids.get(owner, ())) - 1))

        return TableContents(self._target, tuple(files), False, counts, lambda: None)

    def _check_file(self, file: WrittenFile, size: int | None) -> None:
        """Raises `DataLossError` if a committed file is missing, or if its size or number of rows
        has changed. `size` is the size in the listing, or `None`.
        """
        state = ""
        if size is None:
            state = "is missing"
        elif size != file.size:
            state = f"has {size} bytes but was committed with {file.size} bytes"
        else:
            rows = count_rows(self._target, DataFile(file.name, size, {}))
            if rows != file.rows:
                state = f"has {rows} rows but was committed with {file.rows} rows"
        if state:
            raise DataLossError(
                f"file {file.name} of the folder {state}: another writer deleted or replaced it, so"
                f" rows of offsets [{file.start}, {file.stop}) are lost. Restore the file from a"
                " backup, or export into another folder",
                topic=file.topic,
                partition=file.partition,
                offset=file.start,
                uri=self._target.uri(file.name),
            )

    def _committed_keys(self, snapshot: _Log) -> set[str]:
        """Returns the keys of the commit log's own files. Data files of commits are not included,
        because they are not in `_kts/` any more.
        """
        numbers = range(1, snapshot.last + 1)
        return {_key(number, kind) for number in numbers for kind in ("json", "published")}

    def _try_commit(
        self, snapshot: _Log, commit: Commit, moved: Mapping[PartitionKey, OffsetRange]
    ) -> bool:
        number = snapshot.last + 1
        document = self._document(snapshot, commit, moved)
        data = json.dumps(document, ensure_ascii=False, indent=1).encode()
        is_first = self._target.create(_key(number, "json"), data)
        if is_first:
            self._publish(number, document)
            self.created = self.created or number == 1
            self.version = f"commit file {number}"
        return is_first

    def _has_commit(self, before: _Log | None, after: _Log, commit: Commit) -> bool:
        number = 1 if before is None else before.last + 1
        if after.last < number:
            return False
        document = self._read(number)
        is_own = self._settings.export_id in document["exports"]
        return is_own and document.get("commitId") == commit.commit_id

    # -- other files of the folder

    def _check_exports(self, log: _Log) -> None:
        """Raises `UnsupportedTargetError` if another export in the folder has other partition
        columns than this export.

        Readers of a folder expect the same partition columns in the paths of all files.
        """
        asked = partition_rule(self._settings.partition_by)
        for name, export in log.document.get("exports", {}).items():
            there = export.get("fingerprint", {}).get("partitionBy", asked)
            if name != self._settings.export_id and there != asked:
                owner = f"the export {name!r} in the folder"
                raise partitioning_error(there, asked, self._uri, owner)

    def _check_other_writers(self) -> None:
        """Raises `UnsupportedTargetError` if the folder has a table of another format, or a file
        with other partition columns in its path than this export. Called before the first commit
        in the folder.
        """
        asked = ",".join(field.name for field in self._settings.partition_by)
        for entry in self._target.list_objects(""):
            other = _format_of(entry.key)
            if other:
                raise other_format_error(other, self._settings.table_format, self._uri)
            folders = entry.key.split("/")[:-1]
            there = ",".join(name.partition("=")[0] for name in folders if "=" in name)
            if not _is_hidden(entry.key) and there != asked:
                owner = f"the file {entry.key} in the folder"
                raise partitioning_error(there, asked, self._uri, owner)

    def _check_no_files(self, log: _Log) -> None:
        """Raises `ExportError` if the folder has files of this export. Called if the commit log has
        no commit of this export. Then it does not record which offsets such files contain.
        """
        own = f"{self._settings.export_id}-"
        others = [f"{name}-" for name in log.document.get("exports", {}) if name.startswith(own)]
        for entry in self._target.list_objects(""):
            name = entry.key.rpartition("/")[2]
            if name.startswith(own) and _FILE.search(name) and not name.startswith(tuple(others)):
                raise ExportError(
                    f"the folder has files of the export {self._settings.export_id!r}, but"
                    f" {COMMITS} does not record which offsets are in them: {COMMITS} was deleted,"
                    " or was not copied with the files. All rows would be written again. Restore"
                    f" {COMMITS}, or export into another folder",
                    uri=self._target.uri(entry.key),
                )

    # -- the log

    def _read(self, number: int) -> dict[str, Any]:
        key = _key(number, "json")
        document: dict[str, Any] = json.loads(self._target.read(key))
        check_state_version(document.get("version"), self._target.uri(key))
        return document

    def _ranges(self, log: _Log) -> dict[PartitionKey, OffsetRange]:
        return {
            PartitionKey(entry["topicId"], entry["partition"]): OffsetRange(
                entry["start"], entry["stop"], entry["epoch"]
            )
            for entry in self._export(log).get("ranges", ())
        }

    def _export(self, log: _Log) -> dict[str, Any]:
        export: dict[str, Any] = log.document.get("exports", {}).get(self._settings.export_id, {})
        return export

    def _document(
        self, log: _Log, commit: Commit, moved: Mapping[PartitionKey, OffsetRange]
    ) -> dict[str, Any]:
        export = self._export(log)
        letters = export.get("letters") if commit.letters is None else commit.letters
        # Record the schema only if columns are decoded, because later commits may add fields to
        # decoded columns.
        schema = export.get("schema")
        if commit.schema is not None and commit.typed:
            schema = schema_text(commit.schema)
        ranges = [
            {
                "topicId": key.topic_id,
                "partition": key.partition,
                "start": span.start,
                "stop": span.stop,
                "epoch": span.epoch,
            }
            for key, span in sorted({**self._ranges(log), **moved}.items())
        ]
        topics = {advance.topic: advance.key.topic_id for advance in commit.advances}
        return {
            "version": STATE_VERSION,
            "exportId": self._settings.export_id,
            "runId": commit.run_id,
            "commitId": commit.commit_id,
            "committedAtMs": time.time_ns() // 1_000_000,
            "files": [asdict(file) for file in commit.files],
            # Write the whole state into every commit, so that reading the newest commit is enough.
            "exports": {
                **log.document.get("exports", {}),
                self._settings.export_id: {
                    "fingerprint": dict(commit.fingerprint),
                    "letters": letters,
                    "schema": schema,
                    "ranges": ranges,
                    "topics": export.get("topics", {}) | topics,
                    "replayed": [*export.get("replayed", ()), *map(replay_id, commit.replayed)],
                    "pending": with_pending(
                        export.get("pending", {}), commit.pending, self._settings.dead_letters
                    ),
                },
            },
        }

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
        self._target.create(_key(number, "published"), b"")


def _key(number: int, kind: str) -> str:
    return f"{COMMITS}{number:010d}.{kind}"


def _format_of(key: str) -> str:
    """Returns the table format that writes metadata files with this key; empty if none does."""
    if key.startswith("_delta_log/"):
        return DELTA
    is_iceberg = key.startswith("metadata/") and key.endswith(".metadata.json")
    return ICEBERG if is_iceberg else ""


def _is_hidden(key: str) -> bool:
    """Returns True if readers of a folder skip the file, because a name in its path begins with `_`
    or `.`.
    """
    return any(name.startswith(("_", ".")) for name in key.split("/"))


def _path_values(key: str) -> dict[str, str | None]:
    """Returns the partition values in the folder names of `key`, by column name."""
    pairs = (folder.partition("=") for folder in key.split("/")[:-1] if "=" in folder)
    return {
        unquote(name): None if value == NULL_FOLDER else unquote(value) for name, _, value in pairs
    }
