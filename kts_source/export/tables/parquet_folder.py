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
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import DataLossError, ExportError, UnsupportedTargetError
from kts_source.export.files import WrittenFile, schema_from_text, schema_text
from kts_source.export.partitioning import partition_rule
from kts_source.export.ranges import OffsetRange, PartitionKey
from kts_source.export.tables.export_table import (
    BaseFile,
    Commit,
    ExportTable,
    TableState,
    WritePlace,
    partitioned_otherwise,
)
from kts_source.export.tables.row_counts import ALWAYS, Owner, RowCount, TableContents
from kts_source.export.tables.table_files import path_values, rows_of_file
from kts_source.export.tables.target_store import require_create

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.target_store import TargetStore

ATTEMPTS: Final = "_kts/attempts/"
COMMITS: Final = "_kts/commits/"
# No glob for *.parquet finds them.
ATTEMPT_SUFFIX: Final = ".part"
FORMAT_VERSION: Final = 1

_COMMIT = re.compile(r"(?P<number>\d{10})\.(?P<kind>json|published)")
_FILE = re.compile(r"-\d+-\d{20}-\d{20}\.parquet\Z")
_PUBLISHING_THREADS = 16


@dataclass(frozen=True, slots=True)
class _Log:
    """The commit log as it stands: the number of the newest commit, 0 for none, and its JSON."""

    last: int
    document: Mapping[str, Any]


