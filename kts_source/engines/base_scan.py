"""A planned scan that engines can restrict to columns and rows. Reads its tasks in one or several
threads.
"""

from __future__ import annotations

import os
import threading
import uuid
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from kts_source.errors import InvalidOptionError
from kts_source.options.scan_options import checked_columns, scan_facts
from kts_source.planning.planner import plan_scan
from kts_source.planning.slicing import conjunction, narrowed
from kts_source.predicate.implied_ranges import TRUE
from kts_source.read.handover import ThreadTiers, in_threads
from kts_source.read.read_settings import FOR_ENGINES, BatchLimits, read_schema
from kts_source.read.task_metrics import TaskPlace
from kts_source.texts import Displayed, Table
from segment_format.reused_memory import release_idle

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    import pyarrow as pa

    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.predicate.model import Predicate
    from kts_source.read.task import ScanTask

    Progress = Callable[[int, int], object]

_SMALL_LIMIT: Final = 1 << 16
"""Scans with a limit of at most this number of rows use one thread. A second thread would read rows
above the limit.
"""


class SharedPlan:
    """The plan that a scan shares with all scans derived from it, by `select` for example."""

    def __init__(self, options: ScanOptions, made: ScanPlan | None = None) -> None:
        self.made = made
        self._options = options
        self._lock = threading.Lock()

    def plan(self) -> ScanPlan:
        """Returns the plan. The first call makes the plan."""
        with self._lock:
            if self.made is None:
                self.made = plan_scan(self._options)
            return self.made


