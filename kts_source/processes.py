"""Tasks in processes of this machine, which a Ctrl-C ends without tracebacks."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.queues import SimpleQueue

T = TypeVar("T")
R = TypeVar("R")


def in_processes(call: Callable[[T], R], tasks: Sequence[T], workers: int) -> Iterator[R]:
    """What `call` gives for each task, in any order, as it becomes known.

    Close the iterator to stop what is under way.

    Args:
        call: Picklable, as are tasks and answers.
        tasks: What it is called with.
        workers: Processes, at most.

    Raises:
        BrokenProcessPool: A process died.
        Exception: What a call raised.
    """
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
            futures = [pool.submit(_call, call, task) for task in tasks]
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
        for future in concurrent.futures.as_completed(futures):
            yield future.result()
    except concurrent.futures.process.BrokenProcessPool:
        raise
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


def _call(call: Callable[[T], R], task: T) -> R:
    _Worker.at_work = True
    try:
        if _Worker.interrupted:
            raise KeyboardInterrupt
        return call(task)
    finally:
        _Worker.at_work = False
