"""The decoder of a column's format. One a process: what it has compiled and looked up serves all
tasks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from kts_source.options.value_formats import (
    AVRO,
    JSON,
    JSON_CONFLUENT,
    PROTOBUF,
    PROTOBUF_CONFLUENT,
    UTF8,
)
from kts_source.registry.by_id import ById
from kts_source.registry.schema_registry import AVRO as AVRO_SCHEMA
from kts_source.registry.schema_registry import find_schema

if TYPE_CHECKING:
    from kts_source.options.value_formats import ColumnFormat
    from kts_source.secret import Secret
    from segment_format.values.avro.schema import Schema
    from segment_format.values.decoded import ValueDecoder


@lru_cache(32)
def value_decoder(form: ColumnFormat) -> ValueDecoder:
    """The decoder of a format; any thread may use it.

    What it looks up in a registry raises RegistryError where that does not answer.
    """
    if form.format == UTF8:
        from segment_format.values.text import Utf8Decoder

        return Utf8Decoder()
    if form.format in (JSON, JSON_CONFLUENT):
        from segment_format.values.json.confluent import ConfluentJsonDecoder
        from segment_format.values.json.ddl import parse_ddl
        from segment_format.values.json.decoder import JsonDecoder

        json = JsonDecoder(parse_ddl(form.schema), form.fields)
        return json if form.format == JSON else ConfluentJsonDecoder(json)
    if form.format in (PROTOBUF, PROTOBUF_CONFLUENT):
        from segment_format.values.protobuf.confluent import ConfluentProtobufDecoder
        from segment_format.values.protobuf.decoder import ProtobufDecoder

        protobuf = ProtobufDecoder(form.descriptors, form.message, form.fields)
        return protobuf if form.format == PROTOBUF else ConfluentProtobufDecoder(protobuf)
    if form.format == AVRO:
        from segment_format.values.avro.decoder import AvroDecoder

        return AvroDecoder(form.reader_schema, columns=form.fields)
    from segment_format.values.avro.confluent import ConfluentAvroDecoder

    # The fields that a condition looks at and those of the table are of the same writers.
    writers = _writers(replace(form, fields=None))
    return ConfluentAvroDecoder(form.reader_schema, writers.get, columns=form.fields)


@lru_cache(32)
def _writers(form: ColumnFormat) -> ById[Schema]:
    assert form.registry is not None
    return ById(_Writers(form.registry, form.auth))


class _Writers:
    """Looks up writers' schemas.

    Args:
        registry: A URL or a folder.
        auth: User and password of the registry.
    """

    def __init__(self, registry: str, auth: Secret[tuple[str, str]] | None) -> None:
        self._registry = registry
        self._auth = auth

    def __call__(self, schema_id: int) -> Schema:
        """The schema of an id.

        Raises:
            LookupError: There is none, or none of Avro.
            AvroSchemaError: It is not valid.
            RegistryError: The registry does not answer.
        """
        from segment_format.values.avro.parse import parse_avro

        found = find_schema(self._registry, schema_id, self._auth)
        if found.kind != AVRO_SCHEMA:
            raise LookupError(f"a schema of {found.kind}, not of Avro")
        *references, (_, text) = found.parts
        return parse_avro(text, tuple(reference for _, reference in references))
