"""Compares two threads that read a tier in one process with two processes."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import kts_source
from benchmarks.engines_parts import decode, read_and_decode
from benchmarks.report import Row, at_least
from benchmarks.turns import Times, in_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from pathlib import Path

    from benchmarks.tiers import Tier
    from kts_source.engines.scan import Scan
    from kts_source.read.task import ScanTask

_PROCESS_STARTS: Final = 4
"""Number of times that the processes of each contestant are started. The speed of a process varies
by some per cent with its memory layout, which stays the same until it ends.
"""


def drain(scan: Scan, threads: int, records: int) -> None:
    """Reads all rows of a scan in any order, and checks their number."""
    with scan.to_reader(threads=threads, ordered=False) as reader:
        rows = sum(batch.num_rows for batch in reader)
    assert rows == records


def thread_rows(tier: Tier, label: str, rounds: int) -> list[Row]:
    """Compares two threads of `scan().to_reader()` with two processes. To show the limits of Python
    and the operating system, also compares threads and processes that only decode, and that only
    read and decode in a loop.
    """
    logs = sorted(tier.path.glob("*/*/*.log"))
    scan = kts_source.scan(tier.options)
    reader = pickle.dumps(scan.task_reader)
    reads = [partial(_reading, reader, scan.tasks[share::2]) for share in (0, 1)]
    loops = [partial(partial, read_and_decode, logs[share::2]) for share in (0, 1)]
    decodes = [partial(_decoding, logs[0], len(logs) // 2)] * 2
    contestants: dict[str, Sequence[Callable[[], Callable[[], object]]]] = {
        "threads": [partial(_in_threads, reads)],
        "processes": reads,
        "one consumer": [partial(_draining, tier)],
        "threads that loop": [partial(_in_threads, loops)],
        "processes that loop": loops,
        "threads that decode": [partial(_in_threads, decodes)],
        "processes that decode": decodes,
    }
    times = Times({name: [] for name in contestants})
    for _ in range(_PROCESS_STARTS):
        with ExitStack() as running:
            actions = {
                name: running.enter_context(_Processes(works)).run
                for name, works in contestants.items()
            }
            times.add(in_turns(actions, rounds))
    return [
        at_least(
            f"two threads that read a half each, of two processes that do, {label}",
            times.ratio(("processes",), "threads"),
            "×",
            0.9,
        ),
        Row(
            f"scan().to_reader(threads=2), all rows to one consumer, of the two processes, {label}",
            times.ratio(("processes",), "one consumer"),
            "×",
        ).noted(
            f"{tier.records / times.median('one consumer') / 1e6:.3g} M records/s; the processes"
            f" hand nothing over"
        ),
        Row(
            f"two threads that read a window and decode it, of two processes that do, {label}",
            times.ratio(("processes that loop",), "threads that loop"),
            "×",
        ).noted("no plan, no checks, nothing handed over: the limit of system and memory"),
        Row(
            f"two threads that only decode, from memory, of two processes that do, {label}",
            times.ratio(("processes that decode",), "threads that decode"),
            "×",
        ).noted("nothing is read and nothing handed over"),
    ]


class _Processes:
    """Processes that repeat an action on request.

    Args:
        works: A function for each process, which the process calls once at its start. The function
            returns the action.
    """

    def __init__(self, works: Sequence[Callable[[], Callable[[], object]]]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._workers = []
        for work in works:
            own_end, worker_end = context.Pipe()
            worker = context.Process(target=_worker, args=(worker_end, work), daemon=True)
            worker.start()
            self._pipes.append(own_end)
            self._workers.append(worker)

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.send(False)
        for worker in self._workers:
            worker.join(30)

    def run(self) -> None:
        """Makes every process run its action once, and waits for all of them."""
        for pipe in self._pipes:
            pipe.send(True)
        for pipe in self._pipes:
            pipe.recv()


def _worker(pipe: Connection, work: Callable[[], Callable[[], object]]) -> None:
    action = work()
    while pipe.recv():
        action()
        pipe.send(True)


def _draining(tier: Tier) -> Callable[[], object]:
    return partial(drain, kts_source.scan(tier.options), 2, tier.records)


def _reading(pickled: bytes, tasks: Sequence[ScanTask]) -> Callable[[], object]:
    reader = pickle.loads(pickled)
    return lambda: sum(batch.num_rows for task in tasks for batch in reader(task))


def _decoding(path: Path, repeats: int) -> Callable[[], object]:
    log = path.read_bytes()
    return lambda: decode(log, repeats)


def _in_threads(works: Sequence[Callable[[], Callable[[], object]]]) -> Callable[[], object]:
    """Returns a function that runs the actions in one process, with a new thread for each action,
    as a scan does.
    """
    actions = [work() for work in works]

    def run() -> None:
        with ThreadPoolExecutor(len(actions)) as pool:
            for done in [pool.submit(action) for action in actions]:
                done.result()

    return run
