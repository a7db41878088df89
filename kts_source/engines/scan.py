"""`kts_source.scan(source)`: the rows of a tier as Arrow, without Spark."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from kts_source.engines.planned_once import PlannedOnce
from kts_source.engines.task_reader import TaskReader
from kts_source.errors import InvalidOptionError
from kts_source.extras import require
from kts_source.notebook import facts_table
from kts_source.options import check_for_batch, parse_any_options
from kts_source.options.scan_options import checked_columns
from kts_source.planning.infer_types import with_types
from kts_source.planning.slicing import conjunction, narrowed
from kts_source.predicate.implied_ranges import TRUE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    import pyarrow as pa

    from kts_source.engines.duckdb_dataset import TierDataset
    from kts_source.finding.query import Conditions
    from kts_source.finding.search import Search
    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.predicate.model import Predicate
    from kts_source.read.task import ScanTask

_TASK_BYTES: Final = 64 << 20
"""Threads that hand rows over in order wait for each other for as long as a task takes."""


def scan(source: Mapping[str, str]) -> Scan:
    """The rows of topics, for any engine that takes Arrow.

    Nothing is asked of the store before the plan or a row is wanted, but a sample of JSON without
    schema. A scan is planned once, and so are all derived from it: they have the same offsets.

    Args:
        source: Options as for `spark.read.format("tiered-kafka")`.

    Raises:
        InvalidOptionError: Options that are unknown, malformed or contradictory; see `with_types`.
    """
    check_for_batch(options := parse_any_options(source))
    if "targetPartitionBytes" not in options.given:
        options = replace(options, target_partition_bytes=_TASK_BYTES)
    # The key files are this process's.
    return Scan(replace(with_types(options), key_ring=options.key_ring.loaded()))


class Scan:
    """A table of Kafka records that is read when it is asked for; see `scan`.

    `select`, `where` and `limit` give another one; this one stays what it is. It can be pickled,
    with its plan; credentials travel in it as `Secret`.

    Args:
        options: What is read.
        where: Rows for which it is not true are left out; beside the one of the options.
        most_rows: At most so many are given, the first ones; `None` = all.
        planned: The plan that it shares with others.
    """

    def __init__(
        self,
        options: ScanOptions,
        *,
        where: Predicate | None = None,
        most_rows: int | None = None,
        planned: PlannedOnce | None = None,
    ) -> None:
        self._options = options
        self._where = where
        self._most_rows = most_rows
        self._planned = PlannedOnce(options) if planned is None else planned

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return self._options.columns

    @property
    def is_limited(self) -> bool:
        """Whether it gives the first rows only, so that no condition may be applied before."""
        return self._most_rows is not None

    @property
    def schema(self) -> pa.Schema:
        """Of the rows; keys and values are binary, or as their formats say."""
        from kts_source.read.row_schema import read_schema

        return read_schema(self.columns, self._options.formats)

    @property
    def plan(self) -> ScanPlan:
        """What is read; made at its first use.

        Raises:
            TieredKafkaError: What planning refuses.
        """
        whole = replace(self._planned.plan(), columns=self.columns)
        if self._where is None:
            return whole
        return narrowed(whole, self._where, conjunction(self._options.where, self._where) or TRUE)

    @property
    def tasks(self) -> tuple[ScanTask, ...]:
        """Pieces that can be read anywhere, in any order, free of credentials; see `read_task`."""
        return self.plan.tasks

    @property
    def task_reader(self) -> TaskReader:
        """What reads tasks elsewhere: small, and picklable with the credentials in it as `Secret`.

        A limit of the scan holds for each task.
        """
        where = conjunction(self._options.where, self._where)
        return TaskReader(replace(self._options, where=where), self._most_rows)

    def read_task(self, task: ScanTask) -> Generator[pa.RecordBatch]:
        """The rows of one task. Close the generator to stop what is under way.

        Raises:
            TieredKafkaError: Bytes that are not what was planned.
        """
        return self.task_reader(task)

    def select(self, columns: Sequence[str]) -> Self:
        """The same rows with these columns alone, in this order.

        Args:
            columns: Those of the options, or any other that the table has.

        Raises:
            InvalidOptionError: A name that is not a column, or twice.
        """
        checked = checked_columns("columns", columns, self._options.formats)
        return self._like(replace(self._options, columns=checked))

    def where(self, condition: str) -> Self:
        """The rows for which a condition is true.

        The plan stays the same but for what no row can match. Option `where` in the source leaves
        out more before a byte is read: it uses the time indexes too.

        Args:
            condition: As for option `where`.

        Raises:
            InvalidOptionError: It cannot be understood.
        """
        from kts_source.options.value_formats import fields_of_formats
        from kts_source.predicate.parse import parse_predicate

        zone, fields = self._options.time_zone, fields_of_formats(self._options.formats)
        return self.where_predicate(parse_predicate(condition, zone, fields=fields))

    def where_predicate(self, condition: Predicate) -> Self:
        """As `where`, for a condition that is parsed already."""
        return self._like(self._options, where=conjunction(self._where, condition))

    def limit(self, rows: int) -> Self:
        """The first rows by topic, partition and offset; so many of any where order is given up.

        Raises:
            ValueError: A negative number.
        """
        if rows < 0:
            raise ValueError(f"a limit of {rows} rows")
        most = rows if self._most_rows is None else min(rows, self._most_rows)
        return self._like(self._options, most_rows=most)

    def batches(
        self,
        *,
        threads: int = 1,
        ordered: bool = True,
        progress: Callable[[int, int], object] | None = None,
    ) -> Generator[pa.RecordBatch]:
        """The rows, batch by batch. Close the generator to stop what is under way.

        Args:
            threads: How many tasks are read at a time; each takes a core and up to about
                `prefetchBytes` of memory.
            ordered: Whether rows come in the order of topic, partition and offset; else as they are
                ready.
            progress: Called after each task with the original bytes of the tasks that were read,
                and of all. In any thread.

        Raises:
            TieredKafkaError: See `plan` and `read_task`.
            ValueError: Fewer than one thread.
        """
        return self._batches(threads, ordered=ordered, progress=progress, whole=False)

    def to_reader(
        self,
        *,
        threads: int | None = None,
        ordered: bool = True,
        progress: Callable[[int, int], object] | None = None,
    ) -> pa.RecordBatchReader:
        """A stream of the rows; let it go, or close it, to stop what is under way.

        Args:
            threads: See `batches`; default: one a core.
            ordered: See `batches`.
            progress: See `batches`.
        """
        import pyarrow as pa

        batches = self.batches(threads=_checked(threads), ordered=ordered, progress=progress)
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def to_table(
        self,
        *,
        threads: int | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> pa.Table:
        """All rows in memory."""
        import pyarrow as pa

        batches = self._batches(_checked(threads), ordered=True, progress=progress, whole=True)
        return pa.Table.from_batches(batches, self.schema)

    def to_pandas(self, *, threads: int | None = None) -> Any:  # noqa: ANN401  # pandas is not a dependency
        """All rows as a pandas frame of Arrow-backed columns, which keep nulls and whole numbers.

        Raises:
            InvalidOptionError: pandas is not installed.
        """
        require("pandas", "pandas", "to_pandas()")
        import pandas as pd

        return self.to_table(threads=threads).to_pandas(types_mapper=pd.ArrowDtype)

    def to_polars(self, *, threads: int | None = None) -> Any:  # noqa: ANN401  # nor is Polars
        """All rows as a Polars frame; `to_lazy` for a query that reads only what it needs.

        Raises:
            InvalidOptionError: Polars is not installed.
        """
        require("polars", "polars", "to_polars()")
        import polars as pl

        return pl.from_arrow(self.to_table(threads=threads))

    def to_lazy(self, *, threads: int | None = None) -> Any:  # noqa: ANN401  # nor is Polars
        """A Polars `LazyFrame`, which passes columns, conditions and limits on to the scan.

        Args:
            threads: How many read, besides those of Polars; see `batches`. Default: one a core.

        Raises:
            InvalidOptionError: Polars is not installed.
            ValueError: Fewer than one thread.
        """
        require("polars", "polars", "to_lazy()")
        from kts_source.engines.polars_source import lazy_frame

        return lazy_frame(self, _checked(threads))

    def to_dataset(self) -> TierDataset:
        """A `pyarrow.dataset.Dataset`; DuckDB hands columns and conditions over to it."""
        from kts_source.engines.duckdb_dataset import TierDataset

        return TierDataset(self)

    def to_ray(self, **arguments: Any) -> Any:  # noqa: ANN401  # nor is Ray
        """A Ray `Dataset`, one read task for each task of the plan.

        Args:
            **arguments: For `ray.data.read_datasource`.

        Raises:
            InvalidOptionError: Ray is not installed.
        """
        require("ray.data", "ray", "to_ray()")
        from kts_source.engines.ray_source import ray_dataset

        return ray_dataset(self, **arguments)

    def find(self, **conditions: Unpack[Conditions]) -> Search:
        """Those of the records that meet more conditions, and proof that there are no others; see
        `kts_source.find`. It plans for itself.

        Raises:
            InvalidOptionError: Conditions that contradict each other; a limit.
        """
        from kts_source.finding.query import query_of
        from kts_source.finding.search import Search

        if self.is_limited:
            raise InvalidOptionError("find() after limit(): all records are searched, or none")
        where = conjunction(self._options.where, self._where)
        return Search(replace(self._options, where=where), query_of(**conditions))

    def count(self, *, threads: int | None = None) -> int:
        """How many rows there are. Reads all bytes, but decodes next to nothing of them."""
        counted = self._like(replace(self._options, columns=("offset",)))
        batches = counted.batches(threads=_checked(threads), ordered=False)
        return sum(batch.num_rows for batch in batches)

    def __arrow_c_schema__(self) -> object:
        """The schema, for whoever imports Arrow."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """A new stream of the rows, for whoever imports Arrow."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __reduce__(self) -> tuple[Any, ...]:
        """With the plan, if it is made."""
        return _rebuilt, (self._options, self._where, self._most_rows, self._planned.made)

    def __repr__(self) -> str:
        return f"Scan({', '.join(f'{name}={text}' for name, text in self._facts().items())})"

    def _repr_html_(self) -> str:
        """A small table for notebooks: of a scan that is not planned yet, what it asks for."""
        facts = self._facts()
        if self._planned.made is not None:
            plan = self.plan
            facts["tasks"] = f"{len(plan.tasks):,} of {plan.nominal_bytes:,} bytes"
            for part in plan.partitions:
                facts[part.topic_partition] = f"[{part.start:,}, {part.stop:,}) {part.end_reason}"
        return facts_table("Scan", facts)

    def _batches(
        self,
        threads: int,
        *,
        ordered: bool,
        progress: Callable[[int, int], object] | None,
        whole: bool,
    ) -> Generator[pa.RecordBatch]:
        """As `batches`; `whole`: whether the consumer takes all of them for certain."""
        _checked(threads)
        if self._most_rows != 0:
            yield from self.task_reader.batches(
                self.tasks, threads, ordered=ordered, progress=progress, whole=whole
            )

    def _facts(self) -> dict[str, str]:
        options = self._options
        facts = {
            "path": ",".join((options.path, *options.disk_paths)) or "brokers alone",
            "columns": ", ".join(self.columns),
            "isolationLevel": options.isolation_level,
        }
        where = conjunction(options.where, self._where)
        if where is not None:
            facts["where"] = repr(where)
        if self._most_rows is not None:
            facts["limit"] = str(self._most_rows)
        return facts

    def _like(
        self,
        options: ScanOptions,
        *,
        where: Predicate | None = None,
        most_rows: int | None = None,
    ) -> Self:
        if where is not None and self._most_rows is not None:
            raise InvalidOptionError(
                "where() after limit(): the first rows are taken of those that match, so ask for"
                " them in the other order"
            )
        return type(self)(
            options,
            where=self._where if where is None else where,
            most_rows=self._most_rows if most_rows is None else most_rows,
            planned=self._planned,
        )


def _checked(threads: int | None) -> int:
    """So many; without a number one a core."""
    threads = (os.cpu_count() or 1) if threads is None else threads
    if threads < 1:
        raise ValueError(f"{threads} threads")
    return threads


def _rebuilt(
    options: ScanOptions,
    where: Predicate | None,
    most_rows: int | None,
    made: ScanPlan | None,
) -> Scan:
    planned = PlannedOnce(options, made)
    return Scan(options, where=where, most_rows=most_rows, planned=planned)
