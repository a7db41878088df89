"""A cache on this machine's disk. All processes of one user share it. Its size and the age of its
entries are limited.

A folder of mode 0700 contains one file per entry, with this format:

    "KTC1", CRC-32C of the rest (u32), length of the name (u32), length of the data (u64), name,
    data

Files are written under a temporary name and then renamed, so readers never see partial entries. A
truncated or damaged file fails its checksum and counts as a miss. The modification time of a file
is the time of the last access. There is no daemon: readers delete expired entries, and some writes
also sweep the folder. A sweep deletes entries until the limits are met.

The cache is a segmented LRU: a sweep first deletes entries that were used only once. So one large
scan does not evict frequently used entries. If an entry is used again, the modification time of its
file gets a fraction of exactly half a second. So a sweep recognizes it without opening the file. On
file systems with a coarser time resolution, the cache is a plain LRU.

Existing libraries do not fit: `diskcache` writes to an SQLite database on every read, pickles
values, and has locks that stay locked after their holder was killed. `cachetools` and `theine` keep
all data in the memory of one process.

The folder is opened once, and its files are opened relative to its descriptor. If another user
replaces the folder by another folder or a link, the replacement is never used.

Disk errors never fail a scan.

Locks use `flock`. A `flock` lock belongs to an open file: it excludes other threads and other
processes, and is released when the process ends. The holder of a lock deletes the lock file before
it releases the lock. If another process then acquires the lock of the deleted file, that process
retries with a new file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import stat
import struct
import threading
import time
import uuid
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import google_crc32c

from kts_source.store.request_policy import pause

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from io import BufferedReader
    from pathlib import Path


LOCK_SUFFIX: Final = ".lock"
_FIRST_PAUSE_SECONDS: Final = 0.002
_LONGEST_PAUSE_SECONDS: Final = 0.05


@contextlib.contextmanager
def locked(
    paths: Sequence[str], patience_seconds: float, *, folder: int | None = None
) -> Iterator[bool]:
    """Acquires the locks of all paths, and holds them while the block runs.

    Args:
        paths: Paths of the lock files. All callers must pass common paths in the same order, to
            avoid deadlocks.
        patience_seconds: Timeout for acquiring all locks, in seconds.
        folder: Descriptor of the folder that relative paths refer to.

    Yields:
        True if all locks are held. False after the timeout, or if the file system does not support
        locks.

    Raises:
        CancelledFetchError: The caller's cancellation scope was cancelled during the wait.
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
        pass  # locked by another process, or just removed by it
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _release(path: str, descriptor: int, folder: int | None) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path, dir_fd=folder)
    with contextlib.suppress(OSError):
        # Unlocked explicitly, because a forked child may hold a copy of the descriptor.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


log = logging.getLogger(__name__)

_MAGIC: Final = b"KTC1"
_HEADER: Final = struct.Struct(">4sIIQ")
_ENTRY_SUFFIX: Final = ".entry"
_TEMPORARY_SUFFIX: Final = ".new"
_SWEEP: Final = "sweep"
_SWEEP_SECONDS: Final = 60.0
_ABANDONED_SECONDS: Final = 3600.0
_SWEEP_SHARE: Final = 32
"""A process deletes old entries each time it has written 1/32 of the limit. It stops when the cache
is 2/32 below the limit.
"""
_ASKED_AGAIN_NS: Final = 500_000_000
_SECOND_NS: Final = 1_000_000_000
_PROTECTED_SHARE: Final = 0.75
"""Share of the limit that is reserved for entries that were used again."""


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """Counters of a cache in this process.

    Attributes:
        hits: Number of reads that found their entry.
        misses: Number of reads whose entry did not exist, was expired or was damaged.
        bytes_served: Number of bytes that hits returned.
    """

    hits: int = 0
    misses: int = 0
    bytes_served: int = 0

    def __add__(self, other: CacheCounters) -> CacheCounters:
        """Returns the sum of each counter of `self` and `other`."""
        return CacheCounters(
            self.hits + other.hits,
            self.misses + other.misses,
            self.bytes_served + other.bytes_served,
        )

    def __sub__(self, other: CacheCounters) -> CacheCounters:
        """Returns the increase of each counter since the earlier counters `other`."""
        return CacheCounters(
            self.hits - other.hits,
            self.misses - other.misses,
            self.bytes_served - other.bytes_served,
        )


@dataclass(frozen=True, slots=True)
class CacheLimits:
    """Limits of a cache.

    Attributes:
        max_bytes: Maximum total size of all files; `None` = no limit. Each writing process may
            exceed it by 1/32 of the limit.
        ttl_seconds: Maximum time since the last access of an entry; `None` = no limit.
    """

    max_bytes: int | None
    ttl_seconds: float | None


