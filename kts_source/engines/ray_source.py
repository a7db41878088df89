"""A scan as a Ray `Dataset`, with a Ray read task for each task of the plan."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import ray
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from kts_source.engines.conditions import columns_in, implied_condition
from kts_source.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow.compute as pc

    from kts_source.engines.base_scan import BaseScan, TaskReader
    from kts_source.read.task import ScanTask


def ray_dataset(scan: BaseScan, **arguments: Any) -> ray.data.Dataset:  # noqa: ANN401  # Ray's own
    """Returns the rows of a scan as a Ray `Dataset`. Ray's workers read them.

    Args:
        scan: Scan to read. It is planned immediately.
        **arguments: Other arguments of `ray.data.read_datasource`.

    Raises:
        InvalidOptionError: The scan has a limit. Ray's tasks are independent, so they cannot apply
            it.
    """
    if scan.is_limited:
        raise InvalidOptionError(
            "Ray cannot read a scan with a limit(); call limit() on Ray's dataset instead"
        )
    return ray.data.read_datasource(TierDatasource(scan), **arguments)


class TierDatasource(Datasource):  # type: ignore[misc]  # Ray ships no types for it
    """Data source for Ray. Ray passes the columns and the condition of a query to this class, which
    must apply the condition.
    """

    def __init__(self, scan: BaseScan) -> None:
        super().__init__()
        self._projection_map = None  # Ray's base class reads it but does not set it
        self._scan = scan
        self._size = (
            scan.plan.nominal_bytes
        )  # planned once, even if Ray requests tasks several times

    def get_name(self) -> str:
        """Returns the name that Ray shows in its progress output."""
        return "tiered-kafka"

    def estimate_inmemory_data_size(self) -> int | None:
        """Returns the original size of the segments in bytes. If the batches in the segments are
        compressed, the rows need more memory than this.
        """
        return self._size

    def supports_projection_pushdown(self) -> bool:
        """Returns True: Ray passes the needed columns to this data source."""
        return True

    def supports_predicate_pushdown(self) -> bool:
        """Returns True: Ray passes conditions to this data source."""
        return True

    def get_read_tasks(
        self,
        parallelism: int,  # ignored: the plan has a fixed number of tasks
        per_task_row_limit: int | None = None,
        data_context: object = None,
    ) -> list[ReadTask]:
        """Returns a Ray read task for each task of the plan. `parallelism` has no effect, because
        the plan determines the number of tasks.
        """
        columns = self._get_data_columns()
        condition = None if self._predicate_expr is None else self._predicate_expr.to_pyarrow()
        scan = self._scan
        wanted = tuple(scan.columns if columns is None else columns) or scan.columns[:1]
        needed = dict.fromkeys(wanted)
        if condition is not None:
            needed |= dict.fromkeys(columns_in(condition, scan.columns))
            certain = implied_condition(condition, scan.schema)
            scan = scan if certain is None else scan.where_predicate(certain)
        selected = scan.select(list(needed))
        schema = pa.schema([selected.schema.field(name) for name in wanted])
        return [
            ReadTask(
                partial(_tables, selected.task_reader, task, wanted, condition),
                BlockMetadata(
                    num_rows=None, size_bytes=task.nominal_bytes, exec_stats=None, input_files=None
                ),
                schema=schema,
                per_task_row_limit=per_task_row_limit,
            )
            for task in selected.tasks
        ]


def _tables(
    reader: TaskReader,
    task: ScanTask,
    columns: Sequence[str],
    condition: pc.Expression | None,
) -> Iterator[pa.Table]:
    with closing(reader(task)) as batches:
        for batch in batches:
            table = pa.Table.from_batches([batch])
            yield (table if condition is None else table.filter(condition)).select(list(columns))
