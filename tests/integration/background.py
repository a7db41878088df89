"""Random work on partitions, transactions included, step by step or until it is stopped."""

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
    """Plain and idempotent batches of every codec, and transactions that interleave.

    Args:
        bootstrap: Address of the cluster.
        pairs: Topics and partitions that are written.
        seed: Decides every step.
    """

    def __init__(self, bootstrap: str, pairs: Sequence[tuple[str, int]], seed: int) -> None:
        self.filler = Filler(bootstrap, seed)
        self._random = random.Random(seed)
        self._pairs = list(pairs)
        self._seed = seed
        self._open: set[str] = set()

    def step(self) -> int:
        """Does one thing: sends, or ends a transaction.

        Returns:
            How many records were sent.
        """
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
        """Commits or aborts what is open; without this it stays open."""
        for name in sorted(self._open):
            self._end(name)

    def _end(self, name: str) -> None:
        producer = self.filler.transactional(name)
        is_abort = self._random.random() < 0.5
        (producer.abort_transaction if is_abort else producer.commit_transaction)(30)
        self._open.remove(name)


class Background:
    """Random work in a thread, from `with` to its end; its error is raised there.

    Args:
        work: What is done.
        records_per_second: More are never sent.
        leaves_open: Whether transactions that are open at the end stay so.
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
        """Starts the thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops it; raises what went wrong in it."""
        self._stopped.set()
        self._thread.join(120)
        if self._thread.is_alive():
            raise TimeoutError("the background work does not end")
        if self._error is not None:
            raise RuntimeError("the background work failed") from self._error

    def _run(self) -> None:
        begun = time.monotonic()
        try:
            while not self._stopped.is_set():
                self.sent += self._work.step()
                ahead = self.sent / self._rate - (time.monotonic() - begun)
                self._stopped.wait(max(0.0, ahead))
            if not self._leaves_open:
                self._work.finish()
        except Exception as error:  # noqa: BLE001 - raised again where the thread is joined
            self._error = error
