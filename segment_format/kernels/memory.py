"""Loads, stores and copies at plain addresses, as LLVM instructions.

Addresses are uint64: numba's own array access with signed indices adds wrap-around code to each
element, and its slices are objects. Nothing here checks bounds; every caller has compared the
length with what is left before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir
from numba.core import cgutils as _cgutils
from numba.core import types

from segment_format.kernels.compiled import instruction

if TYPE_CHECKING:
    from collections.abc import Callable

    from segment_format.kernels.compiled import Codegen

cgutils: Codegen = _cgutils
_U8 = ir.IntType(8)


def _pointer(builder: Codegen, address: Codegen, pointee: Codegen) -> Codegen:
    return builder.inttoptr(address, pointee.as_pointer())


def _load(bits: int, *, big_endian: bool, signed: bool) -> Callable[..., Codegen]:
    result = types.int64 if signed else types.uint64

    def load(typing_context: Codegen, address: Codegen) -> Codegen:
        def emit(
            context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen
        ) -> Codegen:
            word = ir.IntType(bits)
            value = builder.load(_pointer(builder, arguments[0], word), align=1)
            if big_endian and bits > 8:
                value = builder.bswap(value)
            if bits == 64:
                return value
            widen = builder.sext if signed else builder.zext
            return widen(value, ir.IntType(64))

        return result(types.uint64), emit

    return load


def _store(bits: int) -> Callable[..., Codegen]:
    def store(typing_context: Codegen, address: Codegen, value: Codegen) -> Codegen:
        def emit(
            context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen
        ) -> Codegen:
            word = ir.IntType(bits)
            narrow = arguments[1] if bits == 64 else builder.trunc(arguments[1], word)
            builder.store(narrow, _pointer(builder, arguments[0], word), align=1)
            return context.get_dummy_value()

        return types.void(types.uint64, types.int64), emit

    return store


load_u8 = instruction(_load(8, big_endian=True, signed=False))
load_i16 = instruction(_load(16, big_endian=True, signed=True))
load_i32 = instruction(_load(32, big_endian=True, signed=True))
load_u32 = instruction(_load(32, big_endian=True, signed=False))
load_i64 = instruction(_load(64, big_endian=True, signed=True))
load_word = instruction(_load(64, big_endian=False, signed=False))
"""Eight bytes in the machine's order."""
load_i64_native = instruction(_load(64, big_endian=False, signed=True))
load_u16_native = instruction(_load(16, big_endian=False, signed=False))
load_u32_native = instruction(_load(32, big_endian=False, signed=False))

store_u8 = instruction(_store(8))
store_i32 = instruction(_store(32))
store_i64 = instruction(_store(64))


@instruction
def copy_long(typing_context: Codegen, target: Codegen, source: Codegen, size: Codegen) -> Codegen:
    """`memcpy(target, source, size)`."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        target_pointer = _pointer(builder, arguments[0], _U8)
        source_pointer = _pointer(builder, arguments[1], _U8)
        cgutils.raw_memcpy(builder, target_pointer, source_pointer, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), emit


def _copy(size: int) -> Callable[..., Codegen]:
    def copy(typing_context: Codegen, target: Codegen, source: Codegen) -> Codegen:
        def emit(
            context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen
        ) -> Codegen:
            vector = ir.VectorType(_U8, size)
            value = builder.load(_pointer(builder, arguments[1], vector), align=1)
            builder.store(value, _pointer(builder, arguments[0], vector), align=1)
            return context.get_dummy_value()

        return types.void(types.uint64, types.uint64), emit

    return copy


copy_16 = instruction(_copy(16))
copy_32 = instruction(_copy(32))
"""Copy exactly that many bytes, from source to target, with vector registers."""


@instruction
def prefetch(typing_context: Codegen, address: Codegen) -> Codegen:
    """Ask for the cache line at `address`; harmless where there is no memory."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        i32 = ir.IntType(32)
        pointer = _pointer(builder, arguments[0], _U8)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # read, keep in all levels, data
        builder.call(function, [pointer, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(types.uint64), emit


@instruction
def fill_bytes(typing_context: Codegen, target: Codegen, value: Codegen, size: Codegen) -> Codegen:
    """`memset(target, value, size)`."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        byte = builder.trunc(arguments[1], _U8)
        cgutils.memset(builder, _pointer(builder, arguments[0], _U8), arguments[2], byte)
        return context.get_dummy_value()

    return types.void(types.uint64, types.int64, types.uint64), emit


@instruction
def array_address(typing_context: Codegen, array: Codegen) -> Codegen:
    """Address of the first element of a contiguous array."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        struct = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.ptrtoint(struct.data, ir.IntType(64))

    return types.uint64(array), emit
