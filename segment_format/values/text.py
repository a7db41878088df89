"""UTF-8 text as a column."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from segment_format.kernels.pool_memory import copied
from segment_format.values.decoded import BadValue, DecodedValues

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
