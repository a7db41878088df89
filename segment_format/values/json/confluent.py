"""JSON values in Confluent's wire format: JSON behind the header."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from segment_format.kernels.pool_memory import copied
from segment_format.values.confluent_header import HEADER, REASONS, schema_ids
from segment_format.values.decoded import BadValue, DecodedValues

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from segment_format.values.json.decoder import JsonDecoder


class ConfluentJsonDecoder:
    """Decodes values that each name their writer's schema by its id.

    JSON says what it is, so the id must be there, but nobody is asked for the schema.

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
        ids = schema_ids(values)
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        good = valid & ~np.isin(ids, list(REASONS))
        decoded = self._decoder.decode(_texts(values, good))
        headless = (
            BadValue(row, "", REASONS[int(ids[row])])
            for row in np.flatnonzero(valid & ~good).tolist()
        )
        bad = sorted((*decoded.bad, *headless), key=lambda one: one.row)
        return DecodedValues(decoded.array, tuple(bad))


def _texts(values: pa.Array, good: NDArray[np.bool_]) -> pa.Array:
    """What is behind the header of good values; null for others.

    Arrow's own `binary_slice` refuses some arrays of short values.
    """
    _, ends, data = values.buffers()
    bounds = np.frombuffer(ends, np.int32, len(values) + 1, 4 * values.offset)
    sizes = np.diff(bounds)
    kept_sizes = np.where(good, sizes - HEADER, 0)
    parts = np.column_stack([sizes - kept_sizes, kept_sizes]).ravel()
    kept = np.repeat(np.tile([False, True], len(values)), parts)
    content = np.frombuffer(b"" if data is None else data, np.uint8)[bounds[0] : bounds[-1]][kept]
    new_ends = np.concatenate([[0], np.cumsum(kept_sizes)]).astype(np.int32)
    validity = copied(np.packbits(good, bitorder="little"))
    buffers = [validity, copied(new_ends), copied(content)]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)
