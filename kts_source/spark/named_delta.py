"""Delta tables by catalog name: Spark appends the rows of each wave with its own Delta writer.

So catalogs, table properties, clustering, row tracking and every store that Spark can write are
supported.

The `userMetadata` of a commit has the state of all exports of the table as JSON:

    {"kts": {"version": 2, "sequence": n, "commit": commit id, "exports": {export id: {
        "ranges": {topic id: {partition: [start, stop, epoch]}},
        "rules": {name: text}, "topics": {name: topic id},
        "counts": {topic: {partition: [rows, restarts]}}, "letters": number or null}}}}

A commit also has a `txn` action with the key `kts` and the version `sequence`, in which Delta
allows each version once and in increasing order. A commit is written with the sequence after the
compared one. If another export has committed in the meantime, Delta either skips this commit or
raises an error, and the newer state is compared. If the history no longer has the last state, all
later commits are skipped, and the export fails.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import ExportError, TieredKafkaError, UnsupportedTargetError
from kts_source.export.ranges import OffsetRange, PartitionKey, Rollback
from kts_source.export.tables.delta import SPARK_APP_ID, TXN_RETENTION, is_after_target
from kts_source.export.tables.export_table import (
    STATE_VERSION,
    Commit,
    RowCount,
    TableState,
    check_state_version,
    partitioning_error,
)
from kts_source.spark.named_table import ELSEWHERE, NamedTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.types import StructType

_CONFLICT: Final = re.compile(
    r"DELTA_CONCURRENT_|DELTA_METADATA_CHANGED|DELTA_PROTOCOL_CHANGED"
    r"|(?:Concurrent\w+|MetadataChanged|ProtocolChanged)Exception"
)
_PREFIX: Final = '{"kts":'


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A table, and the newest commit of an export in its history.

    Attributes:
        schema: Columns of the table.
        partition_columns: Names of the partition columns.
        location: URL of the folder.
        entry: The newest commit of an export; `None` if the history has none.
        restores: Later `RESTORE` operations, newest first.
    """

    schema: StructType
    partition_columns: tuple[str, ...]
    location: str
    entry: Row | None
    restores: tuple[Row, ...]

    @property
    def state(self) -> dict[str, Any]:
        """State of all exports, as recorded by `entry`."""
        if self.entry is None:
            return {"version": STATE_VERSION, "sequence": 0, "commit": "", "exports": {}}
        state: dict[str, Any] = json.loads(self.entry["userMetadata"])["kts"]
        return state


