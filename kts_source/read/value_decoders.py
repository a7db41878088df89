"""The decoder of a column's format. One a process: what it has compiled and looked up serves all
tasks.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING

from kts_source.options.value_formats import (
    AVRO,
    AVRO_APICURIO,
    AVRO_GLUE,
    JSON,
    JSON_CONFLUENT,
    PROTOBUF,
    PROTOBUF_CONFLUENT,
    UTF8,
)
from kts_source.registry.by_id import ById
from kts_source.registry.schema_registry import AVRO as AVRO_SCHEMA
from kts_source.registry.schema_registry import PROTOBUF as PROTOBUF_SCHEMA
from kts_source.registry.schema_registry import find_schema

if TYPE_CHECKING:
    from kts_source.options.value_formats import ColumnFormat
    from kts_source.registry.by_id import RegistryPlace
    from segment_format.values.avro.schema import Schema
    from segment_format.values.decoded import ValueDecoder


@lru_cache(32)
def value_decoder(form: ColumnFormat) -> ValueDecoder:
    """The decoder of a format; any thread may use it.

    What it looks up in a registry raises RegistryError where that does not answer as it should.
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
        from segment_format.values.protobuf.confluent import ConfluentProtobufDecoder
        from segment_format.values.protobuf.decoder import ProtobufDecoder

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


# A condition's fields and those of the table are of the same writers.
@lru_cache(32)
def _writers(registry: RegistryPlace) -> ById[int | str, Schema]:
    return ById(partial(_writer, registry))


@lru_cache(32)
def _messages_of(registry: RegistryPlace) -> _Messages:
    return _Messages(registry)


def _writer(registry: RegistryPlace, schema_id: int | str) -> Schema:
    """The schema of an id or a GUID.

    Raises:
        LookupError: There is none, or none of Avro.
        AvroSchemaError: It is not valid.
        RegistryError: The registry does not answer.
    """
    from segment_format.values.avro.schema import parse_avro

    found = find_schema(registry, schema_id)
    if found.kind != AVRO_SCHEMA:
        raise LookupError(f"a schema of {found.kind}, not of Avro")
    *references, (_, text) = found.parts
    return parse_avro(text, tuple(reference for _, reference in references))


class _Messages:
    """Names of messages, by a schema's id or GUID and the message index in its file."""

    def __init__(self, registry: RegistryPlace) -> None:
        self._files = ById(partial(_messages, registry))

    def name_of(self, schema_id: int | str, path: tuple[int, ...]) -> str:
        """See `ConfluentProtobufDecoder`."""
        names = self._files.get(schema_id)
        if path not in names:
            raise LookupError(f"its file has no message {list(path)}")
        return names[path]


def _messages(registry: RegistryPlace, schema_id: int | str) -> dict[tuple[int, ...], str]:
    from kts_source.registry.schema_registry import messages_of

    found = find_schema(registry, schema_id)
    if found.kind != PROTOBUF_SCHEMA:
        raise LookupError(f"a schema of {found.kind}, not of Protobuf")
    return messages_of(found)
