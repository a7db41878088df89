"""The decoder of Avro values of one writer's schema, and what it shares with those of many.

Values in Avro's JSON encoding, told from those in its binary one.

Some serializers can write it, such as Apicurio's, and nothing in front of a value says so. Read as
binary, the text of an object may even come out as a record of other values: `{"n":1,"s":"hello"}`
is a long of −62 and a string of 17 bytes.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from segment_format.kernels import object_code
from segment_format.values.avro import opcodes as o
from segment_format.values.avro.buffers import ValueBuffers
from segment_format.values.avro.columns import columns_of, projected
from segment_format.values.avro.program import compiled
from segment_format.values.decoded import BadValue, DecodedValues

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from segment_format.values.avro.program import Program
    from segment_format.values.avro.schema import Schema


JSON_TEXT: Final = (
    "it is the text of a JSON object: Avro's JSON encoding, which is not read (with Apicurio's"
    " serializer, apicurio.registry.avro.encoding=BINARY)"
)
"""Why such a value is bad."""
_FIRST: Final = ord("{")
_LAST: Final = ord("}")


def json_objects(values: pa.Array, prefix: int = 0) -> list[int]:
    """Rows of values that are a JSON object with members from beginning to end, in ascending order.

    A binary value of seven bytes or more may be such a text, too, and counts as one: where its
    first number is −62, and what follows goes on as JSON to its end.

    Args:
        values: May be a slice and have nulls; other types than `pa.binary()` have none.
        prefix: Bytes in front of each value.
    """
    if values.type != pa.binary():
        return []
    _, ends, data = values.buffers()
    if ends is None or data is None or not data.size or not ends.size:
        return []
    bounds = np.frombuffer(ends, np.int32, len(values) + 1, 4 * values.offset)
    content = np.frombuffer(data, np.uint8)
    at = np.minimum(bounds[:-1].astype(np.int64) + prefix, len(content) - 1)
    rows = np.flatnonzero(content[at] == _FIRST)
    if not len(rows):
        return []
    rows = rows[bounds[rows + 1] - bounds[rows] >= prefix + 2]
    rows = rows[content[bounds[rows + 1] - 1] == _LAST]
    held = ((row, values[row].as_py()) for row in rows.tolist())
    return [row for row, value in held if value is not None and is_json_object(value[prefix:])]


def is_json_object(value: bytes) -> bool:
    """Whether a value is the text of a JSON object with members. The readable `json_objects`."""
    if value[:1] != b"{" or value[-1:] != b"}":
        return False
    try:
        return bool(json.loads(value.decode()))  # without members, `{}` is two numbers, too
    except (ValueError, RecursionError):
        return False


_BINARY: Final = pa.binary()


class AvroDecoder:
    """Decodes values that follow one writer's schema.

    What a writer's field holds that is not wanted is stepped over: lengths, counts and branches are
    checked, content (UTF-8, the range of an int, an enum's symbol) is not.

    Args:
        reader: What is wanted.
        writer: What was written; the reader's by default.
        columns: Names of fields, joined by dots; only these are decoded. All by default.

    Raises:
        AvroSchemaError: The two do not resolve, or a column that there is not.
    """

    def __init__(
        self, reader: Schema, writer: Schema | None = None, *, columns: Sequence[str] | None = None
    ) -> None:
        wanted = reader if columns is None else projected(reader, columns)
        self._runner = Runner(wanted)
        self._program = self._runner.compiled(reader if writer is None else writer)

    @property
    def type(self) -> pa.DataType:
        """See `ValueDecoder.type`."""
        return self._runner.type

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder.decode`.

        Raises:
            TypeError: Not a `pa.binary()` array.
        """
        texts = json_objects(values)
        program_of = None
        if texts:
            program_of = np.zeros(len(values), np.int64)
            program_of[texts] = -1
        bad = [BadValue(row, "", JSON_TEXT) for row in texts]
        return self._runner.run(values, (self._program,), program_of=program_of, bad=bad)


class Runner:
    """Runs programs that write to the same columns.

    Args:
        reader: Whose columns they are.
    """

    def __init__(self, reader: Schema) -> None:
        self._reader = reader
        self._root = columns_of(reader)
        self._kernel = load_kernel()
        # Replaced as a whole: several threads may run.
        self._rooms: tuple[list[float], list[float]] | None = None

    @property
    def type(self) -> pa.DataType:
        """Of the columns."""
        return self._root.type

    def compiled(self, writer: Schema) -> Program:
        """The program for a writer's values.

        Raises:
            AvroSchemaError: They cannot be read so.
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
        """Decodes values.

        Args:
            values: A `pa.binary()` array.
            programs: Those that there are; none where all values are bad or null.
            program_of: Number of each value's program, −1 for those that are bad already, and for
                nulls; all have the first one by default.
            prefix: Bytes in front of each value.
            bad: What is known to be bad, by ascending row.

        Raises:
            TypeError: Not a `pa.binary()` array.
        """
        if values.type != _BINARY:
            raise TypeError(f"values are {values.type}, not binary")
        rows = len(values)
        validity, ends, data = values.buffers()
        first = values.offset
        if rows == 0 or ends is None or ends.size == 0:
            return DecodedValues(pa.nulls(rows, self.type), tuple(bad))
        bounds = np.frombuffer(ends, np.int32, rows + 1, 4 * first)
        size = int(bounds[-1]) - int(bounds[0])
        buffers = ValueBuffers(self._root, rows, self._rooms, size)
        most_loops = max((program.loops for program in programs), default=0)
        loops = np.zeros((1 + most_loops, o.LOOP_WIDTH), np.int64)
        # One more: the kernel looks at the first before it knows that no row has one.
        addresses = np.array([*(program.code.ctypes.data for program in programs), 0], np.int64)
        frame = np.zeros(o.FRAME_SIZE, np.int64)
        frame[o.PROGRAMS] = addresses.ctypes.data
        if program_of is not None:
            frame[o.PROGRAM_OF] = program_of.ctypes.data
        frame[o.SLOTS] = buffers.slots.ctypes.data
        frame[o.SLOT_COUNT] = len(buffers.slots)
        frame[o.LEVELS] = buffers.levels.ctypes.data
        frame[o.LEVEL_COUNT] = len(buffers.levels)
        frame[o.LOOPS] = loops.ctypes.data
        frame[o.OFFSETS] = ends.address + 4 * first
        if data is not None:
            frame[o.INPUT] = data.address
            frame[o.INPUT_SIZE] = data.size
        if validity is not None and values.null_count:
            frame[o.INPUT_VALIDITY] = validity.address
            frame[o.INPUT_FIRST_BIT] = first
        frame[o.PREFIX] = prefix
        frame[o.ROWS] = rows
        found = list(bad)
        while (status := self._kernel(frame)) != o.DONE:
            argument, needed = int(frame[o.FAILED_ARGUMENT]), int(frame[o.NEEDED])
            if status == o.GROW_BYTES:
                buffers.grow_data(argument, needed)
            elif status == o.GROW_LEVEL:
                buffers.grow_level(argument, needed)
            else:
                row = int(frame[o.ROW])
                program = programs[0 if program_of is None else program_of[row]]
                found.append(_bad(program, row, status, int(frame[o.FAILED_AT]), argument))
                frame[o.ROW] = row + 1
        self._rooms = buffers.used()
        if bad and len(found) > len(bad):
            found.sort(key=lambda one: one.row)
        return DecodedValues(buffers.array(), tuple(found))


@lru_cache(1)
def load_kernel() -> Callable[[NDArray[np.int64]], int]:
    """The compiled `run_avro`: linked from its object file, else by numba."""
    found = object_code.load_of_frame("run_avro")
    if found is not None:
        return found
    from segment_format.values.avro.kernel import run_avro  # brings in numba

    return run_avro


def _bad(program: Program, row: int, status: int, instruction: int, argument: int) -> BadValue:
    reason = program.messages[argument] if status == o.ERROR_MESSAGE else o.MESSAGES[status]
    return BadValue(row, program.path(instruction, argument), reason)
