"""Where the time of a task goes, added up while it runs."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from segment_format.manifest.transform import RestoreTimes

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


@dataclass(slots=True)
class Stopwatch:
    """Seconds by what they were spent on.

    Attributes:
        fetch: In requests, of all threads together; a multiple of the task's own time is good.
        wait: The task itself, for bytes.
        restore: Decrypting and decompressing chunks.
        decode: From batches of records to Arrow, their codecs included.
    """

    fetch: float = 0.0
    wait: float = 0.0
    decode: float = 0.0
    restore: RestoreTimes = field(default_factory=RestoreTimes)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fetched(self, seconds: float) -> None:
        """Adds a request; from any thread."""
        with self._lock:
            self.fetch += seconds

    def restored(self, times: RestoreTimes) -> None:
        """Adds a chunk; from any thread."""
        with self._lock:
            self.restore.decrypt += times.decrypt
            self.restore.decompress += times.decompress

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Adds the time of the block to `wait`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.wait += time.perf_counter() - began

    def decoding(self, items: Iterator[T]) -> Iterator[T]:
        """The same items; the time to make them, not to use them, is added to `decode`."""
        while True:
            began = time.perf_counter()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self.decode += time.perf_counter() - began
            yield item
