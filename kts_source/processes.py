"""Runs tasks in several processes on this machine. After Ctrl-C the processes end without printing
tracebacks.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
from typing import TYPE_CHECKING, TypeVar

from kts_source.errors import WorkerDiedError, WorkerStartError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from multiprocessing.queues import SimpleQueue

T = TypeVar("T")
R = TypeVar("R")


def in_processes(call: Callable[[T], R], tasks: Sequence[T], workers: int) -> Iterator[R]:
    """Yields the results of `call` for each task as they become available.

    Close the iterator to cancel the remaining tasks. The processes write log lines to stderr, in
    the format of this process if logger `kts_source` has a handler whose formatter they can load.

    Args:
        call: Picklable function with picklable arguments and results.
        tasks: Arguments of the calls, one per call.
        workers: Maximum number of concurrent processes.

    Raises:
        WorkerStartError: A process failed to start, and none had started.
        WorkerDiedError: A process died.
        Exception: The error of a call.
    """
    # Spawn processes, because event loops and connections of the stores do not survive a fork.
    context = multiprocessing.get_context("spawn")
    children_before = set(multiprocessing.active_children())
    started = context.SimpleQueue()
    pool = concurrent.futures.ProcessPoolExecutor(
        workers, context, initializer=_begin_worker, initargs=(started, _log_format())
    )
    try:
        # Block SIGINT while the processes start, because Ctrl-C would print tracebacks then. The
        # workers unblock it after their start.
        blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            futures = [pool.submit(_call, call, task) for task in tasks]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
        children = set(multiprocessing.active_children()) - children_before
        for future in concurrent.futures.as_completed(futures):
            yield future.result()
    except concurrent.futures.process.BrokenProcessPool as error:
        pool.shutdown(wait=True)
        exit_codes = [process.exitcode or 0 for process in children]
        # A process that fails to start exits with 1. The pool ends the others with SIGTERM.
        if started.empty() and max(exit_codes, default=0) > 0:
            raise WorkerStartError(
                "no worker process could start. Each worker imports the script that runs, so put"
                ' the call under `if __name__ == "__main__":` in a script file'
            ) from error
        raise _died(exit_codes) from error
    except BaseException:
        while not started.empty():
            os.kill(started.get(), signal.SIGINT)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        started.close()


def _died(exit_codes: Collection[int]) -> WorkerDiedError:
    killed = -signal.SIGKILL in exit_codes
    cause = "was killed (SIGKILL), probably because the memory ran out" if killed else "died"
    return WorkerDiedError(
        f"a worker process {cause}. Run again: an export resumes after its last commit, an audit"
        " with a state after its last partition. If it happens again, use fewer workers"
    )


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


def _log_format() -> tuple[int, bytes] | None:
    """Returns the level and the pickled formatter of the stream handler of logger `kts_source`;
    `None` if there is no handler, or if its formatter cannot be pickled.
    """
    ours = logging.getLogger("kts_source")
    handlers = [each for each in ours.handlers if isinstance(each, logging.StreamHandler)]
    if not handlers:
        return None
    try:
        formatter = pickle.dumps(handlers[0].formatter)
    except Exception:  # noqa: BLE001  # a formatter of another package may raise any error
        return None
    return max(ours.getEffectiveLevel(), handlers[0].level), formatter


def _begin_worker(started: SimpleQueue[int], log_format: tuple[int, bytes] | None) -> None:
    ours = logging.getLogger("kts_source")
    if log_format is not None and not ours.hasHandlers():  # the script may have added one
        level, formatter = log_format
        handler = logging.StreamHandler()
        with contextlib.suppress(Exception):  # this process may lack the class of the formatter
            handler.setFormatter(pickle.loads(formatter))
        ours.addHandler(handler)
        ours.setLevel(level)
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
