"""JSON values to an Arrow column of a given type.

What is wrong with a bad row, in words.

The memory of one decoding: what the kernel writes to, see `contract`.

What becomes a column is Arrow's own memory, which any thread may release.

Arrow columns out of the places that a kernel has filled.

JSON values in Confluent's wire format: JSON behind the header.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from segment_format.kernels.columns import allocate, copied
from segment_format.values.confluent_header import read_headers, without_headers
from segment_format.values.decoded import BadValue, DecodedValues
from segment_format.values.json import contract as c
from segment_format.values.json.contract import powers
from segment_format.values.json.program import compiled, projected
from segment_format.values.json.rows import gather_base64, gather_texts, read_rows, texts_size
from segment_format.values.json.values import take_back

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from segment_format.values.json.program import Node, Program


_REASONS: Final = {
    c.BAD_END: "the text ends too early",
    c.BAD_TOKEN: "no JSON value begins here",
    c.BAD_KEY: "the name of a field in double quotes must stand here",
    c.BAD_COLON: "a colon must follow the name of a field",
    c.BAD_NEXT: "a comma or the closing bracket must follow",
    c.BAD_REST: "something follows the value",
    c.BAD_DEPTH: f"more than {c.MAX_DEPTH} objects and arrays are inside each other",
    c.BAD_STRING_END: "a string does not end",
    c.BAD_CONTROL: "a string holds a control character that is not escaped",
    c.BAD_ESCAPE: "a string holds an escape that JSON does not have",
    c.BAD_SURROGATE: "a string holds half a surrogate pair",
    c.BAD_UTF8: "a string is not UTF-8",
    c.BAD_NUMBER: "this is not how JSON writes a number",
    c.MISSING: "the field may not be null, and is missing",
    c.NULL: "the value may not be null",
    c.TOO_MANY_ITEMS: "its arrays and objects take more memory than one batch may",
    c.BAD_BASE64: "a binary value must be base64 with padding",
    c.BAD_DATE: "a date must be YYYY-MM-DD",
    c.BAD_TIME: "a timestamp must be YYYY-MM-DDThh:mm:ss, with up to 9 digits of a second",
    c.OUT_OF_RANGE: "the number is too large for {kind}",
    c.NOT_EXACT: "the number has digits that {kind} does not hold",
}
_FOUND: Final = {
    '"': "a string",
    "{": "an object",
    "[": "an array",
    "t": "a boolean",
    "f": "a boolean",
    "n": "null",
    "-": "a number",
}
_WANTED: Final = {
    c.STRUCT: "an object",
    c.MAP: "an object",
    c.LIST: "an array",
    c.BOOL: "a boolean",
    **dict.fromkeys((c.INT64, c.INT32, c.DOUBLE, c.SINGLE, c.DECIMAL), "a number"),
}


def reason(code: int, node: Node, byte: bytes, position: int) -> str:
    """What is wrong at a position of a text, where `byte` stands; the data itself is not told."""
    if code == c.WRONG_TYPE:
        first = byte.decode("latin-1")
        found = _FOUND.get(first, "a number" if first.isdecimal() else "no JSON value")
        kind = f" for {node.type}" if node.op < c.STRUCT else ""
        words = f"{_WANTED.get(node.op, 'a string')} is wanted{kind}, not {found}"
    elif code == c.BAD_ZONE:
        words = (
            "the timestamp has no time zone; without one it is a timestamp_ntz"
            if node.op == c.TIMESTAMP
            else "the timestamp has a time zone; with one it is a timestamp"
        )
    else:
        words = _REASONS[code].format(kind=node.type)
    return f"{words} (byte {position})"


_MAX_ITEM_BYTES: Final = 1 << 30
"""Most bytes for the items of all lists and maps of a batch, as they are kept while it is read."""
_FIRST_OPEN: Final = 64
_FIRST_ITEMS: Final = 4096


@dataclass(slots=True)
class _Place:
    """Where the values of a node stand."""

    places: pa.Buffer
    data: pa.Buffer


def _zeroed(size: int) -> pa.Buffer:
    buffer = allocate(size)
    np.frombuffer(buffer, np.uint8)[:] = 0
    return buffer


class Batch:
    """The places of a program's nodes for so many rows.

    Args:
        program: Of the target type.
        rows: How many.
    """

    def __init__(self, program: Program, rows: int) -> None:
        self._program = program
        self._rows = rows
        self._code = program.code.copy()
        self._places: list[_Place] = []
        self._rooms = np.full(program.levels, min(rows, _FIRST_ITEMS), np.int64)
        self._counts = np.zeros(program.levels, np.int64)
        self._arena = allocate(c.EMPTY_BEHIND)
        self._open = np.zeros((_FIRST_OPEN, c.OPEN_SIZE), np.int64)
        self._bad = np.empty((rows, c.BAD_SIZE), np.int64)
        others = (
            np.zeros(program.levels, np.int64),
            np.zeros((program.structs * (c.KEYS_MOST + 1) + 1, c.KEY_SIZE), np.int64),
            np.zeros((program.depth + 1, c.STACK_SIZE), np.int64),
            np.zeros(c.MAX_DEPTH, np.uint8),
        )
        self._others = others  # the frame has their addresses
        self.frame: NDArray[np.int64] = np.zeros(c.FRAME_SIZE, np.int64)
        frame = self.frame
        frame[c.NODE_COUNT] = len(program.nodes)
        frame[c.LEVELS] = program.levels
        frame[c.OPEN_ROOM] = _FIRST_OPEN
        for slot, array in (
            (c.NODES, self._code),
            (c.TABLES, program.tables),
            (c.NAMES, program.names),
            (c.POWERS, powers()),
            (c.SAVED, others[0]),
            (c.MEMORY, others[1]),
            (c.STACK, others[2]),
            (c.SKIP_STACK, others[3]),
            (c.COUNTS, self._counts),
            (c.ROOMS, self._rooms),
            (c.BAD, self._bad),
            (c.OPEN, self._open),
        ):
            frame[slot] = array.ctypes.data
        frame[c.ARENA] = self._arena.address
        for node in program.nodes:
            room = int(self._rooms[node.level]) if node.level else rows
            size = room * node.width + c.EMPTY_BEHIND
            self._set(node, _Place(_zeroed(room + c.EMPTY_BEHIND), _zeroed(size)))

    def _set(self, node: Node, place: _Place) -> None:
        if node.number == len(self._places):
            self._places.append(place)
        self._places[node.number] = place
        self._code[node.number, c.PLACES] = place.places.address
        self._code[node.number, c.DATA] = place.data.address

    @property
    def bad(self) -> list[list[int]]:
        """Row, code, node and position of each bad row, as far as the kernel has found them."""
        bad: list[list[int]] = self._bad[: self.frame[c.BAD_COUNT]].tolist()
        return bad

    def add_bad(self, row: int, code: int, node: int) -> None:
        """Names one more bad row."""
        count = self.frame[c.BAD_COUNT]
        self._bad[count] = row, code, node, 0
        self.frame[c.BAD_COUNT] = count + 1

    def grow(self, status: int) -> bool:
        """Makes room as the kernel has asked for; False if that is beyond all bounds."""
        wanted = int(self.frame[c.WANTED])
        if status == c.GROW_LEVEL:
            return self._grow_level(int(self.frame[c.WANTED_LEVEL]), wanted)
        if status == c.GROW_ARENA:
            size, room = int(self.frame[c.ARENA_SIZE]), int(self.frame[c.ARENA_ROOM])
            room = max(wanted, 2 * room, 4096)
            arena = allocate(room + c.EMPTY_BEHIND)
            np.frombuffer(arena, np.uint8)[:size] = np.frombuffer(self._arena, np.uint8)[:size]
            self._arena = arena
            self.frame[c.ARENA] = arena.address
            self.frame[c.ARENA_ROOM] = room
        else:
            numbers = np.zeros((max(wanted, 2 * len(self._open)), c.OPEN_SIZE), np.int64)
            numbers[: len(self._open)] = self._open
            self._open = numbers
            self.frame[c.OPEN] = numbers.ctypes.data
            self.frame[c.OPEN_ROOM] = len(numbers)
        return True

    def _grow_level(self, level: int, wanted: int) -> bool:
        count = int(self._counts[level])
        room = max(wanted, 2 * int(self._rooms[level]), 64)
        nodes = [node for node in self._program.nodes if node.level == level]
        if self._item_bytes(level, room) > _MAX_ITEM_BYTES:
            room = wanted
            if self._item_bytes(level, room) > _MAX_ITEM_BYTES:
                return False
        self._rooms[level] = room
        for node in nodes:
            old = self._places[node.number]
            places = _zeroed(room + c.EMPTY_BEHIND)
            data = _zeroed(room * node.width + c.EMPTY_BEHIND)
            for to, source, size in (
                (places, old.places, count),
                (data, old.data, count * node.width),
            ):
                np.frombuffer(to, np.uint8)[:size] = np.frombuffer(source, np.uint8)[:size]
            self._set(node, _Place(places, data))
        return True

    def _item_bytes(self, level: int, room: int) -> int:
        """Bytes of all items if a level has room for so many."""
        return sum(
            (1 + node.width) * (room if node.level == level else int(self._rooms[node.level]))
            for node in self._program.nodes
            if node.level
        )

    @property
    def open_numbers(self) -> list[list[int]]:
        """Node, entry, position, size and row of the numbers that are left open."""
        numbers: list[list[int]] = self._open[: self.frame[c.OPEN_COUNT]].tolist()
        return numbers

    def places(self, node: Node) -> NDArray[np.uint8]:
        """A byte for each entry of a node: whether it has a value."""
        count = self.count(node)
        return np.frombuffer(self._places[node.number].places, np.uint8)[:count]

    def data(self, node: Node) -> pa.Buffer:
        """The values of a node."""
        return self._places[node.number].data

    def count(self, node: Node) -> int:
        """How many entries a node has."""
        return int(self._counts[node.level]) if node.level else self._rows

    @property
    def arena(self) -> pa.Buffer:
        """Strings unescaped."""
        return self._arena


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


_OPEN_DOUBLE: Final = 0x7FF8 << 48
_OPEN_SINGLE: Final = 0x7FC00000
_OPEN_SINGLE_BITS: Final = 0x3FFFFF


class JsonDecoder:
    """Decodes JSON texts (RFC 8259, UTF-8), one a value, each wholly checked.

    What becomes what:

    * bool from `true` and `false`; string from strings, escapes replaced.
    * int32, int64, decimal128 from numbers that are exactly such a value, however written: `1.0`
      and `1e2` are integers, `1.5` is none, `1.50` is a decimal of scale 1. Nothing is rounded.
    * float, double: the nearest to the number, ties to even, -0 kept; what rounds to infinity is an
      error.
    * binary from base64 (RFC 4648, with padding).
    * date from `YYYY-MM-DD`; timestamp[us, UTC] from ISO 8601 with a zone, timestamp[us] without
      one. Seconds may be left out; of up to 9 digits of a second, 6 stay. Numbers are no
      timestamps: nothing says of what unit.
    * struct from objects. What is missing or `null` is null, and an error where the field is not
      nullable; other keys are skipped, and checked to be JSON. Names are case-sensitive.
    * list from arrays; map with string keys from objects.

    Of two equal keys the last one counts, in maps too. A wrong type, a number out of range, NaN,
    comments, a byte order mark, half a surrogate pair, malformed UTF-8, no text at all, anything
    behind the value, or more than 512 objects and arrays inside each other make the row bad: null,
    and named in `bad`. The text `null` is null and not bad.

    Memory is of the order of the texts' size times the bytes of a list's item; more than 1 GiB for
    all items of a call make the row that takes it there bad.

    Args:
        type: Of the column.
        columns: Names of fields, joined by dots where a field is a struct itself; only these are
            decoded, in the order of the type. Wrong types in other fields are not looked for. All
            by default.

    Raises:
        ValueError: A type that is not read from JSON, by its path, or columns it does not have.
    """

    def __init__(self, type: pa.DataType, columns: Sequence[str] | None = None) -> None:
        self._program = compiled(type if columns is None else projected(type, columns))

    @property
    def type(self) -> pa.DataType:
        """Of the column that `decode` gives."""
        return self._program.root.type

    def decode(self, values: pa.Array) -> DecodedValues:
        """Decodes values, see `segment_format.values.decoded.ValueDecoder.decode`.

        Raises:
            TypeError: `values` is not of `pa.binary()`.
        """
        if values.type != pa.binary():
            raise TypeError(f"values must be binary, not {values.type}")
        rows = len(values)
        validity, offsets, data = values.buffers()
        if rows == 0:
            return DecodedValues(pa.nulls(0, self.type))
        if data is None:  # as other libraries leave it where there is no byte
            data = allocate(0)
        ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + rows + 1]
        batch = Batch(self._program, rows)
        frame = batch.frame
        frame[c.ENDS] = offsets.address + 4 * values.offset
        frame[c.VALID] = 0 if validity is None else validity.address
        frame[c.VALID_FIRST] = values.offset
        # Kernels read beyond a row's end, so the last rows are read from a copy.
        safe = int(np.searchsorted(ends[1:], data.size - c.EMPTY_BEHIND, side="right"))
        _read(batch, data.address, safe)
        if safe < rows:
            rest = _padded(data.slice(int(ends[safe]), int(ends[-1] - ends[safe])))
            _read(batch, rest.address - int(ends[safe]), rows)
        bad = self._decide(batch, data, ends) if frame[c.OPEN_COUNT] else batch.bad
        array = Columns(batch, data).build(self._program.root)
        return DecodedValues(array, tuple(self._named(one, data, ends) for one in bad))

    def _named(self, bad: list[int], data: pa.Buffer, ends: NDArray[np.int32]) -> BadValue:
        row, code, number, position = bad
        node = self._program.nodes[number]
        start, stop = int(ends[row]), int(ends[row + 1])
        near = min(start + position, stop)
        byte = data.slice(near, min(1, stop - near)).to_pybytes()
        return BadValue(row, node.path, reason(code, node, byte, position))

    def _decide(self, batch: Batch, data: pa.Buffer, ends: NDArray[np.int32]) -> list[list[int]]:
        """Decides the numbers left open; all bad rows."""
        bad = {one[0]: one for one in batch.bad}
        for index, (number, entry, at, size, row) in enumerate(batch.open_numbers):
            text = data.slice(at, size).to_pybytes()
            node = self._program.nodes[number]
            if node.op == c.DOUBLE:
                value = float(text)
                cells = np.frombuffer(batch.data(node), np.uint64)
                marker = _OPEN_DOUBLE | index
                decided = np.array([value]).view(np.uint64)[0]
            else:
                value = nearest_single(text)
                cells = np.frombuffer(batch.data(node), np.uint32)
                marker = _OPEN_SINGLE | index & _OPEN_SINGLE_BITS
                decided = np.array([value], np.float32).view(np.uint32)[0]
            if math.isinf(value):
                bad.setdefault(row, [row, c.OUT_OF_RANGE, number, at - int(ends[row])])
            elif cells[entry] == marker:  # else the same field came again
                cells[entry] = decided
        for row in bad:
            take_back(batch.frame.ctypes.data, row)
        return [bad[row] for row in sorted(bad)]


def _padded(data: pa.Buffer) -> pa.Buffer:
    padded = allocate(data.size + c.EMPTY_BEHIND)
    view = np.frombuffer(padded, np.uint8)
    view[: data.size] = np.frombuffer(data, np.uint8)
    view[data.size :] = 0
    return padded


def _read(batch: Batch, base: int, stop: int) -> None:
    """Reads on up to a row."""
    frame = batch.frame
    frame[c.BASE] = base
    frame[c.ROW_STOP] = stop
    while True:
        status = read_rows(frame.ctypes.data)
        if status == c.DONE:
            return
        if not batch.grow(status):
            batch.add_bad(int(frame[c.ROW]), c.TOO_MANY_ITEMS, 0)
            frame[c.ROW] += 1


def nearest_single(text: bytes) -> float:
    """The float32 nearest to a number, ties to even, as a double."""
    nearest = float(text)
    with np.errstate(over="ignore"):
        single = np.float32(nearest)
        below = np.nextafter(single, np.float32(-np.inf))
        above = np.nextafter(single, np.float32(np.inf))
    # Rounded twice, it may be wrong where the double lies in the middle of two float32.
    exact = Decimal(text.decode())
    for one, other in ((below, single), (single, above)):
        middle = _middle(float(one), float(other))
        if middle == nearest and exact != Decimal(middle):
            return float(other if exact > Decimal(middle) else one)
    return float(single)


def _middle(one: float, other: float) -> float:
    """Half way between two float32, the infinite ones standing where 2^128 would."""
    beyond = math.ldexp(1.0, 128)
    return (max(one, -beyond) + min(other, beyond)) / 2


class ConfluentJsonDecoder:
    """Decodes values that each name their writer's schema by its id, or its GUID.

    JSON says what it is, so one of them must be there, but nobody is asked for the schema.

    Args:
        decoder: Of what is behind the header; bytes in its reasons are counted from there.
    """

    def __init__(self, decoder: JsonDecoder) -> None:
        self._decoder = decoder

    @property
    def type(self) -> pa.DataType:
        """See `ValueDecoder.type`."""
        return self._decoder.type

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder.decode`.

        Raises:
            TypeError: Not a `pa.binary()` array.
        """
        if not len(values) or values.type != pa.binary():
            return self._decoder.decode(values)  # which refuses other types
        found = read_headers(values)
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        good = valid & (found.sizes > 0)
        decoded = self._decoder.decode(without_headers(values, found.sizes, good))
        headless = (
            BadValue(row, "", found.headless[int(found.number_of[row])])
            for row in np.flatnonzero(valid & ~good).tolist()
        )
        bad = sorted((*decoded.bad, *headless), key=lambda one: one.row)
        return DecodedValues(decoded.array, tuple(bad))
