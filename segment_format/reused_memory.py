"""Reuses the memory of large buffers that have no more references.

Reuse is faster because a page fault for 4 KiB of new memory takes longer than copying 4 KiB, and
because recently used memory is in the processor's cache. Each buffer is a NumPy array over a memory
mapping. Views, slices and Arrow buffers refer to this array. After the last reference is gone, the
array's finalizer returns the mapping to the pool. `KTS_TUNING=off` (`docs/tuning.md`) disables the
reuse.
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
"""Smaller requests get new memory, because the allocator is equally fast for them."""
_MAX_MAPPINGS: Final = 24  # pieces read ahead plus pieces that the consumer holds
_MAX_IDLE_BYTES: Final = 160 << 20
_MAX_RESTING_BYTES: Final = 32 << 20
_ROUNDED_TO: Final = 1 << 20


class _Pool:
    """Idle mappings of this process, oldest first.

    Attributes:
        idle: Mappings that can be used again. Only the holder of `lock` changes it.
        returned: Unused mappings that are not in `idle` yet. A finalizer can run in any thread,
            even while that thread holds `lock`. So finalizers append to this list and never wait
            for `lock`.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.idle: list[mmap.mmap] = []
        self.returned: deque[mmap.mmap] = deque()

    def take(self, size: int) -> mmap.mmap | None:
        """Removes and returns the smallest idle mapping that has at least `size` bytes. Returns
        None if no mapping is large enough, or if all large enough mappings are much larger.
        """
        with self.lock:
            self._collect()
            # A small buffer must not occupy a large mapping, because a large buffer may be
            # requested next.
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
        """Returns a mapping to the pool after the last reference to the buffer is gone. Never
        waits.
        """
        self.returned.append(mapping)
        if self.lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self.lock.release()

    def shrink(self, max_bytes: int) -> None:
        """Releases idle mappings to the operating system, the oldest first, until the remaining
        ones have at most `max_bytes` in total.
        """
        with self.lock:
            self._collect(max_bytes)

    def _collect(self, max_bytes: int = _MAX_IDLE_BYTES) -> None:
        """Moves the mappings in `returned` to `idle`. If the idle mappings exceed the limits,
        releases the oldest.
        """
        while self.returned:
            self.idle.append(self.returned.popleft())
        total = sum(len(mapping) for mapping in self.idle)
        while self.idle and (len(self.idle) > _MAX_MAPPINGS or total > max_bytes):
            total -= len(self.idle.pop(0))


_pool = _Pool()


def writable_bytes(size: int) -> memoryview:
    """Returns a writable view of `size` bytes with arbitrary content. The caller must limit `size`.

    The memory is not reused while the view, or an object that uses its memory, is alive. Safe to
    call from any thread.
    """
    global _pool
    if size < MIN_BYTES or not is_on():
        return memoryview(bytearray(size))
    if _pool.process != os.getpid():
        _pool = _Pool()  # after a fork, a thread of the parent may hold the lock
    mapping = _pool.take(size)
    if mapping is None:
        mapping = _new_mapping(-(-size // _ROUNDED_TO) * _ROUNDED_TO)
    # The base of this array is the mapping and not another array, so that NumPy's slices refer to
    # this array, which has the finalizer.
    lease = np.frombuffer(mapping, np.uint8, count=size)
    weakref.finalize(lease, _pool.give_back, mapping).atexit = False
    return lease.data


def release_idle() -> None:
    """Releases most idle memory to the system after a scan. Safe to call from any thread."""
    if _pool.process == os.getpid():
        _pool.shrink(_MAX_RESTING_BYTES)


def _new_mapping(size: int) -> mmap.mmap:
    """Returns a new memory mapping, whose memory is returned to the operating system after the last
    reference is gone.

    Memory from `malloc` would stay reserved for the thread that freed it. With many threads, this
    took 50 % more memory than was in use.
    """
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, size)  # pragma: no cover - Windows
