"""JSON values in Confluent's wire format: JSON behind the header."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from segment_format.values.confluent_header import read_headers, without_headers
from segment_format.values.decoded import BadValue, DecodedValues

if TYPE_CHECKING:
    from segment_format.values.json.decoder import JsonDecoder


class ConfluentJsonDecoder:
    """Decodes values that each name their writer's schema by its id, or its GUID.

    JSON says what it is, so one of them must be there, but nobody is asked for the schema.

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
        found = read_headers(values)
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        good = valid & (found.sizes > 0)
        decoded = self._decoder.decode(without_headers(values, found.sizes, good))
        headless = (
            BadValue(row, "", found.headless[int(found.number_of[row])])
            for row in np.flatnonzero(valid & ~good).tolist()
        )
        bad = sorted((*decoded.bad, *headless), key=lambda one: one.row)
        return DecodedValues(decoded.array, tuple(bad))
