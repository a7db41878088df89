"""Defines the interface of value decoders, and a decoder for UTF-8 text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from segment_format.kernels.arrow_buffers import copied
from segment_format.values.registry_framing import value_bounds


@dataclass(frozen=True, slots=True)
class BadValue:
    """A value that cannot be decoded with its schema.

    Attributes:
        row: Index of the value in the decoded array.
        path: Path of the wrong field: names joined by dots. Empty if the error is about the whole
            value.
        reason: Text that says why the value is bad.
    """

    row: int
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """Result of decoding a batch of values.

    Attributes:
        array: Array of the decoder's type, with one entry per value. Null values and bad values are
            null.
        bad: The bad values, in the order of their rows.
    """

    array: pa.Array
    bad: tuple[BadValue, ...] = ()


class ValueDecoder(Protocol):
    """Decodes values to the columns of one schema. Decoders are thread-safe."""

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the decoded column."""
        ...

    def decode(self, values: pa.Array) -> DecodedValues:
        """Decodes the values in a `pa.binary()` array, which may be a slice and have nulls.

        A bad value becomes null in the result and is listed in `DecodedValues.bad`. Other values
        are not affected.
        """
        ...


_BINARY: Final = pa.binary()
_REASON: Final = "text that is not UTF-8"


class Utf8Decoder:
    """Checks that values are UTF-8, and returns the same bytes as strings."""

    @property
    def type(self) -> pa.DataType:
        """See `ValueDecoder.type`."""
        return pa.string()

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder.decode`.

        Raises:
            TypeError: `values` is not a `pa.binary()` array.
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
        good[[value.row for value in bad]] = False
        validity = copied(np.packbits(good, bitorder="little"))
        # Arrow requires valid UTF-8 even in the bytes of null entries, so the bytes of bad values
        # are removed.
        sizes = np.where(good, np.diff(value_bounds(values)), 0)
        ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        data = b"".join(value.as_py() for value, keep in zip(values, good, strict=True) if keep)
        buffers = [validity, copied(ends), copied(np.frombuffer(data, np.uint8))]
        return DecodedValues(pa.Array.from_buffers(pa.string(), len(values), buffers), bad)


def _is_utf8(data: pa.Buffer) -> bool:
    try:
        str(data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
