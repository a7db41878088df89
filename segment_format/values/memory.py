"""Loads and stores of floating-point numbers, as LLVM instructions; integers are in
`segment_format.kernels.memory`.

Addresses are uint64, values float64. Nothing here checks bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir
from numba.core import types

from segment_format.kernels.compiled import instruction

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Codegen

_FLOAT = ir.FloatType()
_DOUBLE = ir.DoubleType()


def _pointer(builder: Codegen, address: Codegen, pointee: Codegen) -> Codegen:
    return builder.inttoptr(address, pointee.as_pointer())


@instruction
def load_f32(typing_context: Codegen, address: Codegen) -> Codegen:
    """Four bytes in the machine's order, as float64."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        value = builder.load(_pointer(builder, arguments[0], _FLOAT), align=1)
        return builder.fpext(value, _DOUBLE)

    return types.float64(types.uint64), emit


@instruction
def load_f64(typing_context: Codegen, address: Codegen) -> Codegen:
    """Eight bytes in the machine's order."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        return builder.load(_pointer(builder, arguments[0], _DOUBLE), align=1)

    return types.float64(types.uint64), emit


@instruction
def store_f64(typing_context: Codegen, address: Codegen, value: Codegen) -> Codegen:
    """Eight bytes."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        builder.store(arguments[1], _pointer(builder, arguments[0], _DOUBLE), align=1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.float64), emit


@instruction
def store_as_f32(typing_context: Codegen, address: Codegen, value: Codegen) -> Codegen:
    """Four bytes: the nearest float32 of an int64, rounded once."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        narrow = builder.sitofp(arguments[1], _FLOAT)
        builder.store(narrow, _pointer(builder, arguments[0], _FLOAT), align=1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.int64), emit
