"""Reuses memory for large pieces of a log after the last view of a piece is gone.

A page fault for 4 KiB of fresh memory takes longer than copying 4 KiB. Recently used memory is also
in the processor's cache. Each lease is a NumPy array of its own over a mapping. Views, slices and
Arrow buffers refer to the lease, so its finalizer runs when the last of them is gone and returns
the mapping to the pool. `KTS_TUNING=off` (`docs/tuning.md`) disables the reuse.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from typing import Final

import numpy as np

from segment_format.tuning import is_on

MIN_BYTES: Final = 256 << 10
"""Smaller requests get fresh memory: the allocator is as fast for them."""
_MAX_MAPPINGS: Final = 24  # pieces read ahead plus pieces that the consumer holds
_MAX_IDLE_BYTES: Final = 160 << 20
_MAX_RESTING_BYTES: Final = 32 << 20
_ROUNDED_TO: Final = 1 << 20


class _Pool:
    """Idle mappings of this process, oldest first.

    Attributes:
        idle: Mappings to use again. Only the holder of `lock` changes it.
        returned: Mappings without a lease that are not idle yet. A finalizer can run in any thread,
            also while that thread holds `lock`, so finalizers only append here and never wait.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.idle: list[mmap.mmap] = []
        self.returned: deque[mmap.mmap] = deque()

    def take(self, size: int) -> mmap.mmap | None:
        """Removes and returns the smallest idle mapping that fits, or None."""
        with self.lock:
            self._collect()
            # A small piece must not keep the memory of a large one, which is needed next.
            fitting = [
                number
                for number, mapping in enumerate(self.idle)
                if size <= len(mapping) <= 4 * size + _ROUNDED_TO
            ]
            if fitting:
                # Among equal sizes, take the one used last: it may still be in the processor's
                # cache.
                best = min(fitting, key=lambda number: (len(self.idle[number]), -number))
                return self.idle.pop(best)
            return None

    def give_back(self, mapping: mmap.mmap) -> None:
        """Takes back a mapping after its lease. Never waits."""
        self.returned.append(mapping)
        if self.lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self.lock.release()

    def shrink(self, max_bytes: int) -> None:
        """Releases idle mappings to the system until `max_bytes` are left."""
        with self.lock:
            self._collect(max_bytes)

    def _collect(self, max_bytes: int = _MAX_IDLE_BYTES) -> None:
        """Moves returned mappings to the idle ones and drops the oldest above the limits."""
        while self.returned:
            self.idle.append(self.returned.popleft())
        total = sum(len(mapping) for mapping in self.idle)
        while self.idle and (len(self.idle) > _MAX_MAPPINGS or total > max_bytes):
            total -= len(self.idle.pop(0))


_pool = _Pool()


def writable_bytes(size: int) -> memoryview:
    """Returns a writable view of `size` bytes with arbitrary content.

    No other caller gets the same memory while the view, or anything made from it, is alive. Safe to
    call from any thread.

    Args:
        size: Number of bytes; the caller has bounded it.
    """
    global _pool
    if size < MIN_BYTES or not is_on():
        return memoryview(bytearray(size))
    if _pool.process != os.getpid():
        _pool = _Pool()  # after a fork, a thread of the parent may hold the lock
    mapping = _pool.take(size)
    if mapping is None:
        mapping = _new_mapping(-(-size // _ROUNDED_TO) * _ROUNDED_TO)
    # Its base is the mapping, not an array, so NumPy's slices refer to the lease itself.
    lease = np.frombuffer(mapping, np.uint8, count=size)
    weakref.finalize(lease, _pool.give_back, mapping).atexit = False
    return lease.data


def release_idle() -> None:
    """Releases most idle memory to the system after a scan. Safe to call from any thread."""
    if _pool.process == os.getpid():
        _pool.shrink(_MAX_RESTING_BYTES)


def _new_mapping(size: int) -> mmap.mmap:
    """Returns memory that goes back to the system when its last reference is gone.

    Memory from `malloc` would stay with the thread that freed it: with many threads, half as much
    again as was in use.
    """
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)  # pragma: no cover - Windows
