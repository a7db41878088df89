"""A scan as a `pyarrow.dataset.Dataset`, for DuckDB and other engines that can query datasets.

pyarrow's scanner for batches from Python reads ahead in threads of Arrow. If these threads call
Python while the interpreter exits, the process hangs or aborts. Therefore `TierScanner` reads a
batch only when its consumer requests one.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from kts_source.engines.conditions import columns_in, implied_condition
from kts_source.read.handover import in_threads

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from kts_source.engines.base_scan import BaseScan


Columns = Sequence[str] | Mapping[str, pc.Expression]
"""Names of columns in order, or expressions by name of the result column."""

_IGNORED: Final = frozenset(
    (
        "batch_readahead",
        "cache_metadata",
        "fragment_readahead",
        "fragment_scan_options",
        "memory_pool",
        "use_threads",
    )
)
"""Arguments of pyarrow's scanners that only affect how files are read."""
_NO_FILES: Final = (
    "a TierDataset has no files for pyarrow to scan: call its own methods, such as to_table(), or"
    " pass Scan.to_reader() or Scan.to_table() instead of the dataset"
)


class _NoFile(io.RawIOBase):
    """A file object that cannot be read. Reading raises an error that explains which methods of the
    dataset work.
    """

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> NoReturn:
        raise NotImplementedError(_NO_FILES)

    def tell(self) -> NoReturn:
        raise NotImplementedError(_NO_FILES)

    def read(self, size: int = -1, /) -> NoReturn:
        raise NotImplementedError(_NO_FILES)


