"""Runs several reads in threads, and passes their batches to the consumer. Limits the bytes of
batches that wait for the consumer.
"""

from __future__ import annotations

import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

from kts_source.store.request_policy import Cancellation
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    import pyarrow as pa

    from kts_source.options import ScanOptions
    from kts_source.tier import Tier

WAITING_BYTES: Final = 64 << 20
"""Approximate limit of bytes per read in the queue for the consumer; one batch is always allowed.
Ordered reads stall at this limit until the consumer has taken all batches of earlier reads.
"""

_SIGNAL_SECONDS: Final = 0.5
"""Maximum seconds that the consumer blocks at a time. A signal just before a wait does not
interrupt it, so without this limit Ctrl-C would take effect only after the store has responded.
"""


class ThreadTiers:
    """Opens a separate tier for each thread that reads. Call `close` after all threads have
    ended.
    """

    def __init__(self, options: ScanOptions) -> None:
        self._options = options
        self._tiers: dict[int, Tier] = {}

    def mine(self) -> Tier:
        """Returns the tier of the calling thread. Opens it at the first call."""
        thread = threading.get_ident()
        tier = self._tiers.get(thread)
        if tier is None:
            tier = self._tiers[thread] = open_tier(self._options)
        return tier

    def close(self) -> None:
        """Closes the tiers of all threads."""
        tiers, self._tiers = self._tiers, {}
        for tier in tiers.values():
            tier.close()


def in_threads(
    reads: Sequence[Callable[[], Iterator[pa.RecordBatch]]], threads: int, *, ordered: bool
) -> Generator[pa.RecordBatch]:
    """Yields the batches of many reads. At most `threads` reads run at a time.

    No read begins before the consumer requests the first batch. Closing the generator cancels
    requests to the store and waits until the threads have ended. If a read fails, its error ends
    all reads. With `ordered`, the error is raised after the batches of all earlier reads; otherwise
    it is raised immediately.

    For each thread, up to about twice `WAITING_BYTES` plus one batch wait for the consumer.

    Args:
        reads: Functions that begin a read and return its batches. Each read runs in one thread.
        threads: Maximum number of reads that run at a time.
        ordered: True to yield all batches of a read before those of the next read; False to yield
            each batch as soon as it is ready.
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


class _Item(NamedTuple):
    """A message from a reading thread to the consumer: a batch, or the end or failure of a read."""

    number: int
    batch: pa.RecordBatch | None
    size: int = 0
    error: BaseException | None = None


class _Handover:
    """State that the reading threads share with the consumer.

    Batches are passed in a `SimpleQueue`, which wakes the consumer without a further lock. The lock
    of `_room` guards the counts of waiting bytes.
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
        self._max_bytes = threads * WAITING_BYTES
        self._cancellation = Cancellation()
        self._queue: SimpleQueue[_Item] = SimpleQueue()
        # Only if `ordered`: items by number of read. They wait until all earlier reads have ended.
        self._early: dict[int, deque[_Item]] = {}
        self._room = threading.Condition()
        self._begun = 0
        self._stopped = False
        # Bytes of the batches that the consumer has not taken yet: for each read, and in total.
        self._waiting = [0] * len(reads)
        self._all_waiting = 0

    def work(self) -> None:
        """Runs reads one after the other until none is left. Several threads call this method."""
        with self._cancellation.scope():
            while (number := self._begin()) is not None:
                error = None
                try:
                    self._work(number)
                except BaseException as raised:  # noqa: BLE001  # raised in the consumer's thread
                    error = raised
                self._queue.put(_Item(number, None, error=error))

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
        """Yields the batches of all reads. The consumer's thread calls this method."""
        ended = 0
        early = self._early
        while ended < len(self._reads):
            waiting = early.get(ended)
            item = waiting.popleft() if waiting else self._next()
            if self._ordered and item.number != ended:
                early.setdefault(item.number, deque()).append(item)
            elif item.batch is not None:
                self._count_as_taken(item)
                batch = item.batch
                del item
                yield batch
                del batch
            elif item.error is not None:
                raise item.error
            else:
                early.pop(ended, None)
                ended += 1

    def stop(self) -> None:
        """Makes the threads end: no further read begins, and pending requests are cancelled."""
        with self._room:
            self._stopped = True
            self._room.notify_all()
        self._cancellation.cancel()

    def clear(self) -> None:
        """Drops all waiting batches, which the traceback of an error could keep in memory. Call it
        after the threads have ended.
        """
        for waiting in self._early.values():
            waiting.clear()
        while not self._queue.empty():
            self._queue.get()

    def _begin(self) -> int | None:
        """Waits until the queued batches are below the limit of bytes. Returns the number of the
        next read to run; `None` if all reads have begun or the reads are stopped.
        """
        with self._room:
            while not self._stopped and self._all_waiting >= self._max_bytes:
                self._room.wait()
            if self._stopped or self._begun == len(self._reads):
                return None
            self._begun += 1
            return self._begun - 1

    def _put(self, number: int, batch: pa.RecordBatch) -> bool:
        """Waits until the queue has space for a batch of read `number`, and adds it. Each read may
        have `WAITING_BYTES` in the queue, or one larger batch. Returns False if the reads are
        stopped.
        """
        size = batch.nbytes
        with self._room:
            waiting = self._waiting
            while not self._stopped and waiting[number] and waiting[number] + size > WAITING_BYTES:
                self._room.wait()
            if self._stopped:
                return False
            waiting[number] += size
            self._all_waiting += size
        self._queue.put(_Item(number, batch, size))
        return True

    def _next(self) -> _Item:
        while True:
            try:
                return self._queue.get(timeout=_SIGNAL_SECONDS)
            except Empty:
                continue

    def _count_as_taken(self, item: _Item) -> None:
        """Subtracts a batch from the waiting bytes, and wakes threads that wait for space."""
        with self._room:
            self._waiting[item.number] -= item.size
            self._all_waiting -= item.size
            self._room.notify_all()
