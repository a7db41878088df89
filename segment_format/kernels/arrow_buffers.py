"""Allocates Arrow memory that kernels fill, and builds Arrow arrays on this memory.

The memory belongs to Arrow, so any thread can release a batch without the GIL. If a buffer referred
to a numpy array or to `bytes`, a thread would need the GIL to release it. That could deadlock, if
an engine holds the GIL while it waits for that thread.
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
"""The filled part of a buffer is copied if the buffer is more than this number of times larger."""


def allocate(size: int) -> pa.Buffer:
    """Returns a buffer of `size` bytes, which are not initialized."""
    return pa.allocate_buffer(size)


def copied(values: NDArray[Any]) -> pa.Buffer:
    """Returns a new buffer with a copy of an array's bytes."""
    buffer = allocate(values.nbytes)
    np.frombuffer(buffer, values.dtype)[:] = values
    return buffer


def pack_bits(values: NDArray[Any]) -> pa.Buffer:
    """Returns a bitmap with one bit for each byte or boolean of an array."""
    return copied(np.packbits(values, bitorder="little"))


class BufferSpec(NamedTuple):
    """Describes a buffer with a fixed number of bytes per entry.

    Attributes:
        slot: Index of the buffer's address in the address table.
        level: Level of the buffer, see `GrowingBuffers`.
        width: Bytes per entry.
        is_ends: True if the buffer has the int32 number 0, followed by the int32 end of each entry.
        is_zeroed: True if new entries are filled with zeros.
    """

    slot: int
    level: int
    width: int
    is_ends: bool = False
    is_zeroed: bool = False


class GrowingBuffers:
    """Buffers that are grouped in levels. All buffers of a level have equal capacity in entries.

    The entries of level 0 are the rows of a batch. Each list or map column has a level for its
    items, and each text column has a level for its bytes.

    Args:
        addresses: Address table: a one-dimensional int64 array. It contains the addresses of the
            buffers, for kernels.
        specs: Descriptions of the buffers.
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
        """Grows or shrinks all buffers of a level. Keeps the entries that were filled."""
        self.capacities[level] = capacity
        for spec in self._levels[level]:
            size = spec.width * (capacity + spec.is_ends) + SLACK
            buffer = resized(self._buffers.get(spec.slot), size, is_zeroed=spec.is_zeroed)
            self._buffers[spec.slot] = buffer
            self._addresses[spec.slot] = buffer.address

    def filled(self, slot: int, size: int) -> pa.Buffer:
        """Returns the first `size` bytes of a buffer. If they are a small part of the buffer,
        copies them, so that the memory of the buffer can be released.
        """
        buffer = self._buffers[slot]
        if size * WORTH_COPYING < buffer.size:
            return copied(np.frombuffer(buffer, np.uint8)[:size])
        return buffer.slice(0, size)

    def numbers(self, slot: int, count: int, dtype: type[np.generic]) -> NDArray[Any]:
        """Returns a view of the first `count` numbers in a buffer."""
        return np.frombuffer(self._buffers[slot], dtype, count)


def resized(buffer: pa.Buffer | None, size: int, *, is_zeroed: bool) -> pa.Buffer:
    """Changes the size of `buffer` to `size` bytes, at least 4. If `buffer` is `None`, allocates a
    buffer whose first 4 bytes are 0. If `is_zeroed`, all added bytes are set to 0.
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
    """Builds an Arrow array of `rows` rows from filled buffers. `present` has one byte for each
    row, which is 0 if the row is null (`None`: no row is null); `buffers` does not include the
    validity bitmap. A nested type has child arrays.
    """
    nulls = 0 if present is None else rows - int(np.count_nonzero(present))
    validity = pack_bits(present) if nulls and present is not None else None
    return pa.Array.from_buffers(kind, rows, [validity, *buffers], nulls, children=children)


def make_entries(kind: pa.DataType, keys: pa.Array, values: pa.Array) -> pa.Array:
    """Returns the struct array that contains the entries of a map array."""
    pair = pa.struct([kind.key_field, kind.item_field])
    return make_array(pair, len(keys), None, children=[keys, values])
