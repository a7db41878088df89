"""Avro values with the header of AWS Glue's schema registry.

    byte 3, compression (u8: 0 none, 5 zlib), UUID of the writer's schema version (16 bytes)

Avro's bytes follow, or zlib's of them.
"""

from __future__ import annotations

import uuid
import zlib
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from segment_format.values.avro.by_writer import ByWriter
from segment_format.values.heads import heads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from segment_format.values.avro.schema import Schema
    from segment_format.values.decoded import DecodedValues

HEADER: Final = 18
"""Its bytes."""
VERSION: Final = 3
ZLIB: Final = 5
MOST_INFLATED: Final = 1 << 30
"""Bytes that all compressed values of a batch may have together; those beyond are malformed."""
MOST_OF_ONE: Final = 128 << 20
"""Bytes that a compressed value may have."""
_NO_HEADER: Final = "no byte 3, compression 0 or 5, and schema id of 16 bytes in front"


class GlueAvroDecoder:
    """Decodes values that each name their writer's schema by a UUID.

    Args:
        reader: What is wanted.
        writer_schema: As for `ConfluentAvroDecoder`; ids are UUIDs in lower case, with hyphens.
        columns: Names of fields, joined by dots; only these are decoded. All by default.

    Raises:
        AvroSchemaError: A column that there is not.
    """

    def __init__(
        self,
        reader: Schema,
        writer_schema: Callable[[str], Schema],
        *,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._by_writer = ByWriter(reader, writer_schema, columns)

    @property
    def type(self) -> pa.DataType:
        """See `ValueDecoder.type`."""
        return self._by_writer.type

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder.decode`.

        Raises:
            TypeError: Not a `pa.binary()` array.
        """
        found = heads(values, HEADER)
        distinct, number_of = np.unique(found, axis=0, return_inverse=True)
        number_of = number_of.reshape(-1).astype(np.int64)
        writers = [str(uuid.UUID(bytes=one[2:].tobytes())) for one in distinct]
        headless = {
            at: _NO_HEADER
            for at, one in enumerate(distinct)
            if one[0] != VERSION or one[1] not in (0, ZLIB)
        }
        packed = found[:, 0] == VERSION
        packed &= found[:, 1] == ZLIB
        if not packed.any():
            return self._by_writer.decode(values, writers, number_of, headless, HEADER)
        inflated, failed = _inflated(values, packed)
        for row, reason in failed.items():
            number_of[row] = len(writers)
            writers.append(f"row {row}")
            headless[len(writers) - 1] = reason
        return self._by_writer.decode(inflated, writers, number_of, headless, 0)


def _inflated(values: pa.Array, packed: NDArray[np.bool_]) -> tuple[pa.Array, dict[int, str]]:
    """What follows the headers, and why it cannot be had, by row."""
    left = MOST_INFLATED
    found: list[bytes | None] = []
    failed: dict[int, str] = {}
    for row, value in enumerate(values):
        data = value.as_py()
        if data is None or not packed[row]:
            found.append(None if data is None else data[HEADER:])
            continue
        stream, most = zlib.decompressobj(), min(left, MOST_OF_ONE)
        try:
            content = stream.decompress(data[HEADER:], most + 1)
        except zlib.error as error:
            failed[row] = f"zlib: {error}"
            content = b""
        else:
            if len(content) > most:
                failed[row] = f"zlib: the value, or the batch's values so far, pass {most:,} bytes"
            elif not stream.eof or stream.unused_data:
                failed[row] = "zlib: the value ends too early or goes on behind its end"
        if row in failed:
            content = b""
        left -= len(content)
        found.append(content)
    return pa.array(found, pa.binary()), failed
