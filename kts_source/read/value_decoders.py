"""Creates decoders of keys and values. Also finds schema ids in record headers.

A process has one decoder for each format, so all its tasks share the schemas that were looked up
and compiled.

The schema id of a value may be stored in a record header instead of in the first bytes of the
value:

* Newer serializers of Confluent write the headers `__value_schema_id` and `__key_schema_id`. They
  contain the bytes that are otherwise in front of the value: byte 0 and an id, or byte 1 and a
  GUID.
* Serializers of Apicurio by default write an id of 8 bytes to `apicurio.value.globalId` or
  `apicurio.value.contentId`, and the encoding to `apicurio.value.encoding`. A registry with
  Confluent's API does not report which of these two kinds of ids it uses. So formats of Confluent
  ignore the headers of Apicurio.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kts_source.columns import HEADERS
from kts_source.options.value_formats import (
    AVRO,
    AVRO_APICURIO,
    AVRO_CONFLUENT,
    AVRO_GLUE,
    JSON,
    JSON_CONFLUENT,
    PROTOBUF,
    PROTOBUF_CONFLUENT,
    UTF8,
)
from kts_source.registry.schema_registry import AVRO as AVRO_SCHEMA
from kts_source.registry.schema_registry import PROTOBUF as PROTOBUF_SCHEMA
from kts_source.registry.schema_registry import ById, find_schema
from segment_format.values.registry_framing import AS_JSON, CONFLUENT_HEADER, OTHER_IDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from kts_source.options.value_formats import ColumnFormat
    from kts_source.registry.client import RegistryPlace
    from segment_format.values.avro.schema import Schema
    from segment_format.values.decoded import ValueDecoder

_NAMED_BY_ID: Final = (AVRO_CONFLUENT, JSON_CONFLUENT, PROTOBUF_CONFLUENT, AVRO_APICURIO)
_NO_ID: Final = bytes(CONFLUENT_HEADER)
"""Prefix with an id that exists in no registry with Confluent's API."""


@lru_cache(32)
def value_decoder(form: ColumnFormat) -> ValueDecoder:
    """Returns the decoder of a format. The decoder is thread-safe.

    The decoder may look up schemas in a registry. It raises RegistryError if the registry does not
    respond correctly.
    """
    if form.format == UTF8:
        from segment_format.values.decoded import Utf8Decoder

        return Utf8Decoder()
    if form.format in (JSON, JSON_CONFLUENT):
        from segment_format.values.json.ddl import parse_ddl
        from segment_format.values.json.decoder import ConfluentJsonDecoder, JsonDecoder

        json = JsonDecoder(parse_ddl(form.schema), form.fields)
        return json if form.format == JSON else ConfluentJsonDecoder(json)
    if form.format in (PROTOBUF, PROTOBUF_CONFLUENT):
        from segment_format.values.protobuf.decoder import ConfluentProtobufDecoder, ProtobufDecoder

        protobuf = ProtobufDecoder(form.descriptors, form.message, form.fields)
        if form.format == PROTOBUF:
            return protobuf
        if form.registry is None:
            return ConfluentProtobufDecoder(protobuf)
        return ConfluentProtobufDecoder(protobuf, _messages_of(form.registry).name_of)
    from segment_format.values.avro.decoder import AvroDecoder, FramedAvroDecoder

    if form.format == AVRO:
        return AvroDecoder(form.reader_schema, columns=form.fields)
    from segment_format.values.registry_framing import APICURIO, AWS_GLUE, CONFLUENT

    assert form.registry is not None
    framing = {AVRO_GLUE: AWS_GLUE, AVRO_APICURIO: APICURIO}.get(form.format, CONFLUENT)
    return FramedAvroDecoder(
        form.reader_schema, _writers(form.registry).get, framing, columns=form.fields
    )


# Cached, because the decoders for a condition and for the table need the same writer schemas.
@lru_cache(32)
def _writers(registry: RegistryPlace) -> ById[int | str, Schema]:
    return ById(partial(_writer, registry))


@lru_cache(32)
def _messages_of(registry: RegistryPlace) -> _Messages:
    return _Messages(registry)


def _writer(registry: RegistryPlace, schema_id: int | str) -> Schema:
    """Looks up the writer schema of Avro values by its id or GUID, and parses it.

    Raises:
        LookupError: The schema does not exist, or is not an Avro schema.
        AvroSchemaError: The schema is not valid.
        RegistryError: The registry does not respond.
    """
    from segment_format.values.avro.schema import parse_avro

    schema = find_schema(registry, schema_id)
    if schema.kind != AVRO_SCHEMA:
        raise LookupError(f"the schema is of type {schema.kind}, but Avro is required")
    *references, (_, text) = schema.parts
    return parse_avro(text, tuple(reference for _, reference in references))