class BaseScan(Displayed):
    """The methods of `Scan` that the adapters for Polars, DuckDB and Ray use."""

    def __init__(
        self,
        options: ScanOptions,
        *,
        where: Predicate | None = None,
        max_rows: int | None = None,
        shared_plan: SharedPlan | None = None,
    ) -> None:
        self._options = options
        self._where = where
        self._max_rows = max_rows
        self._shared_plan = SharedPlan(options) if shared_plan is None else shared_plan

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return self._options.columns

    @property
    def is_limited(self) -> bool:
        """True if the scan has a limit. An engine must then apply its condition after the limit, so
        the condition cannot become a part of the scan.
        """
        return self._max_rows is not None

    @property
    def schema(self) -> pa.Schema:
        """Schema of the rows. Keys and values are binary, unless their formats decode them to other
        types.
        """
        return read_schema(self.columns, self._options.formats)

    @property
    def plan(self) -> ScanPlan:
        """The plan of the scan. The first access makes the plan.

        Raises:
            TieredKafkaError: Planning failed.
        """
        plan = replace(self._shared_plan.plan(), columns=self.columns)
        if self._where is None:
            return plan
        return narrowed(plan, self._where, self._condition or TRUE)

    @property
    def tasks(self) -> tuple[ScanTask, ...]:
        """The tasks of the plan. They can be read in any process and in any order. They contain no
        credentials.
        """
        return self.plan.tasks

    @property
    def task_reader(self) -> TaskReader:
        """An object that reads any task of the scan, also in other processes. It can be pickled,
        with credentials as `Secret`. It applies the limit of the scan to each task separately.
        """
        return TaskReader(replace(self._options, where=self._condition), self._max_rows)

    def read_task(self, task: ScanTask) -> Generator[pa.RecordBatch]:
        """Yields the rows of one task. Close the generator to cancel pending requests.

        Raises:
            TieredKafkaError: Reading failed, for example because an object differs from the plan.
        """
        return self.task_reader(task)

    def select(self, *columns: str | Iterable[str]) -> Self:
        """Returns a scan of the same rows that has only the columns in `columns`, in this order.

        Args:
            *columns: Names of columns, or lists of names.

        Raises:
            InvalidOptionError: A name is unknown or repeated.
        """
        names = [name for each in columns for name in ([each] if isinstance(each, str) else each)]
        checked = checked_columns("columns", names, self._options.formats)
        return self._like(replace(self._options, columns=checked))

    def where_predicate(self, condition: Predicate) -> Self:
        """Returns a scan of the rows for which `condition` is true. The condition is already
        parsed; see `Scan.where` for a text.
        """
        return self._like(self._options, where=conjunction(self._where, condition))

    def limit(self, rows: int) -> Self:
        """Returns a scan of the first `rows` rows in the order of topic, partition and offset. With
        `ordered=False`, `batches` may return any `rows` rows.

        Raises:
            ValueError: `rows` is negative.
        """
        if rows < 0:
            raise ValueError(f"the limit must not be negative: {rows} rows")
        max_rows = rows if self._max_rows is None else min(rows, self._max_rows)
        return self._like(self._options, max_rows=max_rows)

    def batches(
        self, *, threads: int = 1, ordered: bool = True, progress: Progress | None = None
    ) -> Generator[pa.RecordBatch]:
        """Yields the rows in batches. Close the generator to cancel pending requests.

        Args:
            threads: Number of tasks that are read concurrently. Each task uses a core and up to
                about `prefetchBytes` of memory.
            ordered: If True, rows are in the order of topic, partition and offset. If False,
                batches are in the order in which they were read.
            progress: Called after each task, from any thread, with two numbers: the original bytes
                of the tasks that were read so far, and the original bytes of all tasks.

        Raises:
            TieredKafkaError: See `plan` and `read_task`.
            ValueError: The number of threads is less than 1.
        """
        return self._batches(threads, ordered=ordered, progress=progress, whole=False)

    def to_table(
        self,
        *,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> pa.Table:
        """Reads all rows into memory and returns them as a table. For `threads` and `progress`, see
        `batches`; the default is one thread per core. `to_arrow` is another name of this method.
        """
        import pyarrow as pa

        batches = self._batches(thread_count(threads), ordered=True, progress=progress, whole=True)
        return pa.Table.from_batches(batches, self.schema)

    def _batches(
        self, threads: int, *, ordered: bool, progress: Progress | None, whole: bool
    ) -> Generator[pa.RecordBatch]:
        """Yields the rows; see `batches`. `whole` may be True only if the consumer takes every
        row.
        """
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        if self._max_rows != 0:
            yield from self.task_reader.batches(
                self.tasks, threads, ordered=ordered, progress=progress, whole=whole
            )

    @property
    def _condition(self) -> Predicate | None:
        return conjunction(self._options.where, self._where)

    def _like(
        self,
        options: ScanOptions,
        *,
        where: Predicate | None = None,
        max_rows: int | None = None,
    ) -> Self:
        if where is not None and self.is_limited:
            raise InvalidOptionError(
                "where() after limit(): the limit applies to matching rows, so call where()"
                " before limit()"
            )
        return type(self)(
            options,
            where=self._where if where is None else where,
            max_rows=self._max_rows if max_rows is None else max_rows,
            shared_plan=self._shared_plan,
        )

    def _tables(self) -> tuple[Table]:
        facts = self._facts()
        if self._shared_plan.made is not None:
            plan = self.plan
            facts["tasks"] = f"{len(plan.tasks):,} of {plan.nominal_bytes:,} bytes"
            for partition in plan.partitions:
                facts[partition.topic_partition] = (
                    f"[{partition.start:,}, {partition.stop:,}) {partition.end_reason}"
                )
        return (Table.of_facts("Scan", facts),)

    def _facts(self) -> dict[str, str]:
        facts = scan_facts(self._options)
        if self._condition is not None:
            facts["where"] = repr(self._condition)
        if self._max_rows is not None:
            facts["limit"] = str(self._max_rows)
        return facts


def thread_count(threads: int | None) -> int:
    """Returns `threads`. If it is `None`, returns the number of cores."""
    threads = (os.cpu_count() or 1) if threads is None else threads
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    return threads


@dataclass(frozen=True, slots=True)
class TaskReader:
    """Reads any task of a scan, in any process. It can be pickled, with credentials as `Secret`.

    Attributes:
        max_rows: Maximum number of rows to read from each task; `None` = no limit.
    """

    options: ScanOptions
    max_rows: int | None = None

    def __call__(self, task: ScanTask) -> Generator[pa.RecordBatch]:
        """Yields the rows of one task. Close the generator to cancel pending requests.

        Raises:
            TieredKafkaError: Reading failed, for example because an object differs from the plan.
        """
        from kts_source.read.read_task import run_task

        if self.max_rows == 0:
            return
        reads_all = self.max_rows is None
        with closing(run_task(task, self.options, batches=self._limits, whole=reads_all)) as rows:
            yield from self._first_rows(rows)

    def batches(
        self,
        tasks: Sequence[ScanTask],
        threads: int,
        *,
        ordered: bool,
        progress: Progress | None,
        whole: bool,
    ) -> Generator[pa.RecordBatch]:
        """Yields the rows of several tasks, at most `max_rows` in total; see `BaseScan.batches`."""
        limit = self.max_rows
        whole = whole and limit is None
        run = TaskRun(self.options, tasks, self._limits, progress, whole=whole)
        with closing(run):
            if threads == 1 or len(tasks) < 2 or (limit is not None and limit <= _SMALL_LIMIT):
                batches = run.read_all()
            else:
                batches = in_threads(run.reads, threads, ordered=ordered)
            with closing(batches):
                yield from self._first_rows(batches)

    @property
    def _limits(self) -> BatchLimits:
        """Maximum size of a batch. A batch has at most `max_rows` rows, so that the first batch
        does not wait for the bytes of later rows. With a condition, `max_rows` is not used, because
        it counts rows after the condition.
        """
        if not self.max_rows or self.options.where is not None:
            return FOR_ENGINES
        return replace(FOR_ENGINES, rows=min(FOR_ENGINES.rows, self.max_rows))

    def _first_rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        missing = self.max_rows
        if missing is None:
            yield from batches
            return
        for batch in batches:
            yield batch.slice(0, missing)
            missing -= batch.num_rows
            if missing <= 0:
                return


@dataclass(slots=True)
class TaskRun:
    """Reads all tasks of a scan once. Close it after all threads that read its tasks have ended.

    Attributes:
        tasks: All tasks, in order.
        progress: See `BaseScan.batches`.
        whole: See `run_task`.
    """

    options: ScanOptions
    tasks: Sequence[ScanTask]
    limits: BatchLimits
    progress: Progress | None
    whole: bool
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _tiers: ThreadTiers = field(init=False)
    _all_bytes: int = field(init=False)
    _done_bytes: int = 0
    _id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self._tiers = ThreadTiers(self.options)
        self._all_bytes = sum(task.nominal_bytes for task in self.tasks)

    @property
    def reads(self) -> list[Callable[[], Generator[pa.RecordBatch]]]:
        """One function per task, in the order of tasks. Each function reads its task."""
        return [partial(self._read, number) for number in range(len(self.tasks))]

    def read_all(self) -> Generator[pa.RecordBatch]:
        """Yields the rows of all tasks in order. Reads them in the calling thread."""
        for number in range(len(self.tasks)):
            yield from self._read(number)

    def close(self) -> None:
        """Closes connections and releases memory that was kept for reuse."""
        self._tiers.close()
        release_idle()

    def _read(self, number: int) -> Generator[pa.RecordBatch]:
        from kts_source.read.read_task import run_task

        task = self.tasks[number]
        rows = run_task(
            task,
            self.options,
            TaskPlace(self._id, partition=number),
            batches=self.limits,
            whole=self.whole,
            opened=self._tiers.mine(),
        )
        with closing(rows):
            yield from rows
        if self.progress is not None:
            with self._lock:
                self._done_bytes += task.nominal_bytes
                self.progress(self._done_bytes, self._all_bytes)
