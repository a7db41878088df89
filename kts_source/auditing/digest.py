"""The digest of what a partition serves, in parts that can be put together.

Batches are taken together whose base offsets divided by 4,096 are the same. Of each such block in
order, SHA-256 is taken over its batches: base offset (int64) and stored CRC (uint32), big-endian.
The digest is the sum of these numbers modulo 2^256. So a segment's part is one number and the
batches of the two blocks that may go on in the segments around it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHAINED: Final = np.dtype([("base_offset", ">i8"), ("crc", ">u4")])
_BLOCK_BITS: Final = 12
_MODULUS: Final = 1 << 256


@dataclass(frozen=True, slots=True)
class DigestPart:
    """Of neighbouring batches.

    Attributes:
        first: The batches of the first block; empty where there are none.
        last: The batches of the last block; empty where it is the first.
        between: The sum over the blocks between them.
    """

    first: bytes
    last: bytes
    between: int


class PartDigest:
    """Adds batches, and parts, in order."""

    def __init__(self) -> None:
        self._first: bytes | None = None
        self._open = bytearray()
        self._block: int | None = None
        self._sum = 0

    def update(self, base_offsets: NDArray[np.int64], crcs: NDArray[np.int64]) -> None:
        """Adds batches; base offsets ascend."""
        if not len(base_offsets):
            return
        chained = np.empty(len(base_offsets), _CHAINED)
        chained["base_offset"], chained["crc"] = base_offsets, crcs
        data = chained.tobytes()
        blocks = base_offsets >> _BLOCK_BITS
        cuts = np.flatnonzero(blocks[1:] != blocks[:-1]) + 1
        starts = [0, *cuts.tolist()]
        for start, stop in zip(starts, [*starts[1:], len(blocks)], strict=True):
            part = data[start * _CHAINED.itemsize : stop * _CHAINED.itemsize]
            self._add(int(blocks[start]), part)

    def add(self, part: DigestPart) -> None:
        """Adds what another one has seen."""
        for data in (part.first, part.last):
            if data:
                self._add(int.from_bytes(data[:8], "big", signed=True) >> _BLOCK_BITS, data)
        self._sum += part.between

    def _add(self, block: int, data: bytes) -> None:
        if block != self._block:
            self._close()
            self._block = block
        self._open += data

    def _close(self) -> None:
        if self._block is not None:
            if self._first is None:
                self._first = bytes(self._open)
            else:
                self._sum += _number(self._open)
        self._open.clear()

    def part(self) -> DigestPart:
        """All of it, to be added to another one."""
        if self._first is None:
            return DigestPart(bytes(self._open), b"", 0)
        return DigestPart(self._first, bytes(self._open), self._sum % _MODULUS)

    def text(self) -> str:
        """The digest in hex."""
        part = self.part()
        edges = sum(_number(data) for data in (part.first, part.last) if data)
        return f"{(part.between + edges) % _MODULUS:064x}"


def _number(data: bytes | bytearray) -> int:
    return int.from_bytes(hashlib.sha256(data).digest(), "big")
