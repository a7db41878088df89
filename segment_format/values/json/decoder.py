"""JSON values to an Arrow column of a given type."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from segment_format.kernels.pool_memory import allocate
from segment_format.values.decoded import BadValue, DecodedValues
from segment_format.values.json import contract as c
from segment_format.values.json.batch import Batch
from segment_format.values.json.columns import Columns
from segment_format.values.json.places import take_back
from segment_format.values.json.program import compiled
from segment_format.values.json.projection import projected
from segment_format.values.json.reasons import reason
from segment_format.values.json.rows import read_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

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
