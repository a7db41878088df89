"""How the kernels are compiled: explicit types, one specialisation each, no GIL, machine code kept
on disk.

Numba keeps machine code beside the source or below the home folder, whichever it can write, with
the permissions of the day. Loading it means unpickling, so a folder that others can write would
hand them this process. The kernels therefore use one folder per user, mode 0700, whose owner and
mode are checked; where none can be made, they are compiled anew in each process. One folder per CPU
type below it keeps mixed clusters with a shared home from mistaking each other's code. Several
processes may start at once: the first compiles, and numba writes a new file and renames it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import llvmlite.binding as llvm
import numba
import numpy as np
from numba.extending import intrinsic

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

F = TypeVar("F", bound="Callable[..., Any]")

Value: TypeAlias = Any
"""A number inside a kernel, int64 or uint64 as numba infers; the type checker is told nothing."""
Address: TypeAlias = Any
"""uint64: where something stands in memory."""
Frame: TypeAlias = Any
"""int64[:], see `segment_format.kernels.contract`."""
Codegen: TypeAlias = Any
"""What numba and llvmlite pass around while they generate code."""

numba_config: Any = numba.config
"""Settings that numba makes out of the environment at import; it declares none of them."""

_LOCK = threading.Lock()


def kernel(signature: object) -> Callable[[F], F]:
    """Compile a function for exactly one signature, or load its machine code, when it is
    defined.
    """

    def compile_now(function: F) -> F:
        folder = cache_folder()
        with _LOCK, _first_come(folder):
            before = numba_config.CACHE_DIR
            if folder is not None:
                numba_config.CACHE_DIR = str(folder)
            try:
                compiled = numba.njit(signature, nogil=True, cache=folder is not None)
                return cast("F", compiled(function))
            finally:
                numba_config.CACHE_DIR = before

    return compile_now


def inlined(function: F) -> F:
    """A helper that becomes part of the kernel calling it."""
    return cast("F", numba.njit(forceinline=True, nogil=True)(function))


def helper(function: F) -> F:
    """A rarely taken path: compiled with the kernel calling it, and called."""
    return cast("F", numba.njit(nogil=True)(function))


def instruction(function: Callable[..., Codegen]) -> Callable[..., Value]:
    """A function that emits LLVM code where a kernel calls it."""
    return cast("Callable[..., Value]", intrinsic(function))


@contextlib.contextmanager
def _first_come(folder: Path | None) -> Iterator[None]:
    """Let one process at a time compile: those that start with it then load what it has made."""
    if folder is None or fcntl is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError:
        yield
        return
    with lock:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def cache_folder() -> Path | None:
    """Where this version's machine code for this user and CPU is kept, made if missing.

    None if the sources cannot be read as files (a zip on the path), or no folder is safe to use.
    """
    try:
        version = _sources_digest()
    except OSError:
        return None
    name = f"{llvm.get_host_cpu_name() or 'generic'}-{version}"
    if numba_config.CACHE_DIR:
        return Path(numba_config.CACHE_DIR) / "tiered-kafka" / name
    for candidate in _candidates():
        try:
            candidate.parent.mkdir(parents=True, exist_ok=True)
            folder = candidate
            for level in ("", "numba", name):
                folder = folder / level
                folder.mkdir(mode=0o700, exist_ok=True)
                if not _is_private(folder):
                    raise PermissionError(str(folder))
            if os.access(folder, os.W_OK | os.X_OK):
                return folder
        except OSError:
            continue
    return None


def _sources_digest() -> str:
    """Numba looks at the file of the outermost function only, and wheels have equal file times."""
    digest = hashlib.sha256(f"{numba.__version__} {np.__version__}".encode())
    for path in sorted(Path(__file__).parent.iterdir()):
        if path.suffix == ".py":
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _candidates() -> Iterator[Path]:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - never raises
    if Path(home).is_absolute():
        yield Path(home) / "tiered-kafka"
    user = os.getuid() if hasattr(os, "getuid") else "user"
    yield Path(tempfile.gettempdir()) / f"tiered-kafka-{user}"


def _is_private(folder: Path) -> bool:
    facts = folder.lstat()
    mine = not hasattr(os, "getuid") or facts.st_uid == os.getuid()
    return stat.S_ISDIR(facts.st_mode) and mine and not facts.st_mode & 0o022