class _Messages:
    """Looks up names of Protobuf messages by the id or GUID of their schema and their index in
    it.
    """

    def __init__(self, registry: RegistryPlace) -> None:
        self._files = ById(partial(_messages, registry))

    def name_of(self, schema_id: int | str, path: tuple[int, ...]) -> str:
        """Returns the full name of the message with index `path` in the schema. Each number in
        `path` is the position of a message in its file or in its outer message.

        Raises:
            LookupError: The schema has no such message, does not exist, or is not a Protobuf
                schema.
            RegistryError: The registry does not respond.
        """
        names = self._files.get(schema_id)
        if path not in names:
            raise LookupError(f"the schema's file has no message with index {list(path)}")
        return names[path]


def _messages(registry: RegistryPlace, schema_id: int | str) -> dict[tuple[int, ...], str]:
    from kts_source.registry.schema_registry import messages_of

    schema = find_schema(registry, schema_id)
    if schema.kind != PROTOBUF_SCHEMA:
        raise LookupError(f"the schema is of type {schema.kind}, but Protobuf is required")
    return messages_of(schema)


def needed_columns(formats: Iterable[ColumnFormat]) -> tuple[str, ...]:
    """Returns the columns that `framed` needs in addition to the decoded columns."""
    return (HEADERS,) if any(form.format in _NAMED_BY_ID for form in formats) else ()


def framed(batch: pa.RecordBatch, form: ColumnFormat) -> pa.Array:
    """Returns the values of a column with a prefix that contains the schema id, as the column's
    format expects.

    A schema id in a record header is copied to this prefix. If the format does not support the
    header, the prefix contains an id that does not exist, so that the first bytes of the value are
    not read as its schema id.
    """
    values = batch.column(form.column)
    if form.format not in _NAMED_BY_ID:
        return values
    headers = batch.column(HEADERS)
    each = headers.flatten()
    if not len(each):
        return values
    names, texts = pc.struct_field(each, "key"), pc.struct_field(each, "value")
    rows = pc.list_parent_indices(headers).to_numpy()
    of_batch = _Headers(names, texts, rows, len(values))
    prefix = f"apicurio.{form.column}."
    apicurios = of_batch.rows(pc.starts_with(names, prefix))
    if form.format == AVRO_APICURIO:
        if apicurios is None:
            return values
        assert form.registry is not None
        fronts = _apicurio_prefixes(of_batch, prefix, form.registry.ids, apicurios)
    else:
        ids = of_batch.last(f"__{form.column}_schema_id")
        if ids is None and apicurios is None:
            return values
        fronts = pa.scalar(b"") if ids is None else pc.fill_null(ids, b"")
        if apicurios is not None:
            fronts = pc.if_else(apicurios, pa.scalar(_NO_ID), fronts)
    return pc.binary_join_element_wise(fronts, values, b"")


def _apicurio_prefixes(headers: _Headers, prefix: str, kind: str, apicurios: pa.Array) -> pa.Array:
    """Returns, for each value, the bytes that Apicurio's serializers without headers write in front
    of it; empty for rows outside the mask `apicurios`, which have no headers with this prefix.
    `kind` is `globalId` or `contentId`.
    """
    fronts = pc.if_else(apicurios, _front(OTHER_IDS), pa.scalar(b""))
    ids = headers.last(f"{prefix}{kind}")
    if ids is not None:
        is_valid = pc.fill_null(pc.equal(pc.binary_length(ids), 8), False)
        fronts = pc.if_else(is_valid, pc.binary_join_element_wise(b"\0", ids, b""), fronts)
    encodings = headers.last(f"{prefix}encoding")
    if encodings is not None:
        as_json = pc.fill_null(pc.equal(encodings, b"JSON"), False)
        fronts = pc.if_else(as_json, _front(AS_JSON), fronts)
    return fronts


def _front(number: int) -> pa.Scalar:
    return pa.scalar(b"\0" + number.to_bytes(8, "big", signed=True))


class _Headers(NamedTuple):
    """The headers of all records in a batch, as flat lists of names, values and row numbers.
    `height` is the number of rows in the batch.
    """

    names: pa.Array
    texts: pa.Array
    row_of: NDArray[np.int64]
    height: int

    def rows(self, mask: pa.Array) -> pa.Array | None:
        """Returns a mask of the rows that have a header selected by `mask`; `None` if no row has
        one.
        """
        numbers = _true_indices(mask)
        if not len(numbers):
            return None
        rows = np.zeros(self.height, np.bool_)
        rows[self.row_of[numbers]] = True
        return pa.array(rows)

    def last(self, name: str) -> pa.Array | None:
        """Returns, for each row, the value of the last header with this name; null for a row
        without such a header. Returns `None` if no row has one.
        """
        numbers = _true_indices(pc.equal(self.names, name))
        if not len(numbers):
            return None
        last = np.full(self.height, -1, np.int64)
        np.maximum.at(last, self.row_of[numbers], numbers)
        return self.texts.take(pa.array(last, mask=last < 0))


def _true_indices(mask: pa.Array) -> NDArray[np.intp]:
    return np.flatnonzero(pc.fill_null(mask, False).to_numpy(zero_copy_only=False))
