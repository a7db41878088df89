"""`kts_source.scan(source)`: reads the rows of a tier as Arrow batches, without Spark."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from kts_source.engines.base_scan import BaseScan, SharedPlan, thread_count
from kts_source.errors import InvalidOptionError
from kts_source.libraries import require
from kts_source.options import options_of
from kts_source.planning.infer_types import with_types
from kts_source.texts import Table, preview_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    import ray.data

    from kts_source.engines.duckdb_dataset import TierDataset
    from kts_source.finding.query import Conditions
    from kts_source.finding.search import Search
    from kts_source.options import OptionValue, PathOrOptions, ScanOptions
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.predicate.model import Predicate

_MAX_SHOWN: Final = 40
_TASK_BYTES: Final = 64 << 20
"""Default size of a task. Tasks are small, because ordered threads may wait for a whole task."""


def scan(source: PathOrOptions | None = None, **more: OptionValue) -> Scan:
    """Returns a scan of topics. Any engine that reads Arrow can use it.

    The store is not accessed until the plan or a row is needed, with one exception: if values are
    JSON without a schema, a sample is read immediately. Methods such as `select` return new scans,
    which share the plan of this scan, so all of them read the same offsets.

    Args:
        source: Options as for `spark.read.format("tiered-kafka")`, or the path of the tier;
            `None` = they are in `more`.
        **more: Options in addition to those in `source`.

    Raises:
        InvalidOptionError: An option is unknown, malformed or contradicts another option. Or the
            schema of JSON values cannot be inferred from the sample.
    """
    options = options_of(source, **more)
    if "targetPartitionBytes" not in options.given:
        options = replace(options, target_partition_bytes=_TASK_BYTES)
    # Key files are loaded now, because they may exist only on this machine.
    return Scan(replace(with_types(options), key_ring=options.key_ring.loaded()))


class Scan(BaseScan):
    """A table of Kafka records that is read lazily; see `scan`.

    `select`, `where` and `limit` return a new scan. Iterating over a scan yields its batches. A
    scan can be pickled; the pickle contains credentials as `Secret`, and the plan if it was already
    made.

    Args:
        where: Condition of the rows, in addition to option `where`.
        max_rows: Limit of the scan: it returns only the first `max_rows` rows. `None` = all rows.
        shared_plan: The plan of the scan that created this scan; `None` = make a new plan.
    """

    def where(self, condition: str) -> Self:
        """Returns a scan of the rows for which `condition` is true.

        The existing plan is used: tasks that cannot contain matching rows are skipped. Option
        `where` skips more data than this method, because planning then also uses the time indexes.

        Args:
            condition: A condition in the syntax of option `where`.

        Raises:
            InvalidOptionError: The condition cannot be parsed.
        """
        from kts_source.options.value_formats import fields_of_formats
        from kts_source.predicate.parse import parse_predicate

        zone, fields = self._options.time_zone, fields_of_formats(self._options.formats)
        return self.where_predicate(parse_predicate(condition, zone, fields=fields))

    def filter(self, condition: str) -> Self:
        """Returns a scan of the rows for which `condition` is true. Same as `where`."""
        return self.where(condition)

    def head(self, rows: int = 10) -> pa.Table:
        """Returns the first `rows` rows in the order of topic, partition and offset. Reads only the
        bytes of these rows and of some rows after them.

        Raises:
            TieredKafkaError: See `plan` and `read_task`.
            ValueError: `rows` is negative.
        """
        return self.limit(rows).to_table(threads=1)

    def show(self, rows: int = 10) -> None:
        """Prints the first `rows` rows. Bytes are printed as text if they are printable, and long
        values are truncated.
        """
        table = self.head(rows)
        cells = list(zip(*map(_shown, table.columns), strict=True))
        title = "" if cells else "no rows"
        sys.stdout.write(Table(title, table.column_names, cells).text() + "\n")

    def to_arrow(
        self, *, threads: int | None = None, progress: Callable[[int, int], object] | None = None
    ) -> pa.Table:
        """Reads all rows into memory. Same as `to_table`."""
        return self.to_table(threads=threads, progress=progress)

    def to_reader(
        self,
        *,
        threads: int | None = None,
        ordered: bool = True,
        progress: Callable[[int, int], object] | None = None,
    ) -> pa.RecordBatchReader:
        """Returns the rows as a stream of batches. Close or drop the stream to cancel pending
        requests.

        Args:
            threads: See `batches`; default: one per core.
            ordered: See `batches`.
            progress: See `batches`.
        """
        import pyarrow as pa

        batches = self.batches(threads=thread_count(threads), ordered=ordered, progress=progress)
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def to_pandas(self, *, threads: int | None = None) -> pd.DataFrame:
        """Reads all rows into a pandas frame. The columns are Arrow-backed, so nulls are kept and
        integers stay integers.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        require("pandas", "pandas", "to_pandas()")
        import pandas as pd

        return self.to_table(threads=threads).to_pandas(types_mapper=pd.ArrowDtype)

    def to_polars(self, *, threads: int | None = None) -> pl.DataFrame:
        """Reads all rows into a Polars frame. Use `to_lazy` instead to read only the columns and
        rows that a query needs.

        Raises:
            MissingExtraError: Polars is not installed.
        """
        require("polars", "polars", "to_polars()")
        import polars as pl

        return pl.DataFrame(self.to_table(threads=threads))

    def to_lazy(self, *, threads: int | None = None) -> pl.LazyFrame:
        """Returns the scan as a Polars `LazyFrame`. Polars passes columns, conditions and limits of
        a query to the scan.

        Args:
            threads: Number of threads that read, in addition to Polars' own threads; default: one
                per core.

        Raises:
            MissingExtraError: Polars is not installed.
            ValueError: The number of threads is less than 1.
        """
        require("polars", "polars", "to_lazy()")
        from kts_source.engines.polars_source import lazy_frame

        return lazy_frame(self, thread_count(threads))

    def to_dataset(self) -> TierDataset:
        """Returns the scan as a `pyarrow.dataset.Dataset`. DuckDB passes the columns and the
        condition of a query on the dataset to the scan.
        """
        from kts_source.engines.duckdb_dataset import TierDataset

        return TierDataset(self)

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        """Returns the scan as a DuckDB relation. DuckDB passes the columns and the condition of a
        query to the scan.

        Args:
            connection: Connection of the relation; default: DuckDB's default connection.

        Raises:
            InvalidOptionError: DuckDB is not installed.
        """
        require("duckdb", "duckdb", "to_duckdb()")
        import duckdb

        return (connection or duckdb.default_connection()).from_arrow(self.to_dataset())

    def to_ray(self, **arguments: Any) -> ray.data.Dataset:  # noqa: ANN401  # Ray's own
        """Returns the rows as a Ray `Dataset`, with a read task for each task of the plan.

        Args:
            **arguments: Other arguments of `ray.data.read_datasource`.

        Raises:
            MissingExtraError: Ray is not installed.
            InvalidOptionError: The scan has a limit.
        """
        require("ray.data", "ray", "to_ray()")
        from kts_source.engines.ray_source import ray_dataset

        return ray_dataset(self, **arguments)

    def find(self, **conditions: Unpack[Conditions]) -> Search:
        """Searches for records, and certifies that no other records match; see `kts_source.find`.

        The search makes its own plan, and does not use the plan of the scan.

        Raises:
            InvalidOptionError: Conditions contradict each other, or the scan has a limit.
        """
        from kts_source.finding.query import query_of
        from kts_source.finding.search import Search

        if self.is_limited:
            raise InvalidOptionError(
                "find() after limit(): find() searches all records; call it on a scan without limit"
            )
        return Search(replace(self._options, where=self._condition), query_of(**conditions))

    def count(self, *, threads: int | None = None) -> int:
        """Returns the number of rows. Reads all bytes, but decodes only offsets."""
        counted = self._like(replace(self._options, columns=("offset",)))
        batches = counted.batches(threads=thread_count(threads), ordered=False)
        return sum(batch.num_rows for batch in batches)

    def __iter__(self) -> Generator[pa.RecordBatch]:
        return self.batches()

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        raise TypeError("a Scan has no length, because its rows are not read yet: call count()")

    def __arrow_c_schema__(self) -> object:
        """Exports the schema of the rows to other Arrow libraries."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Exports the rows as a new stream to other Arrow libraries."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the scan. The pickle contains the plan if it was already made."""
        return _restored, (self._options, self._where, self._max_rows, self._shared_plan.made)


def _shown(column: pa.ChunkedArray) -> list[object]:
    """Returns the values of a column as cells for people."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.string())  # the year may be after 9999, which Python rejects
    return [
        preview_bytes(value, _MAX_SHOWN) if isinstance(value, bytes | None) else value
        for value in column.to_pylist()
    ]


def _restored(
    options: ScanOptions,
    where: Predicate | None,
    max_rows: int | None,
    made: ScanPlan | None,
) -> Scan:
    plan = SharedPlan(options, made)
    return Scan(options, where=where, max_rows=max_rows, shared_plan=plan)
