"""Places of values inside the kernels: taken back, and put on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined, kernel
from segment_format.kernels.memory import fill_bytes
from segment_format.values.frames import address_in, get, put
from segment_format.values.json import contract as c

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

_NODE_BYTES = np.uint64(8 * c.NODE_SIZE)


@inlined
def _clear(node: Address, first: Value, count: Value) -> None:
    width = get(node, c.WIDTH)
    fill_bytes(address_in(node, c.PLACES) + np.uint64(first), 0, np.uint64(count))
    data = address_in(node, c.DATA) + np.uint64(first * width)
    fill_bytes(data, 0, np.uint64(count * width))


@helper
def clear_value(frame: Address, node: Address, entry: Value) -> None:
    """Takes back what stands at an entry of a node, and in its fields."""
    nodes = address_in(frame, c.NODES)
    level = get(node, c.LEVEL)
    stop = nodes + address_in(node, c.STOP) * _NODE_BYTES
    while node < stop:
        if get(node, c.LEVEL) == level:
            _clear(node, entry, 1)
        node += _NODE_BYTES


@helper
def save_counts(frame: Address, levels: Value) -> None:
    """Keeps how many entries there are before a row."""
    counts, saved = address_in(frame, c.COUNTS), address_in(frame, c.SAVED)
    for level in range(levels):
        put(saved, level, get(counts, level))


@helper
def clear_row(frame: Address, row: Value) -> None:
    """Takes a row back, with all items since `save_counts`."""
    node = address_in(frame, c.NODES)
    counts, saved = address_in(frame, c.COUNTS), address_in(frame, c.SAVED)
    for _ in range(get(frame, c.NODE_COUNT)):
        level = get(node, c.LEVEL)
        if level == 0:
            _clear(node, row, 1)
        else:
            first = get(saved, level)
            _clear(node, first, get(counts, level) - first)
        node += _NODE_BYTES
    for level in range(get(frame, c.LEVELS)):
        put(counts, level, get(saved, level))


@kernel("void(uint64, int64)")
def take_back(frame: Address, row: Value) -> None:
    """Takes a whole row back after all were read; its items stay homeless."""
    save_counts(frame, get(frame, c.LEVELS))
    clear_row(frame, row)
