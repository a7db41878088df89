"""Functions for loads, stores, varints and UTF-8 inside the kernels.

Addresses are uint64. Numba's arrays are not used, because indexing them adds code for negative
indices to each access, and slicing them creates objects. Loads and stores are LLVM instructions
without bounds checks. The callers must compare lengths with the remaining bytes. A vector load
always reads 32 bytes.

Varints follow Kafka's `ByteUtils`. Each byte has 7 bits of the number, least significant bits
first. Its top bit is set if another byte follows. A varint (32 bits) has at most 5 bytes, a varlong
(64 bits) at most 10. Excess bits of the last byte are dropped. The functions that read them return
`(value, next address)`. The next address is 0 if the varint has too many bytes or is incomplete.

Arrow strings must be valid UTF-8, so malformed header keys are repaired. As in
`bytes.decode("utf-8", "replace")`, each malformed sequence is replaced by U+FFFD, which has three
bytes. A malformed sequence ends before the first byte that cannot continue it, but has at least one
byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from llvmlite import ir
from numba.core import cgutils as _cgutils
from numba.core import types
from numba.np import arrayobj as _arrayobj

from segment_format.kernels.compiled import helper, inlined, instruction

if TYPE_CHECKING:
    from collections.abc import Callable

    from segment_format.kernels.compiled import Address, Codegen, Value


cgutils: Codegen = _cgutils
arrayobj: Codegen = _arrayobj
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
"""Loads eight bytes in native order."""
load_i64_native = instruction(_load(64, big_endian=False, signed=True))
load_u16_native = instruction(_load(16, big_endian=False, signed=False))
load_u32_native = instruction(_load(32, big_endian=False, signed=False))

store_u8 = instruction(_store(8))
store_i32 = instruction(_store(32))
store_i64 = instruction(_store(64))


@instruction
def copy_long(typing_context: Codegen, target: Codegen, source: Codegen, size: Codegen) -> Codegen:
    """Calls `memcpy(target, source, size)` of the C library."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        target_pointer = _pointer(builder, arguments[0], _U8)
        source_pointer = _pointer(builder, arguments[1], _U8)
        cgutils.raw_memcpy(builder, target_pointer, source_pointer, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), emit


@instruction
def call_zstd(
    typing_context: Codegen,
    function: Codegen,
    context_at: Codegen,
    target: Codegen,
    capacity: Codegen,
    source: Codegen,
    size: Codegen,
) -> Codegen:
    """Calls `ZSTD_decompressDCtx(context, target, capacity, source, size)`, whose address is
    `function`. Returns its result, which is above `capacity` if the call failed.
    """

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        word = ir.IntType(64)
        kind = ir.FunctionType(word, [word] * 5)
        return builder.call(_pointer(builder, arguments[0], kind), arguments[1:])

    return types.uint64(*[types.uint64] * 6), emit


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
"""`copy_16` and `copy_32` copy exactly 16 or 32 bytes from source to target."""


@instruction
def prefetch(typing_context: Codegen, address: Codegen) -> Codegen:
    """Prefetches the cache line at `address`. An invalid address is ignored."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        i32 = ir.IntType(32)
        pointer = _pointer(builder, arguments[0], _U8)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # arguments: for reading, keep in all cache levels, data cache
        builder.call(function, [pointer, i32(0), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.void(types.uint64), emit


@instruction
def fill_bytes(typing_context: Codegen, target: Codegen, value: Codegen, size: Codegen) -> Codegen:
    """Calls `memset(target, value, size)` of the C library."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        byte = builder.trunc(arguments[1], _U8)
        cgutils.memset(builder, _pointer(builder, arguments[0], _U8), arguments[2], byte)
        return context.get_dummy_value()

    return types.void(types.uint64, types.int64, types.uint64), emit


_FRAME = types.Array(types.int64, 1, "C")


