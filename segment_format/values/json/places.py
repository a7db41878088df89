"""Places of values inside the kernels: taken back, and put on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined, kernel
from segment_format.kernels.memory import (
    fill_bytes,
    load_i64_native,
    load_word,
    store_i64,
)
from segment_format.values.json import contract as c

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

_NODE_BYTES = np.uint64(8 * c.NODE_SIZE)


@inlined
def number_at(base: Address, slot: Value) -> Value:
    """Slot of a frame or a node, int64."""
    return load_i64_native(base + np.uint64(8 * slot))


@inlined
def address_at(base: Address, slot: Value) -> Value:
    """Slot of a frame or a node, uint64."""
    return load_word(base + np.uint64(8 * slot))


@inlined
def put(base: Address, slot: Value, value: Value) -> None:
    """Writes a slot."""
    store_i64(base + np.uint64(8 * slot), np.int64(value))


@inlined
def _clear(node: Address, first: Value, count: Value) -> None:
    width = number_at(node, c.WIDTH)
    fill_bytes(address_at(node, c.PLACES) + np.uint64(first), 0, np.uint64(count))
    data = address_at(node, c.DATA) + np.uint64(first * width)
    fill_bytes(data, 0, np.uint64(count * width))


@helper
def clear_value(frame: Address, node: Address, entry: Value) -> None:
    """Takes back what stands at an entry of a node, and in its fields."""
    nodes = address_at(frame, c.NODES)
    level = number_at(node, c.LEVEL)
    stop = nodes + address_at(node, c.STOP) * _NODE_BYTES
    while node < stop:
        if number_at(node, c.LEVEL) == level:
            _clear(node, entry, 1)
        node += _NODE_BYTES


@helper
def save_counts(frame: Address, levels: Value) -> None:
    """Keeps how many entries there are before a row."""
    counts, saved = address_at(frame, c.COUNTS), address_at(frame, c.SAVED)
    for level in range(levels):
        put(saved, level, number_at(counts, level))


@helper
def clear_row(frame: Address, row: Value) -> None:
    """Takes a row back, with all items since `save_counts`."""
    node = address_at(frame, c.NODES)
    counts, saved = address_at(frame, c.COUNTS), address_at(frame, c.SAVED)
    for _ in range(number_at(frame, c.NODE_COUNT)):
        level = number_at(node, c.LEVEL)
        if level == 0:
            _clear(node, row, 1)
        else:
            first = number_at(saved, level)
            _clear(node, first, number_at(counts, level) - first)
        node += _NODE_BYTES
    for level in range(number_at(frame, c.LEVELS)):
        put(counts, level, number_at(saved, level))


@kernel("void(uint64, int64)")
def take_back(frame: Address, row: Value) -> None:
    """Takes a whole row back after all were read; its items stay homeless."""
    save_counts(frame, number_at(frame, c.LEVELS))
    clear_row(frame, row)
