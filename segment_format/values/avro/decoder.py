"""Decodes Avro values. All values have the same writer's schema, or each value names its writer's
schema in a header.

The decoders run compiled programs. A program decodes values of one writer's schema, and writes them
to the columns of the reader's schema.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from segment_format.kernels.arrow_buffers import BufferSpec, GrowingBuffers, make_array, pack_bits
from segment_format.kernels.native import load_kernel
from segment_format.values.avro import kinds as k
from segment_format.values.avro import opcodes as o
from segment_format.values.avro.columns import columns_of, projected
from segment_format.values.avro.program import compiled
from segment_format.values.avro.schema import BYTES, AvroSchemaError, Primitive
from segment_format.values.decoded import BadValue, DecodedValues
from segment_format.values.map_keys import KeyMemory, make_map
from segment_format.values.registry_framing import JSON_TEXT, insert_avro_lengths, value_bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from segment_format.values.avro.columns import Column
    from segment_format.values.avro.program import Program
    from segment_format.values.avro.schema import Schema
    from segment_format.values.registry_framing import Framing


MAX_PROGRAMS: Final = 1000
"""Size of the LRU cache of programs. Each writer schema has one program."""
_MIN_CAPACITY: Final = 64
_BYTES_PER_ROW: Final = 16
"""Bytes that estimates add to each row, because a row of 0 bytes may still have defaults."""


class AvroDecoder:
    """Decodes values that all have the same writer's schema.

    Fields of the writer's schema that are not in the result are skipped. In skipped fields,
    lengths, counts and union branches are checked, but not UTF-8, the range of an int, or the
    symbol of an enum.

    Args:
        reader: Schema of the result.
        writer: Schema of the values; by default the reader's schema.
        columns: Paths of the fields to decode: names joined by dots. By default all fields.

    Raises:
        AvroSchemaError: The reader's schema cannot read the writer's values, or a column does not
            exist.
    """

    def __init__(
        self, reader: Schema, writer: Schema | None = None, *, columns: Sequence[str] | None = None
    ) -> None:
        self._runner = _Runner(reader if columns is None else projected(reader, columns))
        self._program = self._runner.compiled(reader if writer is None else writer)

    @property
    def type(self) -> pa.DataType:
        """See `ValueDecoder.type`."""
        return self._runner.type

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder.decode`.

        Raises:
            TypeError: `values` is not a `pa.binary()` array.
        """
        texts = json_objects(values)
        program_of = None
        if texts:
            program_of = np.zeros(len(values), np.int64)
            program_of[texts] = -1
        bad = [BadValue(row, "", JSON_TEXT) for row in texts]
        return self._runner.run(values, (self._program,), program_of=program_of, bad=bad)


class _Writer(NamedTuple):
    """A writer's schema, prepared for decoding.

    Attributes:
        program: The compiled program, or the reason why it cannot be compiled.
        has_bare_bytes: True if the schema is the Avro type bytes, and its values lack the length
            that Avro requires before the bytes.
    """

    program: Program | str
    has_bare_bytes: bool = False


