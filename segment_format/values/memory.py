"""Loads and stores of floating-point numbers, as LLVM instructions; integers are in
`segment_format.kernels.primitives`.

Addresses are uint64, values float64. Nothing here checks bounds.

Frames, nodes and rows of tables inside the kernels: int64 numbers one behind the other.

What LLVM has and numba does not: 32 bytes at a time, products of 128 bits, bits counted.

Addresses are uint64. Each load here reads all of its bytes, whatever they hold: callers leave
`READ_AHEAD` bytes behind their input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from llvmlite import ir
from numba.core import types

from segment_format.kernels.compiled import inlined, instruction
from segment_format.kernels.primitives import load_i64_native, load_word, store_i64

if TYPE_CHECKING:
    from collections.abc import Callable

    from segment_format.kernels.compiled import Address, Codegen, Value


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


@inlined
def get(base: Address, index: Value) -> Value:
    """A number, int64."""
    return load_i64_native(base + (np.uint64(index) << np.uint64(3)))


@inlined
def address_in(base: Address, index: Value) -> Value:
    """The same as an address, uint64."""
    return load_word(base + (np.uint64(index) << np.uint64(3)))


@inlined
def put(base: Address, index: Value, value: Value) -> None:
    """Sets a number."""
    store_i64(base + (np.uint64(index) << np.uint64(3)), np.int64(value))


READ_AHEAD: Final = 64
"""Bytes behind the input that may be read: two vectors, of which the first begins in it."""
WIDTH: Final = 32

_I8, _I32, _I64, _I128 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.IntType(128)
_VECTOR = ir.VectorType(_I8, WIDTH)


def _load(builder: Codegen, address: Codegen) -> Codegen:
    return builder.load(builder.inttoptr(address, _VECTOR.as_pointer()), align=1)


def _all(byte: int) -> Codegen:
    return ir.Constant(_VECTOR, [byte] * WIDTH)


def _mask(builder: Codegen, bits: Codegen) -> Codegen:
    return builder.zext(builder.bitcast(bits, _I32), _I64)


def _mask_of(compare: Callable[..., Codegen]) -> Callable[..., Codegen]:
    def of_bytes(typing_context: Codegen, address: Codegen) -> Codegen:
        def emit(
            context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen
        ) -> Codegen:
            return _mask(builder, compare(builder, _load(builder, arguments[0])))

        return types.uint64(types.uint64), emit

    return of_bytes


def _quotes_and_escapes(builder: Codegen, vector: Codegen) -> Codegen:
    quotes = builder.icmp_signed("==", vector, _all(ord('"')))
    return builder.or_(quotes, builder.icmp_signed("==", vector, _all(ord("\\"))))


def _specials(builder: Codegen, vector: Codegen) -> Codegen:
    # Signed: control characters, and bytes from 0x80 on.
    others = builder.icmp_signed("<", vector, _all(0x20))
    return builder.or_(_quotes_and_escapes(builder, vector), others)


def _ends(builder: Codegen, vector: Codegen) -> Codegen:
    controls = builder.icmp_unsigned("<", vector, _all(0x20))
    return builder.or_(_quotes_and_escapes(builder, vector), controls)


def _highs(builder: Codegen, vector: Codegen) -> Codegen:
    return builder.icmp_signed("<", vector, _all(0))


special_mask = instruction(_mask_of(_specials))
"""Of 32 bytes: where one is a quote, a backslash, a control character or no ASCII."""
end_mask = instruction(_mask_of(_ends))
"""Of 32 bytes: where one is a quote, a backslash or a control character."""
high_mask = instruction(_mask_of(_highs))
"""Of 32 bytes: where one is no ASCII."""


@instruction
def difference_mask(typing_context: Codegen, first: Codegen, second: Codegen) -> Codegen:
    """Where 32 bytes at two addresses differ."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        first, second = (_load(builder, each) for each in arguments)
        return _mask(builder, builder.icmp_signed("!=", first, second))

    return types.uint64(types.uint64, types.uint64), emit


def _count(name: str) -> Callable[..., Codegen]:
    def count(typing_context: Codegen, value: Codegen) -> Codegen:
        def emit(
            context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen
        ) -> Codegen:
            kind = ir.FunctionType(_I64, [_I64, ir.IntType(1)])
            function = builder.module.declare_intrinsic(name, [_I64], kind)
            return builder.call(function, [arguments[0], ir.Constant(ir.IntType(1), 0)])

        return types.uint64(types.uint64), emit

    return count


trailing_zeros = instruction(_count("llvm.cttz"))
leading_zeros = instruction(_count("llvm.ctlz"))
"""64 for 0, both."""


@instruction
def multiply_high(typing_context: Codegen, first: Codegen, second: Codegen) -> Codegen:
    """The upper 64 bits of a product."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        first, second = (builder.zext(each, _I128) for each in arguments)
        product = builder.mul(first, second)
        return builder.trunc(builder.lshr(product, ir.Constant(_I128, 64)), _I64)

    return types.uint64(types.uint64, types.uint64), emit


@instruction
def double_bits(typing_context: Codegen, value: Codegen) -> Codegen:
    """The 64 bits of a double."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        return builder.bitcast(arguments[0], _I64)

    return types.uint64(types.float64), emit


@instruction
def bits_double(typing_context: Codegen, bits: Codegen) -> Codegen:
    """The double of 64 bits."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.uint64), emit


@instruction
def single_bits(typing_context: Codegen, value: Codegen) -> Codegen:
    """The 32 bits of the float32 nearest to a double."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        single = builder.fptrunc(arguments[0], ir.FloatType())
        return builder.zext(builder.bitcast(single, _I32), _I64)

    return types.uint64(types.float64), emit


@instruction
def bits_single(typing_context: Codegen, bits: Codegen) -> Codegen:
    """The float32 of 32 bits, as a double."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        single = builder.bitcast(builder.trunc(arguments[0], _I32), ir.FloatType())
        return builder.fpext(single, ir.DoubleType())

    return types.float64(types.uint64), emit
