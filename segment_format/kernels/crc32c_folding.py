"""CRC-32C of many bytes at once: carry-less multiplication on 512-bit vectors.

A message is a polynomial over GF(2), its CRC the remainder by the Castagnoli polynomial P. Moving
16 bytes D bits further back multiplies them by x^D, which modulo P is two products with 33-bit
constants: the earlier 8 bytes with x^(D+32) mod P, the later ones with x^(D-32) mod P, reflected as
the CRC is. What has been read so far is thus folded onto the bytes that follow; the last 64 bytes
left are an ordinary message for the CRC instruction.

Method: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel 2009.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from llvmlite import ir
from numba.core import types

from segment_format.kernels.compiled import instruction

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Codegen

BLOCK: Final = 64
"""Bytes of one vector: what `fold_blocks` takes a whole number of."""
_WIDE: Final = 4
"""Vectors under way at once, so that none waits for the one before."""
_AHEAD: Final = 4096
"""How far before its use memory is asked for, in bytes."""
_POLYNOMIAL: Final = 0x1EDC6F41

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_I64, 8)


def _power(exponent: int) -> int:
    """x^exponent mod P, bit-reflected in 33 bits."""
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
    """Writes the loops of `fold_blocks` into a function under way."""

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
        place = self._builder.add(address, _I64(position))
        pointer = self._builder.inttoptr(place, _VECTOR.as_pointer())
        return self._builder.load(pointer, align=1)

    def ask_for(self, address: Codegen, position: int) -> None:
        place = self._builder.add(address, _I64(position))
        pointer = self._builder.inttoptr(place, _I8.as_pointer())
        self._builder.call(self._prefetch, [pointer, _I32(0), _I32(3), _I32(1)])

    def first(self, crc: Codegen, address: Codegen) -> Codegen:
        """The first block with the CRC register in its first four bytes."""
        register = self._builder.insert_element(ir.Constant(_VECTOR, [0] * 8), crc, _I32(0))
        return self._builder.xor(self.load(address), register)

    def fold(self, block: Codegen, multipliers: Codegen, onto: Codegen) -> Codegen:
        low = self._builder.call(self._multiply, [block, multipliers, _I8(0x00)])
        high = self._builder.call(self._multiply, [block, multipliers, _I8(0x11)])
        return self._builder.xor(self._builder.xor(low, high), onto)

    def register(self, block: Codegen) -> Codegen:
        """The CRC register after a message of just this block."""
        crc = _I64(0)
        for word in range(8):
            crc = self._builder.call(
                self._crc, [crc, self._builder.extract_element(block, _I32(word))]
            )
        return crc

    def emit(self, crc: Codegen, start: Codegen, stop: Codegen) -> Codegen:
        builder = self._builder
        many, loop, body, merge, one, rest, step, done = (
            builder.append_basic_block(name)
            for name in ("many", "loop", "body", "merge", "one", "rest", "step", "done")
        )
        size = builder.sub(stop, start)
        builder.cbranch(builder.icmp_unsigned(">=", size, _I64(_WIDE * BLOCK)), many, one)

        builder.position_at_end(many)
        blocks = [self.first(crc, start)]
        blocks += [self.load(start, BLOCK * number) for number in range(1, _WIDE)]
        behind = builder.add(start, _I64(_WIDE * BLOCK))
        last = builder.sub(stop, _I64(_WIDE * BLOCK))
        builder.branch(loop)

        builder.position_at_end(loop)
        at = builder.phi(_I64)
        at.add_incoming(behind, many)
        under_way = [builder.phi(_VECTOR) for _ in blocks]
        for phi, block in zip(under_way, blocks, strict=True):
            phi.add_incoming(block, many)
        builder.cbranch(builder.icmp_unsigned("<=", at, last), body, merge)

        builder.position_at_end(body)
        multipliers = _multipliers(_WIDE * BLOCK)
        for number, phi in enumerate(under_way):
            self.ask_for(at, _AHEAD + BLOCK * number)
            phi.add_incoming(self.fold(phi, multipliers, self.load(at, BLOCK * number)), body)
        at.add_incoming(builder.add(at, _I64(_WIDE * BLOCK)), body)
        builder.branch(loop)

        builder.position_at_end(merge)
        merged = under_way[0]
        for phi in under_way[1:]:
            merged = self.fold(merged, _multipliers(BLOCK), phi)
        builder.branch(rest)

        builder.position_at_end(one)
        single = self.first(crc, start)
        behind_one = builder.add(start, _I64(BLOCK))
        builder.branch(rest)

        builder.position_at_end(rest)
        next_at = builder.phi(_I64)
        next_at.add_incoming(at, merge)
        next_at.add_incoming(behind_one, one)
        block = builder.phi(_VECTOR)
        block.add_incoming(merged, merge)
        block.add_incoming(single, one)
        builder.cbranch(builder.icmp_unsigned("<", next_at, stop), step, done)

        builder.position_at_end(step)
        block.add_incoming(self.fold(block, _multipliers(BLOCK), self.load(next_at)), step)
        next_at.add_incoming(builder.add(next_at, _I64(BLOCK)), step)
        builder.branch(rest)

        builder.position_at_end(done)
        return self.register(block)


@instruction
def fold_blocks(typing_context: Codegen, crc: Codegen, start: Codegen, stop: Codegen) -> Codegen:
    """The CRC register after the bytes from address `start` to `stop`, at least one `BLOCK` and a
    whole number of them; `crc` is the register before.
    """

    def emit(context: Codegen, builder: Codegen, signature: Codegen, arguments: Codegen) -> Codegen:
        return _Emitter(builder).emit(*arguments)

    return types.uint64(types.uint64, types.uint64, types.uint64), emit
