"""Positions in many messages at once; `segment_format.metadata.protocol` has the wire types.

Numbers are read through overlapping views, one element a byte of the data, so that a field is one
indexed read whatever its alignment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from segment_format.metadata.columns import int64_array
from segment_format.metadata.protocol import MAX_INT32

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray

    from segment_format.metadata.columns import Ids, Integers

    Flags = NDArray[np.bool_]

_PADDING = 8
_UVARINT_BYTES = 5


class Positions:
    """Where the next field of each message begins.

    A message that has been given up reads as zeros or as any other bytes of the data from then on,
    never as bytes beyond it.

    Args:
        data: All messages, followed by eight bytes more.
        at: First byte of what is left of each message.
        stop: End of each message, exclusive, within `data` without its last eight bytes.
        good: Which messages have not been given up.
    """

    __slots__ = ("at", "data", "good", "stop")

    def __init__(self, data: NDArray[np.uint8], at: Integers, stop: Integers, good: Flags) -> None:
        self.data = data
        self.at = at
        self.stop = stop
        self.good = good

    @classmethod
    def within(cls, held: NDArray[np.uint8], starts: Integers, stops: Integers) -> Self:
        """The beginnings of messages in `held`, which is copied."""
        data = np.zeros(len(held) + _PADDING, np.uint8)
        data[: len(held)] = held
        return cls(data, starts, stops, np.ones(len(starts), np.bool_))

    def __len__(self) -> int:
        return len(self.at)

    def only(self, places: Integers) -> Positions:
        """Some of the messages, to read on in them alone."""
        return Positions(self.data, self.at[places], self.stop[places], self.good[places])

    def put(self, places: Integers, moved: Positions) -> None:
        """Takes over how far `only(places)` has been read since."""
        self.at[places] = moved.at
        self.good[places] = moved.good

    def require(self, true: Flags) -> None:
        """Gives up the messages for which this is not true."""
        self.good &= true

    def take(self, size: Integers | int) -> Integers:
        """Where the next `size` bytes begin, none negative; 0 in a message that has fewer left."""
        self.good &= size <= self.stop - self.at
        start: Integers = np.where(self.good, self.at, 0)
        self.at = start + size
        return start

    def _numbers(self, kind: str, start: Integers) -> NDArray[Any]:
        size = np.dtype(kind).itemsize
        count = len(self.data) - size + 1
        return np.ndarray((count,), kind, self.data, strides=(1,))[start]

    def byte(self) -> Integers:
        """An unsigned byte; a negative number of the format is one above 127 here."""
        return self.data[self.take(1)].astype(np.int64)

    def i32(self) -> Integers:
        """A big-endian signed 32-bit integer."""
        return self._numbers(">i4", self.take(4)).astype(np.int64)

    def i64(self) -> Integers:
        """A big-endian signed 64-bit integer."""
        return self._numbers(">i8", self.take(8)).astype(np.int64)

    def uuid(self) -> Ids:
        """Two unsigned halves a message, the most significant first."""
        start = self.take(16)
        halves = np.empty((len(start), 2), np.uint64)
        halves[:, 0] = self._numbers(">u8", start)
        halves[:, 1] = self._numbers(">u8", start + np.where(self.good, 8, 0))
        return halves

    def uvarint(self) -> Integers:
        """An unsigned number of at most 31 bits."""
        value = self.byte()
        longer = np.flatnonzero(self.good & (value > 0x7F))
        if not len(longer):
            return value
        rest = self.only(longer)
        long_value = value[longer] & 0x7F
        more = rest.good.copy()
        for shift in range(7, 7 * _UVARINT_BYTES, 7):
            here = np.flatnonzero(more)
            some = rest.only(here)
            byte = some.byte()
            rest.put(here, some)
            long_value[here] |= (byte & 0x7F) << shift
            more[here] = some.good & (byte > 0x7F)
        rest.require(~more & (long_value <= MAX_INT32))
        self.put(longer, rest)
        value[longer] = np.where(rest.good, long_value, 0)
        return value

    def compact_bytes(self) -> tuple[Integers, Integers]:
        """Where length-prefixed bytes begin, and how many they are; −1 for null."""
        length = self.uvarint() - 1
        return self.take(np.maximum(length, 0)), length

    def no_tagged_fields(self) -> None:
        """Gives up the messages that have any here."""
        self.require(self.byte() == 0)

    def entries(self, kind: str, starts: Integers) -> Integers:
        """Numbers anywhere in the data, from positions that `take` gave."""
        return self._numbers(kind, starts).astype(np.int64)

    def pieces(self, start: Integers, length: Integers) -> pa.LargeBinaryArray:
        """Copies of bytes that `compact_bytes` found; null in messages given up, too."""
        present = self.good & (length >= 0)
        # Every second item of an array over all the data; the others are what lies between.
        borders = np.zeros(2 * len(start) + 1, np.int64)
        borders[1::2] = np.where(present, start, 0)
        borders[2::2] = np.where(present, start + length, 0)
        borders = np.maximum.accumulate(borders)  # nothing for those that are not there
        buffers = [None, pa.py_buffer(borders), pa.py_buffer(self.data)]
        items = pa.Array.from_buffers(pa.large_binary(), 2 * len(start), buffers)
        return items.take(int64_array(np.arange(1, 2 * len(start), 2), present))
