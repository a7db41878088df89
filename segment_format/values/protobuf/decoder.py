"""Decodes Protobuf values into one Arrow array.

In Confluent's wire format, a value starts with a *head*, which consists of Confluent's header (see
`registry_framing`) and the message index. The message index states which message type of the
schema's file the value has. It consists of zigzag varints: the number of indices, an index
into the messages of the file, an index into the messages nested in that message, and so on. A count
of 0 without indices means the first message of the file.

Most values of a batch have the same head. So the bytes of heads are compared, and each distinct
head is parsed only once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from segment_format.kernels.arrow_buffers import (
    BufferSpec,
    GrowingBuffers,
    copied,
    make_array,
    pack_bits,
)
from segment_format.kernels.native import load_kernel
from segment_format.values.decoded import BadValue, DecodedValues
from segment_format.values.map_keys import KeyMemory, make_map
from segment_format.values.protobuf import contract as c
from segment_format.values.protobuf.program import Column, Kind, compile_message, selection_of
from segment_format.values.protobuf.schema import read_schema, read_varint
from segment_format.values.registry_framing import CONFLUENT_GUID_HEADER, read_confluent_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from segment_format.values.protobuf.program import Program


_MIN_CAPACITY: Final = 64
_MAX_FIRST_BYTES: Final = 64 << 20


class ProtobufDecoder:
    """Decodes messages of one type.

    Each field becomes a column with its name. An enum becomes the name of its value, `uint32`
    becomes int64, `uint64` becomes decimal(20, 0), Timestamp and Duration become microseconds, and
    a wrapper becomes its value or null. Fields that are not selected are skipped without checks.

    An absent field becomes its declared default. Without a declared default, it becomes null if
    Protobuf distinguishes an absent field from a field with the default value (also for required
    fields and fields in a oneof), and zero otherwise.

    A number that the enum does not have becomes text, such as `"7"`. But if the file of the enum
    has syntax proto2, the field counts as absent, as in Protobuf. A value with text that is not
    UTF-8 is bad, even in proto2.

    Args:
        descriptors: A serialized `FileDescriptorSet` with the message's file and its imports. The
            files of Timestamp, Duration and the wrappers may be missing.
        message: Full name of the message type.
        columns: Paths of the fields to decode, such as `amount` or `user.id`; `None` for all. Lists
            do not change paths: `items.price` selects the field `price` in all elements of the list
            `items`. `key` and `value` select the parts of a map. The result has the fields in the
            order of the message type.

    Raises:
        ValueError: The descriptors cannot be read, a type or a field is missing, or a message
            contains itself.
    """

    def __init__(
        self, descriptors: bytes, message: str, columns: Sequence[str] | None = None
    ) -> None:
        schema = read_schema(descriptors)
        selection = None if columns is None else selection_of(columns)
        name = message.removeprefix(".")
        self._program = compile_message(schema, name, selection)
        message_type = schema.messages.get(name)
        self._message = name
        self._path = message_type.path if message_type else ()
        levels = len(self._program.levels) // c.LEVEL_SIZE
        self._last_counts = (1, *(0,) * (levels - 1))  # of the last batch, to estimate capacities

    @property
    def type(self) -> pa.DataType:
        """See `ValueDecoder.type`."""
        return self._program.root.type

    @property
    def message(self) -> str:
        """Full name of the message type."""
        return self._message

    @property
    def message_index(self) -> tuple[int, ...]:
        """Path to the message type in its file, in the form of the message index in Confluent's
        wire format.
        """
        return self._path

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder.decode`.

        Raises:
            TypeError: `values` is not a `pa.binary()` array.
        """
        return self._decode(values, None, {})

    def decode_from(
        self, values: pa.Array, starts: NDArray[np.int32], reasons: Mapping[int, str]
    ) -> DecodedValues:
        """Decodes values that have a header before the message.

        Args:
            values: A `pa.binary()` array, which may be a slice and have nulls.
            starts: Position of the message in each value; -1 for bad values, undefined for nulls.
            reasons: Row -> reason why its value is bad. Contains each row whose entry in `starts`
                is -1.

        Raises:
            TypeError: `values` is not a `pa.binary()` array.
        """
        return self._decode(values, starts, reasons)

    def _decode(
        self, values: pa.Array, starts: NDArray[np.int32] | None, reasons: Mapping[int, str]
    ) -> DecodedValues:
        if values.type != pa.binary():
            raise TypeError(f"values must be pa.binary(), not {values.type}")
        rows = len(values)
        memory = ColumnMemory(self._program, rows, self._first_capacities(rows), values.nbytes)
        bad: dict[int, tuple[str, str]] = {}
        if rows:
            bad = self._run(memory, values, starts)
            self._last_counts = memory.counts
        bad |= {row: ("", reason) for row, reason in reasons.items()}
        builder = ArrayBuilder(memory)
        array = builder.build(self._program.root)
        bad |= builder.bad  # disjoint: rows that are bad already have no values
        return DecodedValues(
            array, tuple(BadValue(row, path, reason) for row, (path, reason) in sorted(bad.items()))
        )

    def _first_capacities(self, rows: int) -> list[int]:
        """Returns the initial capacity of each level, in entries. It is computed from the number of
        entries per value in the last batch, plus one eighth.
        """
        last = self._last_counts
        capacities = [count * rows // last[0] * 9 // 8 + _MIN_CAPACITY for count in last]
        sizes = zip(capacities[1:], self._program.entry_bytes[1:], strict=True)
        if sum(capacity * size for capacity, size in sizes) > _MAX_FIRST_BYTES:
            return [_MIN_CAPACITY] * len(capacities)  # the last batch was unusual
        return capacities

    def _run(
        self, memory: ColumnMemory, values: pa.Array, starts: NDArray[np.int32] | None
    ) -> dict[int, tuple[str, str]]:
        valid, ends, data = values.buffers()
        state = memory.state
        state[c.DATA] = 0 if data is None else data.address
        state[c.ENDS] = ends.address + 4 * values.offset
        state[c.VALID] = 0 if valid is None else valid.address
        state[c.VALID_SHIFT] = values.offset
        state[c.STARTS] = 0 if starts is None else starts.ctypes.data
        bad: dict[int, tuple[str, str]] = {}
        decode_values = load_kernel("decode_values")
        while (status := decode_values(memory.address)) != c.DONE:
            if status != c.GROW:
                row: int = state[c.BAD_ROW]
                path = ".".join(self._program.names[entry] for entry in memory.bad_entries())
                bad[row] = path, c.REASONS[status]
            elif not memory.grow():
                state[c.FAIL] = c.TOO_LARGE
        return bad


_MAX_ENTRIES: Final = 2**31 - 1
MAX_BUFFER_BYTES: Final = 512 << 20
BYTES_PER_INPUT_BYTE: Final = 8
"""The bytes of a batch's elements and texts are limited to the larger of `MAX_BUFFER_BYTES` and
this multiple of the input. Without a limit, two bytes could become a message of a thousand columns.
"""


class ColumnMemory:
    """Memory for the columns, offsets and texts of a batch, and for the kernel's state.

    Columns are zero until the kernel writes them, and zero means an absent field.

    Args:
        program: The compiled message type.
        capacities: Initial number of entries of each level (see `contract`).
        size: Total size of the values in bytes. It determines the limit for memory.
    """

    def __init__(self, program: Program, rows: int, capacities: Sequence[int], size: int) -> None:
        self._program = program
        self._max_bytes = max(MAX_BUFFER_BYTES, BYTES_PER_INPUT_BYTE * size)
        self._grown_bytes = 0
        columns = [
            (width, level) for width, level in program.columns.reshape(-1, c.COLUMN_SIZE).tolist()
        ]
        self._parents = program.levels.reshape(-1, c.LEVEL_SIZE)[:, c.PARENT].tolist()
        levels = len(self._parents)
        # One array with the state, then the tables, whose addresses are in the state.
        tables = (
            (c.BASES, len(columns)),
            (c.OFFSETS, levels),
            (c.BYTES, levels),
            (c.COUNTS, levels),
            (c.CAPACITIES, levels),
            (c.BEFORE, levels),
            (c.STACK, c.FRAME_SIZE * (c.MAX_DEPTH + 1)),
        )
        self._table_at: dict[int, int] = {}
        end = c.STATE_SIZE
        for slot, length in tables:
            self._table_at[slot] = end
            end += length
        self._numbers = np.zeros(end, np.int64)
        self.state = self._numbers.data  # reads a slot faster than the array does
        self.address: int = self._numbers.ctypes.data
        for slot, start in self._table_at.items():
            self.state[slot] = self.address + 8 * start
        for slot, array in (
            (c.NODES, program.nodes),
            (c.DENSE, program.dense),
            (c.ENTRIES, program.entries),
            (c.COLUMNS, program.columns),
            (c.LEVELS, program.levels),
            (c.KIDS, program.kids),
            (c.ENUMS, program.enums),
        ):
            self.state[slot] = array.ctypes.data
        self.state[c.COLUMN_COUNT] = len(columns)
        self.state[c.LEVEL_COUNT] = levels
        self.state[c.ROWS] = rows
        self.state[c.DEPTH] = -1
        self._buffers = GrowingBuffers(self._numbers, self._specs(columns), [rows, *capacities[1:]])
        for level, capacity in enumerate(self._buffers.capacities):
            self.state[self._table_at[c.CAPACITIES] + level] = capacity

    def _specs(self, columns: Sequence[tuple[int, int]]) -> Iterator[BufferSpec]:
        for column, (width, level) in enumerate(columns):
            yield BufferSpec(self._table_at[c.BASES] + column, level, width, is_zeroed=True)
        for level, parent in enumerate(self._parents):
            if parent >= 0:
                yield BufferSpec(self._table_at[c.OFFSETS] + level, parent, 4, is_ends=True)
        for level in self._program.text_levels:
            yield BufferSpec(self._table_at[c.BYTES] + level, level, 1)

    def count(self, level: int) -> int:
        """Returns how many entries a level has so far (levels: see `contract`)."""
        count: int = self.state[self._table_at[c.COUNTS] + level]
        return count

    @property
    def counts(self) -> tuple[int, ...]:
        """Current number of entries of each level."""
        return tuple(self.count(level) for level in range(len(self._parents)))

    def grow(self) -> bool:
        """Allocates the memory that the kernel requested in the state. Returns False, without
        allocating it, if the memory would exceed the limit.
        """
        level, wanted = self.state[c.LEVEL_WANTED], self.state[c.CAPACITY_WANTED]
        old_capacity = self._buffers.capacities[level]
        capacity = min(max(wanted, 2 * old_capacity), _MAX_ENTRIES)
        more = (capacity - old_capacity) * self._program.entry_bytes[level]
        if wanted > capacity or self._grown_bytes + more > self._max_bytes:
            return False
        self._grown_bytes += more
        self._buffers.set_capacity(level, capacity)
        self.state[self._table_at[c.CAPACITIES] + level] = capacity
        return True

    def bad_entries(self) -> list[int]:
        """Returns the path to the malformed field, outermost field first. Each element is the row
        number of a field in the table of entries.
        """
        start = self._table_at[c.STACK] + c.FRAME_ENTRY
        stop = start + c.FRAME_SIZE * (self.state[c.BAD_DEPTH] + 1)
        entries = [*self.state[start : stop : c.FRAME_SIZE].tolist(), self.state[c.BAD_ENTRY]]
        return [entry for entry in entries if entry >= 0]

    def values(self, column: int, level: int, width: int) -> pa.Buffer:
        """Returns the buffer with the numbers of a column."""
        return self._buffers.filled(self._table_at[c.BASES] + column, self.count(level) * width)

    def numbers(self, column: int, level: int, dtype: type[np.generic]) -> NDArray[Any]:
        """Returns the numbers of a column as a NumPy array. The array shares the memory of the
        column.
        """
        return self._buffers.numbers(self._table_at[c.BASES] + column, self.count(level), dtype)

    def offsets(self, level: int) -> pa.Buffer:
        """Returns the int32 offsets of a level, as in an Arrow list: 0, then for each entry of the
        parent level the position after its last entry in this level.
        """
        count = self.count(self._parents[level]) + 1
        return self._buffers.filled(self._table_at[c.OFFSETS] + level, 4 * count)

    def text(self, level: int) -> pa.Buffer:
        """Returns the buffer with the bytes of the texts of a level."""
        return self._buffers.filled(self._table_at[c.BYTES] + level, self.count(level))

    def row_of(self, level: int, index: int) -> int:
        """Returns the number of the value that contains entry `index` of a level."""
        while level:
            ends = np.frombuffer(self.offsets(level), np.int32)
            index = int(np.searchsorted(ends, index, side="right")) - 1
            level = self._parents[level]
        return index


MAX_NAME_BYTES: Final = 2**31 - 1
_MICROS: Final = 1_000_000
_MAX_SECONDS: Final = 2**63 // _MICROS - 3
_NO_TIME: Final = "the time does not fit 64 bits of microseconds"
_TOO_MANY_NAMES: Final = "the enum names of the batch exceed 2 GiB"


class ArrayBuilder:
    """Builds Arrow arrays from the columns that the kernel has filled.

    Attributes:
        bad: Row -> (path of the field, reason), for bad values that were found while the arrays
            were built.
    """

    def __init__(self, memory: ColumnMemory) -> None:
        self._memory = memory
        self.bad: dict[int, tuple[str, str]] = {}

    def build(self, root: Column) -> pa.Array:
        """Returns the array of all decoded values. Null values and bad values are null."""
        array = self._array(root, "", None)
        if self.bad:
            self._memory.numbers(root.present, 0, np.bool_)[list(self.bad)] = False
            array = self._array(root, "", None)
        return array

    def _array(self, column: Column, path: str, above: NDArray[np.bool_] | None) -> pa.Array:
        """Returns the Arrow array of a column and its children. `path` is the path of the field:
        names joined by dots.

        `above` is a mask of the rows in which the surrounding struct is not null; `None` if it has
        no nulls. Fields of null structs become null, too, because some engines read a field without
        checking whether the struct is null.
        """
        count = self._memory.count(column.level)
        present = self._present(column)
        if column.default is not None and present is not None:
            array = pc.fill_null(self._leaf(column, path, count, present), column.default)
            return array if above is None else _with_nulls(array, above)
        if above is not None:
            present = above if present is None else present & above
        if column.kind is Kind.MAP:
            return self._map(column, path, present)
        if column.kind in (Kind.STRUCT, Kind.LIST):
            is_struct = column.kind is Kind.STRUCT
            children = [
                self._array(child, _child_path(path, child), present if is_struct else None)
                for child in column.children
            ]
            offsets = [] if is_struct else [self._memory.offsets(column.child_level)]
            return make_array(column.type, count, present, offsets, children)
        return self._leaf(column, path, count, present)

    def _leaf(
        self, column: Column, path: str, count: int, present: NDArray[np.bool_] | None
    ) -> pa.Array:
        if column.kind is Kind.ENUM:
            return self._enum_names(column, path, present)
        if column.kind is Kind.MOMENT:
            buffers = [copied(self._micros(column, path))]
        elif column.kind is Kind.TEXT:
            level = column.child_level
            buffers = [self._memory.offsets(level), self._memory.text(level)]
        elif column.kind is Kind.BOOL:
            buffers = [pack_bits(self._memory.numbers(column.values, column.level, np.bool_))]
        else:
            width = column.type.bit_width // 8
            buffers = [self._memory.values(column.values, column.level, width)]
        return make_array(column.type, count, present, buffers)

    def _present(self, column: Column) -> NDArray[np.bool_] | None:
        if column.present < 0:
            return None
        present: NDArray[np.bool_] = self._memory.numbers(column.present, column.level, np.bool_)
        return None if present.all() else present

    def _enum_names(self, column: Column, path: str, present: NDArray[np.bool_] | None) -> pa.Array:
        """Converts the numbers of an enum column to the names of the enum's values. A number
        without a name becomes text, such as `"7"`.
        """
        assert column.enum is not None
        numbers: NDArray[Any] = self._memory.numbers(column.values, column.level, np.int32)
        named = np.array(sorted(column.enum.values), np.int32)
        names = [column.enum.values[number] for number in named.tolist()]
        name_of = np.searchsorted(named, numbers).astype(np.int32)
        is_unnamed = named[np.minimum(name_of, len(named) - 1)] != numbers
        if is_unnamed.any():
            others, inverse = np.unique(numbers[is_unnamed], return_inverse=True)
            name_of[is_unnamed] = len(named) + inverse.reshape(-1)
            names += [str(number) for number in others.tolist()]
        shown = np.ones(len(numbers), np.bool_) if present is None else present.copy()
        encoded = [name.encode() for name in names]
        sizes = np.array([len(name) for name in encoded], np.int64)
        if int(sizes.max()) * len(numbers) > MAX_NAME_BYTES:
            is_beyond = np.cumsum(np.where(shown, sizes[name_of], 0)) > MAX_NAME_BYTES
            self._mark_bad(column, np.flatnonzero(is_beyond), path, _TOO_MANY_NAMES)
            shown &= ~is_beyond
        indices = make_array(pa.int32(), len(name_of), shown, [copied(name_of)])
        # Does not call `pa.array`, because its first call imports pandas, which takes long.
        offsets = copied(np.concatenate(([0], np.cumsum(sizes))).astype(np.int32))
        text = copied(np.frombuffer(b"".join(encoded), np.uint8))
        array = make_array(pa.string(), len(names), None, [offsets, text]).take(indices)
        if present is None and array.null_count:
            array = pc.fill_null(array, "")  # elements are not null, not even of bad values
        return array

    def _micros(self, column: Column, path: str) -> NDArray[np.int64]:
        seconds: NDArray[Any] = self._memory.numbers(column.values, column.level, np.int64)
        nanos: NDArray[Any] = self._memory.numbers(column.values + 1, column.level, np.int32)
        is_beyond = (seconds > _MAX_SECONDS) | (seconds < -_MAX_SECONDS)
        if is_beyond.any():
            self._mark_bad(column, np.flatnonzero(is_beyond), path, _NO_TIME)
            seconds = np.where(is_beyond, 0, seconds)
        micros = nanos.astype(np.int64)
        if pa.types.is_timestamp(column.type):
            micros //= 1000  # rounds down
        else:
            micros = np.sign(micros) * (np.abs(micros) // 1000)  # rounds towards zero
        result: NDArray[np.int64] = seconds * _MICROS + micros
        return result

    def _map(self, column: Column, path: str, present: NDArray[np.bool_] | None) -> pa.Array:
        memory = self._memory
        key = column.children[0]
        entries = [self._array(child, _child_path(path, child), None) for child in column.children]
        if key.kind is Kind.TEXT:
            ends, data = memory.offsets(key.child_level), memory.text(key.child_level)
            keys = KeyMemory(ends.address, 0, data.address)
        else:
            width = 1 if key.kind is Kind.BOOL else key.type.bit_width // 8
            ends = memory.values(key.values, key.level, width)
            keys = KeyMemory(ends.address, width, 0)
        offsets = memory.offsets(column.child_level)
        return make_map(column.type, memory.count(column.level), present, offsets, entries, keys)

    def _mark_bad(self, column: Column, entries: NDArray[Any], path: str, reason: str) -> None:
        for index in entries.tolist():
            self.bad.setdefault(self._memory.row_of(column.level, index), (path, reason))


def _with_nulls(array: pa.Array, kept: NDArray[np.bool_]) -> pa.Array:
    """Returns a copy of `array` with nulls where `kept` is False. `array` must not have nulls."""
    return make_array(array.type, len(array), kept, array.buffers()[1:])


def _child_path(path: str, child: Column) -> str:
    return ".".join(filter(None, (path, child.name)))


MAX_INDEXES: Final = 100
FIRST: Final = (0,)


def read_message_index(data: bytes, position: int = 0) -> tuple[tuple[int, ...], int]:
    """Parses the message index at `position` in the value `data`. Returns two values: the indices,
    which are the path to the message type in its file, and the position of the message, which
    follows the message index.

    Raises:
        ValueError: The message index is invalid.
    """
    count, position = _read_zigzag(data, position)
    if count == 0:
        return FIRST, position
    if not 0 < count <= MAX_INDEXES:
        raise ValueError(f"a message index has {count} numbers, but must have 1 to {MAX_INDEXES}")
    path = []
    for _ in range(count):
        index, position = _read_zigzag(data, position)
        if index < 0:
            raise ValueError(f"a message index has the negative number {index}")
        path.append(index)
    return tuple(path), position


def _read_zigzag(data: bytes, position: int) -> tuple[int, int]:
    raw, position = read_varint(data, position)
    return raw >> 1 ^ -(raw & 1), position


_MAX_HEADS: Final = 64
"""Maximum number of distinct heads of a batch that are parsed once. The heads of other values are
parsed one by one.
"""
_MAX_HEAD_SIZE: Final = CONFLUENT_GUID_HEADER + 10 * (MAX_INDEXES + 1)


@dataclass(frozen=True, slots=True)
class _Head:
    """The bytes of a value before its message.

    Attributes:
        data: Bytes of the head; empty if the head is invalid.
        refused: Reason why values with this head are bad; `None` if they can be decoded.
    """

    data: bytes
    refused: str | None


class ConfluentProtobufDecoder:
    """Decodes values whose header states the id or GUID of the writer's schema.

    The writer's schema only determines the message type, because Protobuf identifies fields by
    numbers.

    Args:
        decoder: Decoder of the expected message type. Values of other message types are bad.
        message_of: Function that returns the full name of a message type for a schema id (or a GUID
            as text) and a message index. If it raises LookupError, all values with this head in the
            batch are bad, and the text of the error is their reason; the next batch calls the
            function again. If `message_of` is `None`, the message index is looked up in the file of
            `decoder`, which is correct only if the writers' files contain the same messages in the
            same order.
    """

    def __init__(
        self,
        decoder: ProtobufDecoder,
        message_of: Callable[[int | str, tuple[int, ...]], str] | None = None,
    ) -> None:
        self._decoder = decoder
        self._message_of = message_of
        self._known: tuple[_Head, ...] = ()

    @property
    def type(self) -> pa.DataType:
        """See `ValueDecoder.type`."""
        return self._decoder.type

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder.decode`.

        Raises:
            TypeError: `values` is not a `pa.binary()` array.
        """
        decoder = self._decoder
        if not len(values) or values.type != pa.binary():
            return decoder.decode(values)  # rejects other types
        valid = np.ones(len(values), np.bool_)
        if values.null_count:
            valid = values.is_valid().to_numpy(zero_copy_only=False)
        heads = list(self._known)
        while True:
            starts, which = _match(values, heads)
            left = np.flatnonzero((which < 0) & valid)
            if not len(left) or len(heads) >= _MAX_HEADS:
                break
            head = self._first_head(values, left)
            if head is None:
                break
            heads.append(head)
        self._known = tuple(head for head in heads if head.refused is None)
        reasons: dict[int, str] = {}
        for row in left.tolist():
            head = self._head(values, row)
            if head.refused is None:
                starts[row] = len(head.data)
            else:
                reasons[row] = head.refused
        for index, head in enumerate(heads):
            if head.refused is not None:
                rows = np.flatnonzero((which == index) & valid)
                starts[rows] = -1
                reasons |= dict.fromkeys(rows.tolist(), head.refused)
        return decoder.decode_from(values, starts, reasons)

    def _first_head(self, values: pa.Array, rows: NDArray[np.intp]) -> _Head | None:
        """Parses the values in `rows` up to the first one with a valid head. Returns this head;
        `None` if no value has a valid head.
        """
        for row in rows.tolist():
            head = self._head(values, row)
            if head.data:
                return head
        return None

    def _head(self, values: pa.Array, row: int) -> _Head:
        """Parses the head of the value in row `row`, and returns it."""
        _, ends, data = values.buffers()
        start, stop = np.frombuffer(ends, np.int32, 2, 4 * (values.offset + row)).tolist()
        value = b""
        if stop > start:
            value = data.slice(start, min(stop - start, _MAX_HEAD_SIZE)).to_pybytes()
        try:
            schema_id, size = read_confluent_header(value)
        except ValueError as error:
            return _Head(b"", str(error))
        try:
            path, size = read_message_index(value, size)
        except ValueError as error:
            return _Head(b"", f"no message index after the schema id: {error}")
        return _Head(value[:size], self._refused(schema_id, path))

    def _refused(self, schema_id: int | str, path: tuple[int, ...]) -> str | None:
        decoder = self._decoder
        if self._message_of is None:
            if path == decoder.message_index:
                return None
            return f"message index {list(path)}, not {list(decoder.message_index)}"
        try:
            name = self._message_of(schema_id, path)
        except LookupError as error:
            return f"schema {schema_id}: {error.args[0] if error.args else type(error).__name__}"
        if name == decoder.message:
            return None
        return f"schema {schema_id}: message {name}, not {decoder.message}"


def _match(values: pa.Array, heads: list[_Head]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Compares the start of each value with the heads. Returns two arrays with one entry per value:
    the position of the message, and the index of the value's head in `heads`. Both are -1 if the
    value has none of these heads.
    """
    starts = np.full(len(values), -1, np.int32)
    which = np.full(len(values), -1, np.int32)
    if heads:
        _, ends, data = values.buffers()
        text = np.frombuffer(b"".join(head.data for head in heads), np.uint8)
        bounds = np.cumsum([0, *(len(head.data) for head in heads)], dtype=np.int64)
        load_kernel("match_heads")(
            *(ends.address + 4 * values.offset, len(values), data.address if data else 0),
            *(text.ctypes.data, bounds.ctypes.data, len(heads)),
            *(starts.ctypes.data, which.ctypes.data),
        )
    return starts, which
