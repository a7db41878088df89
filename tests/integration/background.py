"""Writes random records and transactions, either step by step or in a background thread."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Self

from tests.integration.filler import CODECS, Filler

if TYPE_CHECKING:
    from collections.abc import Sequence

_TRANSACTIONS = 3


class RandomWork:
    """Sends random batches with every codec. Some batches belong to transactions, which may
    overlap.

    Args:
        bootstrap: Address of the cluster.
        pairs: Topics and partitions to write.
        seed: Seed of all random choices.
    """

    def __init__(self, bootstrap: str, pairs: Sequence[tuple[str, int]], seed: int) -> None:
        self.filler = Filler(bootstrap, seed)
        self._random = random.Random(seed)
        self._pairs = list(pairs)
        self._seed = seed
        self._open: set[str] = set()

    def step(self) -> int:
        """Sends some records or ends a transaction; returns the number of sent records."""
        kind = self._random.random()
        topic, partition = self._random.choice(self._pairs)
        count = self._random.randint(1, 200)
        name = f"work-{self._seed}-{self._random.randrange(_TRANSACTIONS)}"
        if kind < 0.4:
            codec = self._random.choice(CODECS)
            self.filler.send(self.filler.plain(codec), topic, partition, count)
            return count
        producer = self.filler.transactional(name)
        if name in self._open and kind > 0.75:
            self._end(name)
            return 0
        if name not in self._open:
            producer.begin_transaction()
            self._open.add(name)
        self.filler.send(producer, topic, partition, count)
        return count

    def finish(self) -> None:
        """Commits or aborts each open transaction at random."""
        for name in sorted(self._open):
            self._end(name)

    def _end(self, name: str) -> None:
        producer = self.filler.transactional(name)
        is_abort = self._random.random() < 0.5
        (producer.abort_transaction if is_abort else producer.commit_transaction)(30)
        self._open.remove(name)


class Background:
    """Runs random work in a thread during a `with` block.

    Args:
        work: The thread calls `work.step()` repeatedly.
        records_per_second: Maximum average rate.
        leaves_open: If true, transactions that are open at the end of the block stay open. If
            false, they are committed or aborted.
    """

    def __init__(
        self, work: RandomWork, records_per_second: float, *, leaves_open: bool = False
    ) -> None:
        self._work = work
        self._rate = records_per_second
        self._leaves_open = leaves_open
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="background work", daemon=True)
        self._error: Exception | None = None
        self.sent = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops the thread. If `leaves_open` is false, the thread ends open transactions.

        Raises:
            RuntimeError: A step failed.
            TimeoutError: The thread did not end within 120 s.
        """
        self._stopped.set()
        self._thread.join(120)
        if self._thread.is_alive():
            raise TimeoutError("the background thread did not end within 120 s")
        if self._error is not None:
            raise RuntimeError("a step of the background thread failed") from self._error

    def _run(self) -> None:
        started = time.monotonic()
        try:
            while not self._stopped.is_set():
                self.sent += self._work.step()
                ahead = self.sent / self._rate - (time.monotonic() - started)
                self._stopped.wait(max(0.0, ahead))
            if not self._leaves_open:
                self._work.finish()
        except Exception as error:  # noqa: BLE001 - raised again in __exit__
            self._error = error