class ParquetFolder(ExportTable):
    """See the module's text; `target` is the store below `settings.target`."""

    _folders = ("_kts/",)
    # Each that fails is another export's that succeeds, and nothing else lets one fail.
    _commit_attempts = sys.maxsize

    def __init__(self, settings: ExportSettings, target: TargetStore) -> None:
        super().__init__(settings)
        self._target = target
        self._probed = False

    def place(self, run_id: str) -> WritePlace:
        """See `ExportTable.place`."""
        if not self._probed:
            require_create(self._target)
            self._probed = True
        return WritePlace(
            self._settings.target,
            self._settings.storage,
            f"{ATTEMPTS}{run_id}/",
            ATTEMPT_SUFFIX,
            "path",
        )

    def _open(self) -> _Log:
        """The log after every half-published commit was finished."""
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
        log = _Log(last, self._read(last) if last else {})
        for number in sorted(commits - published):
            self._publish(number, self._read(number))
        return log

    def _state(self, snapshot: _Log) -> TableState:
        export = self._export(snapshot)
        if not export:
            self._check_no_files(snapshot)
        return TableState(
            self._ranges(snapshot),
            export.get("fingerprint", {}),
            letters=export.get("letters"),
            schema=lambda: _schema(export),
            previous_id=lambda topic, topic_id: self._previous_id(snapshot, topic, topic_id),
            has_recorded=lambda topic: topic in export.get("topics", {}),
        )

    def _check(self, snapshot: _Log) -> None:
        self._check_exports(snapshot)
        if not snapshot.last:
            self._check_other_writers()

    def _files(self, snapshot: _Log) -> tuple[BaseFile, ...]:
        if self._export(snapshot):
            raise UnsupportedTargetError(
                "a folder of Parquet files cannot be replaced in one step: compact into a new"
                " folder, or into a Delta or Iceberg table",
                uri=self._uri,
            )
        return ()

    def _contents(self, snapshot: _Log) -> TableContents:
        """See `ExportTable.contents`: the folder has every file that a commit names, unchanged."""
        listed = {entry.key: entry.size for entry in self._target.list_objects("")}
        ids: dict[Owner, list[str]] = {}
        rows = Counter[Owner]()
        files: list[BaseFile] = []
        for number in range(1, snapshot.last + 1):
            document = self._read(number)
            for file in map(WrittenFile.from_json, document["files"]):
                size = listed.pop(file.name, None)
                if document["exportId"] != self._settings.export_id:
                    continue
                self._check_file(file, size)
                files.append(BaseFile(file.name, file.size, path_values(file.name)))
                owner = (file.topic, file.partition)
                rows[owner] += file.rows
                if file.topic_id not in ids.setdefault(owner, []):
                    ids[owner].append(file.topic_id)
        for key, size in listed.items():
            hidden = any(name.startswith(("_", ".")) for name in key.split("/"))
            if key.lower().endswith((".parquet", ".parq", ".pq")) and not hidden:
                files.append(BaseFile(key, size, path_values(key)))

        def counts(topic: str, partition: int) -> RowCount:
            owner = (topic, partition)
            return RowCount(rows[owner], ALWAYS, max(0, len(ids.get(owner, ())) - 1))

        return TableContents(self._target, tuple(files), False, counts, lambda: None)

    def _check_file(self, file: WrittenFile, size: int | None) -> None:
        """Compares a file of a commit with what the commit recorded.

        Raises:
            DataLossError: It is missing, or has another size or another number of rows.
        """
        state = ""
        if size is None:
            state = "is missing"
        elif size != file.size:
            state = f"has {size} bytes, and was committed with {file.size}"
        else:
            rows = rows_of_file(self._target, BaseFile(file.name, size, {}))
            if rows != file.rows:
                state = f"has {rows} rows, and was committed with {file.rows}"
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

    def _known(self, snapshot: _Log) -> set[str]:
        """The log itself: once published, committed files are not under `_kts/` any more."""
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
        return is_first

    def _has_commit(self, before: _Log | None, after: _Log, commit: Commit) -> bool:
        number = 1 if before is None else before.last + 1
        if after.last < number:
            return False
        document = self._read(number)
        is_own = self._settings.export_id in document["exports"]
        return is_own and document.get("commitId") == commit.commit_id

    # -- what else is in the folder

    def _check_exports(self, log: _Log) -> None:
        """Readers find the partition columns of a folder in all of its paths, or in none.

        Raises:
            UnsupportedTargetError: Other exports into the folder file their rows otherwise.
        """
        asked = partition_rule(self._settings.partition_by)
        for name, export in log.document.get("exports", {}).items():
            there = export.get("fingerprint", {}).get("partitionBy", asked)
            if name != self._settings.export_id and there != asked:
                owner = f"the export {name!r} in the folder"
                raise partitioned_otherwise(there, asked, self._uri, owner)

    def _check_other_writers(self) -> None:
        """The same for the files of other writers, before a folder's first commit."""
        asked = ",".join(field.name for field in self._settings.partition_by)
        for found in self._target.list_objects(""):
            *folders, name = found.key.split("/")
            there = ",".join(one.partition("=")[0] for one in folders if "=" in one)
            # What begins so, readers of folders leave out.
            hidden = any(one.startswith(("_", ".")) for one in (*folders, name))
            if not hidden and there != asked:
                owner = f"the file {found.key} in the folder"
                raise partitioned_otherwise(there, asked, self._uri, owner)

    def _check_no_files(self, log: _Log) -> None:
        """Raises where the folder has files of this export, and no commit of it."""
        own = f"{self._settings.export_id}-"
        others = [f"{name}-" for name in log.document.get("exports", {}) if name.startswith(own)]
        for entry in self._target.list_objects(""):
            name = entry.key.rpartition("/")[2]
            if name.startswith(own) and _FILE.search(name) and not name.startswith(tuple(others)):
                raise ExportError(
                    f"the folder holds files of the export {self._settings.export_id!r}, and"
                    f" {COMMITS} does not record which offsets are in them: the folder is a copy"
                    " without it, or it was deleted. All rows would be written again next to these"
                    " files. Restore it, or export into another folder; another export_id accepts"
                    " the files and writes all rows again",
                    uri=self._target.uri(entry.key),
                )

    def _previous_id(self, log: _Log, topic: str, topic_id: str) -> str | None:
        """See `TableState.previous_id`."""
        export = self._export(log)
        recorded: dict[str, str] = dict(export.get("topics", {}))
        if export and topic not in recorded:  # commits of earlier versions name topics of files
            for number in range(1, log.last + 1):
                document = self._read(number)
                if document["exportId"] == self._settings.export_id:
                    recorded |= {file["topic"]: file["topic_id"] for file in document["files"]}
        before = recorded.get(topic, topic_id)
        return None if before == topic_id else before

    # -- the log

    def _read(self, number: int) -> dict[str, Any]:
        key = _key(number, "json")
        document: dict[str, Any] = json.loads(self._target.read(key))
        if document.get("version") != FORMAT_VERSION:
            raise ExportError(
                f"a commit of unknown version {document.get('version')!r}",
                uri=self._target.uri(key),
            )
        return document

    def _ranges(self, log: _Log) -> dict[PartitionKey, OffsetRange]:
        return {
            PartitionKey(entry["topicId"], entry["partition"]): OffsetRange(
                entry["start"], entry["stop"], entry.get("epoch")
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
            "commitId": commit.commit_id,
            "committedAtMs": time.time_ns() // 1_000_000,
            "files": [asdict(file) for file in commit.files],
            # All ranges, so that the newest commit alone tells what the folder holds.
            "exports": {
                **log.document.get("exports", {}),
                self._settings.export_id: {
                    "fingerprint": dict(commit.fingerprint),
                    # The list of dead letters of the last commit with such.
                    "letters": self._export(log).get("letters")
                    if commit.letters is None
                    else commit.letters,
                    # Of decoded columns; files of earlier commits may have fewer fields.
                    "schema": self._export(log).get("schema")
                    if commit.schema is None or not commit.typed
                    else schema_text(commit.schema),
                    "ranges": [
                        {
                            "topicId": key.topic_id,
                            "partition": key.partition,
                            "start": span.start,
                            "stop": span.stop,
                            "epoch": span.epoch,
                        }
                        for key, span in sorted(ranges.items())
                    ],
                    # The id of each topic in its last commit.
                    "topics": self._export(log).get("topics", {})
                    | {advance.topic: advance.key.topic_id for advance in commit.advances},
                },
            },
        }

    # -- files

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


def _schema(export: Mapping[str, Any]) -> pa.Schema | None:
    """The columns of an export's rows; `None` where none is decoded."""
    text = export.get("schema")
    return None if text is None else schema_from_text(text)
