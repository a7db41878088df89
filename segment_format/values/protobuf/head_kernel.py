"""Contains the kernel that finds the head of each value. `confluent` explains heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import kernel
from segment_format.kernels.primitives import load_i64_native, load_u8, load_u32_native, store_i32

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value


@kernel
def match_heads(
    ends: Address,
    rows: Value,
    data: Address,
    heads: Address,
    bounds: Address,
    count: Value,
    starts: Address,
    which: Address,
) -> Value:
    """Finds for each value the head with which it starts. Writes the index of the head and the
    position of the message. Writes nothing for values that start with none of the heads. No head
    may be a prefix of another head.

    Args:
        rows: Number of values.
        count: Number of heads.
        ends: Address of int32 numbers: start of each value, then the end of the last value.
        data: Address of the bytes of the values.
        heads: Address of the bytes of all heads.
        bounds: Address of int64 numbers: start of each head, then the end of the last head.
        starts: Address of an int32 per value, to which the position of the message is written.
        which: Address of an int32 per value, to which the index of the head is written.
    """
    last = np.int64(0)
    for row in range(rows):
        position = np.int64(load_u32_native(ends + np.uint64(4 * row)))
        size = np.int64(load_u32_native(ends + np.uint64(4 * (row + 1)))) - position
        for turn in range(count):  # starts with the head of the value before
            each = last + turn
            if each >= count:
                each -= count
            first = load_i64_native(bounds + np.uint64(8 * each))
            length = load_i64_native(bounds + np.uint64(8 * (each + 1))) - first
            if length <= size:
                same = np.int64(0)
                while same < length and load_u8(data + np.uint64(position + same)) == load_u8(
                    heads + np.uint64(first + same)
                ):
                    same += 1
                if same == length:
                    store_i32(starts + np.uint64(4 * row), length)
                    store_i32(which + np.uint64(4 * row), each)
                    last = each
                    break
    return last
