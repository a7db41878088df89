"""CRC-32C (Castagnoli) inside the kernels. Uses vectors or the CPU's CRC instruction if possible,
else tables.

Each CRC instruction must wait for the result of the previous instruction. So a large input is split
into three consecutive parts of equal size, whose CRCs are computed in one interleaved loop
("chains") and then combined. To combine the CRCs of two parts, the first CRC is changed as if n
zero bytes followed, where n is the size of the second part. This change is a linear map, stored as
four tables of 256 words for each of the two possible sizes of parts.

The vector method uses carry-less multiplication of 512-bit vectors. A message is a polynomial over
GF(2), and its CRC is the remainder of the division by the Castagnoli polynomial P. If 16 bytes are
multiplied by x^D, they can be moved D bits closer to the end of the message without changing its
CRC. Modulo P, the product is the sum of two products with 33-bit constants: the first 8 bytes times
x^(D+32) mod P, and the last 8 bytes times x^(D-32) mod P, bit-reflected like the CRC. So the bytes
read so far are multiplied and then added (xor) to the bytes that follow D bits later. At the end,
64 bytes remain. The CRC instruction computes their CRC. Method: Gopal et al., "Fast CRC Computation
for Generic Polynomials Using PCLMULQDQ", Intel 2009.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba.core import types

from segment_format.kernels.compiled import helper, inlined, instruction, numba_config
from segment_format.kernels.primitives import load_u8, load_word, prefetch

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Codegen, Value


BLOCK: Final = 64
"""Number of bytes of a vector."""
_WIDE: Final = 4
"""Number of independent vectors. The CPU folds them in parallel, so no multiplication waits for
another.
"""
_AHEAD: Final = 4096
"""Prefetch distance in bytes."""
_POLYNOMIAL: Final = 0x1EDC6F41

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_I64, 8)


def _power(exponent: int) -> int:
    """Returns x^exponent mod P, bit-reflected in 33 bits."""
    value = 1
    for _ in range(exponent):
        value <<= 1
        if value >> 32:
            value ^= 1 << 32 | _POLYNOMIAL
    return int(f"{value:032b}"[::-1], 2) << 1


def _multipliers(distance_bytes: int) -> Codegen:
    bits = 8 * distance_bytes
    return ir.Constant(_VECTOR, [_power(bits + 32), _power(bits - 32)] * 4)


class _Emitter:
    """Generates the LLVM code of `fold_blocks`."""

    def __init__(self, builder: Codegen) -> None:
        self._builder = builder
        module = builder.module
        self._multiply = module.declare_intrinsic(
            "llvm.x86.pclmulqdq.512", (), ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, _I8])
        )
        self._crc = module.declare_intrinsic(
            "llvm.x86.sse42.crc32.64.64", (), ir.FunctionType(_I64, [_I64, _I64])
        )
        pointer = _I8.as_pointer()
        self._prefetch = module.declare_intrinsic(
            "llvm.prefetch.p0", (), ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32])
        )

    def load(self, address: Codegen, position: int = 0) -> Codegen:
        shifted = self._builder.add(address, _I64(position))
        pointer = self._builder.inttoptr(shifted, _VECTOR.as_pointer())
        return self._builder.load(pointer, align=1)

    def prefetch(self, address: Codegen, position: int) -> None:
        shifted = self._builder.add(address, _I64(position))
        pointer = self._builder.inttoptr(shifted, _I8.as_pointer())
        self._builder.call(self._prefetch, [pointer, _I32(0), _I32(3), _I32(1)])

    def first(self, crc: Codegen, address: Codegen) -> Codegen:
        """Loads the first block, and combines its first four bytes with the CRC register."""
        register = self._builder.insert_element(ir.Constant(_VECTOR, [0] * 8), crc, _I32(0))
        return self._builder.xor(self.load(address), register)

    def fold(self, block: Codegen, multipliers: Codegen, onto: Codegen) -> Codegen:
        low = self._builder.call(self._multiply, [block, multipliers, _I8(0x00)])
        high = self._builder.call(self._multiply, [block, multipliers, _I8(0x11)])
        return self._builder.xor(self._builder.xor(low, high), onto)

    def register(self, block: Codegen) -> Codegen:
        """Returns the CRC register after a message that consists of this block only. The initial
        register is 0.
        """
        crc = _I64(0)
        for word in range(8):
            crc = self._builder.call(
                self._crc, [crc, self._builder.extract_element(block, _I32(word))]
            )
        return crc

    def emit(self, crc: Codegen, start: Codegen, stop: Codegen) -> Codegen:
        builder = self._builder
        many, loop, body, merge, single_block, rest, step, done = (
            builder.append_basic_block(name)
            for name in ("many", "loop", "body", "merge", "one", "rest", "step", "done")
        )
        size = builder.sub(stop, start)
        builder.cbranch(builder.icmp_unsigned(">=", size, _I64(_WIDE * BLOCK)), many, single_block)

        builder.position_at_end(many)
        blocks = [self.first(crc, start)]
        blocks += [self.load(start, BLOCK * number) for number in range(1, _WIDE)]
        behind = builder.add(start, _I64(_WIDE * BLOCK))
        last = builder.sub(stop, _I64(_WIDE * BLOCK))
        builder.branch(loop)

        builder.position_at_end(loop)
        current = builder.phi(_I64)
        current.add_incoming(behind, many)
        under_way = [builder.phi(_VECTOR) for _ in blocks]
        for phi, block in zip(under_way, blocks, strict=True):
            phi.add_incoming(block, many)
        builder.cbranch(builder.icmp_unsigned("<=", current, last), body, merge)

        builder.position_at_end(body)
        multipliers = _multipliers(_WIDE * BLOCK)
        for number, phi in enumerate(under_way):
            self.prefetch(current, _AHEAD + BLOCK * number)
            phi.add_incoming(self.fold(phi, multipliers, self.load(current, BLOCK * number)), body)
        current.add_incoming(builder.add(current, _I64(_WIDE * BLOCK)), body)
        builder.branch(loop)

        builder.position_at_end(merge)
        merged = under_way[0]
        for phi in under_way[1:]:
            merged = self.fold(merged, _multipliers(BLOCK), phi)
        builder.branch(rest)

        builder.position_at_end(single_block)
        single = self.first(crc, start)
        behind_one = builder.add(start, _I64(BLOCK))
        builder.branch(rest)

        builder.position_at_end(rest)
        next_at = builder.phi(_I64)
        next_at.add_incoming(current, merge)
        next_at.add_incoming(behind_one, single_block)
        block = builder.phi(_VECTOR)
        block.add_incoming(merged, merge)
        block.add_incoming(single, single_block)
        builder.cbranch(builder.icmp_unsigned("<", next_at, stop), step, done)

        builder.position_at_end(step)
        block.add_incoming(self.fold(block, _multipliers(BLOCK), self.load(next_at)), step)
        next_at.add_incoming(builder.add(next_at, _I64(BLOCK)), step)
        builder.branch(rest)

        builder.position_at_end(done)
        return self.register(block)


@instruction
def fold_blocks(typing_context: Codegen, crc: Codegen, start: Codegen, stop: Codegen) -> Codegen:
    """Returns the CRC register after reading the bytes from address `start` to address `stop`.

    `crc` is the register before these bytes. Their number must be a positive multiple of `BLOCK`.
    """

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        return _Emitter(builder).emit(*arguments)

    return types.uint64(types.uint64, types.uint64, types.uint64), emit


_REFLECTED_POLYNOMIAL: Final = 0x82F63B78  # reflected
LONG: Final = 2048
SHORT: Final = 256


def _tables() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Returns the tables for the slicing-by-eight method. Row k has the CRC of each byte value
    followed by k zero bytes.
    """
    rows = np.zeros((8, 256), dtype=np.uint32)
    value = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        value = (value >> np.uint32(1)) ^ np.where(
            value & np.uint32(1), np.uint32(_REFLECTED_POLYNOMIAL), np.uint32(0)
        )
    rows[0] = value
    for k in range(1, 8):
        rows[k] = (rows[k - 1] >> 8) ^ rows[0][rows[k - 1] & 0xFF]
    return rows