class DiskCache:
    """A cache in one folder, which maps names to bytes. Safe for use by several threads and
    processes.

    Args:
        folder: Folder of the cache. It is created with mode 0700 if it does not exist.

    Raises:
        OSError: The folder cannot be created, or belongs to another user.
    """

    def __init__(self, folder: Path, limits: CacheLimits) -> None:
        self._folder = folder
        self._descriptor = _opened_private_folder(folder)
        weakref.finalize(self, os.close, self._descriptor)
        self._limits = limits
        self._lock = threading.Lock()
        self._counters = CacheCounters()
        self._unswept = 0
        self._complained = False

    @property
    def counters(self) -> CacheCounters:
        """Counters of the reads in this process."""
        return self._counters

    def get(self, name: str) -> bytes | None:
        """Returns the data of an entry; `None` if the entry does not exist, is expired or is
        damaged.
        """
        data = self.peek(name)
        if data is None:
            self._count(CacheCounters(misses=1))
        return data

    def peek(self, name: str) -> bytes | None:
        """Returns the data of an entry like `get`, but does not count a miss."""
        path = self._path(name)
        try:
            with open(path, "rb", opener=self._open_private) as file:
                data = self._read(file, path, name.encode())
        except FileNotFoundError:
            return None
        except OSError as error:
            self._complain(error)
            return None
        if data is not None:
            self._count(CacheCounters(hits=1, bytes_served=len(data)))
        return data

    def put(self, name: str, data: bytes | memoryview) -> None:
        """Stores an entry, or replaces it. Does nothing if the entry is larger than the cache."""
        name_bytes = name.encode()
        size = _HEADER.size + len(name_bytes) + len(data)
        if self._limits.max_bytes is not None and size > self._limits.max_bytes:
            return
        checksum = google_crc32c.extend(google_crc32c.value(name_bytes), bytes(data))
        header = _HEADER.pack(_MAGIC, checksum, len(name_bytes), len(data))
        temporary, folder = f"{uuid.uuid4().hex}{_TEMPORARY_SUFFIX}", self._descriptor
        try:
            with open(temporary, "xb", opener=self._open_private) as file:
                file.writelines([header, name_bytes, data])
            os.replace(temporary, self._path(name), src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            self._drop(temporary)
            self._complain(error)
            return
        self._sweep_after(size)

    def flight(
        self, names: Iterable[str], *, patience_seconds: float
    ) -> contextlib.AbstractContextManager[bool]:
        """Locks the entries `names` while the block fetches them, so that only one thread on this
        machine fetches them at a time.

        The lock is released if its holder dies. After waiting for `patience_seconds`, the block
        runs without the lock. The block must first look into the cache again, because the previous
        holder may have stored the entries.

        Raises:
            CancelledFetchError: The caller's cancellation scope was cancelled during the wait.
        """
        paths = sorted({self._path(name, LOCK_SUFFIX) for name in names})
        return locked(paths, patience_seconds, folder=self._descriptor)

    def sweep(self) -> None:
        """Deletes expired entries. Then deletes the least recently used entries if the cache is too
        large. Does nothing if another process is sweeping.
        """
        try:
            with locked([f"{_SWEEP}{LOCK_SUFFIX}"], 0.0, folder=self._descriptor) as held:
                if held:
                    self._sweep()
        except OSError as error:
            self._complain(error)

    def _path(self, name: str, suffix: str = _ENTRY_SUFFIX) -> str:
        # Returns a `str`, not a `Path`, because plans of large topics call this tens of thousands
        # of times.
        digest = hashlib.blake2b(name.encode(), digest_size=20).hexdigest()
        return f"{digest}{suffix}"

    def _open_private(self, path: str, flags: int) -> int:
        return os.open(path, flags | os.O_NOFOLLOW, 0o600, dir_fd=self._descriptor)

    def _drop(self, path: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(path, dir_fd=self._descriptor)

    def _read(self, file: BufferedReader, path: str, name: bytes) -> bytes | None:
        status = os.fstat(file.fileno())
        age = time.time() - status.st_mtime
        if self._expired(age):
            self._drop(path)
            return None
        data = _checked(file, name, status.st_size)
        if data is None:
            log.info("a damaged entry of the cache in %s was dropped", self._folder)
            self._drop(path)
        elif age > 1:
            accessed = int(time.time()) * _SECOND_NS + _ASKED_AGAIN_NS
            os.utime(file.fileno(), ns=(accessed, accessed))
        return data

    def _expired(self, age_seconds: float) -> bool:
        ttl = self._limits.ttl_seconds
        return ttl is not None and age_seconds > ttl

    def _sweep_after(self, written: int) -> None:
        with self._lock:
            self._unswept += written
            bound = self._limits.max_bytes
            due = bound is not None and self._unswept > bound // _SWEEP_SHARE
        if due or self._last_sweep_seconds() > _SWEEP_SECONDS:
            self.sweep()

    def _last_sweep_seconds(self) -> float:
        try:
            return time.time() - os.stat(_SWEEP, dir_fd=self._descriptor).st_mtime
        except OSError:
            return float("inf")

    def _sweep(self) -> None:
        with self._lock:
            self._unswept = 0
        os.close(self._open_private(_SWEEP, os.O_WRONLY | os.O_CREAT))
        os.utime(_SWEEP, dir_fd=self._descriptor)
        now = time.time()
        kept: list[_Kept] = []
        with os.scandir(self._descriptor) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    age = now - status.st_mtime
                    if entry.name.endswith(_ENTRY_SUFFIX):
                        if self._expired(age):
                            self._drop(entry.name)
                        else:
                            kept.append(_Kept(status.st_mtime_ns, status.st_size, entry.name))
                    elif age > _ABANDONED_SECONDS:
                        self._drop_abandoned(entry.name)
        if self._limits.max_bytes is not None:
            self._make_room(kept, self._limits.max_bytes)

    def _make_room(self, entries: list[_Kept], bound: int) -> None:
        total = sum(entry.size for entry in entries)
        if total <= bound - bound // _SWEEP_SHARE:
            return
        for entry in _dropping_order(entries, int(bound * _PROTECTED_SHARE)):
            if total <= bound - 2 * (bound // _SWEEP_SHARE):
                break
            self._drop(entry.path)
            total -= entry.size

    def _drop_abandoned(self, name: str) -> None:
        if name.endswith(_TEMPORARY_SUFFIX):
            self._drop(name)
        elif name.endswith(LOCK_SUFFIX):
            with locked([name], 0.0, folder=self._descriptor):
                pass  # a holder deletes its lock file at the end

    def _count(self, work: CacheCounters) -> None:
        with self._lock:
            self._counters += work

    def _complain(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            log.warning("the cache in %s does not work: %s", self._folder, error.strerror)


class _Kept(NamedTuple):
    accessed_ns: int
    size: int
    path: str


def _dropping_order(entries: list[_Kept], protected_bytes: int) -> list[_Kept]:
    """Returns the entries in the order in which a sweep deletes them: first the unprotected, then
    the protected entries, each sorted by last access, oldest first.

    Entries that were used again are protected, the most recently used first, up to a total size of
    `protected_bytes`.
    """
    entries.sort()
    protected: list[_Kept] = []
    left = protected_bytes
    for entry in reversed(entries):
        asked_again = entry.accessed_ns % _SECOND_NS == _ASKED_AGAIN_NS
        if asked_again and entry.size <= left:
            left -= entry.size
            protected.append(entry)
    paths = {entry.path for entry in protected}
    return [entry for entry in entries if entry.path not in paths] + protected[::-1]


def make_private_folder(folder: Path) -> None:
    """Creates a folder with mode 0700. If it exists, sets this mode.

    Raises:
        OSError: The folder cannot be created, is a link or a file, or belongs to another user.
    """
    os.close(_opened_private_folder(folder))


def _opened_private_folder(folder: Path) -> int:
    """Creates a folder like `make_private_folder`. Returns a descriptor of the folder."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK):
            raise NotADirectoryError(0, "the cache folder is a link or a file") from None
        raise
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise PermissionError(0, "the cache folder belongs to another user")
        if stat.S_IMODE(status.st_mode) != 0o700:
            os.fchmod(descriptor, 0o700)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _checked(file: BufferedReader, name: bytes, file_size: int) -> bytes | None:
    """Reads the file of the entry `name`. Returns the data of the entry; `None` if the file is
    damaged or belongs to an entry with another name.
    """
    header = file.read(_HEADER.size + len(name))
    if len(header) != _HEADER.size + len(name):
        return None
    magic, checksum, name_size, data_size = _HEADER.unpack_from(header)
    entry_size = _HEADER.size + name_size + data_size
    if magic != _MAGIC or header[_HEADER.size :] != name or entry_size != file_size:
        return None
    data = file.read(data_size)
    actual = google_crc32c.extend(google_crc32c.value(name), data)
    return data if len(data) == data_size and actual == checksum else None