@instruction
def frame_at(typing_context: Codegen, address: Codegen, slots: Codegen) -> Codegen:
    """Returns the array of `slots` int64 at `address`. The caller owns its memory."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        i64 = ir.IntType(64)
        frame = context.make_array(_FRAME)(context, builder)
        arrayobj.populate_array(
            frame,
            data=_pointer(builder, arguments[0], i64),
            shape=(arguments[1],),
            strides=(i64(8),),
            itemsize=i64(8),
            meminfo=None,
        )
        return frame._getvalue()  # noqa: SLF001 - as in numba's documentation

    return _FRAME(types.uint64, types.int64), emit


_ONE = np.uint64(1)
_CONTINUED = np.uint64(0x80)
_LOW = np.uint64(0x7F)
_MASK_32 = np.uint64(0xFFFFFFFF)
_NOWHERE = np.uint64(0)


@inlined
def zigzag(raw: Value) -> Value:
    """Converts a number from zig-zag encoding to a signed number."""
    return np.int64(raw >> _ONE) ^ -np.int64(raw & _ONE)


@helper
def long_varint(address: Address, stop: Address, max_bytes: Value) -> Value:
    """Reads a varint of at most `max_bytes` bytes. Returns `(value, next address)`. The value is
    the unsigned 64-bit number, not yet zig-zag decoded. The next address is 0 if the varint is
    malformed.
    """
    raw = np.uint64(0)
    shift = np.uint64(0)
    cursor = address
    limit = min(stop, address + max_bytes)
    while cursor < limit:
        byte = load_u8(cursor)
        cursor += _ONE
        raw |= (byte & _LOW) << shift
        if byte < _CONTINUED:
            return raw, cursor
        shift += np.uint64(7)
    return raw, _NOWHERE


@inlined
def read_varint(address: Address, stop: Address) -> Value:
    """Reads a signed (zig-zag) 32-bit varint. Returns `(value, next address)`. Varints of one or
    two bytes are read fastest.
    """
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
    """Reads a signed (zig-zag) 64-bit varint. Returns `(value, next address)`."""
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
def _step(address: Address, stop: Address) -> Value:
    """Returns the length in bytes of the UTF-8 sequence at `address`. For a malformed sequence,
    returns its length times -1.
    """
    lead = load_u8(address)
    if lead < np.uint64(0x80):
        return np.int64(1)
    if lead < np.uint64(0xC2) or lead > np.uint64(0xF4):
        return np.int64(-1)
    size = np.int64(2)
    if lead >= np.uint64(0xE0):
        size = np.int64(3)
    if lead >= np.uint64(0xF0):
        size = np.int64(4)
    if address + _ONE >= stop:
        return np.int64(-1)
    second = load_u8(address + _ONE)
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
        if address + np.uint64(k) >= stop or not _is_tail(load_u8(address + np.uint64(k))):
            return np.int64(-k)
    return size


@helper
def utf8_size(address: Address, size: Value) -> Value:
    """Returns two values: the size in bytes that a text has after each malformed sequence is
    replaced by U+FFFD, and the number of malformed sequences.

    The size alone does not show whether the text is valid, because a malformed sequence of three
    bytes is replaced by three bytes.
    """
    cursor = address
    stop = address + size
    while stop - cursor >= np.uint64(8) and load_word(cursor) & _HIGH_BITS == np.uint64(0):
        cursor += np.uint64(8)
    result = cursor - address
    malformed = np.int64(0)
    while cursor < stop:
        step = _step(cursor, stop)
        if step > 0:
            result += np.uint64(step)
            cursor += np.uint64(step)
        else:
            result += np.uint64(3)
            cursor += np.uint64(-step)
            malformed += 1
    return np.int64(result), malformed


@helper
def copy_utf8(target: Address, address: Address, size: Value) -> Value:
    """Copies a text to `target` and replaces each malformed sequence by U+FFFD. Writes as many
    bytes as the first value of `utf8_size`.
    """
    cursor = address
    stop = address + size
    to = target
    while cursor < stop:
        step = _step(cursor, stop)
        if step > 0:
            for k in range(step):
                store_u8(to + np.uint64(k), np.int64(load_u8(cursor + np.uint64(k))))
            to += np.uint64(step)
            cursor += np.uint64(step)
        else:
            store_u8(to, np.int64(0xEF))
            store_u8(to + _ONE, np.int64(0xBF))
            store_u8(to + np.uint64(2), np.int64(0xBD))
            to += np.uint64(3)
            cursor += np.uint64(-step)


@inlined
def _low_bytes(size: Value) -> Value:
    """Returns a mask of the lowest `size` bytes (0 to 8) of a 64-bit word.

    Shifts twice, each time by half of the bits, because shifting by 64 bits at once is undefined.
    """
    half = size << np.uint64(2)
    return ((_ONE << half) << half) - _ONE


@inlined
def copy_text(target: Address, source: Address, size: Value, limit: Address) -> Value:
    """Copies `size` bytes (int64), 16 at a time. Returns False if all bytes are ASCII. Returns True
    if a byte is not ASCII, or if this was not checked because fewer than 16 bytes follow the text
    before `limit`.

    Up to 16 bytes after the target may be overwritten. Reads nothing at or after `limit`.
    """
    left = np.uint64(size)
    if limit - source < left + np.uint64(16):
        copy_long(target, source, left)
        return True
    high = _NOWHERE
    while left > np.uint64(16):
        first = load_word(source)
        second = load_word(source + np.uint64(8))
        store_i64(target, np.int64(first))
        store_i64(target + np.uint64(8), np.int64(second))
        high |= first | second
        source += np.uint64(16)
        target += np.uint64(16)
        left -= np.uint64(16)
    first = load_word(source)
    second = load_word(source + np.uint64(8))
    store_i64(target, np.int64(first))
    store_i64(target + np.uint64(8), np.int64(second))
    in_first = min(left, np.uint64(8))
    high |= (first & _low_bytes(in_first)) | (second & _low_bytes(left - in_first))
    return high & _HIGH_BITS != _NOWHERE


@helper
def is_utf8(address: Address, size: Value) -> Value:
    """Returns whether the bytes are valid UTF-8. Overlong sequences, surrogates, and code points
    above U+10FFFF are invalid.
    """
    _, malformed = utf8_size(address, np.uint64(size))
    return malformed == 0


# --- For decoding values: floats, tables of int64, vectors of 32 bytes and 128-bit products ---

_FLOAT = ir.FloatType()
_DOUBLE = ir.DoubleType()


@instruction
def load_f32(typing_context: Codegen, address: Codegen) -> Codegen:
    """Loads a float32 in native byte order, and converts it to float64."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        value = builder.load(_pointer(builder, arguments[0], _FLOAT), align=1)
        return builder.fpext(value, _DOUBLE)

    return types.float64(types.uint64), emit