class FramedAvroDecoder:
    """Decodes values with headers. The header of a value names its writer's schema.

    Each value is decoded by the program of its writer's schema. Values of several writers may be
    mixed.

    Args:
        reader: Schema of the result.
        writer_schema: Function that returns the schema for an id, GUID or UUID. If it raises
            LookupError or AvroSchemaError, all values with this id in the batch are bad, and the
            text of the error is their reason. The next batch calls the function again. `decode`
            raises any other error of the function.
        framing: Format of the header.
        columns: Paths of the fields to decode: names joined by dots. By default all fields.

    Raises:
        AvroSchemaError: A column does not exist.
    """

    def __init__(
        self,
        reader: Schema,
        writer_schema: Callable[[Any], Schema],
        framing: Framing,
        *,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._runner = _Runner(reader if columns is None else projected(reader, columns))
        self._writer_schema = writer_schema
        self._framing = framing
        self._writers: OrderedDict[int | str, _Writer] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def type(self) -> pa.DataType:
        """See `ValueDecoder.type`."""
        return self._runner.type

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder.decode`.

        Raises:
            TypeError: `values` is not a `pa.binary()` array.
        """
        if values.type != pa.binary():
            raise TypeError(f"values are {values.type}, not binary")
        values, prefix, schemas, schema_of, invalid = self._framing.read(values)
        programs: list[Program] = []
        program_of_schema = np.full(max(len(schemas), 1), -1, np.int64)
        reasons: dict[int, str] = {}
        bare_bytes: list[int] = []
        for index, schema in enumerate(schemas):
            reason = invalid.get(index)
            writer = _Writer(reason) if reason else self._writer(schema)
            if isinstance(writer.program, str):
                reasons[index] = writer.program
            else:
                program_of_schema[index] = len(programs)
                programs.append(writer.program)
                if writer.has_bare_bytes:
                    bare_bytes.append(index)
        if bare_bytes:
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            values = insert_avro_lengths(values, np.isin(schema_of, bare_bytes) & valid, prefix)
        bad: list[BadValue] = []
        if reasons:
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            rows = np.flatnonzero((program_of_schema[schema_of] < 0) & valid).tolist()
            bad = [BadValue(row, "", reasons[int(schema_of[row])]) for row in rows]
        program_of = np.ascontiguousarray(program_of_schema[schema_of])
        texts = [row for row in json_objects(values, prefix) if program_of[row] >= 0]
        if texts:
            program_of[texts] = -1
            bad += [BadValue(row, "", JSON_TEXT) for row in texts]
            bad.sort(key=lambda value: value.row)
        return self._runner.run(values, programs, program_of=program_of, prefix=prefix, bad=bad)

    def writers_of(self, values: pa.Array) -> Iterator[tuple[int, int | str, Schema]]:
        """Yields the first row, the id and the schema of each writer's schema that the values in a
        `pa.binary()` array have. Skips ids without a schema.
        """
        _, _, schemas, schema_of, invalid = self._framing.read(values)
        for index, schema_id in enumerate(schemas):
            if index not in invalid:
                try:
                    schema = self._writer_schema(schema_id)
                except (LookupError, AvroSchemaError):
                    continue
                yield int(np.argmax(schema_of == index)), schema_id, schema

    def _writer(self, schema_id: int | str) -> _Writer:
        with self._lock:
            writer = self._writers.get(schema_id)
            if writer is not None:
                self._writers.move_to_end(schema_id)
                return writer
        try:
            schema = self._writer_schema(schema_id)
        except (LookupError, AvroSchemaError) as error:
            # A failed lookup is not cached, because the caller decides for how long a schema counts
            # as missing.
            text = str(error.args[0]) if error.args else type(error).__name__
            return _Writer(f"schema {schema_id}: {text}")
        try:
            is_bytes = isinstance(schema, Primitive) and schema.kind == BYTES
            bare_bytes = self._framing.has_bare_bytes and is_bytes
            writer = _Writer(self._runner.compiled(schema), bare_bytes)
        except AvroSchemaError as error:
            writer = _Writer(f"schema {schema_id}: {error}")
        with self._lock:
            self._writers[schema_id] = writer
            if len(self._writers) > MAX_PROGRAMS:
                self._writers.popitem(last=False)
        return writer


def json_objects(values: pa.Array, prefix: int = 0) -> list[int]:
    """Returns the indices of the values that are the JSON text of an object with at least one
    member. The indices are in ascending order.

    Some serializers, such as Apicurio's, can write Avro's JSON encoding instead of the binary
    encoding. No header states the encoding of a value. JSON that is decoded as binary may become a
    valid but wrong record: `{"n":1,"s":"hello"}` would be a long of -62 and a string of 17 bytes.
    Therefore a value counts as JSON if it is a valid JSON object with at least one member.

    Args:
        values: Values, which may be a slice and have nulls. For types other than `pa.binary()`, the
            result is empty.
        prefix: Number of bytes to skip at the start of each value.
    """
    if values.type != pa.binary():
        return []
    _, ends, data = values.buffers()
    if ends is None or data is None or not data.size or not ends.size:
        return []
    bounds = value_bounds(values)
    content = np.frombuffer(data, np.uint8)
    first = np.minimum(bounds[:-1] + prefix, len(content) - 1)
    rows = np.flatnonzero(content[first] == ord("{"))
    if not len(rows):
        return []
    rows = rows[bounds[rows + 1] - bounds[rows] >= prefix + 2]
    rows = rows[content[bounds[rows + 1] - 1] == ord("}")]
    candidates = ((row, values[row].as_py()) for row in rows.tolist())
    return [
        row for row, value in candidates if value is not None and is_json_object(value[prefix:])
    ]


def is_json_object(value: bytes) -> bool:
    """Returns whether a value is the JSON text of an object with at least one member.

    The faster `json_objects` must return the indices of exactly these values.
    """
    if value[:1] != b"{" or value[-1:] != b"}":
        return False
    try:
        return bool(json.loads(value.decode()))  # without members, `{}` is also two numbers
    except (ValueError, RecursionError):
        return False


class _Runner:
    """Runs the programs of several writers' schemas, which write to the columns of the reader's
    schema `reader`.
    """

    def __init__(self, reader: Schema) -> None:
        self._reader = reader
        self._root = columns_of(reader)
        self._kernel = load_kernel("run_avro")
        # Several threads may use this at the same time, so the list is replaced but never changed.
        self._shares: list[float] | None = None

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the result."""
        return self._root.type

    def compiled(self, writer: Schema) -> Program:
        """Returns the program that decodes values of a writer's schema. Raises `AvroSchemaError` if
        the reader's schema cannot read any of these values.
        """
        return compiled(writer, self._reader, self._root)

    def run(
        self,
        values: pa.Array,
        programs: Sequence[Program],
        *,
        program_of: NDArray[np.int64] | None = None,
        prefix: int = 0,
        bad: Sequence[BadValue] = (),
    ) -> DecodedValues:
        """Decodes a batch of values with `programs`. The result includes `bad`, values that are
        already known to be bad.

        `program_of` contains the index of each value's program; -1 for bad values. It is undefined
        for nulls. By default, the first program decodes all values. `prefix` is the number of bytes
        to skip at the start of each value.
        """
        if values.type != pa.binary():
            raise TypeError(f"values are {values.type}, not binary")
        rows = len(values)
        ends = values.buffers()[1]
        if rows == 0 or ends is None or ends.size == 0:
            return DecodedValues(pa.nulls(rows, self.type), tuple(bad))
        bounds = np.frombuffer(ends, np.int32, rows + 1, 4 * values.offset)
        columns = _FilledColumns(self._root, rows, self._shares, int(bounds[-1] - bounds[0]))
        max_loops = max((program.loops for program in programs), default=0)
        loops = np.zeros((1 + max_loops, o.LOOP_WIDTH), np.int64)
        # The additional 0 ensures that the array is not empty, because the kernel always reads the
        # first address, even if no row needs a program.
        addresses = np.array([*(program.code.ctypes.data for program in programs), 0], np.int64)
        frame = _frame_of(values, columns)
        frame[o.PROGRAMS] = addresses.ctypes.data
        if program_of is not None:
            frame[o.PROGRAM_OF] = program_of.ctypes.data
        frame[o.LOOPS] = loops.ctypes.data
        frame[o.PREFIX] = prefix
        all_bad = list(bad)
        while (status := self._kernel(frame.ctypes.data)) != o.DONE:
            argument, needed = int(frame[o.FAILED_ARGUMENT]), int(frame[o.NEEDED])
            if status == o.GROW_BYTES:
                columns.grow_data(argument, needed)
            elif status == o.GROW_LEVEL:
                columns.grow_level(argument, needed)
            else:
                row = int(frame[o.ROW])
                program = programs[0 if program_of is None else program_of[row]]
                all_bad.append(_bad_value(program, row, status, int(frame[o.FAILED_AT]), argument))
                frame[o.ROW] = row + 1
        self._shares = columns.ratios()
        if bad and len(all_bad) > len(bad):
            all_bad.sort(key=lambda value: value.row)
        return DecodedValues(columns.array(), tuple(all_bad))


def _frame_of(values: pa.Array, columns: _FilledColumns) -> NDArray[np.int64]:
    """Creates the kernel's frame, and writes the addresses of the input values and of the output
    buffers to it.
    """
    validity, ends, data = values.buffers()
    frame = np.zeros(o.FRAME_SIZE, np.int64)
    frame[o.SLOTS] = columns.slots.ctypes.data
    frame[o.SLOT_COUNT] = len(columns.slots)
    frame[o.LEVELS] = columns.levels.ctypes.data
    frame[o.LEVEL_COUNT] = len(columns.levels)
    frame[o.OFFSETS] = ends.address + 4 * values.offset
    if data is not None:
        frame[o.INPUT] = data.address
        frame[o.INPUT_SIZE] = data.size
    if validity is not None and values.null_count:
        frame[o.INPUT_VALIDITY] = validity.address
        frame[o.INPUT_FIRST_BIT] = values.offset
    frame[o.ROWS] = len(values)
    return frame


def _bad_value(
    program: Program, row: int, status: int, instruction: int, argument: int
) -> BadValue:
    reason = program.messages[argument] if status == o.ERROR_MESSAGE else o.MESSAGES[status]
    return BadValue(row, program.path(instruction, argument), reason)


class _FilledColumns:
    """The buffers of the columns of a batch, and the tables that describe these buffers to the
    kernel.

    Args:
        root: Column of the decoded values. Its children are the other columns.
        ratios: Result of `ratios` for an earlier batch; `None` if this is the first batch.
        input_size: Total size of the values in bytes.
    """

    def __init__(
        self, root: Column, rows: int, ratios: list[float] | None, input_size: int
    ) -> None:
        self._root = root
        self._rows = rows
        self._columns = list(_walk(root))
        self.slots = np.zeros((len(self._columns), o.SLOT_WIDTH), np.int64)
        levels = 1 + max(0, *(column.items for column in self._columns))
        self.levels = np.zeros((levels, o.LEVEL_WIDTH), np.int64)
        self._texts = [column for column in self._columns if column.kind == k.BYTES]
        self._text_levels = {
            column.slot: level for level, column in enumerate(self._texts, start=levels)
        }
        # The sizes are relative to bytes and not to rows, so that after a batch of one huge value
        # the buffers for small values are small.
        self._measure = max(input_size + _BYTES_PER_ROW * rows, 1)
        if ratios is None:
            text_bytes = input_size / max(len(self._texts), 1)
            ratios = [rows / self._measure] * levels
            ratios += [text_bytes / self._measure] * len(self._texts)
        capacities = [
            min(_MIN_CAPACITY + int(share * self._measure * 1.125), o.LARGEST - 1)
            for share in ratios
        ]
        capacities[0] = rows
        for column in self._columns:
            slot = self.slots[column.slot]
            slot[o.KIND], slot[o.SIZE], slot[o.SLOT_LEVEL] = column.kind, column.width, column.level
        self._buffers = GrowingBuffers(self.slots.reshape(-1), self._specs(), capacities)
        self._write_capacities()

    def _specs(self) -> Iterator[BufferSpec]:
        for column in self._columns:
            first, level = column.slot * o.SLOT_WIDTH, column.level
            if column.nullable:
                yield BufferSpec(first + o.VALIDITY, level, 1)
            if column.kind == k.FIXED:
                yield BufferSpec(first + o.VALUES, level, column.width)
            elif column.kind in (k.BYTES, k.ITEMS):
                yield BufferSpec(first + o.VALUES, level, 4, is_ends=True)
            if column.kind == k.BYTES:
                yield BufferSpec(first + o.DATA, self._text_levels[column.slot], 1)

    def _write_capacities(self) -> None:
        capacities = self._buffers.capacities
        self.levels[:, o.LEVEL_CAPACITY] = capacities[: len(self.levels)]
        for slot, level in self._text_levels.items():
            self.slots[slot, o.CAPACITY] = capacities[level]

    def grow_data(self, slot: int, needed: int) -> None:
        """Grows the buffer for the text bytes of a slot to at least `needed` bytes."""
        self._grow(self._text_levels[slot], needed, o.LARGEST)

    def grow_level(self, level: int, needed: int) -> None:
        """Grows the buffers of a level to at least `needed` entries."""
        self._grow(level, needed, o.LARGEST - 1)

    def _grow(self, level: int, needed: int, limit: int) -> None:
        capacity = max(needed, 2 * self._buffers.capacities[level])
        self._buffers.set_capacity(level, min(capacity, limit))
        self._write_capacities()

    def ratios(self) -> list[float]:
        """Returns sizes divided by the number of input bytes, from which the next batch computes
        its initial buffer sizes.

        The sizes are the number of entries of each level, and then the number of bytes of each text
        column.
        """
        counts = [self._count(level) for level in range(len(self.levels))]
        counts += [self._text_size(column) for column in self._texts]
        return [count / self._measure for count in counts]

    def _count(self, level: int) -> int:
        return self._rows if level == 0 else int(self.levels[level, o.COUNT])

    def _text_size(self, column: Column) -> int:
        count = self._count(column.level)
        ends = self._buffers.numbers(column.slot * o.SLOT_WIDTH + o.VALUES, count + 1, np.int32)
        return int(ends[-1])

    def array(self) -> pa.Array:
        """Returns the decoded values as an Arrow array."""
        return self._array(self._root)

    def _array(self, column: Column, above: NDArray[np.uint8] | None = None) -> pa.Array:
        """Returns the Arrow array of a column and its children.

        `above` has a byte for each row, which is 0 if the surrounding struct is null in this row;
        `None` if that struct has no nulls. Fields of null structs become null, too, because some
        engines read a field without checking whether the struct is null.
        """
        rows, first = self._count(column.level), column.slot * o.SLOT_WIDTH
        if column.kind == k.NOTHING:
            return pa.nulls(rows)
        present = above
        if column.nullable:
            present = self._buffers.numbers(first + o.VALIDITY, rows, np.uint8)
            if present.all():
                present = None
        if column.kind == k.STRUCT:
            fields = [self._array(child, present) for child in column.children]
            return make_array(column.type, rows, present, children=fields)
        if column.kind == k.FIXED:
            if pa.types.is_boolean(column.type):
                values = pack_bits(
                    self._buffers.numbers(first + o.VALUES, rows, np.uint8).view(np.bool_)
                )
            else:
                values = self._buffers.filled(first + o.VALUES, rows * column.width)
            return make_array(column.type, rows, present, [values])
        ends = self._buffers.filled(first + o.VALUES, 4 * (rows + 1))
        if column.kind == k.BYTES:
            data = self._buffers.filled(first + o.DATA, self._text_size(column))
            return make_array(column.type, rows, present, [ends, data])
        items = [self._array(child) for child in column.children]
        if not pa.types.is_map(column.type):
            return make_array(column.type, rows, present, [ends], items)
        _, key_ends, key_data = items[0].buffers()
        keys = KeyMemory(key_ends.address, 0, key_data.address)
        return make_map(column.type, rows, present, ends, items, keys)


def _walk(column: Column) -> Iterator[Column]:
    yield column
    for child in column.children:
        yield from _walk(child)
