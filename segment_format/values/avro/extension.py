"""Adds the fields of a writer's schema to a reader's schema, and prints schemas."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from segment_format.values.avro.schema import (
    NULL,
    Array,
    AvroSchemaError,
    Default,
    Enum,
    Field,
    Fixed,
    Map,
    Primitive,
    Record,
    Schema,
    Union,
)


def extended(reader: Schema, writer: Schema) -> Schema:
    """Returns the reader's schema with the fields that only the writer's schema has, at any depth.

    New fields are added after the existing fields of their record. Their type is a union with null,
    and their default is null. Existing fields keep their types. A union is extended only if it
    consists of null and one other type.
    """
    if isinstance(writer, Union):
        inner = non_null(writer)
        return reader if inner is None else extended(reader, inner)
    if isinstance(reader, Union):
        inner = non_null(reader)
        if inner is None:
            return reader
        more = extended(inner, writer)
        return Union(tuple(more if branch is inner else branch for branch in reader.branches))
    if isinstance(reader, Record) and isinstance(writer, Record):
        return _extended_record(reader, writer)
    if isinstance(reader, Array) and isinstance(writer, Array):
        return Array(extended(reader.items, writer.items))
    if isinstance(reader, Map) and isinstance(writer, Map):
        return Map(extended(reader.values, writer.values))
    return reader


def non_null(schema: Schema) -> Schema | None:
    """Returns the type other than null in a union with null, and other types unchanged. Returns
    `None` for a union with two or more types other than null.
    """
    if not isinstance(schema, Union):
        return schema
    branches = [branch for branch in schema.branches if branch != Primitive(NULL)]
    return branches[0] if len(branches) == 1 else None


def _extended_record(reader: Record, writer: Record) -> Record:
    of_writer = {field.name: field for field in writer.fields}
    fields = []
    for field in reader.fields:
        names = (field.name, *field.aliases)
        written = [of_writer.pop(name) for name in names if name in of_writer]
        kind = extended(field.type, written[0].type) if written else field.type
        fields.append(replace(field, type=kind))
    fields += (
        Field(field.name, (), _nullable(field.type), Default(None)) for field in of_writer.values()
    )
    return replace(reader, fields=tuple(fields))


def _nullable(kind: Schema) -> Schema:
    branches = kind.branches if isinstance(kind, Union) else (kind,)
    return Union((Primitive(NULL), *(each for each in branches if each != Primitive(NULL))))


def print_avro(schema: Schema) -> str:
    """Returns the JSON text of a schema. Each named type is defined where it first occurs.

    Raises:
        AvroSchemaError: The schema has two different types of the same name.
    """
    return json.dumps(_document(schema, {}))


def _document(schema: Schema, defined: dict[str, Schema]) -> Any:  # noqa: ANN401  # any JSON
    if isinstance(schema, Primitive):
        logical = _logical(schema)
        return {"type": schema.kind, **logical} if logical else schema.kind
    if isinstance(schema, Array):
        return {"type": "array", "items": _document(schema.items, defined)}
    if isinstance(schema, Map):
        return {"type": "map", "values": _document(schema.values, defined)}
    if isinstance(schema, Union):
        return [_document(branch, defined) for branch in schema.branches]
    if schema.name in defined:
        if defined[schema.name] != schema:
            raise AvroSchemaError(f"the schemas have different types named {schema.name}")
        return schema.name
    defined[schema.name] = schema
    namespace, _, name = schema.name.rpartition(".")
    named = {"name": name, "namespace": namespace, "aliases": list(schema.aliases)}
    if isinstance(schema, Enum):
        default = {} if schema.default is None else {"default": schema.default}
        return {"type": "enum", **named, "symbols": list(schema.symbols), **default}
    if isinstance(schema, Fixed):
        return {"type": "fixed", **named, "size": schema.size, **_logical(schema)}
    fields = [
        {
            "name": field.name,
            "aliases": list(field.aliases),
            "type": _document(field.type, defined),
            **({} if field.default is None else {"default": field.default.value}),
        }
        for field in schema.fields
    ]
    return {"type": "record", **named, "fields": fields}


def _logical(schema: Primitive | Fixed) -> dict[str, Any]:
    if schema.logical is None:
        return {}
    if not schema.logical.precision:
        return {"logicalType": schema.logical.name}
    return {
        "logicalType": schema.logical.name,
        "precision": schema.logical.precision,
        "scale": schema.logical.scale,
    }
