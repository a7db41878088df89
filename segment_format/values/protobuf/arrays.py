"""Filled columns as Arrow arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segment_format.kernels.pool_memory import copied
from segment_format.values.protobuf.columns import Column, Kind
from segment_format.values.protobuf.map_keys import mark_replaced
from segment_format.values.protobuf.null_structs import with_nulls_below

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segment_format.values.protobuf.memory import ColumnMemory

_MOST_BYTES: Final = 2**31 - 1
_MICROS: Final = 1_000_000
_MOST_SECONDS: Final = 2**63 // _MICROS - 3
_NO_TIME: Final = "a time beyond what 64 bits of microseconds hold"
_TOO_MANY_NAMES: Final = "names of enums of values decoded together take more than 2 GiB"


class ArrayBuilder:
    """Makes arrays of what the kernel has filled.

    Attributes:
        bad: Rows whose value turned out to be bad, each with the path and the reason.
    """

    def __init__(self, memory: ColumnMemory) -> None:
        self._memory = memory
        self.bad: dict[int, tuple[str, str]] = {}

    def build(self, root: Column) -> pa.Array:
        """The array of the values; null where one is missing or bad, and below nulls."""
        return with_nulls_below(self._values(root))

    def _values(self, root: Column) -> pa.Array:
        array = self._array(root, "")
        if not self.bad:
            return array
        good = np.ones(len(array), np.bool_)
        good[list(self.bad)] = False
        if array.null_count:
            good &= array.is_valid().to_numpy(zero_copy_only=False)
        # The same children under other validity.
        buffers = array.buffers()
        children = []
        if root.kind is Kind.STRUCT:
            buffers = buffers[:1]
            children = [array.field(index) for index in range(array.type.num_fields)]
        return pa.Array.from_buffers(
            array.type, len(array), [_bits(good), *buffers[1:]], children=children
        )

    def _array(self, column: Column, path: str) -> pa.Array:
        count = self._memory.count(column.level)
        valid = self._validity(column)
        if column.kind is Kind.MAP:
            return self._map(column, path)
        if column.kind is Kind.ENUM:
            array = self._names(column, path, valid)
        elif column.kind is Kind.MOMENT:
            buffers = [None if valid is None else _bits(valid), copied(self._micros(column, path))]
            array = pa.Array.from_buffers(column.type, count, buffers)
        else:
            children = [self._array(child, _below(path, child)) for child in column.children]
            buffers = [None if valid is None else _bits(valid), *self._buffers(column)]
            array = pa.Array.from_buffers(column.type, count, buffers, children=children)
        if column.default is not None and array.null_count:
            array = pc.fill_null(array, column.default)
        return array

    def _validity(self, column: Column) -> NDArray[np.bool_] | None:
        if column.present < 0:
            return None
        present: NDArray[Any] = self._memory.numbers(column.present, column.level, np.bool_)
        return None if present.all() else present

    def _buffers(self, column: Column) -> list[pa.Buffer]:
        memory = self._memory
        if column.kind is Kind.NUMBER:
            return [memory.values(column.values, column.level, column.type.bit_width // 8)]
        if column.kind is Kind.BOOL:
            return [_bits(memory.numbers(column.values, column.level, np.bool_))]
        if column.kind is Kind.TEXT:
            offsets = memory.offsets(column.child_level, column.level)
            return [offsets, memory.text(column.child_level)]
        if column.kind is Kind.LIST:
            return [memory.offsets(column.child_level, column.level)]
        return []

    def _names(self, column: Column, path: str, valid: NDArray[np.bool_] | None) -> pa.Array:
        """Names of an enum's numbers; a number without a name is its own name."""
        assert column.enum is not None
        numbers: NDArray[Any] = self._memory.numbers(column.values, column.level, np.int32)
        known = np.array(sorted(column.enum.values), np.int32)
        names = [column.enum.values[number] for number in known.tolist()]
        places = np.searchsorted(known, numbers).astype(np.int32)
        unknown = known[np.minimum(places, len(known) - 1)] != numbers
        if unknown.any():
            others, inverse = np.unique(numbers[unknown], return_inverse=True)
            places[unknown] = len(known) + inverse.reshape(-1)
            names += [str(number) for number in others.tolist()]
        there = np.ones(len(numbers), np.bool_) if valid is None else valid.copy()
        encoded = [name.encode() for name in names]
        sizes = np.array([len(name) for name in encoded], np.int64)
        if int(sizes.max()) * len(numbers) > _MOST_BYTES:
            over = np.cumsum(np.where(there, sizes[places], 0)) > _MOST_BYTES
            self._spoil(column, np.flatnonzero(over), path, _TOO_MANY_NAMES)
            there &= ~over
        nulls = None if there.all() else _bits(there)
        indices = pa.Array.from_buffers(pa.int32(), len(places), [nulls, copied(places)])
        # Not `pa.array`: its first call imports pandas, which takes long.
        offsets = copied(np.concatenate(([0], np.cumsum(sizes))).astype(np.int32))
        text = copied(np.frombuffer(b"".join(encoded), np.uint8))
        array = pa.Array.from_buffers(pa.string(), len(names), [None, offsets, text]).take(indices)
        if valid is None and nulls is not None:
            array = pc.fill_null(array, "")  # an element may not be null, not even of a bad value
        return array

    def _micros(self, column: Column, path: str) -> NDArray[np.int64]:
        seconds: NDArray[Any] = self._memory.numbers(column.values, column.level, np.int64)
        nanos: NDArray[Any] = self._memory.numbers(column.values + 1, column.level, np.int32)
        over = (seconds > _MOST_SECONDS) | (seconds < -_MOST_SECONDS)
        if over.any():
            self._spoil(column, np.flatnonzero(over), path, _NO_TIME)
            seconds = np.where(over, 0, seconds)
        micros = nanos.astype(np.int64)
        if pa.types.is_timestamp(column.type):
            micros //= 1000  # the microsecond it lies in
        else:
            micros = np.sign(micros) * (np.abs(micros) // 1000)  # towards zero
        result: NDArray[np.int64] = seconds * _MICROS + micros
        return result

    def _map(self, column: Column, path: str) -> pa.Array:
        memory = self._memory
        key, value = column.children
        count = memory.count(column.level)
        entries = memory.count(column.child_level)
        arrays = [self._array(each, _below(path, each)) for each in (key, value)]
        offsets = memory.offsets(column.child_level, column.level)
        kept = np.ones(entries, np.bool_)
        order = np.empty(entries, np.int32)
        if key.kind is Kind.TEXT:
            width, texts = 0, memory.text(key.child_level).address
            keys = memory.offsets(key.child_level, key.level)
        else:
            width, texts = (1 if key.kind is Kind.BOOL else key.type.bit_width // 8), 0
            keys = memory.values(key.values, key.level, width)
        replaced = mark_replaced(
            *(offsets.address, count, keys.address, width, texts),
            *(kept.ctypes.data, order.ctypes.data),
        )
        if replaced:
            mask = pa.Array.from_buffers(pa.bool_(), entries, [None, _bits(kept)])
            arrays = [array.filter(mask) for array in arrays]
            before = np.concatenate(([0], np.cumsum(kept, dtype=np.int32)))
            offsets = copied(before[np.frombuffer(offsets, np.int32)].astype(np.int32))
        pairs_type = pa.struct([column.type.key_field, column.type.item_field])
        pairs = pa.Array.from_buffers(
            pairs_type, entries - replaced, [None], null_count=0, children=arrays
        )
        return pa.Array.from_buffers(column.type, count, [None, offsets], children=[pairs])

    def _spoil(self, column: Column, entries: NDArray[Any], path: str, reason: str) -> None:
        for index in entries.tolist():
            self.bad.setdefault(self._memory.row_of(column.level, index), (path, reason))


def _below(path: str, child: Column) -> str:
    return ".".join(filter(None, (path, child.name)))


def _bits(values: NDArray[Any]) -> pa.Buffer:
    return copied(np.packbits(values, bitorder="little"))
