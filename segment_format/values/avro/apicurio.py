"""Avro values with the header of Apicurio's serializers, version 2.

    byte 0, id of the writer's schema (8 bytes, big-endian, above 0)

Avro's bytes follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from segment_format.values.avro.by_writer import ByWriter
from segment_format.values.avro.decoder import JSON_TEXT
from segment_format.values.heads import heads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from segment_format.values.avro.schema import Schema
    from segment_format.values.decoded import DecodedValues

HEADER: Final = 9
"""Its bytes."""
OTHER_IDS: Final = -1
"""In place of an id: the record's headers name a schema otherwise than by ids of the kind read."""
AS_JSON: Final = -2
"""In place of an id: the record's headers say that the value is in Avro's JSON encoding."""
_NO_ID: Final = "no zero byte and schema id of 8 bytes in front, nor an id in the record's headers"
_REASONS: Final = {
    OTHER_IDS: "the record's headers do not name its schema by the ids that are read: see option"
    " schema-registry.use-id",
    AS_JSON: JSON_TEXT,
}


class ApicurioAvroDecoder:
    """Decodes values that each name their writer's schema by an id of 8 bytes.

    Args:
        reader: What is wanted.
        writer_schema: As for `ConfluentAvroDecoder`.
        columns: Names of fields, joined by dots; only these are decoded. All by default.

    Raises:
        AvroSchemaError: A column that there is not.
    """

    def __init__(
        self,
        reader: Schema,
        writer_schema: Callable[[int], Schema],
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
        ids = np.ascontiguousarray(found[:, 1:]).view(">i8").ravel().astype(np.int64)
        ids[(found[:, 0] != 0) | (ids < AS_JSON)] = 0
        distinct, number_of = np.unique(ids, return_inverse=True)
        writers = distinct.tolist()
        headless = {at: _REASONS.get(one, _NO_ID) for at, one in enumerate(writers) if one <= 0}
        return self._by_writer.decode(values, writers, number_of, headless, HEADER)
