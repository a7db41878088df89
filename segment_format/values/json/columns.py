"""Arrow columns out of the places that a kernel has filled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from segment_format.kernels.pool_memory import allocate, copied
from segment_format.values.json import contract as c
from segment_format.values.json.texts import gather_base64, gather_texts, texts_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segment_format.values.json.batch import Batch
    from segment_format.values.json.program import Node

_SIZE_MASK: Final = (1 << 32) - 1
_FIRST_SHIFT: Final = 32
_EMPTY: Final = allocate(0)


class Columns:
    """Makes columns; each node's places are read once.

    Args:
        batch: What was read.
        source: What it was read from.
    """

    def __init__(self, batch: Batch, source: pa.Buffer | None) -> None:
        self._batch = batch
        self._source = _EMPTY if source is None else source

    def build(self, node: Node) -> pa.Array:
        """All entries of a node."""
        count = self._batch.count(node)
        places = self._batch.places(node)
        nulls = 0 if node.required else count - int(np.count_nonzero(places))
        validity = copied(np.packbits(places, bitorder="little")) if nulls else None
        buffers: list[pa.Buffer | None] = [validity]
        children: list[pa.Array] | None = None
        if node.op == c.STRUCT:
            children = [self.build(child) for child in node.children]
        elif node.op in (c.LIST, c.MAP):
            offsets, items = self._items(node)
            buffers.append(offsets)
            children = [items]
        elif node.op in (c.TEXT, c.BINARY):
            buffers += self._texts(node, count)
        elif node.op == c.BOOL:
            values = np.frombuffer(self._batch.data(node), np.uint8)[:count]
            buffers.append(copied(np.packbits(values, bitorder="little")))
        else:
            buffers.append(self._batch.data(node).slice(0, count * node.width))
        return pa.Array.from_buffers(node.type, count, buffers, nulls, children=children)

    def _texts(self, node: Node, count: int) -> list[pa.Buffer]:
        data = self._batch.data(node).address
        base, arena = self._source.address, self._batch.arena.address
        size = texts_size(data, count)
        ends = allocate(4 * (count + 1))
        to = allocate(size + c.EMPTY_BEHIND)
        if node.op == c.BINARY:
            gather_base64(data, count, base, arena, ends.address, to.address)
            size = int(np.frombuffer(ends, np.int32)[-1])
        else:
            stop = base + self._source.size
            gather_texts(data, count, base, stop, arena, ends.address, to.address)
        return [ends, to.slice(0, size)]

    def _items(self, node: Node) -> tuple[pa.Buffer, pa.Array]:
        """(offsets, items) of a list or a map, without those that belong to no entry any more."""
        if node.op == c.LIST:
            items = self.build(node.children[0])
            kept = np.ones(len(items), np.bool_)
        else:
            key, value = node.children
            items = self._entries(node, self.build(key), self.build(value))
            kept = self._batch.places(key).view(np.bool_)
        count = self._batch.count(node)
        ranges = np.frombuffer(self._batch.data(node), np.int64)[:count]
        sizes = ranges & _SIZE_MASK
        if int(sizes.sum()) < len(items) or not kept.all():
            sizes, taken = _homes(ranges >> _FIRST_SHIFT, sizes, kept)
            # Not `pa.array`: its first call imports pandas.
            indices = pa.Array.from_buffers(pa.int64(), len(taken), [None, copied(taken)], 0)
            items = items.take(indices)
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        return copied(offsets), items

    @staticmethod
    def _entries(node: Node, keys: pa.Array, values: pa.Array) -> pa.Array:
        kind = pa.struct([node.type.key_field, node.type.item_field])
        return pa.Array.from_buffers(kind, len(keys), [None], 0, children=[keys, values])


def _homes(
    first: NDArray[np.int64], sizes: NDArray[np.int64], kept: NDArray[np.bool_]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """(items of each entry, which items) that are kept and belong to an entry."""
    ends = np.cumsum(sizes)
    taken = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(first - (ends - sizes), sizes)
    stay = kept[taken]
    before = np.concatenate(([0], np.cumsum(stay)))
    return before[ends] - before[ends - sizes], taken[stay]
