"""Hands batches from threads that read to the one that uses them: in order, and never too many."""

from __future__ import annotations

import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

from kts_source.store.request_policy import Cancellation

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    import pyarrow as pa

WAITING_BYTES: Final = 64 << 20
"""Of the batches of one read that wait for the consumer, about; one batch may always wait. Reads in
order run side by side only as far as their batches may wait for the first one's end.
"""

_SIGNAL_SECONDS: Final = 0.5
"""How long the consumer waits at a stretch. A signal that arrives just before a wait begins does
not end it: without this, such a Ctrl-C would be noticed only when a store has answered.
"""


def in_threads(
    reads: Sequence[Callable[[], Iterator[pa.RecordBatch]]], threads: int, *, ordered: bool
) -> Generator[pa.RecordBatch]:
    """The batches of many reads, of which `threads` run at a time.

    Nothing runs before the first batch is asked for. Close the generator to stop what is under way:
    it aborts what its threads wait for in a store, and waits until they have ended. An error of a
    read comes in its place, where `ordered`, else as soon as it is known; it ends the others.

    Memory: up to about twice `WAITING_BYTES` a thread, and the batch in each one's hand.

    Args:
        reads: What to read, each opened and read to its end in one thread.
        threads: How many run at a time.
        ordered: Whether the batches come in the order of the reads; else as they are ready.
    """
    handover = _Handover(reads, threads, ordered=ordered)
    workers = [
        threading.Thread(target=handover.work, name=f"kts-read-{number}", daemon=True)
        for number in range(min(threads, len(reads)))
    ]
    try:
        for worker in workers:
            worker.start()
        yield from handover.batches()
    finally:
        handover.stop()
        for worker in workers:
            if worker.ident is not None:
                worker.join()
        handover.clear()


class _Given(NamedTuple):
    """What a read gives the consumer.

    Attributes:
        number: Which read.
        batch: `None` when the read has ended.
        size: The batch's bytes.
        error: What ended it early.
    """

    number: int
    batch: pa.RecordBatch | None
    size: int = 0
    error: BaseException | None = None


class _Handover:
    """What the threads share.

    Batches go through a queue that wakes the consumer without a second lock for it to wait for. A
    lock of its own guards what is counted: bytes that wait.
    """

    def __init__(
        self,
        reads: Sequence[Callable[[], Iterator[pa.RecordBatch]]],
        threads: int,
        *,
        ordered: bool,
    ) -> None:
        self._reads = reads
        self._ordered = ordered
        self._most_bytes = threads * WAITING_BYTES
        self._cancellation = Cancellation()
        self._given: SimpleQueue[_Given] = SimpleQueue()
        # In order: what came before its turn.
        self._early: dict[int, deque[_Given]] = {}
        self._room = threading.Condition()
        self._begun = 0
        self._stopped = False
        # Bytes that the consumer has not taken yet, by read and in all.
        self._waiting = [0] * len(reads)
        self._all_waiting = 0

    def work(self) -> None:
        """Reads what is next, until nothing is left. Runs in several threads."""
        with self._cancellation.scope():
            while (number := self._begin()) is not None:
                error = None
                try:
                    self._work(number)
                except BaseException as raised:  # noqa: BLE001  # raised in the consumer's thread
                    error = raised
                self._given.put(_Given(number, None, error=error))

    def _work(self, number: int) -> None:
        batches = self._reads[number]()
        try:
            for batch in batches:
                if not self._put(number, batch):
                    return
                del batch
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All batches, in the consumer's thread."""
        used_up = 0
        early = self._early
        while used_up < len(self._reads):
            waiting = early.get(used_up)
            given = waiting.popleft() if waiting else self._next()
            if self._ordered and given.number != used_up:
                early.setdefault(given.number, deque()).append(given)
            elif given.batch is not None:
                self._take(given)
                batch = given.batch
                del given
                yield batch
                del batch
            elif given.error is not None:
                raise given.error
            else:
                early.pop(used_up, None)
                used_up += 1

    def stop(self) -> None:
        """Lets the threads end."""
        with self._room:
            self._stopped = True
            self._room.notify_all()
        self._cancellation.cancel()

    def clear(self) -> None:
        """Drops what nobody took: the traceback of an error may keep this object for long. Call it
        when the threads have ended.
        """
        for waiting in self._early.values():
            waiting.clear()
        while not self._given.empty():
            self._given.get()

    def _begin(self) -> int | None:
        """The number of the next read; waits while the consumer is too far behind."""
        with self._room:
            while not self._stopped and self._all_waiting >= self._most_bytes:
                self._room.wait()
            if self._stopped or self._begun == len(self._reads):
                return None
            self._begun += 1
            return self._begun - 1

    def _put(self, number: int, batch: pa.RecordBatch) -> bool:
        """Adds a batch when there is room; False when nobody wants it any more."""
        size = batch.nbytes
        with self._room:
            waiting = self._waiting
            while not self._stopped and waiting[number] and waiting[number] + size > WAITING_BYTES:
                self._room.wait()
            if self._stopped:
                return False
            waiting[number] += size
            self._all_waiting += size
        self._given.put(_Given(number, batch, size))
        return True

    def _next(self) -> _Given:
        """What comes next, of any read."""
        while True:
            try:
                return self._given.get(timeout=_SIGNAL_SECONDS)
            except Empty:
                continue

    def _take(self, given: _Given) -> None:
        """Makes room for more."""
        with self._room:
            self._waiting[given.number] -= given.size
            self._all_waiting -= given.size
            self._room.notify_all()