class NamedDeltaTable(NamedTable):
    """A Delta table in a catalog of Spark; see the module docstring."""

    _values_in = "log"
    _folders = ("",)

    def _open(self) -> _Snapshot | None:
        try:
            if not self._spark.catalog.tableExists(self._name):
                return None
            (detail,) = self._spark.sql(f"DESCRIBE DETAIL {self._name}").collect()
            if detail["format"] != "delta":
                raise UnsupportedTargetError(
                    f"the table has the format {detail['format']}, but writer='spark' writes Delta"
                    f" tables only. {ELSEWHERE}",
                    uri=self._uri,
                )
            if duration := detail["properties"].get(TXN_RETENTION):
                raise UnsupportedTargetError(
                    f"the table deletes txn actions after a time ({TXN_RETENTION} = {duration})."
                    " They prevent that records are written again. Unset the property",
                    uri=self._uri,
                )
            return self._snapshot(detail)
        except TieredKafkaError:
            raise
        except Exception as error:  # every error of Spark becomes one of ours
            raise self._spark_error("the table cannot be read", error) from error

    def _snapshot(self, detail: Row) -> _Snapshot:
        history = self._spark.sql(f"DESCRIBE HISTORY {self._name}").selectExpr(
            *("version", "unix_millis(timestamp) as timestamp", "operation", "userMetadata"),
            *("operationParameters", "operationMetrics"),
        )
        ours = history.where(history["userMetadata"].startswith(_PREFIX))
        entries = ours.orderBy("version", ascending=False).limit(1).collect()
        later = history.where("operation = 'RESTORE'").orderBy("version", ascending=False)
        return _Snapshot(
            self._spark.table(self._name).schema,
            tuple(detail["partitionColumns"]),
            detail["location"],
            entries[0] if entries else None,
            tuple(row for row in later.collect() if row["version"] > entries[0]["version"])
            if entries
            else (),
        )

    def _state(self, snapshot: _Snapshot) -> TableState:
        check_state_version(snapshot.state["version"], self._uri)
        exports = snapshot.state["exports"]
        if not exports:
            self._check_no_paths(snapshot)
        own = exports.get(self._settings.export_id, {})
        counts = own.get("counts", {})
        holders = {
            key: export_id
            for export_id, state in exports.items()
            if export_id != self._settings.export_id
            for key in _ranges(state)
        }

        def count_of(topic: str, partition: int) -> RowCount | None:
            numbers = counts.get(topic, {}).get(str(partition))
            return None if numbers is None else RowCount(*numbers)

        return TableState(
            _ranges(own),
            own.get("rules", {}),
            letters=own.get("letters"),
            schema=lambda: _arrow_schema(snapshot.schema),
            topic_id=own.get("topics", {}).get,
            rollback=lambda: _rollback_of(snapshot),
            counts=count_of,
            holder=holders.get,
        )

    def _check_no_paths(self, snapshot: _Snapshot) -> None:
        """Raises `ExportError` if the table has files of an export that wrote to its path."""
        folder = f"{snapshot.location.rstrip('/').rpartition('/')[2]}/kts/"
        for path in self._spark.table(self._name).inputFiles():
            if folder in path:
                raise ExportError(
                    "the table has files of an export to its path, whose offsets this export"
                    " cannot read, so all rows would be written again. Continue with the path as"
                    f" target and without writer='spark', or export into another table: {path}",
                    uri=self._uri,
                )

    def _check(self, snapshot: _Snapshot) -> None:
        there = snapshot.partition_columns
        asked = [field.name for field in self._settings.partition_by]
        if sorted(there) != sorted(asked):
            raise partitioning_error(", ".join(there), ", ".join(asked), self._uri)

    def _try_commit(
        self,
        snapshot: _Snapshot | None,
        commit: Commit,
        moved: Mapping[PartitionKey, OffsetRange],
    ) -> bool:
        if snapshot is None:
            self._create_empty(commit)
            return False  # the next attempt compares the table, whoever has created it
        rows = self._rows(commit, snapshot.schema)
        sequence = snapshot.state["sequence"] + 1
        writer = rows.write.format("delta").mode("append").option("txnAppId", SPARK_APP_ID)
        writer = writer.option("txnVersion", sequence)
        writer = writer.option("userMetadata", self._metadata(snapshot, commit, moved, sequence))
        try:
            writer.saveAsTable(self._name)
        except Exception as error:  # every error of Spark becomes one of ours
            if _CONFLICT.search(str(error)):
                return False
            raise self._spark_error("Spark's commit to the table failed", error) from error
        after = self._open()
        assert after is not None
        if after.state["sequence"] < sequence:
            raise ExportError(
                "the table has a later commit of an export than its history, so the recorded"
                " offsets are lost, and nothing was committed: the history has expired"
                f" (delta.logRetentionDuration). {ELSEWHERE}",
                uri=self._uri,
            )
        if not self._has_commit(snapshot, after, commit):
            return False
        self._note(after, commit)
        return True

    def _note(self, after: _Snapshot, commit: Commit) -> None:
        self._executor.release()
        if after.entry is not None and after.state["commit"] == commit.commit_id:
            metrics = after.entry["operationMetrics"] or {}
            self.version = f"version {after.entry['version']}"
            figures = int(metrics.get("numFiles", 0)), int(metrics.get("numOutputBytes", 0))
            self._written[commit.commit_id] = figures

    def _has_commit(self, before: _Snapshot | None, after: _Snapshot, commit: Commit) -> bool:
        del before
        if after.state["commit"] == commit.commit_id:
            return True
        history = self._spark.sql(f"DESCRIBE HISTORY {self._name}")
        text = f'"commit": "{commit.commit_id}"'
        ours = history["userMetadata"]
        found = history.where(ours.startswith(_PREFIX) & ours.contains(text))
        return found.count() > 0

    def _create_with(self, empty: DataFrame) -> None:
        # Delta drops the `userMetadata` of the commit that creates a table.
        writer = empty.write.format("delta").mode("error")
        names = [field.name for field in self._settings.partition_by]
        writer.partitionBy(*names).saveAsTable(self._name)

    def _metadata(
        self,
        snapshot: _Snapshot,
        commit: Commit,
        moved: Mapping[PartitionKey, OffsetRange],
        sequence: int,
    ) -> str:
        """Returns the state of all exports after a commit as JSON."""
        exports = snapshot.state["exports"]
        before = exports.get(self._settings.export_id, {})
        ranges: dict[str, dict[str, Any]] = before.get("ranges", {})
        for key, span in moved.items():
            of_topic = ranges.setdefault(key.topic_id, {})
            of_topic[str(key.partition)] = [span.start, span.stop, span.epoch]
        counts: dict[str, dict[str, Any]] = before.get("counts", {})
        for (topic, partition), count in commit.counts.items():
            counts.setdefault(topic, {})[str(partition)] = [count.rows, count.restarts]
        topics = {advance.topic: advance.key.topic_id for advance in commit.advances}
        letters = before.get("letters") if commit.letters is None else commit.letters
        own = {
            "ranges": ranges,
            "rules": dict(commit.fingerprint),
            "topics": before.get("topics", {}) | topics,
            "counts": counts,
            "letters": letters,
        }
        state = {
            "version": STATE_VERSION,
            "sequence": sequence,
            "commit": commit.commit_id,
            "exports": exports | {self._settings.export_id: own},
        }
        return json.dumps({"kts": state})


def _ranges(state: Mapping[str, Any]) -> dict[PartitionKey, OffsetRange]:
    return {
        PartitionKey(topic_id, int(partition)): OffsetRange(*span)
        for topic_id, partitions in state.get("ranges", {}).items()
        for partition, span in partitions.items()
    }


def _arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema)


def _rollback_of(snapshot: _Snapshot) -> Rollback | None:
    """Returns what the table lost if a `RESTORE` removed the newest commit of an export."""
    if snapshot.entry is None:
        return None
    for row in snapshot.restores:
        if is_after_target(snapshot.entry.asDict(), row.asDict()):
            return Rollback(
                f"RESTORE in version {row['version']} of the table removed what version"
                f" {snapshot.entry['version']} added"
            )
    return None
