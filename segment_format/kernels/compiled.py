"""How the kernels are compiled: explicit types, one specialisation each, no GIL, machine code kept
on disk.

Numba keeps machine code in the folder that `code_folder` chooses; where there is none, kernels are
compiled anew in each process. Several processes may start at once: the first compiles, and numba
writes a new file and renames it. Importing this module takes numba, and longer than a small read;
`object_code` runs what was compiled before without it.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

import numba
from numba.extending import intrinsic

from segment_format.kernels.code_folder import code_folder
from segment_format.kernels.object_code import store

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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

_OPTIONS: Final[dict[str, Any]] = {"nogil": True, "_nrt": False}
"""Options of all functions. Kernels own no memory. With reference counts of the frame, which every
call would raise and lower, a batch of one record takes a third longer.
"""
_LOCK = threading.Lock()


def kernel(signature: object) -> Callable[[F], F]:
    """Compile a function for exactly one signature, or load its machine code, when it is
    defined.
    """

    def compile_now(function: F) -> F:
        folder = code_folder()
        with _LOCK, _one_process_at_a_time(folder):
            before = numba_config.CACHE_DIR
            if folder is not None:
                numba_config.CACHE_DIR = str(folder)
            try:
                compiled = numba.njit(signature, **_OPTIONS, cache=folder is not None)(function)
                store(compiled)
                return cast("F", compiled)
            finally:
                numba_config.CACHE_DIR = before

    return compile_now


def inlined(function: F) -> F:
    """A helper that becomes part of the kernel calling it."""
    return cast("F", numba.njit(forceinline=True, **_OPTIONS)(function))


def helper(function: F) -> F:
    """A rarely taken path: compiled with the kernel calling it, and called."""
    return cast("F", numba.njit(**_OPTIONS)(function))


def instruction(function: Callable[..., Codegen]) -> Callable[..., Value]:
    """A function that emits LLVM code where a kernel calls it."""
    return cast("Callable[..., Value]", intrinsic(function))


@contextlib.contextmanager
def _one_process_at_a_time(folder: Path | None) -> Iterator[None]:
    """Let one process compile; those that start at the same time then load what it has made."""
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
