"""Compiles kernels with numba. A kernel has one signature with explicit types, and runs without the
GIL.

Numba caches the machine code in the folder that `code_folder` chooses. Without such a folder, each
process compiles the kernels. If several processes start at the same time, only the first one
compiles. Importing this module imports numba, which takes longer than a small read. `object_code`
runs compiled kernels without numba.
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
"""A number inside a kernel, int64 or uint64 as inferred by numba; unknown to the type checker."""
Address: TypeAlias = Any
"""A memory address, uint64."""
Frame: TypeAlias = Any
"""int64[:], see `segment_format.kernels.contract`."""
Codegen: TypeAlias = Any
"""Objects of numba and llvmlite during code generation, which are not typed."""

numba_config: Any = numba.config
"""Settings that numba reads from the environment at import; they are not typed."""

_OPTIONS: Final[dict[str, Any]] = {"nogil": True, "_nrt": False}
"""Options of all compiled functions. Reference counting is off, because kernels own no memory, and
decoding a batch of one record would take a third longer.
"""
_LOCK = threading.Lock()


def kernel(signature: object) -> Callable[[F], F]:
    """Returns a decorator that compiles a function for one signature. If the machine code of the
    function is cached, the decorator loads it instead.
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
    """Marks a function that is always inlined into the kernel that calls it."""
    return cast("F", numba.njit(forceinline=True, **_OPTIONS)(function))


def helper(function: F) -> F:
    """Marks a function that is compiled together with the kernel that calls it. The compiler
    decides whether to inline it.
    """
    return cast("F", numba.njit(**_OPTIONS)(function))


def instruction(function: Callable[..., Codegen]) -> Callable[..., Value]:
    """Marks a function that generates LLVM code. In a kernel, a call of the function is replaced by
    the code that it generates.
    """
    return cast("Callable[..., Value]", intrinsic(function))


@contextlib.contextmanager
def _one_process_at_a_time(folder: Path | None) -> Iterator[None]:
    """Locks the folder, so that only one process compiles. Other processes that start at the same
    time wait, and then load the result.
    """
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
