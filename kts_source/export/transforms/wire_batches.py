"""Decoders of whole batches for values in Confluent's wire format, for columns of which they give
what the libraries give that decide row by row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from kts_source.export.transforms.row_transform import json_decoder
from segment_format.values.avro import schema as avro
from segment_format.values.avro.schema import parse_avro

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segment_format.values.decoded import ValueDecoder

_PRIMITIVES: Final = {
    avro.BOOLEAN: (pa.bool_(),),
    avro.INT: (pa.int32(), pa.int64()),
    avro.LONG: (pa.int64(),),
    avro.FLOAT: (pa.float32(), pa.float64()),
    avro.DOUBLE: (pa.float64(),),
    avro.STRING: (pa.string(),),
}
"""What both decoders read of a type, and as what. Of logical types, they know other values."""


def avro_together(parts: Sequence[tuple[str, bytes]], schema: pa.Schema) -> ValueDecoder | None:
    """Decodes values of one writer, all fields of it; `None` where a column is of another type.

    Args:
        parts: Name and text of what its schema refers to, and of itself, last.
        schema: Columns wanted.
    """
    *references, (_, text) = parts
    try:
        writer = parse_avro(text, tuple(reference for _, reference in references))
    except avro.AvroSchemaError:
        return None
    if not isinstance(writer, avro.Record):
        return None
    types = {field.name: field.type for field in writer.fields}
    wanted = [field for field in schema if field.name in types]
    if not wanted or not all(_fits(types[field.name], field.type) for field in wanted):
        return None
    from segment_format.values.avro.decoder import FramedAvroDecoder
    from segment_format.values.registry_framing import CONFLUENT

    try:
        return FramedAvroDecoder(writer, lambda _: writer, CONFLUENT)
    except avro.AvroSchemaError:
        return None


def json_together(schema: pa.Schema) -> ValueDecoder | None:
    """Decodes JSON objects of these columns; see `json_decoder`."""
    decoder = json_decoder(schema)
    if decoder is None:
        return None
    from segment_format.values.json.decoder import ConfluentJsonDecoder

    return ConfluentJsonDecoder(decoder)


def _fits(kind: avro.Schema, wanted: pa.DataType) -> bool:
    if isinstance(kind, avro.Union):
        others = [one for one in kind.branches if one != avro.Primitive(avro.NULL)]
        return len(others) == 1 and _fits(others[0], wanted)
    if isinstance(kind, avro.Enum):
        return bool(wanted == pa.string())
    if not isinstance(kind, avro.Primitive) or kind.logical is not None:
        return False
    return wanted in _PRIMITIVES.get(kind.kind, ())