@instruction
def store_f64(typing_context: Codegen, address: Codegen, value: Codegen) -> Codegen:
    """Stores a float64 in native byte order."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        builder.store(arguments[1], _pointer(builder, arguments[0], _DOUBLE), align=1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.float64), emit


@instruction
def store_as_f32(typing_context: Codegen, address: Codegen, value: Codegen) -> Codegen:
    """Converts an int64 to the nearest float32 with a single rounding, and stores it."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        narrow = builder.sitofp(arguments[1], _FLOAT)
        builder.store(narrow, _pointer(builder, arguments[0], _FLOAT), align=1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.int64), emit


@inlined
def get(base: Address, index: Value) -> Value:
    """Returns entry `index` of the int64 table at address `base`."""
    return load_i64_native(base + (np.uint64(index) << np.uint64(3)))


@inlined
def address_in(base: Address, index: Value) -> Value:
    """Returns entry `index` of the int64 table at address `base`, converted to an address
    (uint64).
    """
    return load_word(base + (np.uint64(index) << np.uint64(3)))


@inlined
def put(base: Address, index: Value, value: Value) -> None:
    """Sets entry `index` of the int64 table at address `base`."""
    store_i64(base + (np.uint64(index) << np.uint64(3)), np.int64(value))


VECTOR_SIZE: Final = 32

_I8, _I32, _I64, _I128 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.IntType(128)
_VECTOR = ir.VectorType(_I8, VECTOR_SIZE)


