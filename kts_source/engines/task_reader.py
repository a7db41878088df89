"""Reads tasks of a scan, in one thread or in several."""

from __future__ import annotations

import threading
import uuid
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from kts_source.read.handover import in_threads
from kts_source.read.read_settings import FOR_ENGINES, BatchLimits
from kts_source.read.task_metrics import TaskPlace
from kts_source.read.thread_tiers import ThreadTiers
from segment_format.reused_memory import release_idle

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    import pyarrow as pa

    from kts_source.options import ScanOptions
    from kts_source.read.task import ScanTask

_SMALL: Final = 1 << 16
"""Rows of a limit up to which one thread reads: a second one would read what nobody wants."""


@dataclass(frozen=True, slots=True)
class TaskReader:
    """Reads any task of a scan, in any process. Picklable; credentials are in it as `Secret`.

    Attributes:
        options: How, and from where.
        most_rows: Of each task; `None` = all.
    """

    options: ScanOptions
    most_rows: int | None = None

    def __call__(self, task: ScanTask) -> Generator[pa.RecordBatch]:
        """The rows of one task. Close the generator to stop what is under way.

        Raises:
            TieredKafkaError: Bytes that are not what was planned.
        """
        from kts_source.read.run_task import run_task

        if self.most_rows == 0:
            return
        limits = batch_limits(self.options, self.most_rows)
        whole = self.most_rows is None
        with closing(run_task(task, self.options, batches=limits, whole=whole)) as rows:
            yield from first_rows(rows, self.most_rows)

    def batches(
        self,
        tasks: Sequence[ScanTask],
        threads: int,
        *,
        ordered: bool,
        progress: Callable[[int, int], object] | None,
        whole: bool,
    ) -> Generator[pa.RecordBatch]:
        """The first `most_rows` rows of several tasks; see `Scan.batches`.

        Args:
            tasks: In order.
            threads: How many tasks are read at a time.
            ordered: Whether rows come in the order of the tasks.
            progress: Called after each task.
            whole: Whether the consumer takes all batches for certain.
        """
        most = self.most_rows
        limits = batch_limits(self.options, most)
        whole = whole and most is None
        opened = OpenedTasks(self.options, tasks, limits, progress, whole=whole)
        with closing(opened):
            if threads == 1 or len(tasks) < 2 or (most is not None and most <= _SMALL):
                batches = opened.one_by_one()
            else:
                batches = in_threads(opened.reads, threads, ordered=ordered)
            with closing(batches):
                yield from first_rows(batches, most)


class OpenedTasks:
    """One run of a scan's tasks. Close it when all threads have ended.

    Args:
        options: How, and from where.
        tasks: All of them, in order.
        limits: When a batch is full.
        progress: See `Scan.batches`.
        whole: See `run_task`.
    """

    def __init__(
        self,
        options: ScanOptions,
        tasks: Sequence[ScanTask],
        limits: BatchLimits,
        progress: Callable[[int, int], object] | None,
        *,
        whole: bool,
    ) -> None:
        self._options = options
        self._tasks = tasks
        self._limits = limits
        self._progress = progress
        self._whole = whole
        self._lock = threading.Lock()
        self._tiers = ThreadTiers(options)
        self._all = sum(task.nominal_bytes for task in tasks)
        self._done = 0
        self._run = uuid.uuid4().hex

    @property
    def reads(self) -> list[Callable[[], Generator[pa.RecordBatch]]]:
        """One for each task."""
        return [partial(self._read, number) for number in range(len(self._tasks))]

    def one_by_one(self) -> Generator[pa.RecordBatch]:
        """The rows of all tasks, in this thread."""
        for number in range(len(self._tasks)):
            yield from self._read(number)

    def close(self) -> None:
        """Lets the connections go, and memory that the read has used again and again."""
        self._tiers.close()
        release_idle()

    def _read(self, number: int) -> Generator[pa.RecordBatch]:
        from kts_source.read.run_task import run_task

        task = self._tasks[number]
        rows = run_task(
            task,
            self._options,
            TaskPlace(self._run, partition=number),
            batches=self._limits,
            whole=self._whole,
            opened=self._tiers.mine(),
        )
        with closing(rows):
            yield from rows
        if self._progress is not None:
            with self._lock:
                self._done += task.nominal_bytes
                self._progress(self._done, self._all)


def batch_limits(options: ScanOptions, most_rows: int | None) -> BatchLimits:
    """As for all engines, but no more rows than are wanted: the first of them need not wait for
    bytes that nobody does. With a condition nobody knows how many rows that takes.
    """
    if not most_rows or options.where is not None:
        return FOR_ENGINES
    return replace(FOR_ENGINES, rows=min(FOR_ENGINES.rows, most_rows))


def first_rows(batches: Iterator[pa.RecordBatch], most: int | None) -> Iterator[pa.RecordBatch]:
    """The first `most` rows; all without a number."""
    if most is None:
        yield from batches
        return
    for batch in batches:
        yield batch.slice(0, most)
        most -= batch.num_rows
        if most <= 0:
            return
