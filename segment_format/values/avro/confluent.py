"""Avro values with the id or the GUID of their writer's schema in front, in Confluent's wire
format: Avro's bytes follow the header.

Values of the schema `"bytes"` have no length after the header, as Confluent's Java serializer
writes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from segment_format.values.avro.by_writer import ByWriter
from segment_format.values.confluent_header import (
    GUID_HEADER,
    HEADER,
    read_headers,
    without_headers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from segment_format.values.avro.schema import Schema
    from segment_format.values.decoded import DecodedValues


class ConfluentAvroDecoder:
    """Decodes values that each name their writer's schema by its id, or its GUID.

    Args:
        reader: What is wanted.
        writer_schema: Gives the schema of an id, or of a GUID as text. Raises LookupError or
            AvroSchemaError, with the reason, where there is none: then the values of that id are
            bad, and it is called again in the next batch. Whatever else it raises comes through
            `decode`.
        columns: Names of fields, joined by dots; only these are decoded. All by default.

    Raises:
        AvroSchemaError: A column that there is not.
    """

    def __init__(
        self,
        reader: Schema,
        writer_schema: Callable[[int | str], Schema],
        *,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._by_writer = ByWriter(reader, writer_schema, columns, bare_bytes=True)

    @property
    def type(self) -> pa.DataType:
        """See `ValueDecoder.type`."""
        return self._by_writer.type

    def decode(self, values: pa.Array) -> DecodedValues:
        """See `ValueDecoder.decode`.

        Raises:
            TypeError: Not a `pa.binary()` array.
        """
        if values.type != pa.binary():
            raise TypeError(f"values are {values.type}, not binary")
        found = read_headers(values)
        prefix = HEADER
        if (found.sizes == GUID_HEADER).any():
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            values, prefix = without_headers(values, found.sizes, valid), 0
        return self._by_writer.decode(
            values, found.schemas, found.number_of, found.headless, prefix
        )
