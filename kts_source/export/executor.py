"""Runs the tasks of a wave on one machine: in this process, or in several."""

from __future__ import annotations

import os
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kts_source.errors import ExportError
from kts_source.processes import in_processes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kts_source.export.files import TaskReport
    from kts_source.export.job import ExportJob, RunnableTask


class ExportExecutor(Protocol):
    """Runs the tasks of a wave somewhere."""

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
        try:
            yield from in_processes(partial(_run, job), tasks, workers)
        except BrokenProcessPool as error:
            raise ExportError(
                "a worker process died; nothing of this wave was committed, run again to resume"
            ) from error


def _run(job: ExportJob, task: RunnableTask) -> TaskReport:
    return task.run(job)