class TierDataset(ds.UnionDataset):  # type: ignore[misc]  # pyarrow ships no types
    """The rows of a scan as a dataset. Each query reads only the columns and rows that it needs.

        tier = kts_source.scan(source).to_dataset()
        duckdb.sql("select count(*) from tier where partition = 1")

    DuckDB does not evaluate the filters that it passes to a dataset. So `TierDataset` evaluates
    them for each row.

    The methods of `pyarrow.dataset.Dataset` work. Some functions of pyarrow read a dataset without
    calling its methods, for example `Scanner.from_dataset` and `write_dataset`. They raise an
    error.

    Args:
        condition: Condition of the rows. Rows for which it is not true are skipped.
    """

    def __init__(self, scan: BaseScan, condition: pc.Expression | None = None) -> None:
        # Arrow scans this file. Without it, Arrow would dereference a null pointer.
        fragment = ds.IpcFileFormat().make_fragment(_NoFile())
        no_files = ds.FileSystemDataset([fragment], scan.schema, ds.IpcFileFormat())
        super().__init__(scan.schema, [no_files])
        self._scan = scan
        self._condition = condition

    @property
    def schema(self) -> pa.Schema:
        """Schema of the rows."""
        return self._scan.schema

    @property
    def children(self) -> list[ds.Dataset]:
        """An empty list, because this dataset does not consist of other datasets."""
        return []

    def scanner(
        self,
        columns: Columns | None = None,
        filter: pc.Expression | None = None,  # pyarrow's name
        batch_size: int | None = None,
        **arguments: Any,  # noqa: ANN401  # see `_IGNORED`
    ) -> TierScanner:
        """Returns an object that reads the rows of one query. It has the methods of a pyarrow
        `Scanner`.

        Args:
            columns: The columns of the result: a list of names, or a map from the name of a result
                column to its expression. Default: all columns.
            filter: Condition of the rows. Rows for which it is not true are skipped.
            batch_size: Maximum number of rows of a batch.
            **arguments: Other arguments of `pyarrow.dataset.Dataset.scanner`; they have no effect.

        Raises:
            TypeError: An argument is not an argument of pyarrow's method.
        """
        if unknown := arguments.keys() - _IGNORED:
            raise TypeError(f"scanner() got an unexpected keyword argument {min(unknown)!r}")
        condition = self._condition if filter is None else filter
        if self._condition is not None and filter is not None:
            condition = self._condition & filter
        if columns is not None:
            columns = dict(columns) if isinstance(columns, Mapping) else list(columns)
        return TierScanner(self._scan, columns, condition, batch_size)

    def filter(self, expression: pc.Expression) -> TierDataset:
        """Returns a dataset with the rows for which `expression` is true."""
        if not isinstance(expression, pc.Expression):
            raise TypeError(f"filter() takes a pyarrow.compute.Expression, not {expression!r}")
        condition = expression if self._condition is None else self._condition & expression
        return TierDataset(self._scan, condition)

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[ds.Fragment]:
        """Yields one fragment per task of the plan, with the rows of the task in memory. `filter`
        is only used to skip rows: some rows for which it is not true may be returned.
        """
        scan = self._scan
        if scan.is_limited:
            yield from ds.InMemoryDataset(scan.to_table()).get_fragments()
            return
        certain = None if filter is None else implied_condition(filter, scan.schema)
        scan = scan if certain is None else scan.where_predicate(certain)
        for task in scan.tasks:
            with closing(scan.read_task(task)) as batches:
                table = pa.Table.from_batches(batches, scan.schema)
            yield from ds.InMemoryDataset(table).get_fragments()

    def replace_schema(self, schema: pa.Schema) -> TierDataset:
        """Returns a copy of this dataset if `schema` equals the current schema.

        Raises:
            ValueError: The schema differs. Select or cast columns instead.
        """
        if not self.schema.equals(schema):
            raise ValueError(
                "the schema of a TierDataset cannot be replaced: select columns by"
                " Scan.select(), or cast the table"
            )
        return TierDataset(self._scan, self._condition)

    def sort_by(self, sorting: Any, **arguments: Any) -> ds.InMemoryDataset:  # noqa: ANN401
        """Reads all rows into memory and sorts them; see `pyarrow.Table.sort_by`."""
        return ds.InMemoryDataset(self.to_table().sort_by(sorting, **arguments))

    def join(self, right_dataset: ds.Dataset, *arguments: Any, **named: Any) -> ds.InMemoryDataset:  # noqa: ANN401
        """Reads all rows into memory and joins them; see `pyarrow.dataset.Dataset.join`."""
        left = ds.InMemoryDataset(self.to_table())
        return left.join(_in_memory(right_dataset), *arguments, **named)

    def join_asof(
        self,
        right_dataset: ds.Dataset,
        *arguments: Any,  # noqa: ANN401
        **named: Any,  # noqa: ANN401
    ) -> ds.InMemoryDataset:
        """Reads all rows into memory and joins them; see `pyarrow.dataset.Dataset.join_asof`."""
        left = ds.InMemoryDataset(self.to_table())
        return left.join_asof(_in_memory(right_dataset), *arguments, **named)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the scan and the condition. The pickle contains credentials as `Secret`."""
        return type(self), (self._scan, self._condition)

    def _repr_html_(self) -> str:
        return self._scan._repr_html_()  # the name that notebooks call


class TierScanner:
    """Reads the rows of one query on a `TierDataset`. Has the methods of a pyarrow `Scanner`.

    Args:
        columns: The columns of the result: a list of names, or a map from the name of a result
            column to its expression. `None` = all columns.
        condition: Condition of the rows. Rows for which it is not true are skipped; `None` = all
            rows.
        batch_size: Maximum number of rows of a batch.

    Raises:
        ArrowInvalid: A column does not exist, or the condition cannot be evaluated.
    """

    def __init__(
        self,
        scan: BaseScan,
        columns: Columns | None,
        condition: pc.Expression | None,
        batch_size: int | None,
    ) -> None:
        self.dataset_schema = scan.schema
        # A pyarrow scanner on an empty table with the same schema checks the arguments.
        empty = ds.InMemoryDataset(scan.schema.empty_table())
        self.projected_schema = empty.scanner(columns=columns, filter=condition).projected_schema
        self._columns = columns
        self._condition = condition
        self._batch_size = batch_size
        self._scan = _needed(scan, columns, condition)

    def to_batches(self) -> Generator[pa.RecordBatch]:
        """Yields the rows in batches. Close the generator to cancel pending requests."""
        with closing(in_threads([self._batches], 1, ordered=True)) as batches:
            yield from batches

    def scan_batches(self) -> Iterator[ds.TaggedRecordBatch]:
        """Yields each batch together with a fragment that contains the batch in memory, as
        pyarrow's method does.
        """
        for batch in self.to_batches():
            (fragment,) = ds.InMemoryDataset(batch).get_fragments()
            yield ds.TaggedRecordBatch(batch, fragment)

    def to_reader(self) -> pa.RecordBatchReader:
        """Returns the rows as a stream of batches."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        """Reads all rows into memory."""
        return pa.Table.from_batches(self.to_batches(), self.projected_schema)

    def head(self, num_rows: int) -> pa.Table:
        """Returns the first `num_rows` rows. Stops reading after the batch with the last of these
        rows.
        """
        batches: list[pa.RecordBatch] = []
        missing = num_rows
        with closing(self.to_batches()) as rows:
            while missing > 0 and (batch := next(rows, None)) is not None:
                batches.append(batch.slice(0, missing))
                missing -= batch.num_rows
        return pa.Table.from_batches(batches, self.projected_schema)

    def take(self, indices: Any) -> pa.Table:  # noqa: ANN401  # as pyarrow's
        """Returns the rows with the numbers in `indices`, counted from 0. Reads all rows."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """Returns the number of rows. Reads all rows."""
        return sum(batch.num_rows for batch in self.to_batches())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Exports the rows as a new stream to other Arrow libraries."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        with closing(self._scan.batches()) as batches:
            for batch in batches:
                for rows in self._selected(batch):
                    yield from _pieces(rows, self._batch_size)

    def _selected(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Applies the condition of the query to one batch, and computes the columns of the
        result.
        """
        names = self.projected_schema.names
        plain = self._columns is None or not isinstance(self._columns, dict)
        if plain and self._condition is None and set(names) <= set(batch.schema.names):
            return (batch.select(names),)
        padded = pa.Table.from_batches([self._padded(batch)])
        if plain and set(names) <= set(padded.schema.names):
            table = _filtered(padded, self._condition).select(names)
        else:
            scanner = ds.InMemoryDataset(padded).scanner(
                columns=self._columns, filter=self._condition, use_threads=False
            )
            table = scanner.to_table()
        return chain(table.to_batches())

    def _padded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Adds the columns of the dataset that were not read, filled with nulls, because
        expressions may refer to columns by number.
        """
        if batch.schema.equals(self.dataset_schema):
            return batch
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        return pa.RecordBatch.from_arrays(
            [
                columns[field.name]
                if field.name in columns
                else pa.nulls(batch.num_rows, field.type)
                for field in self.dataset_schema
            ],
            schema=self.dataset_schema,
        )


def _needed(scan: BaseScan, columns: Columns | None, condition: pc.Expression | None) -> BaseScan:
    """Returns a scan of the columns that a query uses. If `implied_condition` can translate a part
    of `condition`, the scan skips rows for which this part is not true.
    """
    needed = set(scan.columns)
    if isinstance(columns, dict):
        needed = set(chain(*(columns_in(value, scan.columns) for value in columns.values())))
    elif columns is not None:
        needed = set(columns)
    if condition is not None:
        needed |= set(columns_in(condition, scan.columns))
        certain = None if scan.is_limited else implied_condition(condition, scan.schema)
        scan = scan if certain is None else scan.where_predicate(certain)
    wanted = [name for name in scan.columns if name in needed]
    return scan.select(wanted or scan.columns[:1])


def _filtered(table: pa.Table, condition: pc.Expression | None) -> pa.Table:
    """Returns the rows of a table for which `condition` is true. Does not start threads."""
    if condition is None:
        return table
    from pyarrow import acero

    steps = (
        acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
        acero.Declaration("filter", acero.FilterNodeOptions(condition)),
    )
    return acero.Declaration.from_sequence(steps).to_table(use_threads=False)


def _pieces(batch: pa.RecordBatch, max_rows: int | None) -> Iterator[pa.RecordBatch]:
    size = max_rows or max(batch.num_rows, 1)
    for start in range(0, batch.num_rows, size):
        yield batch.slice(start, size)


def _in_memory(dataset: Any) -> Any:  # noqa: ANN401  # pyarrow's
    return ds.InMemoryDataset(dataset.to_table()) if isinstance(dataset, TierDataset) else dataset
