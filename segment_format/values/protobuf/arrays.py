"""Filled columns as Arrow arrays.

The memory of a decoding: columns that the kernel fills, and the state it runs by.

Columns are zero until the kernel writes them: zero is what a value has not. All memory is Arrow's
own, see `segment_format.kernels.columns`.

Nulls below null structs: what stands there by chance is hidden from who looks at a field alone.

Arrow leaves open what the fields of a null struct hold, and some engines read a field without its
struct. Fields that are declared not to be null stay so: else Parquet's writer would refuse them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segment_format.kernels.columns import copied
from segment_format.values.protobuf import contract as c
from segment_format.values.protobuf.map_keys import mark_replaced
from segment_format.values.protobuf.program import Column, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from segment_format.values.protobuf.program import Program


_SLACK: Final = 16
"""Bytes that the kernel may write behind a text, and more so that no buffer is empty."""
_MOST_ENTRIES: Final = 2**31 - 1
_MAX_BUFFER_BYTES: Final = 512 << 20
_BYTES_PER_BYTE: Final = 8
"""Elements and texts of one decoding may take the larger of these: in all, and for each byte of the
values. Two bytes may begin a message of a thousand columns.
"""
_WORTH_SHRINKING: Final = 1 << 16


class ColumnMemory:
    """Columns, offsets and texts of one decoding, and the kernel's state.

    Args:
        program: Of the message type.
        rows: Values to decode.
        rooms: Entries of each level to make room for at first; that of level 0 is `rows`.
        size: Bytes of the values.
    """

    def __init__(self, program: Program, rows: int, rooms: Sequence[int], size: int) -> None:
        self._program = program
        self._most = max(_MAX_BUFFER_BYTES, _BYTES_PER_BYTE * size)
        columns = program.columns.reshape(-1, c.COLUMN_SIZE).tolist()
        levels = program.levels.reshape(-1, c.LEVEL_SIZE).tolist()
        level_count = len(levels)
        parts = (
            *(c.STATE_SIZE, len(columns)),
            *(level_count,) * 5,
            c.FRAME_SIZE * (c.MOST_DEPTH + 1),
        )
        ends = np.cumsum(parts).tolist()
        self._numbers = np.zeros(ends[-1], np.int64)
        self.state = self._numbers.data
        self.address: int = self._numbers.ctypes.data
        self._bases, self._offset_bases, self._byte_bases = ends[0], ends[1], ends[2]
        self._counts, self._rooms, self._stack = ends[3], ends[4], ends[6]
        for slot, start in zip(
            (c.BASES, c.OFFSETS, c.BYTES, c.COUNTS, c.ROOMS, c.BEFORE, c.STACK),
            ends,
            strict=False,
        ):
            self.state[slot] = self.address + 8 * start
        for slot, table in (
            (c.NODES, program.nodes),
            (c.DENSE, program.dense),
            (c.ENTRIES, program.entries),
            (c.COLUMNS, program.columns),
            (c.LEVELS, program.levels),
            (c.KIDS, program.kids),
            (c.ENUMS, program.enums),
        ):
            self.state[slot] = table.ctypes.data
        self.state[c.COLUMN_COUNT] = len(columns)
        self.state[c.LEVEL_COUNT] = level_count
        self.state[c.ROWS] = rows
        self.state[c.DEPTH] = -1
        self._columns: dict[int, pa.Buffer] = {}
        self._offsets: dict[int, pa.Buffer] = {}
        self._texts: dict[int, pa.Buffer] = {}
        self._on_level: list[list[tuple[int, int]]] = [[] for _ in levels]
        self._kids: list[list[int]] = [[] for _ in levels]
        for column, (width, level) in enumerate(columns):
            self._on_level[level].append((column, width))
        for level, (parent, _, _) in enumerate(levels):
            if parent >= 0:
                self._kids[parent].append(level)
        self._text_levels = program.text_levels
        self._grown = 0
        for level in range(level_count):
            self._set_room(level, rooms[level] if level else rows)

    def count(self, level: int) -> int:
        """Entries of a level so far."""
        count: int = self.state[self._counts + level]
        return count

    @property
    def counts(self) -> tuple[int, ...]:
        """Entries of each level so far."""
        return tuple(self.state[self._counts : self._rooms].tolist())

    def grow(self) -> bool:
        """Make the room that the state asks for; False if that would be too much."""
        level, wanted = self.state[c.LEVEL_WANTED], self.state[c.ROOM_WANTED]
        room = min(max(wanted, 2 * self.state[self._rooms + level]), _MOST_ENTRIES)
        more = (room - self.state[self._rooms + level]) * self._program.entry_bytes[level]
        if wanted > room or self._grown + more > self._most:
            return False
        self._grown += more
        self._set_room(level, room)
        return True

    def _set_room(self, level: int, room: int) -> None:
        self.state[self._rooms + level] = room
        if level in self._text_levels:
            self.state[self._byte_bases + level] = _resized(self._texts, level, room + _SLACK)
        for column, width in self._on_level[level]:
            self.state[self._bases + column] = _resized(
                self._columns, column, room * width + _SLACK, zero=True
            )
        for kid in self._kids[level]:
            # The first offset is 0, and the kernel writes the others.
            self.state[self._offset_bases + kid] = _resized(
                self._offsets, kid, 4 * (room + 1) + _SLACK
            )

    def bad_entries(self) -> list[int]:
        """The entries down to where a value went wrong."""
        start = self._stack + c.FRAME_ENTRY
        stop = start + c.FRAME_SIZE * (self.state[c.BAD_DEPTH] + 1)
        entries = [*self.state[start : stop : c.FRAME_SIZE].tolist(), self.state[c.BAD_ENTRY]]
        return [entry for entry in entries if entry >= 0]

    def values(self, column: int, level: int, width: int) -> pa.Buffer:
        """The numbers of a column."""
        return _filled(self._columns, column, self.count(level) * width)

    def numbers(self, column: int, level: int, dtype: type[np.generic]) -> NDArray[np.generic]:
        """The same as an array."""
        return np.frombuffer(self.values(column, level, np.dtype(dtype).itemsize), dtype)

    def offsets(self, level: int, parent: int) -> pa.Buffer:
        """Where the entries of each entry of the parent begin, and where the last ends: int32."""
        return _filled(self._offsets, level, 4 * (self.count(parent) + 1))

    def text(self, level: int) -> pa.Buffer:
        """The bytes of texts."""
        return _filled(self._texts, level, self.count(level))

    def row_of(self, level: int, index: int) -> int:
        """Which value an entry of a level belongs to."""
        while level:
            parent = int(self._program.levels[level * c.LEVEL_SIZE + c.PARENT])
            ends = np.frombuffer(self.offsets(level, parent), np.int32)
            index = int(np.searchsorted(ends, index, side="right")) - 1
            level = parent
        return index


def _resized(buffers: dict[int, pa.Buffer], key: int, size: int, *, zero: bool = False) -> int:
    """Make a buffer, or make it larger; its address."""
    buffer = buffers.get(key)
    old = 0
    if buffer is None:
        buffers[key] = buffer = pa.allocate_buffer(size, resizable=True)
        np.frombuffer(buffer, np.uint8, _SLACK)[:] = 0
    else:
        old = buffer.size
        buffer.resize(size)
    if zero:
        np.frombuffer(buffer, np.uint8)[old:] = 0
    address: int = buffer.address
    return address


def _filled(buffers: dict[int, pa.Buffer], key: int, size: int) -> pa.Buffer:
    buffer = buffers[key]
    if buffer.size > _WORTH_SHRINKING and 2 * size < buffer.size:
        buffer.resize(max(size, 1), shrink_to_fit=True)
    return buffer.slice(0, size)


def with_nulls_below(array: pa.Array) -> pa.Array:
    """An array in which all fields of a null struct that may be null are, at each depth.

    Values and offsets are those of the array.

    Args:
        array: With an offset of 0, and so its children.
    """
    return _children_below(array, None, nullable=True)


def _children_below(
    array: pa.Array, above: NDArray[np.uint8] | None, *, nullable: bool
) -> pa.Array:
    """The array with nulls where a bit of `above` is 0.

    Args:
        array: Which.
        above: Validity bits of the struct it is a field of; `None` where that is nowhere null.
        nullable: Whether it may be null itself; its fields are in any case.
    """
    kind = array.type
    if pa.types.is_null(kind):
        return array
    own = array.buffers()[: kind.num_buffers]
    bits = None
    if array.null_count:
        bits = np.frombuffer(own[0], np.uint8)[: (len(array) + 7) // 8]
    if above is not None:
        bits = above if bits is None else bits & above
        if nullable:
            own[0] = copied(bits)
    children = None
    if pa.types.is_struct(kind):
        children = [
            _children_below(array.field(index), bits, nullable=field.nullable)
            for index, field in enumerate(kind)
        ]
    elif pa.types.is_list(kind):
        children = [_children_below(array.values, None, nullable=True)]
    elif pa.types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        pairs = [array.keys, _children_below(array.items, None, nullable=True)]
        size = len(array.keys)
        children = [pa.Array.from_buffers(entries, size, [None], 0, children=pairs)]
    elif above is None:
        return array
    return pa.Array.from_buffers(kind, len(array), own, children=children)


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
            children = [self._array(child, _child_path(path, child)) for child in column.children]
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
        arrays = [self._array(each, _child_path(path, each)) for each in (key, value)]
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


def _child_path(path: str, child: Column) -> str:
    return ".".join(filter(None, (path, child.name)))


def _bits(values: NDArray[Any]) -> pa.Buffer:
    return copied(np.packbits(values, bitorder="little"))