def _load_vector(builder: Codegen, address: Codegen) -> Codegen:
    return builder.load(_pointer(builder, address, _VECTOR), align=1)


def _repeat(byte: int) -> Codegen:
    return ir.Constant(_VECTOR, [byte] * VECTOR_SIZE)


def _mask(builder: Codegen, bits: Codegen) -> Codegen:
    return builder.zext(builder.bitcast(bits, _I32), _I64)


def _mask_of(compare: Callable[..., Codegen]) -> Callable[..., Codegen]:
    def of_bytes(typing_context: Codegen, address: Codegen) -> Codegen:
        def emit(
            context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen
        ) -> Codegen:
            return _mask(builder, compare(builder, _load_vector(builder, arguments[0])))

        return types.uint64(types.uint64), emit

    return of_bytes


def _quotes_and_escapes(builder: Codegen, vector: Codegen) -> Codegen:
    quotes = builder.icmp_signed("==", vector, _repeat(ord('"')))
    return builder.or_(quotes, builder.icmp_signed("==", vector, _repeat(ord("\\"))))


def _specials(builder: Codegen, vector: Codegen) -> Codegen:
    # Signed comparison: finds control characters, and bytes from 0x80 on, which are negative.
    others = builder.icmp_signed("<", vector, _repeat(0x20))
    return builder.or_(_quotes_and_escapes(builder, vector), others)


def _ends(builder: Codegen, vector: Codegen) -> Codegen:
    controls = builder.icmp_unsigned("<", vector, _repeat(0x20))
    return builder.or_(_quotes_and_escapes(builder, vector), controls)


def _highs(builder: Codegen, vector: Codegen) -> Codegen:
    return builder.icmp_signed("<", vector, _repeat(0))


special_mask = instruction(_mask_of(_specials))
"""Mask of 32 bytes: quotes, backslashes, control characters and non-ASCII bytes."""
end_mask = instruction(_mask_of(_ends))
"""Mask of 32 bytes: quotes, backslashes and control characters."""
high_mask = instruction(_mask_of(_highs))
"""Mask of 32 bytes: non-ASCII bytes."""


@instruction
def difference_mask(typing_context: Codegen, first: Codegen, second: Codegen) -> Codegen:
    """Compares the 32 bytes at two addresses. Returns a mask with one bit per byte. A bit is set if
    the two bytes differ.
    """

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        first, second = (_load_vector(builder, each) for each in arguments)
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
"""`leading_zeros` and `trailing_zeros` return 64 for the number 0."""


@instruction
def multiply_high(typing_context: Codegen, first: Codegen, second: Codegen) -> Codegen:
    """Returns the upper 64 bits of the 128-bit product of two numbers."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        first, second = (builder.zext(each, _I128) for each in arguments)
        product = builder.mul(first, second)
        return builder.trunc(builder.lshr(product, ir.Constant(_I128, 64)), _I64)

    return types.uint64(types.uint64, types.uint64), emit


@instruction
def double_bits(typing_context: Codegen, value: Codegen) -> Codegen:
    """Returns the 64 bits of a float64 as an integer."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        return builder.bitcast(arguments[0], _I64)

    return types.uint64(types.float64), emit


@instruction
def bits_double(typing_context: Codegen, bits: Codegen) -> Codegen:
    """Returns the float64 whose 64 bits are `bits`."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.uint64), emit


@instruction
def single_bits(typing_context: Codegen, value: Codegen) -> Codegen:
    """Converts a float64 to the nearest float32, and returns the 32 bits as an integer."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        single = builder.fptrunc(arguments[0], ir.FloatType())
        return builder.zext(builder.bitcast(single, _I32), _I64)

    return types.uint64(types.float64), emit


@instruction
def bits_single(typing_context: Codegen, bits: Codegen) -> Codegen:
    """Returns the float32 whose 32 bits are `bits`, converted to float64."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        single = builder.bitcast(builder.trunc(arguments[0], _I32), ir.FloatType())
        return builder.fpext(single, ir.DoubleType())

    return types.float64(types.uint64), emit
