"""Runs the tasks of a wave on one machine: in this process, or in several."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
from typing import TYPE_CHECKING, Protocol

from kts_source.export.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kts_source.export.files import TaskReport
    from kts_source.export.task import ExportJob, RunnableTask


class ExportExecutor(Protocol):
    """Whatever runs tasks somewhere."""

    def run(self, tasks: Sequence[RunnableTask], job: ExportJob) -> Iterator[TaskReport]:
        """One report per task, in any order, as they become known.

        Close the iterator to stop what is under way.

        Raises:
            Exception: What a task raised, once its retries are used up.
        """
        ...


class LocalExecutor:
    """Tasks in processes of this machine; with one worker, in this process.

    Args:
        workers: Processes; `None` takes one per core.
    """

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers or os.cpu_count() or 1

    def run(self, tasks: Sequence[RunnableTask], job: ExportJob) -> Iterator[TaskReport]:
        """See `ExportExecutor.run`."""
        workers = min(self._workers, len(tasks))
        if workers <= 1:
            yield from (task.run(job) for task in tasks)
            return
        # Spawned: neither the event loops of the stores nor their connections survive a fork.
        context = multiprocessing.get_context("spawn")
        pool = concurrent.futures.ProcessPoolExecutor(workers, mp_context=context)
        try:
            futures = [pool.submit(task.run, job) for task in tasks]
            for future in concurrent.futures.as_completed(futures):
                yield future.result()
        except concurrent.futures.process.BrokenProcessPool as error:
            raise ExportError(
                "a worker process died; nothing of this wave was committed, run again to resume"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
