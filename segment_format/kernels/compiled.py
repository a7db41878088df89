"""How the kernels are compiled: explicit types, one specialisation each, no GIL, machine code kept
on disk.

Numba keeps machine code beside the source or below the home folder, whichever it can write, with
the permissions of the day. Loading it means unpickling, so a folder that others can write would
hand them this process. The kernels therefore use one folder per user, mode 0700, whose owner and
mode are checked; where none can be made, they are compiled anew in each process. One folder per CPU
type below it keeps mixed clusters with a shared home from mistaking each other's code. Several
processes may start at once: numba writes a new file and renames it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import llvmlite.binding as llvm
import numba
from numba.extending import intrinsic

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
        with _cache_folder() as cached:
            return cast("F", numba.njit(signature, nogil=True, cache=cached)(function))

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
def _cache_folder() -> Iterator[bool]:
    """Point numba at our folder while one function is declared; yields whether there is a folder to
    use.
    """
    if os.environ.get("NUMBA_CACHE_DIR"):
        yield True
        return
    folder = private_folder()
    if folder is None:
        yield False
        return
    with _LOCK:
        before = numba_config.CACHE_DIR
        numba.config.CACHE_DIR = str(folder)
        try:
            yield True
        finally:
            numba_config.CACHE_DIR = before


def private_folder() -> Path | None:
    """The folder for machine code of this user and CPU type, made if missing; None if none is safe
    to use.
    """
    user = str(os.getuid()) if hasattr(os, "getuid") else "user"
    candidates = [Path(tempfile.gettempdir()) / f"tiered-kafka-{user}"]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - never raises
    if Path(home).is_absolute():
        candidates.insert(0, Path(home) / "tiered-kafka")
    for candidate in candidates:
        folder = candidate / "numba" / (llvm.get_host_cpu_name() or "generic")
        try:
            candidate.parent.mkdir(parents=True, exist_ok=True)
            for level in (candidate, candidate / "numba", folder):
                level.mkdir(mode=0o700, exist_ok=True)
                if not _is_private(level):
                    raise PermissionError(str(level))
            if os.access(folder, os.W_OK | os.X_OK):
                return folder
        except OSError:
            continue
    return None


def _is_private(folder: Path) -> bool:
    facts = folder.lstat()
    mine = not hasattr(os, "getuid") or facts.st_uid == os.getuid()
    return stat.S_ISDIR(facts.st_mode) and mine and not facts.st_mode & 0o022
