"""Avro values with the id of their writer's schema in front, in Confluent's wire format: Avro's
bytes follow the header.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.values.avro.by_writer import ByWriter
from segment_format.values.confluent_header import HEADER, REASONS, schema_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from segment_format.values.avro.schema import Schema
    from segment_format.values.decoded import DecodedValues


class ConfluentAvroDecoder:
    """Decodes values that each name their writer's schema by its id.

    Args:
        reader: What is wanted.
        writer_schema: Gives the schema of an id. Raises LookupError or AvroSchemaError, with the
            reason, where there is none: then the values of that id are bad, and it is called again
            in the next batch. Whatever else it raises comes through `decode`.
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
        ids = schema_ids(values) if len(values) else np.empty(0, np.int64)
        distinct, number_of = np.unique(ids, return_inverse=True)
        writers = distinct.tolist()
        headless = {at: REASONS[one] for at, one in enumerate(writers) if one in REASONS}
        return self._by_writer.decode(values, writers, number_of, headless, HEADER)
