"""One holder on this machine at a time: file locks that end with their holder.

`flock` belongs to an open file. So it keeps threads apart as well as processes, and ends when the
process dies. The holder removes the lock file. Whoever locks a file that has been removed meanwhile
tries again with the file in its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import TYPE_CHECKING, Final

from kts_source.store.cancel import pause

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LOCK_SUFFIX: Final = ".lock"
_FIRST_PAUSE_SECONDS: Final = 0.002
_LONGEST_PAUSE_SECONDS: Final = 0.05


@contextlib.contextmanager
def locked(
    paths: Sequence[str], patience_seconds: float, *, folder: int | None = None
) -> Iterator[bool]:
    """Holds the locks of all paths, taken in this order, for the block.

    Args:
        paths: Lock files; give them in the same order everywhere.
        patience_seconds: How long to wait for all of them.
        folder: Descriptor of the folder that relative paths are in.

    Yields:
        Whether all are held. They are not when the patience ended or the file system has no locks.

    Raises:
        CancelledFetchError: The caller's scope was cancelled while waiting.
    """
    deadline = time.monotonic() + patience_seconds
    held: list[tuple[str, int]] = []
    try:
        for path in paths:
            descriptor = _acquired(path, deadline, folder)
            if descriptor is None:
                break
            held.append((path, descriptor))
        yield len(held) == len(paths)
    finally:
        for path, descriptor in reversed(held):
            _release(path, descriptor, folder)


def _acquired(path: str, deadline: float, folder: int | None) -> int | None:
    wait = _FIRST_PAUSE_SECONDS
    while True:
        try:
            descriptor = _try(path, folder)
        except OSError:
            return None
        if descriptor is not None:
            return descriptor
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        pause(min(wait, left))
        wait = min(2 * wait, _LONGEST_PAUSE_SECONDS)


def _try(path: str, folder: int | None) -> int | None:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600, dir_fd=folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == os.stat(path, dir_fd=folder).st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass  # held by another, or just removed by its holder
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _release(path: str, descriptor: int, folder: int | None) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path, dir_fd=folder)
    with contextlib.suppress(OSError):
        # Said in so many words: a forked child may hold a copy of the descriptor.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
