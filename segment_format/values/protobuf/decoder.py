"""Decodes Protobuf values into one Arrow array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from segment_format.values.decoded import BadValue, DecodedValues
from segment_format.values.protobuf import contract as c
from segment_format.values.protobuf.arrays import ArrayBuilder, ColumnMemory
from segment_format.values.protobuf.kernel import decode_values
from segment_format.values.protobuf.program import compile_message, selection_of
from segment_format.values.protobuf.schema import read_schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

_LEAST_ROOM: Final = 64
_MOST_FIRST_BYTES: Final = 64 << 20


class ProtobufDecoder:
    """Decodes messages of one type.

    Fields become columns by their names: enums their values' names, `uint32` int64, `uint64`
    decimal(20, 0), Timestamp and Duration microseconds, wrappers their value or null. A field that
    is absent is its declared default, null if Protobuf tells absent ones from their default (also
    in a oneof, and required ones), else its zero. What is not wanted is stepped over, unchecked.

    Numbers that an enum does not have are text, such as `"7"`; those of an enum of proto2 count as
    absent, as Protobuf has it. Text that is not UTF-8 makes a value bad, in proto2, too.

    Args:
        descriptors: A `FileDescriptorSet` with the message's file and those it imports;
            Timestamp, Duration and wrappers may be missing.
        message: Full name of the message type.
        columns: Fields wanted, such as `amount` or `user.id`; below lists as if they were single,
            below maps `key` and `value`. None for all. They come in the message's order.

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
        known = schema.messages.get(name)
        self._message = name
        self._path = known.path if known else ()
        levels = len(self._program.levels) // c.LEVEL_SIZE
        self._last_counts = (1, *(0,) * (levels - 1))  # what is gone by to make room at first

    @property
    def type(self) -> pa.DataType:
        """Of the columns that `decode` gives."""
        return self._program.root.type

    @property
    def message(self) -> str:
        """Full name of the message type."""
        return self._message

    @property
    def message_index(self) -> tuple[int, ...]:
        """Where the message stands in its file, as Confluent's header says it."""
        return self._path

    def decode(self, values: pa.Array) -> DecodedValues:
        """Decodes values; `values` is a `pa.binary()` array, which may be a slice and have nulls.

        One bad value costs one row: it is named in `bad`, and the others are not touched.

        Raises:
            TypeError: Not a `pa.binary()` array.
        """
        return self._decode(values, None, {})

    def decode_from(
        self, values: pa.Array, starts: NDArray[np.int32], reasons: Mapping[int, str]
    ) -> DecodedValues:
        """The same for values with something before their messages.

        Args:
            values: As for `decode`.
            starts: Where the message of each value begins in it; −1 for a bad one, and any for one
                that is null.
            reasons: Row -> why it is bad, for those.

        Raises:
            TypeError: Not a `pa.binary()` array.
        """
        return self._decode(values, starts, reasons)

    def _decode(
        self, values: pa.Array, starts: NDArray[np.int32] | None, reasons: Mapping[int, str]
    ) -> DecodedValues:
        if values.type != pa.binary():
            raise TypeError(f"values must be pa.binary(), not {values.type}")
        rows = len(values)
        memory = ColumnMemory(self._program, rows, self._first_rooms(rows), values.nbytes)
        bad: dict[int, tuple[str, str]] = {}
        if rows:
            bad = self._run(memory, values, starts)
            self._last_counts = memory.counts
        bad |= {row: ("", reason) for row, reason in reasons.items()}
        builder = ArrayBuilder(memory)
        array = builder.build(self._program.root)
        bad |= builder.bad  # others than those before, which are empty
        return DecodedValues(
            array, tuple(BadValue(row, path, reason) for row, (path, reason) in sorted(bad.items()))
        )

    def _first_rooms(self, rows: int) -> list[int]:
        """Of each level: what the last values took, and a little more."""
        last = self._last_counts
        rooms = [count * rows // last[0] * 9 // 8 + _LEAST_ROOM for count in last]
        sizes = zip(rooms[1:], self._program.entry_bytes[1:], strict=True)
        if sum(room * size for room, size in sizes) > _MOST_FIRST_BYTES:
            return [_LEAST_ROOM] * len(rooms)  # nothing usual
        return rooms

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
        while (status := decode_values(memory.address)) != c.DONE:
            if status != c.GROW:
                row: int = state[c.BAD_ROW]
                path = ".".join(self._program.names[entry] for entry in memory.bad_entries())
                bad[row] = path, c.REASONS[status]
            elif not memory.grow():
                state[c.FAIL] = c.TOO_LARGE
        return bad
