"""Runs tasks in several processes on this machine. After Ctrl-C the processes end without printing
tracebacks.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
from typing import TYPE_CHECKING, TypeVar

from kts_source.errors import WorkerStartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.queues import SimpleQueue

T = TypeVar("T")
R = TypeVar("R")


def in_processes(call: Callable[[T], R], tasks: Sequence[T], workers: int) -> Iterator[R]:
    """Yields the results of `call` for each task as they become available.

    Close the iterator to cancel the remaining tasks.

    Args:
        call: Picklable function with picklable arguments and results.
        tasks: Arguments of the calls, one per call.
        workers: Maximum number of concurrent processes.

    Raises:
        WorkerStartError: No process could start.
        BrokenProcessPool: A process died.
        Exception: The error of a call.
    """
    # Spawn processes, because event loops and connections of the stores do not survive a fork.
    context = multiprocessing.get_context("spawn")
    started = context.SimpleQueue()
    pool = concurrent.futures.ProcessPoolExecutor(
        workers, context, initializer=_begin_worker, initargs=(started,)
    )
    try:
        # Block SIGINT while the processes start, because Ctrl-C would print tracebacks then. The
        # workers unblock it after their start.
        blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            futures = [pool.submit(_call, call, task) for task in tasks]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
        for future in concurrent.futures.as_completed(futures):
            yield future.result()
    except concurrent.futures.process.BrokenProcessPool as error:
        if started.empty():
            raise WorkerStartError(
                "no worker process could start. Each worker imports the script that runs, so put"
                ' the call under `if __name__ == "__main__":` in a script file'
            ) from error
        raise
    except BaseException:
        while not started.empty():
            os.kill(started.get(), signal.SIGINT)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        started.close()


class _Worker:
    """Handles SIGINT in a worker process: ends the running task, and starts no further task,
    without a traceback.
    """

    interrupted = False
    at_work = False

    @classmethod
    def on_interrupt(cls, _number: int, _frame: object) -> None:
        if not cls.interrupted:  # later signals must not disturb the clean-up
            cls.interrupted = True
            if cls.at_work:
                raise KeyboardInterrupt


def _begin_worker(started: SimpleQueue[int]) -> None:
    signal.signal(signal.SIGINT, _Worker.on_interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    started.put(os.getpid())


def _call(call: Callable[[T], R], task: T) -> R:
    _Worker.at_work = True
    try:
        if _Worker.interrupted:
            raise KeyboardInterrupt
        return call(task)
    finally:
        _Worker.at_work = False
