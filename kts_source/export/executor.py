"""Runs the tasks of a wave on one machine: in this process, or in several."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
from typing import TYPE_CHECKING, Protocol

from kts_source.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.queues import SimpleQueue

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
        # Spawned: neither the event loops of the stores nor their connections survive a fork.
        context = multiprocessing.get_context("spawn")
        started = context.SimpleQueue()
        pool = concurrent.futures.ProcessPoolExecutor(
            workers, context, initializer=_begin_worker, initargs=(started,)
        )
        try:
            # A Ctrl-C while they start would end them with tracebacks: they unblock it themselves.
            blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                futures = [pool.submit(_run_task, task, job) for task in tasks]
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
            for future in concurrent.futures.as_completed(futures):
                yield future.result()
        except concurrent.futures.process.BrokenProcessPool as error:
            raise ExportError(
                "a worker process died; nothing of this wave was committed, run again to resume"
            ) from error
        except BaseException:
            while not started.empty():
                os.kill(started.get(), signal.SIGINT)
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            started.close()


class _Worker:
    """SIGINT in a worker: ends its task and lets it begin no other, without a traceback."""

    interrupted = False
    at_work = False

    @classmethod
    def on_interrupt(cls, _number: int, _frame: object) -> None:
        if not cls.interrupted:  # the clean-up behind the first is not disturbed again
            cls.interrupted = True
            if cls.at_work:
                raise KeyboardInterrupt


def _begin_worker(started: SimpleQueue[int]) -> None:
    signal.signal(signal.SIGINT, _Worker.on_interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    started.put(os.getpid())


def _run_task(task: RunnableTask, job: ExportJob) -> TaskReport:
    _Worker.at_work = True
    try:
        if _Worker.interrupted:
            raise KeyboardInterrupt
        return task.run(job)
    finally:
        _Worker.at_work = False
