"""Arrow memory that kernels fill, and the arrays on this memory.

The memory belongs to Arrow, so any thread can release a batch without the GIL. To release a buffer
over a numpy array or `bytes`, a thread needs the GIL: an engine that holds the GIL while it waits
for that thread would deadlock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

SLACK: Final = 64
"""Bytes after the end of each growing buffer that kernels may overwrite."""
WORTH_COPYING: Final = 4
"""Copy the filled bytes if they are less than this fraction of the memory, to release the rest."""


def allocate(size: int) -> pa.Buffer:
    """Returns a buffer of `size` bytes, not initialized."""
    return pa.allocate_buffer(size)


def copied(values: NDArray[Any]) -> pa.Buffer:
    """Returns a buffer with the bytes of an array."""
    buffer = allocate(values.nbytes)
    np.frombuffer(buffer, values.dtype)[:] = values
    return buffer


def pack_bits(values: NDArray[Any]) -> pa.Buffer:
    """Returns a bitmap of bytes or booleans."""
    return copied(np.packbits(values, bitorder="little"))


class BufferSpec(NamedTuple):
    """A buffer with a fixed number of bytes per entry.

    Attributes:
        slot: Index of the buffer's address in the address table.
        level: Level of the buffer's entries.
        width: Bytes per entry.
        is_ends: True if it has int32 ends after a leading 0.
        is_zeroed: True if entries are 0 until a kernel writes them.
    """

    slot: int
    level: int
    width: int
    is_ends: bool = False
    is_zeroed: bool = False


class GrowingBuffers:
    """Buffers in levels: all buffers of a level have the same capacity in entries.

    Level 0 has the rows of a batch. The items of each list or map, and the bytes of each text
    column, are levels of their own.

    Args:
        addresses: int64, one-dimensional: the table from which a kernel reads addresses.
        specs: The buffers.
        capacities: Initial capacity of each level, in entries.

    Attributes:
        capacities: Capacity of each level, in entries.
    """

    def __init__(
        self, addresses: NDArray[np.int64], specs: Iterable[BufferSpec], capacities: Sequence[int]
    ) -> None:
        self._addresses = addresses
        self._buffers: dict[int, pa.Buffer] = {}
        self._levels: list[list[BufferSpec]] = [[] for _ in capacities]
        for spec in specs:
            self._levels[spec.level].append(spec)
        self.capacities = list(capacities)
        for level, capacity in enumerate(capacities):
            self.set_capacity(level, capacity)

    def set_capacity(self, level: int, capacity: int) -> None:
        """Grows or shrinks all buffers of a level, and keeps the filled entries."""
        self.capacities[level] = capacity
        for spec in self._levels[level]:
            size = spec.width * (capacity + spec.is_ends) + SLACK
            buffer = resized(self._buffers.get(spec.slot), size, is_zeroed=spec.is_zeroed)
            self._buffers[spec.slot] = buffer
            self._addresses[spec.slot] = buffer.address

    def filled(self, slot: int, size: int) -> pa.Buffer:
        """Returns the first `size` bytes of a buffer, copied if the rest is worth releasing."""
        buffer = self._buffers[slot]
        if size * WORTH_COPYING < buffer.size:
            return copied(np.frombuffer(buffer, np.uint8)[:size])
        return buffer.slice(0, size)

    def numbers(self, slot: int, count: int, dtype: type[np.generic]) -> NDArray[Any]:
        """Returns a view of the first `count` numbers of a buffer."""
        return np.frombuffer(self._buffers[slot], dtype, count)


def resized(buffer: pa.Buffer | None, size: int, *, is_zeroed: bool) -> pa.Buffer:
    """Allocates a buffer that starts with 0, or grows one.

    Args:
        buffer: The buffer to grow; `None` to allocate one.
        size: Bytes, at least 4.
        is_zeroed: True if all new bytes are set to 0.
    """
    old_size = 0
    if buffer is None:
        buffer = pa.allocate_buffer(size, resizable=True)
        np.frombuffer(buffer, np.int32, 1)[0] = 0
    else:
        old_size = buffer.size
        buffer.resize(size)
    if is_zeroed:
        np.frombuffer(buffer, np.uint8)[old_size:] = 0
    return buffer


def make_array(
    kind: pa.DataType,
    rows: int,
    present: NDArray[Any] | None,
    buffers: Sequence[pa.Buffer] = (),
    children: Sequence[pa.Array] | None = None,
) -> pa.Array:
    """Returns an array of filled buffers.

    Args:
        kind: Type of the array.
        rows: Length of the array.
        present: A byte for each row, 0 for null; `None` if no row is null.
        buffers: The buffers after the validity bitmap.
        children: Arrays of a nested type.
    """
    nulls = 0 if present is None else rows - int(np.count_nonzero(present))
    validity = pack_bits(present) if nulls and present is not None else None
    return pa.Array.from_buffers(kind, rows, [validity, *buffers], nulls, children=children)


def make_entries(kind: pa.DataType, keys: pa.Array, values: pa.Array) -> pa.Array:
    """Returns the struct array with the entries of a map."""
    pair = pa.struct([kind.key_field, kind.item_field])
    return make_array(pair, len(keys), None, children=[keys, values])
