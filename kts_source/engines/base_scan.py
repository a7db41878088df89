"""A planned scan that engines restrict; reads its tasks in one or several threads."""

from __future__ import annotations

import os
import threading
import uuid
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from kts_source.errors import InvalidOptionError
from kts_source.options.scan_options import checked_columns
from kts_source.planning.planner import plan_scan
from kts_source.planning.slicing import conjunction, narrowed
from kts_source.predicate.implied_ranges import TRUE
from kts_source.read.handover import ThreadTiers, in_threads
from kts_source.read.read_settings import FOR_ENGINES, BatchLimits, read_schema
from kts_source.read.task_metrics import TaskPlace
from kts_source.texts import facts_table
from segment_format.reused_memory import release_idle

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    import pyarrow as pa

    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.predicate.model import Predicate
    from kts_source.read.task import ScanTask

    Progress = Callable[[int, int], object]

_SMALL_LIMIT: Final = 1 << 16
"""Scans with a limit up to this use one thread: a second one would read rows above the limit."""


class SharedPlan:
    """The plan of a scan and of all scans derived from it, made at its first use."""

    def __init__(self, options: ScanOptions, made: ScanPlan | None = None) -> None:
        self.made = made
        self._options = options
        self._lock = threading.Lock()

    def plan(self) -> ScanPlan:
        """Returns the plan."""
        with self._lock:
            if self.made is None:
                self.made = plan_scan(self._options)
            return self.made


class BaseScan:
    """The part of `Scan` that adapters of engines use."""

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
        """True if the scan has a limit. A condition must then be applied after the limit."""
        return self._max_rows is not None

    @property
    def schema(self) -> pa.Schema:
        """Schema of the rows; keys and values are binary unless their formats have other types."""
        return read_schema(self.columns, self._options.formats)

    @property
    def plan(self) -> ScanPlan:
        """The plan, made at its first use.

        Raises:
            TieredKafkaError: The tier cannot be planned.
        """
        plan = replace(self._shared_plan.plan(), columns=self.columns)
        if self._where is None:
            return plan
        return narrowed(plan, self._where, self._condition or TRUE)

    @property
    def tasks(self) -> tuple[ScanTask, ...]:
        """Tasks that can be read anywhere, in any order; they have no credentials."""
        return self.plan.tasks

    @property
    def task_reader(self) -> TaskReader:
        """A small, picklable reader of tasks for other processes, with credentials as `Secret`.

        A limit of the scan holds for each task.
        """
        return TaskReader(replace(self._options, where=self._condition), self._max_rows)

    def read_task(self, task: ScanTask) -> Generator[pa.RecordBatch]:
        """Yields the rows of one task. Close the generator to cancel pending requests.

        Raises:
            TieredKafkaError: The bytes do not match the plan.
        """
        return self.task_reader(task)

    def select(self, columns: Sequence[str]) -> Self:
        """Returns a scan of the same rows with only these columns, in this order.

        Args:
            columns: Any columns of the table.

        Raises:
            InvalidOptionError: An unknown or repeated name.
        """
        checked = checked_columns("columns", columns, self._options.formats)
        return self._like(replace(self._options, columns=checked))

    def where_predicate(self, condition: Predicate) -> Self:
        """Returns a scan of the rows for which a parsed condition is true; see `where`."""
        return self._like(self._options, where=conjunction(self._where, condition))

    def limit(self, rows: int) -> Self:
        """Returns a scan of the first rows by topic, partition and offset.

        If batches are not read in order, it returns any rows.

        Raises:
            ValueError: A negative number.
        """
        if rows < 0:
            raise ValueError(f"a limit of {rows} rows")
        max_rows = rows if self._max_rows is None else min(rows, self._max_rows)
        return self._like(self._options, max_rows=max_rows)

    def batches(
        self, *, threads: int = 1, ordered: bool = True, progress: Progress | None = None
    ) -> Generator[pa.RecordBatch]:
        """Yields the rows. Close the generator to cancel pending requests.

        Args:
            threads: Number of tasks that are read concurrently; each takes a core and up to about
                `prefetchBytes` of memory.
            ordered: True if rows come in the order of topic, partition and offset; else in the
                order in which they become ready.
            progress: Called from any thread after each task with the original bytes of the tasks
                that were read, and of all tasks.

        Raises:
            TieredKafkaError: See `plan` and `read_task`.
            ValueError: Fewer than one thread.
        """
        return self._batches(threads, ordered=ordered, progress=progress, whole=False)

    def to_table(
        self,
        *,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> pa.Table:
        """Returns all rows in memory."""
        import pyarrow as pa

        batches = self._batches(thread_count(threads), ordered=True, progress=progress, whole=True)
        return pa.Table.from_batches(batches, self.schema)

    def _batches(
        self, threads: int, *, ordered: bool, progress: Progress | None, whole: bool
    ) -> Generator[pa.RecordBatch]:
        """Yields the rows. `whole` promises that the consumer takes every row."""
        if threads < 1:
            raise ValueError(f"{threads} threads")
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

    def __repr__(self) -> str:
        return f"Scan({', '.join(f'{name}={text}' for name, text in self._facts().items())})"

    def _repr_html_(self) -> str:
        """Returns a small table for notebooks, without plan figures if the scan is not planned
        yet.
        """
        facts = self._facts()
        if self._shared_plan.made is not None:
            plan = self.plan
            facts["tasks"] = f"{len(plan.tasks):,} of {plan.nominal_bytes:,} bytes"
            for partition in plan.partitions:
                facts[partition.topic_partition] = (
                    f"[{partition.start:,}, {partition.stop:,}) {partition.end_reason}"
                )
        return facts_table("Scan", facts)

    def _facts(self) -> dict[str, str]:
        options = self._options
        facts = {
            "path": ",".join((options.path, *options.disk_paths)) or "brokers alone",
            "columns": ", ".join(self.columns),
            "isolationLevel": options.isolation_level,
        }
        if self._condition is not None:
            facts["where"] = repr(self._condition)
        if self._max_rows is not None:
            facts["limit"] = str(self._max_rows)
        return facts


def thread_count(threads: int | None) -> int:
    """Returns a number of threads; by default one per core."""
    threads = (os.cpu_count() or 1) if threads is None else threads
    if threads < 1:
        raise ValueError(f"{threads} threads")
    return threads


@dataclass(frozen=True, slots=True)
class TaskReader:
    """Reads any task of a scan, in any process. Picklable, with credentials as `Secret`.

    Attributes:
        options: Options of the scan.
        max_rows: Maximum rows of each task; `None` = all.
    """

    options: ScanOptions
    max_rows: int | None = None

    def __call__(self, task: ScanTask) -> Generator[pa.RecordBatch]:
        """Yields the rows of one task. Close the generator to cancel pending requests.

        Raises:
            TieredKafkaError: The bytes do not match the plan.
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
        """Yields the first `max_rows` rows of several tasks; see `BaseScan.batches`."""
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
        """Limits batches to the wanted rows, so that they do not wait for bytes of later rows.

        With a condition, the number of rows to read is unknown.
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
    """One run of a scan's tasks. Close it after all threads have ended.

    Attributes:
        options: Options of the scan.
        tasks: All tasks, in order.
        limits: Limits of a batch.
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
        """Returns a function per task that reads the task."""
        return [partial(self._read, number) for number in range(len(self.tasks))]

    def read_all(self) -> Generator[pa.RecordBatch]:
        """Yields the rows of all tasks in this thread."""
        for number in range(len(self.tasks)):
            yield from self._read(number)

    def close(self) -> None:
        """Closes connections and releases reused memory."""
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
