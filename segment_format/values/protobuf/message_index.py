"""The message index that Confluent's serializers put before a message: which one of its file it is.

Zigzag varints: a count, then an index among the file's messages, among those nested in that, and
so on; a lone 0 means the first message. It stands behind the magic byte and the schema's id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from segment_format.kernels.compiled import kernel
from segment_format.kernels.memory import load_u8, load_u32_native, store_i32
from segment_format.values.protobuf.wire import read_varint

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from segment_format.kernels.compiled import Address, Value

MOST_INDEXES: Final = 100
FIRST: Final = (0,)


def read_message_index(data: bytes, at: int = 0) -> tuple[tuple[int, ...], int]:
    """The path to a message type, and where the message begins.

    Args:
        data: A value.
        at: Where in it the index begins.

    Raises:
        ValueError: There is no index.
    """
    count, at = _read_zigzag(data, at)
    if count == 0:
        return FIRST, at
    if not 0 < count <= MOST_INDEXES:
        raise ValueError(f"a message index of {count} numbers")
    path = []
    for _ in range(count):
        index, at = _read_zigzag(data, at)
        if index < 0:
            raise ValueError(f"message index {index}")
        path.append(index)
    return tuple(path), at


def write_message_index(path: tuple[int, ...]) -> bytes:
    """The shortest form of a path."""
    if path == FIRST:
        return b"\0"
    data = bytearray()
    for number in (len(path), *path):
        rest = number << 1
        while rest > 0x7F:
            data.append(rest & 0x7F | 0x80)
            rest >>= 7
        data.append(rest)
    return bytes(data)


def _read_zigzag(data: bytes, at: int) -> tuple[int, int]:
    raw, at = read_varint(data, at)
    return raw >> 1 ^ -(raw & 1), at


def message_starts(values: pa.Array, header: int, path: tuple[int, ...]) -> NDArray[np.int32]:
    """Of each value, how many bytes stand before its message; −1 if it is not of this path.

    Args:
        values: A `pa.binary()` array, which may be a slice and have nulls.
        header: Bytes before the index, whatever they are.
        path: The path wanted.
    """
    prefix = write_message_index(path)
    starts = np.empty(len(values), np.int32)
    if not len(values):
        return starts
    _, ends, data = values.buffers()
    wanted = np.frombuffer(prefix, np.uint8)
    address = 0 if data is None else data.address
    others = _find_prefix(
        *(ends.address + 4 * values.offset, len(values), address, header),
        *(wanted.ctypes.data, len(wanted), starts.ctypes.data),
    )
    if others:
        # Rare: another message, another way to write the path, or none.
        left = starts < 0
        if values.null_count:
            left &= values.is_valid().to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(left).tolist():
            try:
                found, start = read_message_index(values[row].as_py(), header)
            except ValueError:
                continue
            if found == path:
                starts[row] = start
    return starts


def why_no_start(value: bytes, header: int, path: tuple[int, ...]) -> str:
    """Why `message_starts` gives −1 for a value."""
    try:
        found, _ = read_message_index(value, header)
    except ValueError as error:
        return f"no message index behind {header} bytes: {error}"
    return f"a message of index {list(found)}, not {list(path)}"


@kernel("int64(uint64, int64, uint64, int64, uint64, int64, uint64)")
def _find_prefix(
    ends: Address,
    rows: Value,
    data: Address,
    header: Value,
    prefix: Address,
    size: Value,
    starts: Address,
) -> Value:
    """Sets the start of each value that has a prefix behind its header, −1 for others, and counts
    these.
    """
    others = np.int64(0)
    for row in range(rows):
        at = np.int64(load_u32_native(ends + np.uint64(4 * row))) + header
        stop = np.int64(load_u32_native(ends + np.uint64(4 * (row + 1))))
        start = header + size
        if at + size > stop:
            start = np.int64(-1)
        else:
            for each in range(size):
                if load_u8(data + np.uint64(at + each)) != load_u8(prefix + np.uint64(each)):
                    start = np.int64(-1)
        store_i32(starts + np.uint64(4 * row), start)
        others += np.int64(start < 0)
    return others
