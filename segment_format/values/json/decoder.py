"""Decodes JSON values to an Arrow column of a given type."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from segment_format.kernels.arrow_buffers import (
    BufferSpec,
    GrowingBuffers,
    allocate,
    copied,
    make_array,
    pack_bits,
    resized,
)
from segment_format.kernels.native import load_kernel
from segment_format.values.decoded import BadValue, DecodedValues
from segment_format.values.json import contract as c
from segment_format.values.json.contract import powers
from segment_format.values.json.program import compiled, projected
from segment_format.values.map_keys import KeyMemory, make_map
from segment_format.values.registry_framing import read_confluent_headers, without_headers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from segment_format.values.json.program import Node, Program


_REASONS: Final = {
    c.BAD_END: "the text ends too early",
    c.BAD_TOKEN: "no JSON value starts here",
    c.BAD_KEY: "the name of a field in double quotes is missing",
    c.BAD_COLON: "a colon must follow the name of a field",
    c.BAD_NEXT: "a comma or the closing bracket must follow",
    c.BAD_REST: "bytes follow the value",
    c.BAD_DEPTH: f"objects and arrays are nested more than {c.MAX_DEPTH} deep",
    c.BAD_STRING_END: "a string does not end",
    c.BAD_CONTROL: "a string has a control character that is not escaped",
    c.BAD_ESCAPE: "a string has an invalid escape",
    c.BAD_SURROGATE: "a string has half a surrogate pair",
    c.BAD_UTF8: "a string is not UTF-8",
    c.BAD_NUMBER: "the number is not valid JSON",
    c.MISSING: "the field may not be null, and is missing",
    c.NULL: "the value may not be null",
    c.TOO_MANY_ITEMS: "its arrays and objects exceed the memory limit of a batch",
    c.BAD_BASE64: "a binary value must be base64 with padding",
    c.BAD_DATE: "a date must be YYYY-MM-DD",
    c.BAD_TIME: "a timestamp must be YYYY-MM-DDThh:mm:ss, with up to 9 digits of a second",
    c.OUT_OF_RANGE: "the number is too large for {kind}",
    c.NOT_EXACT: "the number has a fraction or more digits than {kind} can represent",
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
    """Returns the reason why a JSON text is bad, without quoting the text. `node` is the node whose
    value was expected at `position`, in bytes from 0; `byte` is the byte at the position, empty at
    the end of the text.
    """
    if code == c.WRONG_TYPE:
        first = byte.decode("latin-1")
        seen = _FOUND.get(first, "a number" if first.isdecimal() else "something else")
        kind = f" for {node.type}" if node.op < c.STRUCT else ""
        words = f"expected {_WANTED.get(node.op, 'a string')}{kind}, not {seen}"
    elif code == c.BAD_ZONE:
        words = (
            "the timestamp has no time zone; use type timestamp_ntz"
            if node.op == c.TIMESTAMP
            else "the timestamp has a time zone; use type timestamp"
        )
    else:
        words = _REASONS[code].format(kind=node.type)
    return f"{words} (byte {position})"


_MAX_ITEM_BYTES: Final = 1 << 30
"""Maximum bytes of the items of all lists and maps of a batch while it is decoded."""
_FIRST_OPEN: Final = 64
_FIRST_ITEMS: Final = 4096


class Batch:
    """Buffers that the kernels fill with the values of a batch of rows. Each node of the program
    has separate buffers.

    Args:
        program: Compiled type of the result.
    """

    def __init__(self, program: Program, rows: int) -> None:
        self._program = program
        self._rows = rows
        self._code = program.code.copy()
        self._capacities = np.full(program.levels, min(rows, _FIRST_ITEMS), np.int64)
        self._counts = np.zeros(program.levels, np.int64)
        self._arena = resized(None, c.READ_AHEAD, is_zeroed=False)
        self._open = np.zeros((_FIRST_OPEN, c.OPEN_SIZE), np.int64)
        self._bad = np.empty((rows, c.BAD_SIZE), np.int64)
        others = (
            np.zeros(program.levels, np.int64),
            np.zeros((program.structs * (c.MAX_KEYS + 1) + 1, c.KEY_SIZE), np.int64),
            np.zeros((program.depth + 1, c.STACK_SIZE), np.int64),
            np.zeros(c.MAX_DEPTH, np.uint8),
        )
        self._others = others  # the frame has their addresses
        self.frame: NDArray[np.int64] = np.zeros(c.FRAME_SIZE, np.int64)
        frame = self.frame
        frame[c.NODE_COUNT] = len(program.nodes)
        frame[c.LEVELS] = program.levels
        frame[c.OPEN_CAPACITY] = _FIRST_OPEN
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
            (c.CAPACITIES, self._capacities),
            (c.BAD, self._bad),
            (c.OPEN, self._open),
        ):
            frame[slot] = array.ctypes.data
        frame[c.ARENA] = self._arena.address
        capacities = [rows, *self._capacities[1:].tolist()]
        self._buffers = GrowingBuffers(self._code.reshape(-1), self._specs(), capacities)

    def _specs(self) -> Iterator[BufferSpec]:
        for node in self._program.nodes:
            first = node.number * c.NODE_SIZE
            yield BufferSpec(first + c.PRESENT, node.level, 1, is_zeroed=True)
            yield BufferSpec(first + c.DATA, node.level, node.width, is_zeroed=True)

    @property
    def bad(self) -> list[list[int]]:
        """The bad rows found so far, as four numbers: the row, the error code, the number of the
        node, and the position of the error in the text.
        """
        bad: list[list[int]] = self._bad[: self.frame[c.BAD_COUNT]].tolist()
        return bad

    def add_bad(self, row: int, code: int, node: int) -> None:
        """Adds a row to `bad`, with position 0 of the text."""
        count = self.frame[c.BAD_COUNT]
        self._bad[count] = row, code, node, 0
        self.frame[c.BAD_COUNT] = count + 1

    def grow(self, status: int) -> bool:
        """Allocates the memory that the kernel requested with `status`. Returns False, without
        allocating, if the memory would exceed the limit.
        """
        wanted = int(self.frame[c.WANTED])
        if status == c.GROW_LEVEL:
            return self._grow_level(int(self.frame[c.WANTED_LEVEL]), wanted)
        if status == c.GROW_ARENA:
            capacity = max(wanted, 2 * int(self.frame[c.ARENA_CAPACITY]), 4096)
            self._arena = resized(self._arena, capacity + c.READ_AHEAD, is_zeroed=False)
            self.frame[c.ARENA] = self._arena.address
            self.frame[c.ARENA_CAPACITY] = capacity
        else:
            numbers = np.zeros((max(wanted, 2 * len(self._open)), c.OPEN_SIZE), np.int64)
            numbers[: len(self._open)] = self._open
            self._open = numbers
            self.frame[c.OPEN] = numbers.ctypes.data
            self.frame[c.OPEN_CAPACITY] = len(numbers)
        return True

    def _grow_level(self, level: int, wanted: int) -> bool:
        capacity = max(wanted, 2 * int(self._capacities[level]), 64)
        if self._item_bytes(level, capacity) > _MAX_ITEM_BYTES:
            capacity = wanted
            if self._item_bytes(level, capacity) > _MAX_ITEM_BYTES:
                return False
        self._capacities[level] = capacity
        self._buffers.set_capacity(level, capacity)
        return True

    def _item_bytes(self, level: int, capacity: int) -> int:
        """Returns how many bytes the items of all lists and maps would need if `level` had
        `capacity` entries.
        """
        return sum(
            (1 + node.width)
            * (capacity if node.level == level else int(self._capacities[node.level]))
            for node in self._program.nodes
            if node.level
        )

    @property
    def undecided_numbers(self) -> list[list[int]]:
        """The numbers that the kernel could not round, each as five numbers: its node, its entry,
        its position in the input, its size in bytes, and its row.
        """
        numbers: list[list[int]] = self._open[: self.frame[c.OPEN_COUNT]].tolist()
        return numbers

    def present(self, node: Node) -> NDArray[np.bool_]:
        """Returns a mask of the entries in which a node has a value."""
        slot = node.number * c.NODE_SIZE + c.PRESENT
        mask: NDArray[np.bool_] = self._buffers.numbers(slot, self.count(node), np.bool_)
        return mask

    def address(self, node: Node) -> int:
        """Returns the address of the buffer with the values of a node."""
        return int(self._code[node.number, c.DATA])

    def values(self, node: Node) -> pa.Buffer:
        """Returns the buffer with the values of a node."""
        slot = node.number * c.NODE_SIZE + c.DATA
        return self._buffers.filled(slot, self.count(node) * node.width)

    def numbers(self, node: Node, dtype: type[np.generic]) -> NDArray[Any]:
        """Returns the values of a node as a NumPy array. The array shares the memory of the
        buffer.
        """
        return self._buffers.numbers(node.number * c.NODE_SIZE + c.DATA, self.count(node), dtype)

    def count(self, node: Node) -> int:
        """Returns how many values a node has: one per row, or, inside a list or map, one per item.
        This is the number of entries of its level (see `contract`).
        """
        return int(self._counts[node.level]) if node.level else self._rows

    @property
    def arena(self) -> pa.Buffer:
        """Buffer with the strings that had to be unescaped."""
        return self._arena


_SIZE_MASK: Final = (1 << 32) - 1
_FIRST_SHIFT: Final = 32
_EMPTY: Final = allocate(0)


class Columns:
    """Builds Arrow arrays from the buffers of a batch.

    Args:
        source: Buffer with the JSON texts, in which strings are located by position.
    """

    def __init__(self, batch: Batch, source: pa.Buffer | None) -> None:
        self._batch = batch
        self._source = _EMPTY if source is None else source

    def build(self, node: Node) -> pa.Array:
        """Returns the Arrow array with the values of a node."""
        count = self._batch.count(node)
        present = None if node.required else self._batch.present(node)
        if node.op == c.STRUCT:
            fields = [self.build(child) for child in node.children]
            return make_array(node.type, count, present, children=fields)
        if node.op in (c.LIST, c.MAP):
            return self._items(node, present)
        if node.op in (c.TEXT, c.BINARY):
            buffers = self._texts(node, count)
        elif node.op == c.BOOL:
            buffers = [pack_bits(self._batch.numbers(node, np.uint8))]
        else:
            buffers = [self._batch.values(node)]
        return make_array(node.type, count, present, buffers)

    def _texts(self, node: Node, count: int) -> list[pa.Buffer]:
        data = self._batch.address(node)
        base, arena = self._source.address, self._batch.arena.address
        size = load_kernel("texts_size")(data, count)
        ends = allocate(4 * (count + 1))
        to = allocate(size + c.READ_AHEAD)
        if node.op == c.BINARY:
            load_kernel("gather_base64")(data, count, base, arena, ends.address, to.address)
            size = int(np.frombuffer(ends, np.int32)[-1])
        else:
            stop = base + self._source.size
            load_kernel("gather_texts")(data, count, base, stop, arena, ends.address, to.address)
        return [ends, to.slice(0, size)]

    def _items(self, node: Node, present: NDArray[np.bool_] | None) -> pa.Array:
        """Returns the Arrow array of a list or map node. If a repeated field has overwritten a list
        or map, its items are omitted.
        """
        items = [self.build(child) for child in node.children]
        ranges = self._batch.numbers(node, np.int64)
        sizes = ranges & _SIZE_MASK
        offsets = np.zeros(len(ranges) + 1, np.int32)
        ends = np.cumsum(sizes)
        offsets[1:] = ends
        count = int(offsets[-1])
        if count < len(items[0]):
            taken = np.arange(count) + np.repeat((ranges >> _FIRST_SHIFT) - (ends - sizes), sizes)
            # Does not call `pa.array`, because its first call imports pandas.
            indices = make_array(pa.int64(), count, None, [copied(taken)])
            items = [array.take(indices) for array in items]
        if node.op == c.LIST:
            return make_array(node.type, len(ranges), present, [copied(offsets)], items)
        # The address is 0 if there is no buffer: empty arrays that `take` returns may have none.
        key_ends, key_data = (buffer.address if buffer else 0 for buffer in items[0].buffers()[1:])
        keys = KeyMemory(key_ends, 0, key_data)
        return make_map(node.type, len(ranges), present, copied(offsets), items, keys)


_OPEN_DOUBLE: Final = 0x7FF8 << 48
_OPEN_SINGLE: Final = 0x7FC00000
_OPEN_SINGLE_BITS: Final = 0x3FFFFF


class JsonDecoder:
    """Decodes JSON texts (RFC 8259, UTF-8). Each text is checked completely, including parts that
    are not decoded.

    Conversions:

    * `true` and `false` to bool; strings to string, unescaped.
    * Numbers to int32, int64 and decimal128. Nothing is rounded, so the type must be able to
      represent the number exactly: `1.0` and `1e2` are integers, `1.5` is not, and `1.50` fits a
      decimal of scale 1.
    * Numbers to the nearest float or double; ties are rounded to even, and -0 keeps its sign. A
      number that would be rounded to infinity is an error.
    * base64 (RFC 4648, with padding) to binary.
    * `YYYY-MM-DD` to date. ISO 8601 with a zone to timestamp[us, UTC], and without a zone to
      timestamp[us]. Seconds are optional. Fractions of a second may have up to 9 digits, of which 6
      are kept. Numbers are not accepted as timestamps, because their unit is unknown.
    * Objects to struct. Missing and `null` fields are null, or an error if the field is not
      nullable. Fields that the struct does not have are skipped, but must be valid JSON. Names are
      case-sensitive.
    * Arrays to list; objects to map with string keys.

    If a key is repeated, its last value counts, also in maps. A row is bad if it has a wrong type,
    a number out of range, NaN, comments, a byte order mark, half a surrogate pair, malformed UTF-8,
    no text, bytes after the value, or more than 512 nested objects and arrays. A bad row is null,
    and is listed in `DecodedValues.bad`. The text `null` is null and not bad.

    The memory is proportional to the size of the texts times the decoded size of a list's item. The
    items of all lists and maps in one call may take at most 1 GiB. A row that would exceed this
    limit is bad.

    Args:
        columns: Paths of the fields to decode: names joined by dots; by default all fields. The
            result has the fields in the order of the type. The types of all other fields are not
            checked.

    Raises:
        ValueError: JSON cannot be decoded to the type, or the type does not have one of the
            columns.
    """

    def __init__(self, type: pa.DataType, columns: Sequence[str] | None = None) -> None:
        self._program = compiled(type if columns is None else projected(type, columns))

    @property
    def type(self) -> pa.DataType:
        """See `ValueDecoder.type`."""
        return self._program.root.type

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder.decode`.

        Raises:
            TypeError: `values` is not a `pa.binary()` array.
        """
        if values.type != pa.binary():
            raise TypeError(f"values must be binary, not {values.type}")
        rows = len(values)
        validity, offsets, data = values.buffers()
        if rows == 0:
            return DecodedValues(pa.nulls(0, self.type))
        if data is None:  # as other libraries do without any bytes
            data = allocate(0)
        ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + rows + 1]
        batch = Batch(self._program, rows)
        frame = batch.frame
        frame[c.ENDS] = offsets.address + 4 * values.offset
        frame[c.VALID] = 0 if validity is None else validity.address
        frame[c.VALID_FIRST] = values.offset
        # The last rows are read from a copy with padding, because kernels read a few bytes after a
        # row.
        safe = int(np.searchsorted(ends[1:], data.size - c.READ_AHEAD, side="right"))
        _read(batch, data.address, safe)
        if safe < rows:
            rest = _padded(data.slice(int(ends[safe]), int(ends[-1] - ends[safe])))
            _read(batch, rest.address - int(ends[safe]), rows)
        bad = self._decide(batch, data, ends) if frame[c.OPEN_COUNT] else batch.bad
        array = Columns(batch, data).build(self._program.root)
        return DecodedValues(array, tuple(self._bad_value(row, data, ends) for row in bad))

    def _bad_value(self, bad: list[int], data: pa.Buffer, ends: NDArray[np.int32]) -> BadValue:
        row, code, number, position = bad
        node = self._program.nodes[number]
        start, stop = int(ends[row]), int(ends[row + 1])
        near = min(start + position, stop)
        byte = data.slice(near, min(1, stop - near)).to_pybytes()
        return BadValue(row, node.path, reason(code, node, byte, position))

    def _decide(self, batch: Batch, data: pa.Buffer, ends: NDArray[np.int32]) -> list[list[int]]:
        """Rounds the numbers that the kernel could not round. Returns all bad rows in the form of
        `Batch.bad`, including those with numbers that are too large.
        """
        bad = {row[0]: row for row in batch.bad}
        for index, (number, entry, address, size, row) in enumerate(batch.undecided_numbers):
            text = data.slice(address, size).to_pybytes()
            node = self._program.nodes[number]
            if node.op == c.DOUBLE:
                value = float(text)
                cells = batch.numbers(node, np.uint64)
                marker = _OPEN_DOUBLE | index
                decided = np.array([value]).view(np.uint64)[0]
            else:
                value = nearest_single(text)
                cells = batch.numbers(node, np.uint32)
                marker = _OPEN_SINGLE | index & _OPEN_SINGLE_BITS
                decided = np.array([value], np.float32).view(np.uint32)[0]
            if math.isinf(value):
                bad.setdefault(row, [row, c.OUT_OF_RANGE, number, address - int(ends[row])])
            elif cells[entry] == marker:  # else a repeated field has replaced it
                cells[entry] = decided
        for row in bad:
            load_kernel("discard_row")(batch.frame.ctypes.data, row)
        return [bad[row] for row in sorted(bad)]


