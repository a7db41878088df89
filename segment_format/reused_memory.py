"""Memory for large pieces of a log, used again once no view of it is left.

Fresh memory costs a page fault per 4 KiB, which takes longer than to copy as much into it. Memory
used a moment ago is also in the processor's cache. A view keeps its array alive by a reference, so
an array that only its list refers to is free.

That holds where Python counts references as CPython does today. A few views are made and dropped at
import to check it. Where it does not hold, or with `KTS_TUNING=off` (`docs/tuning.md`), all memory
is fresh.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from typing import TYPE_CHECKING, Final

import numpy as np

from segment_format.tuning import is_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

LEAST_BYTES: Final = 256 << 10
"""Below this, fresh memory is as good: the allocator has it at hand."""
_MAX_ARRAYS: Final = 24  # as many as are read ahead, and what the consumer still holds
_MAX_KEPT_BYTES: Final = 160 << 20
_MAX_RESTING_BYTES: Final = 32 << 20
_ROUNDED_TO: Final = 1 << 20


class _Kept:
    """Arrays of this process, the longest unused first."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.arrays: list[NDArray[np.uint8]] = []


_kept = _Kept()


def writable_bytes(size: int) -> memoryview:
    """A view of `size` bytes of any content, which nobody else sees as long as it, or a view made
    from it, lives. Safe to call from any thread.

    Args:
        size: How many bytes; the caller has bounded it.
    """
    global _kept
    if size < LEAST_BYTES or not _REFCOUNTS_TELL or not is_on():
        return memoryview(bytearray(size))
    if _kept.process != os.getpid():
        _kept = _Kept()  # after a fork a thread that is not here may hold the lock
    with _kept.lock:
        arrays = _kept.arrays
        # A small piece must not hold on to the memory of a large one, which is wanted next.
        free = [
            number
            for number in range(len(arrays))
            if size <= arrays[number].size <= 4 * size + _ROUNDED_TO
            and _refcount(arrays, number) == _IDLE_REFCOUNT
        ]
        if free:
            # Of the smallest, the one used last: the processor's cache still has it.
            array = arrays.pop(min(free, key=lambda number: (arrays[number].size, -number)))
        else:
            array = _mapped(-(-size // _ROUNDED_TO) * _ROUNDED_TO)
        view = array[:size].data
        arrays.append(array)
        _drop(_MAX_KEPT_BYTES)
        return view


def give_back() -> None:
    """Gives the system what was kept for a read that has ended, but for a little. Others that read
    meanwhile only lose memory that is warm. Safe to call from any thread.
    """
    if _kept.process == os.getpid():
        with _kept.lock:
            _drop(_MAX_RESTING_BYTES)


def _drop(most_bytes: int) -> None:
    """Forgets the arrays that were used longest ago; the lock is held."""
    arrays = _kept.arrays
    while len(arrays) > _MAX_ARRAYS or (
        sum(kept.size for kept in arrays) > most_bytes and len(arrays) > 1
    ):
        del arrays[0]


def _mapped(size: int) -> NDArray[np.uint8]:
    """Memory that goes back to the system with its last view. What the allocator is given back by
    many threads it keeps, for each of them: half as much again as was in use.
    """
    if hasattr(mmap, "MAP_PRIVATE"):
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    else:  # pragma: no cover - Windows
        mapping = mmap.mmap(-1, size)
    return np.frombuffer(mapping, np.uint8)


def _refcount(arrays: list[NDArray[np.uint8]], number: int) -> int:
    """References to an array of a list."""
    return sys.getrefcount(arrays[number])


def _idle_refcount() -> int:
    return _refcount([np.empty(1, np.uint8)], 0)


def _refcounts_tell() -> bool:
    """Whether counts are higher exactly as long as there is a view, of whatever kind."""
    arrays = [np.empty(2, np.uint8)]
    ways_to_view: tuple[Callable[[memoryview], object], ...] = (
        lambda view: view,
        lambda view: view[1:],
        memoryview.toreadonly,
        lambda view: np.frombuffer(view, np.uint8)[1:],
        lambda view: memoryview(view).cast("b"),
    )
    for view_of in ways_to_view:
        held = view_of(arrays[0][:2].data)
        if _refcount(arrays, 0) <= _IDLE_REFCOUNT:
            return False
        del held
        if _refcount(arrays, 0) != _IDLE_REFCOUNT:
            return False
    return True


_IDLE_REFCOUNT: Final = _idle_refcount() if hasattr(sys, "getrefcount") else 0
"""References to an array that only its list has."""
_REFCOUNTS_TELL: Final = _IDLE_REFCOUNT > 0 and _refcounts_tell()
