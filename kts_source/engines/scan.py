"""`kts_source.scan(source)`: the rows of a tier as Arrow, without Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from kts_source.engines.base_scan import BaseScan, SharedPlan, thread_count
from kts_source.errors import InvalidOptionError
from kts_source.libraries import require
from kts_source.options import check_for_batch, parse_any_options
from kts_source.planning.infer_types import with_types

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from kts_source.engines.duckdb_dataset import TierDataset
    from kts_source.finding.query import Conditions
    from kts_source.finding.search import Search
    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.predicate.model import Predicate

_TASK_BYTES: Final = 64 << 20
"""Ordered threads stall for up to one task, so tasks are small."""


def scan(source: Mapping[str, str]) -> Scan:
    """Returns a scan of topics, for any engine that reads Arrow.

    The store is not accessed before the plan or a row is needed, except to sample JSON without a
    schema. A scan and all scans derived from it are planned once, so they have the same offsets.

    Args:
        source: Options as for `spark.read.format("tiered-kafka")`.

    Raises:
        InvalidOptionError: Options that are unknown, malformed or contradictory; see `with_types`.
    """
    check_for_batch(options := parse_any_options(source))
    if "targetPartitionBytes" not in options.given:
        options = replace(options, target_partition_bytes=_TASK_BYTES)
    # The key files are on this machine.
    return Scan(replace(with_types(options), key_ring=options.key_ring.loaded()))


class Scan(BaseScan):
    """A table of Kafka records that is read lazily; see `scan`.

    `select`, `where` and `limit` return a new scan. A scan can be pickled, with its plan; the
    pickle has credentials as `Secret`.

    Args:
        options: Options of the scan.
        where: Condition in addition to the condition of the options; only matching rows are
            returned.
        max_rows: Maximum number of rows, from the first one on; `None` = all.
        shared_plan: The plan of the scan from which this one is derived.
    """

    def where(self, condition: str) -> Self:
        """Returns a scan of the rows for which a condition is true.

        The existing plan only drops tasks without such rows. Option `where` of the source skips
        more data, because planning then uses the time indexes, too.

        Args:
            condition: As for option `where`.

        Raises:
            InvalidOptionError: The condition cannot be parsed.
        """
        from kts_source.options.value_formats import fields_of_formats
        from kts_source.predicate.parse import parse_predicate

        zone, fields = self._options.time_zone, fields_of_formats(self._options.formats)
        return self.where_predicate(parse_predicate(condition, zone, fields=fields))

    def to_reader(
        self,
        *,
        threads: int | None = None,
        ordered: bool = True,
        progress: Callable[[int, int], object] | None = None,
    ) -> pa.RecordBatchReader:
        """Returns a stream of the rows. Close or drop it to cancel pending requests.

        Args:
            threads: See `batches`; default: one per core.
            ordered: See `batches`.
            progress: See `batches`.
        """
        import pyarrow as pa

        batches = self.batches(threads=thread_count(threads), ordered=ordered, progress=progress)
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def to_pandas(self, *, threads: int | None = None) -> Any:  # noqa: ANN401  # pandas is not a dependency
        """Returns all rows as a pandas frame; its Arrow-backed columns keep nulls and integers.

        Raises:
            InvalidOptionError: pandas is not installed.
        """
        require("pandas", "pandas", "to_pandas()")
        import pandas as pd

        return self.to_table(threads=threads).to_pandas(types_mapper=pd.ArrowDtype)

    def to_polars(self, *, threads: int | None = None) -> Any:  # noqa: ANN401  # nor is Polars
        """Returns all rows as a Polars frame. A query on `to_lazy` reads only what it needs.

        Raises:
            InvalidOptionError: Polars is not installed.
        """
        require("polars", "polars", "to_polars()")
        import polars as pl

        return pl.from_arrow(self.to_table(threads=threads))

    def to_lazy(self, *, threads: int | None = None) -> Any:  # noqa: ANN401  # nor is Polars
        """Returns a Polars `LazyFrame`, which passes columns, conditions and limits to the scan.

        Args:
            threads: Number of reading threads in addition to Polars' own; default: one per core.

        Raises:
            InvalidOptionError: Polars is not installed.
            ValueError: Fewer than one thread.
        """
        require("polars", "polars", "to_lazy()")
        from kts_source.engines.polars_source import lazy_frame

        return lazy_frame(self, thread_count(threads))

    def to_dataset(self) -> TierDataset:
        """Returns a `pyarrow.dataset.Dataset`, to which DuckDB passes columns and conditions."""
        from kts_source.engines.duckdb_dataset import TierDataset

        return TierDataset(self)

    def to_ray(self, **arguments: Any) -> Any:  # noqa: ANN401  # nor is Ray
        """Returns a Ray `Dataset` with a read task for each task of the plan.

        Args:
            **arguments: For `ray.data.read_datasource`.

        Raises:
            InvalidOptionError: Ray is not installed.
        """
        require("ray.data", "ray", "to_ray()")
        from kts_source.engines.ray_source import ray_dataset

        return ray_dataset(self, **arguments)

    def find(self, **conditions: Unpack[Conditions]) -> Search:
        """Searches for records and certifies that there are no others; see `kts_source.find`.

        The search makes its own plan.

        Raises:
            InvalidOptionError: Conditions that contradict each other, or a limit.
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

    def __arrow_c_schema__(self) -> object:
        """Exports the schema to other Arrow libraries."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Exports a new stream of the rows to other Arrow libraries."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the scan, with its plan if it was planned."""
        return _restored, (self._options, self._where, self._max_rows, self._shared_plan.made)


def _restored(
    options: ScanOptions,
    where: Predicate | None,
    max_rows: int | None,
    made: ScanPlan | None,
) -> Scan:
    plan = SharedPlan(options, made)
    return Scan(options, where=where, max_rows=max_rows, shared_plan=plan)
