"""Marks the functions that numba compiles. They run without the GIL.

Importing this module imports numba. Callers get compiled kernels from
`segment_format.kernels.native`, which usually does not need numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

import numba
from numba.extending import intrinsic

if TYPE_CHECKING:
    from collections.abc import Callable

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

OPTIONS: Final[dict[str, Any]] = {"nogil": True, "_nrt": False, "error_model": "numpy"}
"""Options of all compiled functions. Reference counting is off, because kernels own no memory, and
decoding a batch of one record would take a third longer.
"""


def kernel(function: F) -> F:
    """Marks a function that Python calls. `KERNELS` in `native` contains its signature."""
    return cast("F", numba.njit(**OPTIONS)(function))


def inlined(function: F) -> F:
    """Marks a function that is always inlined into the kernel that calls it."""
    return cast("F", numba.njit(forceinline=True, **OPTIONS)(function))


def helper(function: F) -> F:
    """Marks a function that is compiled together with the kernel that calls it. The compiler
    decides whether to inline it.
    """
    return cast("F", numba.njit(**OPTIONS)(function))


def instruction(function: Callable[..., Codegen]) -> Callable[..., Value]:
    """Marks a function that generates LLVM code. In a kernel, a call of the function is replaced by
    the code that it generates.
    """
    return cast("Callable[..., Value]", intrinsic(function))
