"""Iceberg tables by catalog name: Spark appends the rows of each wave with its own Iceberg writer.

The state is the same as in `export.tables.iceberg`, so runs with and without a catalog name
continue each other's tables. A commit has three steps:

1. It creates a branch at the compared snapshot.
2. Spark appends the rows to the branch. Readers of the table do not see them.
3. One transaction makes the branch's snapshot the current one (`fastForwardBranch`), sets the
   properties with the state, and removes the branches of all exports. It fails if the current
   snapshot is no longer the compared one.

If a run dies before the third step, its branch remains until the next commit of an export. Another
run that is still appending to a branch also loses it then. It could not commit anyway, so it
compares the new snapshot and appends its rows again.
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.functions import col, lit, partitioning

from kts_source.errors import TieredKafkaError, UnsupportedTargetError
from kts_source.export.settings import name_parts
from kts_source.export.tables.iceberg import (
    IcebergExportTable,
    ancestors,
    check_partitioning,
    commit_summary,
    summary_of,
)
from kts_source.spark.named_table import NamedTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import DataFrame

    from kts_source.export.ranges import OffsetRange, PartitionKey
    from kts_source.export.tables.export_table import Commit

_BRANCH: Final = "kts_"
_RENAME: Final = re.compile("(?:file|hdfs|viewfs|abfss?):")
"""Begin of the locations in which a rename of a file does not replace another file."""
_CONFLICT: Final = re.compile(
    r"CommitFailedException|is not an ancestor of|(?:Ref|Branch|Tag) does not exist"
    r"|Cannot use branch \(does not exist\)"
)


class NamedIcebergTable(NamedTable, IcebergExportTable):
    """An Iceberg table in a catalog of Spark; see the module docstring."""

    def _open(self) -> Table | None:
        from pyiceberg.catalog.noop import NoopCatalog
        from pyiceberg.io.pyarrow import PyArrowFileIO
        from pyiceberg.table import Table
        from pyiceberg.table.metadata import TableMetadataUtil

        iceberg = self._iceberg
        try:
            if not self._spark.catalog.tableExists(self._name):
                return None
            self._spark.catalog.refreshTable(self._name)  # another process may have dropped it
            if not self._spark.catalog.tableExists(self._name):
                return None
            operations = self._java_table().operations()
            text = iceberg.TableMetadataParser.toJson(operations.current())
            metadata = TableMetadataUtil.parse_raw(text)
            is_hadoop = operations.getClass().getSimpleName() == "HadoopTableOperations"
        except Exception as error:  # every error of Spark becomes one of ours
            raise self._spark_error("the table cannot be read", error) from error
        if is_hadoop and not _RENAME.match(metadata.location):
            raise UnsupportedTargetError(
                "a Hadoop catalog commits by renaming a file. In this store, a rename can replace"
                " the commit of another run. Use another catalog, such as REST, Hive or JDBC",
                uri=metadata.location,
            )
        name = name_parts(self._settings.target)
        return Table(name, metadata, "", PyArrowFileIO(), NoopCatalog(name[0]))

    @property
    def _iceberg(self) -> Any:  # noqa: ANN401  # a package of Java
        java = getattr(self._spark, "_jvm", None)
        if java is None:
            raise UnsupportedTargetError(
                "Spark Connect cannot commit to an Iceberg table by name: use a session without"
                " Connect, or remove writer and name the catalog of PyIceberg in catalog=…",
                uri=self._uri,
            )
        return java.org.apache.iceberg

    def _java_table(self) -> Any:  # noqa: ANN401  # a class of Java
        """Returns the current table. Spark's cache of tables has the same object, so this also
        refreshes it.
        """
        spark: Any = self._spark
        util = self._iceberg.spark.Spark3Util
        table = util.loadIcebergTable(spark._jsparkSession, self._name)  # noqa: SLF001
        table.refresh()
        return table

    def _has_files(self, snapshot: Table, prefix: str) -> bool:
        del snapshot
        try:
            paths = self._spark.table(f"{self._name}.`files`").select("file_path")
            return not paths.where(paths["file_path"].startswith(prefix)).isEmpty()
        except Exception as error:  # every error of Spark becomes one of ours
            raise self._spark_error("the files of the table cannot be listed", error) from error

    def _check(self, snapshot: Table) -> None:
        check_partitioning(snapshot, self._settings.partition_by, self._uri)

    def _create_with(self, empty: DataFrame) -> None:
        transforms = {
            "day": partitioning.days,
            "month": partitioning.months,
            "hour": partitioning.hours,
            "identity": col,
        }
        columns = [
            transforms[field.transform](f"`{field.column}`")
            for field in self._settings.partition_by
        ]
        writer = empty.writeTo(self._name).using("iceberg")
        (writer.partitionedBy(*columns) if columns else writer).create()

    def _try_commit(
        self,
        snapshot: Table | None,
        commit: Commit,
        moved: Mapping[PartitionKey, OffsetRange],
    ) -> bool:
        if snapshot is None:
            self._create_empty(commit)
            return False  # the next attempt compares the table, whoever has created it
        branch = f"{_BRANCH}{uuid.uuid4().hex}"
        try:
            staged = self._stage(snapshot, commit, branch)
            if staged is not None:
                self._publish(branch, self._new_properties(snapshot, commit, moved))
        except TieredKafkaError:
            raise
        except Exception as error:  # every error of Spark becomes one of ours
            if not _CONFLICT.search(str(error)):
                raise self._spark_error("Spark's commit to the table failed", error) from error
            staged = None
        if staged is None:
            return False
        self._note(staged, commit)
        return True

    def _stage(self, planned: Table, commit: Commit, branch: str) -> Snapshot | None:
        """Appends the rows to a new branch, and returns its snapshot. Returns `None` if the current
        snapshot of `planned` is no longer current.
        """
        columns = self._spark.table(self._name).schema
        rows = self._rows(commit, columns)
        self._create_branch(branch)
        start = self._open()
        base = None if start is None else start.snapshot_by_name(branch)
        current = planned.metadata.current_snapshot_id
        if start is None or base is None or start.metadata.current_snapshot_id != current:
            return None
        # If the table has no snapshot, the branch begins with an empty one.
        if current not in (None, base.snapshot_id):
            return None
        rows = rows.withColumns(
            {
                field.name: lit(None).cast(field.dataType)
                for field in columns
                if field.name not in rows.columns
            }
        )
        writer = rows.writeTo(f"{self._name}.`branch_{branch}`")
        for name, text in commit_summary(commit, self._own).items():
            writer = writer.option(f"snapshot-property.{name}", text)
        writer.append()
        end = self._open()
        staged = None if end is None else end.snapshot_by_name(branch)
        # If another run has removed the branch, Iceberg creates it again at the current snapshot.
        is_next = staged is not None and staged.parent_snapshot_id == base.snapshot_id
        return staged if is_next else None

    def _create_branch(self, branch: str) -> None:
        try:
            self._java_table().manageSnapshots().createBranch(branch).commit()
        except Exception as error:
            if _CONFLICT.search(str(error)):
                raise
            text = "no branch can be created. If the catalog has no branches, use another one"
            raise self._spark_error(text, error) from error

    def _publish(self, branch: str, properties: Mapping[str, str]) -> None:
        """Makes the snapshot of a branch the current one, and sets properties of the table."""
        transaction = self._java_table().newTransaction()
        update = transaction.updateProperties()
        for name, text in properties.items():
            update.set(name, text)
        update.commit()
        references = transaction.manageSnapshots().fastForwardBranch("main", branch)
        for name in list(transaction.table().refs()):
            if name.startswith(_BRANCH):
                references.removeBranch(name)
        references.commit()
        transaction.commitTransaction()

    def _note(self, staged: Snapshot, commit: Commit) -> None:
        self._executor.release()
        self.version = f"snapshot {staged.snapshot_id}"
        files, size = (
            int(summary_of(staged, name) or 0) for name in ("added-data-files", "added-files-size")
        )
        self._written[commit.commit_id] = files, size

    def _has_commit(self, before: Table | None, after: Table, commit: Commit) -> bool:
        del before
        # Branches may have snapshots of earlier attempts.
        return any(
            summary_of(each, "kts.commit") == commit.commit_id
            for each in ancestors(after, after.current_snapshot())
        )
