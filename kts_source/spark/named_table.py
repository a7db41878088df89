"""Tables by catalog name, to which Spark appends the rows of each wave with its own writer."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kts_source.errors import ExportError, StoreUnavailableError, TieredKafkaError
from kts_source.export.partitioning import with_made_columns
from kts_source.export.settings import name_parts
from kts_source.export.tables.export_table import Commit, ExportTable, TableContents
from kts_source.export.tables.library_errors import is_outage
from kts_source.secret import scrub
from kts_source.spark.row_frames import spark_schema
from kts_source.store.storage_options import secret_values
from kts_source.texts import whole_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from kts_source.export.parquet_file import DataFile
    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.export_table import Snapshot
    from kts_source.spark.row_frames import RowExecutor

ELSEWHERE: Final = "Export into another table"


class NamedTable(ExportTable):
    """A table in a catalog of Spark. There is a subclass for each table format.

    Args:
        settings: Settings of the export.
        executor: Has run the tasks whose rows are committed.
    """

    def __init__(self, settings: ExportSettings, executor: RowExecutor) -> None:
        super().__init__(settings)
        self._executor = executor
        self._spark = executor.spark
        self._name = ".".join(f"`{part}`" for part in name_parts(settings.target))
        self._written: dict[str, tuple[int, int]] = {}

    @contextmanager
    def marked(self, run_id: str) -> Iterator[None]:
        """Needs no mark, because commands of the format remove files of failed runs."""
        del run_id
        yield

    def written(self, commits: Iterable[Commit]) -> tuple[int, int]:
        """See `ExportTable.written`. Returns the numbers that Spark recorded."""
        pairs = [self._written.get(commit.commit_id, (0, 0)) for commit in commits]
        return sum(files for files, _ in pairs), sum(size for _, size in pairs)

    def discard(self, files: object) -> None:
        """Frees the rows of tasks that run again."""
        del files
        self._executor.release()

    def _root(self) -> str:
        return self._settings.target

    @abstractmethod
    def _create_with(self, empty: DataFrame) -> None:
        """Creates the table with the columns of `empty`."""

    def _create_empty(self, commit: Commit) -> None:
        """Creates the table without rows, unless another export creates it first."""
        try:
            self._create_with(self._spark.createDataFrame([], self._columns(commit)))
            self.created = True
        except Exception as error:  # every error of Spark becomes one of ours
            failure = self._spark_error("the table cannot be created", error)
            if self._open() is None:  # otherwise, another export has created it
                raise failure from error

    def _columns(self, commit: Commit) -> StructType:
        """Returns the columns of the rows, including partition columns."""
        assert commit.schema is not None
        fields = self._settings.partition_by
        return spark_schema(with_made_columns(commit.schema, fields, self._values_in))

    def _rows(self, commit: Commit, table: StructType) -> DataFrame:
        """Returns the rows of a commit. `table` are the columns of the table.

        Raises:
            ExportError: The rows do not fit the table, or Spark no longer has them.
        """
        columns = self._columns(commit)
        _check_columns(table, columns, self._uri)
        rows = self._executor.rows(commit.files)
        return self._spark.createDataFrame([], columns) if rows is None else rows

    def _spark_error(self, text: str, error: Exception) -> TieredKafkaError:
        """Converts an exception of Spark. The message has no Java stack trace."""
        kind = StoreUnavailableError if is_outage(error) else ExportError
        reason = whole_line(str(error).partition("\n\tat ")[0])
        reason = scrub(reason, secret_values(self._settings.storage.reveal()))
        return kind(f"{text}: {type(error).__name__}: {reason}", uri=self._uri)

    # `ExportSettings` refuses everything that needs the files of the table.

    def _files(self, snapshot: Snapshot) -> tuple[DataFile, ...]:
        raise NotImplementedError

    def _contents(self, snapshot: Snapshot) -> TableContents:
        raise NotImplementedError

    def _committed_keys(self, snapshot: Snapshot) -> set[str]:
        raise NotImplementedError

    def _require_files(self, commit: Commit) -> None:
        """Does nothing, because Spark has the rows."""


def _check_columns(table: StructType, rows: StructType, uri: str) -> None:
    """Raises `ExportError` if a column of the rows is missing in the table or has another type, or
    if the table has a further column that must not be null.
    """
    there = {field.name: field for field in table.fields}
    names = set(rows.names)
    different = [f"it has no column {name}" for name in rows.names if name not in there]
    for field in rows.fields:
        kind, wanted = (
            each.dataType.simpleString() for each in (there.get(field.name, field), field)
        )
        if kind != wanted:
            different.append(f"{field.name} is {kind} there and {wanted} in the rows")
    different += [
        f"its column {name} must not be null, and the rows have none"
        for name, field in there.items()
        if name not in names and not field.nullable
    ]
    if different:
        raise ExportError(
            f"the rows do not fit the table: {'; '.join(different)}. {ELSEWHERE}, or change the"
            " columns of the rows with columns=…",
            uri=uri,
        )