def _padded(data: pa.Buffer) -> pa.Buffer:
    padded = allocate(data.size + c.READ_AHEAD)
    view = np.frombuffer(padded, np.uint8)
    view[: data.size] = np.frombuffer(data, np.uint8)
    view[data.size :] = 0
    return padded


def _read(batch: Batch, base: int, stop: int) -> None:
    """Runs the kernel up to row `stop`, exclusive. Grows buffers when the kernel requests
    memory.
    """
    frame = batch.frame
    frame[c.BASE] = base
    frame[c.ROW_STOP] = stop
    while True:
        status = load_kernel("read_rows")(frame.ctypes.data)
        if status == c.DONE:
            return
        if not batch.grow(status):
            batch.add_bad(int(frame[c.ROW]), c.TOO_MANY_ITEMS, 0)
            frame[c.ROW] += 1


def nearest_single(text: bytes) -> float:
    """Returns the float32 that is nearest to a decimal number, as a Python float. Ties are rounded
    to even.
    """
    nearest = float(text)
    with np.errstate(over="ignore"):
        single = np.float32(nearest)
        below = np.nextafter(single, np.float32(-np.inf))
        above = np.nextafter(single, np.float32(np.inf))
    # Rounding twice may be wrong if the double is halfway between two float32.
    exact = Decimal(text.decode())
    for lower, upper in ((below, single), (single, above)):
        middle = _middle(float(lower), float(upper))
        if middle == nearest and exact != Decimal(middle):
            return float(upper if exact > Decimal(middle) else lower)
    return float(single)


def _middle(first: float, second: float) -> float:
    """Returns the midpoint of two float32 numbers. Infinity counts as 2^128."""
    beyond = math.ldexp(1.0, 128)
    return (max(first, -beyond) + min(second, beyond)) / 2


class ConfluentJsonDecoder:
    """Decodes JSON values that start with Confluent's header. The header contains a schema id or
    GUID.

    A value without this header is bad. The schema is not looked up.

    Args:
        decoder: Decoder for the JSON after the header. The positions in its error texts do not
            include the header.
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
            TypeError: `values` is not a `pa.binary()` array.
        """
        if not len(values) or values.type != pa.binary():
            return self._decoder.decode(values)  # rejects other types
        headers = read_confluent_headers(values)
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        good = valid & (headers.sizes > 0)
        decoded = self._decoder.decode(without_headers(values, headers.sizes, good))
        headless = (
            BadValue(row, "", headers.invalid[int(headers.schema_of[row])])
            for row in np.flatnonzero(valid & ~good).tolist()
        )
        bad = sorted((*decoded.bad, *headless), key=lambda value: value.row)
        return DecodedValues(decoded.array, tuple(bad))
