"""What every decoder of values gives.

UTF-8 text as a column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from segment_format.kernels.columns import copied


@dataclass(frozen=True, slots=True)
class BadValue:
    """A value that is not what its schema says.

    Attributes:
        row: Which of the values, from 0 on.
        path: Names of the fields down to where it went wrong, joined by dots; empty at the top.
        reason: What is wrong there.
    """

    row: int
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """Values as a column.

    Attributes:
        array: As many as there were values, of the decoder's type. Null where the value is null
            and where it is bad.
        bad: The bad ones, by ascending row, each once.
    """

    array: pa.Array
    bad: tuple[BadValue, ...] = ()


class ValueDecoder(Protocol):
    """Decodes values of one reader's schema.

    Many threads may use one decoder at a time.
    """

    @property
    def type(self) -> pa.DataType:
        """Of the columns that `decode` gives."""
        ...

    def decode(self, values: pa.Array) -> DecodedValues:
        """Decodes values; `values` is a `pa.binary()` array, which may be a slice and have nulls.

        One bad value costs one row: it is named in `bad`, and the others are not touched.
        """
        ...


_BINARY: Final = pa.binary()
_REASON: Final = "text that is not UTF-8"


class Utf8Decoder:
    """Checks that values are UTF-8, and shows the same bytes as text."""

    @property
    def type(self) -> pa.DataType:
        """See `ValueDecoder.type`."""
        return pa.string()

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder.decode`.

        Raises:
            TypeError: Not a `pa.binary()` array.
        """
        if values.type != _BINARY:
            raise TypeError(f"values are {values.type}, not binary")
        try:
            return DecodedValues(values.cast(pa.string()))
        except pa.ArrowInvalid:
            pass
        bad = tuple(
            BadValue(row, "", _REASON)
            for row, value in enumerate(values)
            if value.is_valid and not _is_utf8(value.as_buffer())
        )
        good = np.asarray(values.is_valid())
        good[[one.row for one in bad]] = False
        validity = copied(np.packbits(good, bitorder="little"))
        # What a null covers must be UTF-8, too: the bytes of bad values go.
        sizes = np.where(good, np.diff(_bounds(values)), 0)
        ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        data = b"".join(value.as_py() for value, keep in zip(values, good, strict=True) if keep)
        buffers = [validity, copied(ends), copied(np.frombuffer(data, np.uint8))]
        return DecodedValues(pa.Array.from_buffers(pa.string(), len(values), buffers), bad)


def _bounds(values: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)


def _is_utf8(data: pa.Buffer) -> bool:
    try:
        str(data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
