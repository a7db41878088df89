"""UTF-8 of header keys, malformed bytes replaced as `bytes.decode("utf-8", "replace")` replaces
them.

Arrow strings must be valid UTF-8. Each maximal malformed stretch (the longest prefix of a valid
sequence, else one byte) becomes one U+FFFD, three bytes.

Loads, stores and copies at plain addresses, as LLVM instructions.

Addresses are uint64: numba's own array access with signed indices adds wrap-around code to each
element, and its slices are objects. Nothing here checks bounds; every caller has compared the
length with what is left before.

Zig-zag varints inside the kernels: the rules of Kafka's `ByteUtils`, never a byte beyond the
end.

7 bits a byte, least significant first, top bit = one more. At most 5 bytes (varint, 32 bits) or 10
(varlong, 64 bits); bits beyond 32 or 64 in the last byte are dropped, as Kafka drops them.

Both readers return `(value, next address)`; the next address is 0 for a varint that is too long or
runs past the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba.core import cgutils as _cgutils
from numba.core import types

from segment_format.kernels.compiled import helper, inlined, instruction

if TYPE_CHECKING:
    from collections.abc import Callable

    from segment_format.kernels.compiled import Address, Codegen, Value


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


_ONE = np.uint64(1)
_CONTINUED = np.uint64(0x80)
_LOW = np.uint64(0x7F)
_MASK_32 = np.uint64(0xFFFFFFFF)
_NOWHERE = np.uint64(0)


@inlined
def zigzag(raw: Value) -> Value:
    """The signed number that is written so."""
    return np.int64(raw >> _ONE) ^ -np.int64(raw & _ONE)


@helper
def long_varint(address: Address, stop: Address, max_bytes: Value) -> Value:
    """The 64 bits of a number of so many bytes at most, and the address behind it; 0 for no end."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    at = address
    limit = min(stop, address + max_bytes)
    while at < limit:
        byte = load_u8(at)
        at += _ONE
        raw |= (byte & _LOW) << shift
        if byte < _CONTINUED:
            return raw, at
        shift += np.uint64(7)
    return raw, _NOWHERE


@inlined
def read_varint(address: Address, stop: Address) -> Value:
    """A 32-bit value; most are one byte, nearly all the rest two."""
    if address < stop:
        first = load_u8(address)
        if first < _CONTINUED:
            return zigzag(first), address + _ONE
        if address + _ONE < stop:
            second = load_u8(address + _ONE)
            if second < _CONTINUED:
                raw = (first & _LOW) | second << np.uint64(7)
                return zigzag(raw), address + np.uint64(2)
    raw, following = long_varint(address, stop, np.uint64(5))
    return zigzag(raw & _MASK_32), following


@inlined
def read_varlong(address: Address, stop: Address) -> Value:
    """A 64-bit value."""
    if address < stop:
        first = load_u8(address)
        if first < _CONTINUED:
            return zigzag(first), address + _ONE
    raw, following = long_varint(address, stop, np.uint64(10))
    return zigzag(raw), following


_HIGH_BITS = np.uint64(0x8080808080808080)


@inlined
def _is_tail(byte: Value) -> Value:
    return byte & np.uint64(0xC0) == np.uint64(0x80)


@inlined
def _step(at: Address, stop: Address) -> Value:
    """Length of the sequence at `at`, negative if it is malformed."""
    lead = load_u8(at)
    if lead < np.uint64(0x80):
        return np.int64(1)
    if lead < np.uint64(0xC2) or lead > np.uint64(0xF4):
        return np.int64(-1)
    size = np.int64(2)
    if lead >= np.uint64(0xE0):
        size = np.int64(3)
    if lead >= np.uint64(0xF0):
        size = np.int64(4)
    if at + _ONE >= stop:
        return np.int64(-1)
    second = load_u8(at + _ONE)
    if not _is_tail(second):
        return np.int64(-1)
    overlong = (lead == np.uint64(0xE0) and second < np.uint64(0xA0)) or (
        lead == np.uint64(0xF0) and second < np.uint64(0x90)
    )
    impossible = (lead == np.uint64(0xED) and second > np.uint64(0x9F)) or (
        lead == np.uint64(0xF4) and second > np.uint64(0x8F)
    )
    if overlong or impossible:
        return np.int64(-1)
    for k in range(2, size):
        if at + np.uint64(k) >= stop or not _is_tail(load_u8(at + np.uint64(k))):
            return np.int64(-k)
    return size


@helper
def utf8_size(address: Address, size: Value) -> Value:
    """(bytes of the text after replacement, malformed stretches in it).

    The size alone does not tell valid text: three malformed bytes may become one U+FFFD.
    """
    at = address
    stop = address + size
    while stop - at >= np.uint64(8) and load_word(at) & _HIGH_BITS == np.uint64(0):
        at += np.uint64(8)
    result = at - address
    malformed = np.int64(0)
    while at < stop:
        step = _step(at, stop)
        if step > 0:
            result += np.uint64(step)
            at += np.uint64(step)
        else:
            result += np.uint64(3)
            at += np.uint64(-step)
            malformed += 1
    return np.int64(result), malformed


@helper
def copy_utf8(target: Address, address: Address, size: Value) -> Value:
    """Write the text after replacement to `target`, which has room for `utf8_size` bytes."""
    at = address
    stop = address + size
    to = target
    while at < stop:
        step = _step(at, stop)
        if step > 0:
            for k in range(step):
                store_u8(to + np.uint64(k), np.int64(load_u8(at + np.uint64(k))))
            to += np.uint64(step)
            at += np.uint64(step)
        else:
            store_u8(to, np.int64(0xEF))
            store_u8(to + _ONE, np.int64(0xBF))
            store_u8(to + np.uint64(2), np.int64(0xBD))
            to += np.uint64(3)
            at += np.uint64(-step)