def _zeros(length: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Returns tables that map a CRC register to the register after `length` zero bytes. `length`
    must be a power of two.
    """
    basis = np.uint32(1) << np.arange(32, dtype=np.uint32)
    columns = (basis >> 8) ^ _TABLES[0][basis & 0xFF]  # one zero byte, for each single bit
    for _ in range(length.bit_length() - 1):
        columns = _apply(columns, columns)
    bytes_at = np.arange(256, dtype=np.uint32)
    return np.stack([_apply(columns, bytes_at << np.uint32(8 * k)) for k in range(4)])


def _apply(
    columns: np.ndarray[Any, np.dtype[np.uint32]], values: np.ndarray[Any, np.dtype[np.uint32]]
) -> np.ndarray[Any, np.dtype[np.uint32]]:
    result = np.zeros_like(values)
    for bit in range(32):
        result ^= np.where(values >> np.uint32(bit) & 1, columns[bit], np.uint32(0))
    return result


_TABLES = _tables()
_LONG_ZEROS = _zeros(LONG)
_SHORT_ZEROS = _zeros(SHORT)


def _enabled() -> set[str]:
    """Returns the CPU features that the code generator may use, each with a leading plus sign."""
    if numba_config.CPU_FEATURES is not None:
        return set(str(numba_config.CPU_FEATURES).split(","))
    if numba_config.CPU_NAME is not None:
        return set()
    return {f"+{name}" for name, present in llvm.get_host_cpu_features().items() if present}


def _instruction_set() -> str:
    """Returns the kind of the CPU's CRC instruction: "x86", "arm", or "" if it has none."""
    if {"+sse4.2", "+crc32"} & _enabled():
        return "x86"
    if "+crc" in _enabled():
        return "arm"
    return ""


INSTRUCTION_SET: Final = _instruction_set()
HAS_FOLDING: Final = INSTRUCTION_SET == "x86" and {"+avx512f", "+vpclmulqdq"} <= _enabled()
"""Whether the CPU multiplies 512-bit vectors (`segment_format.kernels.crc32c`)."""


@instruction
def _step_word(typing_context: Codegen, crc: Codegen, word: Codegen) -> Codegen:
    """Returns the CRC register (uint64, upper half zero) after eight more bytes."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        i32, i64 = ir.IntType(32), ir.IntType(64)
        if INSTRUCTION_SET == "x86":
            function = builder.module.declare_intrinsic(
                "llvm.x86.sse42.crc32.64.64", (), ir.FunctionType(i64, [i64, i64])
            )
            return builder.call(function, arguments)
        function = builder.module.declare_intrinsic(
            "llvm.aarch64.crc32cx", (), ir.FunctionType(i32, [i32, i64])
        )
        narrow = builder.trunc(arguments[0], i32)
        return builder.zext(builder.call(function, [narrow, arguments[1]]), i64)

    return types.uint64(types.uint64, types.uint64), emit


@instruction
def _step_byte(typing_context: Codegen, crc: Codegen, byte: Codegen) -> Codegen:
    """Returns the CRC register (uint64, upper half zero) after one more byte."""

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        i8, i32, i64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
        narrow = builder.trunc(arguments[0], i32)
        if INSTRUCTION_SET == "x86":
            function = builder.module.declare_intrinsic(
                "llvm.x86.sse42.crc32.32.8", (), ir.FunctionType(i32, [i32, i8])
            )
            byte_value = builder.trunc(arguments[1], i8)
        else:
            function = builder.module.declare_intrinsic(
                "llvm.aarch64.crc32cb", (), ir.FunctionType(i32, [i32, i32])
            )
            byte_value = builder.trunc(arguments[1], i32)
        return builder.zext(builder.call(function, [narrow, byte_value]), i64)

    return types.uint64(types.uint64, types.uint64), emit


@inlined
def _shift(tables: Value, crc: Value) -> Value:
    return np.uint64(
        tables[0, crc & np.uint64(0xFF)]
        ^ tables[1, (crc >> np.uint64(8)) & np.uint64(0xFF)]
        ^ tables[2, (crc >> np.uint64(16)) & np.uint64(0xFF)]
        ^ tables[3, crc >> np.uint64(24)]
    )


@inlined
def _three_chains(crc: Value, address: Address, size: Value, ahead: Value, zeros: Value) -> Value:
    """Returns the CRC register after three consecutive parts of `size` bytes each. Their CRCs are
    computed in an interleaved loop.
    """
    cursor = address
    first = two = np.uint64(0)
    while cursor < address + size:
        # Prefetch, because the hardware prefetcher does not follow three interleaved streams.
        prefetch(cursor + ahead)
        prefetch(cursor + ahead + size)
        prefetch(cursor + ahead + size + size)
        for _ in range(8):
            crc = _step_word(crc, load_word(cursor))
            first = _step_word(first, load_word(cursor + size))
            two = _step_word(two, load_word(cursor + size + size))
            cursor += np.uint64(8)
    return _shift(zeros, _shift(zeros, crc) ^ first) ^ two


@helper
def by_instruction(address: Address, size: Value) -> Value:
    """Computes the CRC-32C with the CPU's instruction. Reads eight bytes per step, in three
    interleaved parts.
    """
    crc = np.uint64(0xFFFFFFFF)
    cursor = address
    left = size
    while left >= np.uint64(3 * LONG):
        crc = _three_chains(crc, cursor, np.uint64(LONG), np.uint64(3 * LONG), _LONG_ZEROS)
        cursor += np.uint64(3 * LONG)
        left -= np.uint64(3 * LONG)
    while left >= np.uint64(3 * SHORT):
        crc = _three_chains(crc, cursor, np.uint64(SHORT), np.uint64(6 * SHORT), _SHORT_ZEROS)
        cursor += np.uint64(3 * SHORT)
        left -= np.uint64(3 * SHORT)
    return _last_bytes(crc, cursor, left) ^ np.uint64(0xFFFFFFFF)


@helper
def _last_bytes(crc: Value, address: Address, left: Value) -> Value:
    while left >= np.uint64(8):
        crc = _step_word(crc, load_word(address))
        address += np.uint64(8)
        left -= np.uint64(8)
    while left > np.uint64(0):
        crc = _step_byte(crc, load_u8(address))
        address += np.uint64(1)
        left -= np.uint64(1)
    return crc


@helper
def by_folding(address: Address, size: Value) -> Value:
    """Computes the CRC-32C with vectors, and with the CPU's instruction for the last bytes."""
    crc = np.uint64(0xFFFFFFFF)
    stop = address + size
    folded_stop = address + size // np.uint64(BLOCK) * np.uint64(BLOCK)
    if folded_stop != address:
        crc = fold_blocks(crc, address, folded_stop)
    return _last_bytes(crc, folded_stop, stop - folded_stop) ^ np.uint64(0xFFFFFFFF)


@helper
def by_tables(address: Address, size: Value) -> Value:
    """Computes the CRC-32C with tables. Reads eight bytes per step."""
    crc = np.uint64(0xFFFFFFFF)
    cursor = address
    left = size
    mask = np.uint64(0xFF)
    while left >= np.uint64(8):
        crc = (
            np.uint64(_TABLES[7, (crc ^ load_u8(cursor)) & mask])
            ^ np.uint64(_TABLES[6, ((crc >> np.uint64(8)) ^ load_u8(cursor + np.uint64(1))) & mask])
            ^ np.uint64(
                _TABLES[5, ((crc >> np.uint64(16)) ^ load_u8(cursor + np.uint64(2))) & mask]
            )
            ^ np.uint64(
                _TABLES[4, ((crc >> np.uint64(24)) ^ load_u8(cursor + np.uint64(3))) & mask]
            )
            ^ np.uint64(_TABLES[3, load_u8(cursor + np.uint64(4))])
            ^ np.uint64(_TABLES[2, load_u8(cursor + np.uint64(5))])
            ^ np.uint64(_TABLES[1, load_u8(cursor + np.uint64(6))])
            ^ np.uint64(_TABLES[0, load_u8(cursor + np.uint64(7))])
        )
        cursor += np.uint64(8)
        left -= np.uint64(8)
    while left > np.uint64(0):
        crc = (crc >> np.uint64(8)) ^ np.uint64(_TABLES[0, (crc ^ load_u8(cursor)) & mask])
        cursor += np.uint64(1)
        left -= np.uint64(1)
    return crc ^ np.uint64(0xFFFFFFFF)


crc32c = by_folding if HAS_FOLDING else by_instruction if INSTRUCTION_SET else by_tables
"""`crc32c(address, size) -> uint64`, for the kernels."""
