"""Hands batches from threads that read to the one that uses them: in order, and never too many."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

from kts_source.store.cancel import Cancellation

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


class _Waiting:
    """What one read has given and nobody has taken yet.

    Attributes:
        batches: In order.
        size: Their bytes.
        ended: Whether no more will come.
        error: What ended it early.
    """

    __slots__ = ("batches", "ended", "error", "size")

    def __init__(self) -> None:
        self.batches: deque[pa.RecordBatch] = deque()
        self.size = 0
        self.ended = False
        self.error: BaseException | None = None


class _Handover:
    """The state that the threads share, under one lock."""

    def __init__(
        self,
        reads: Sequence[Callable[[], Iterator[pa.RecordBatch]]],
        threads: int,
        *,
        ordered: bool,
    ) -> None:
        self._reads = reads
        self._ordered = ordered
        self._changed = threading.Condition()
        self._begun = 0
        self._stopped = False
        self._threads = threads
        self._cancellation = Cancellation()
        # Of the reads that have begun and are not used up, by number.
        self._waiting: dict[int, _Waiting] = {}

    def work(self) -> None:
        """Reads what is next, until nothing is left. Runs in several threads."""
        with self._cancellation.scope():
            self._work()

    def _work(self) -> None:
        while (number := self._begin()) is not None:
            waiting = self._waiting[number]
            try:
                batches = self._reads[number]()
                try:
                    for batch in batches:
                        if not self._put(waiting, batch):
                            return
                        del batch
                finally:
                    close = getattr(batches, "close", None)
                    if close is not None:
                        close()
            except BaseException as error:  # noqa: BLE001  # raised again in the consumer's thread
                waiting.error = error
            finally:
                with self._changed:
                    waiting.ended = True
                    self._changed.notify_all()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All batches, in the consumer's thread."""
        used_up = 0
        while used_up < len(self._reads):
            with self._changed:
                while (found := self._ready(used_up)) is None:
                    self._changed.wait(_SIGNAL_SECONDS)
                number, waiting = found
                if waiting.batches:
                    batch = waiting.batches.popleft()
                    waiting.size -= batch.nbytes
                    self._changed.notify_all()
                else:
                    batch = None
                    del self._waiting[number]
                    used_up += 1
                    self._changed.notify_all()
            if batch is not None:
                yield batch
                del batch
            elif waiting.error is not None:
                raise waiting.error

    def stop(self) -> None:
        """Lets the threads end."""
        with self._changed:
            self._stopped = True
            self._waiting.clear()
            self._changed.notify_all()
        self._cancellation.cancel()

    def _begin(self) -> int | None:
        """The number of the next read; waits while the consumer is too far behind."""
        with self._changed:
            most = self._threads * WAITING_BYTES
            while not self._stopped and sum(one.size for one in self._waiting.values()) >= most:
                self._changed.wait()
            if self._stopped or self._begun == len(self._reads):
                return None
            number = self._begun
            self._begun += 1
            self._waiting[number] = _Waiting()
            return number

    def _put(self, waiting: _Waiting, batch: pa.RecordBatch) -> bool:
        """Adds a batch when there is room; False when nobody wants it any more."""
        size = batch.nbytes
        with self._changed:
            while not self._stopped and waiting.batches and waiting.size + size > WAITING_BYTES:
                self._changed.wait()
            if self._stopped:
                return False
            waiting.batches.append(batch)
            waiting.size += size
            self._changed.notify_all()
            return True

    def _ready(self, used_up: int) -> tuple[int, _Waiting] | None:
        """A read with something to take: a batch, its end or its error."""
        if self._ordered:
            waiting = self._waiting.get(used_up)
            if waiting is not None and (waiting.batches or waiting.ended):
                return used_up, waiting
            return None
        for number, waiting in self._waiting.items():
            if waiting.batches or waiting.ended:
                return number, waiting
        return None
