"""Adds the fields of a writer's schema to a reader's schema, and prints schemas."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

from segment_format.values.avro.schema import (
    DOUBLE,
    FLOAT,
    INT,
    LONG,
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

if TYPE_CHECKING:
    from collections.abc import Sequence


_WIDER: Final = {
    frozenset((INT, LONG)): LONG,
    frozenset((INT, FLOAT)): DOUBLE,
    frozenset((LONG, FLOAT)): DOUBLE,
    frozenset((INT, DOUBLE)): DOUBLE,
    frozenset((LONG, DOUBLE)): DOUBLE,
    frozenset((FLOAT, DOUBLE)): DOUBLE,
}
"""Type that a reader can use for values of two types. Not float for int, which has more digits."""


def extended(reader: Schema, writers: Sequence[Schema], path: str) -> Schema:
    """Returns the reader's schema with the fields that only writers' schemas have, at any depth.

    New fields are added after the existing fields of their record. Their type is a union with null,
    and their default is null. If writers have different types of a new field, it gets a type with
    which the values of all writers can be read, in whatever order the writers are. Existing fields
    keep their types. A union is extended only if it consists of null and one other type. `path`
    names the schema in errors.

    Raises:
        AvroSchemaError: The types of a new field have no common type.
    """
    if isinstance(reader, Union):
        inner = non_null(reader)
        if inner is None:
            return reader
        more = extended(inner, writers, path)
        return Union(tuple(more if branch is inner else branch for branch in reader.branches))
    kinds = [kind for kind in map(non_null, writers) if kind is not None]
    if isinstance(reader, Record):
        records = [kind for kind in kinds if isinstance(kind, Record)]
        return _extended_record(reader, records, path)
    if isinstance(reader, Array):
        items = [kind.items for kind in kinds if isinstance(kind, Array)]
        return Array(extended(reader.items, items, path))
    if isinstance(reader, Map):
        values = [kind.values for kind in kinds if isinstance(kind, Map)]
        return Map(extended(reader.values, values, path))
    return reader


def non_null(schema: Schema) -> Schema | None:
    """Returns the type other than null in a union with null, and other types unchanged. Returns
    `None` for a union with two or more types other than null.
    """
    if not isinstance(schema, Union):
        return schema
    branches = [branch for branch in schema.branches if branch != Primitive(NULL)]
    return branches[0] if len(branches) == 1 else None


def _extended_record(reader: Record, writers: Sequence[Record], path: str) -> Record:
    existing: dict[str, list[Schema]] = {field.name: [] for field in reader.fields}
    new: dict[str, list[Schema]] = {}
    for writer in writers:
        of_writer = {field.name: field.type for field in writer.fields}
        for field in reader.fields:
            names = (field.name, *field.aliases)
            written = [of_writer.pop(name) for name in names if name in of_writer]
            existing[field.name] += written[:1]
        for name, kind in of_writer.items():
            new.setdefault(name, []).append(kind)
    fields = [
        replace(field, type=extended(field.type, existing[field.name], f"{path}.{field.name}"))
        for field in reader.fields
    ]
    fields += (
        Field(
            name,
            (),
            _nullable(reduce(partial(_common, path=f"{path}.{name}"), kinds)),
            Default(None),
        )
        for name, kinds in new.items()
    )
    return replace(reader, fields=tuple(fields))


def _common(first: Schema, other: Schema, path: str) -> Schema:
    """Returns a type with which values of both types can be read. It is the same if `first` and
    `other` are exchanged, except for the order of fields and symbols. Raises `AvroSchemaError` if
    there is none.
    """
    if first == other:
        return first
    if isinstance(first, Union) or isinstance(other, Union):
        one, two = non_null(_nullable(first)), non_null(_nullable(other))
        if one is not None and two is not None:
            return _nullable(_common(one, two, path))
        if _nullable(first) == _nullable(other):
            return _nullable(first)
    if isinstance(first, Array) and isinstance(other, Array):
        return Array(_common(first.items, other.items, path))
    if isinstance(first, Map) and isinstance(other, Map):
        return Map(_common(first.values, other.values, path))
    if isinstance(first, Record) and isinstance(other, Record) and first.name == other.name:
        return _common_record(first, other, path)
    if isinstance(first, Enum) and isinstance(other, Enum) and first.name == other.name:
        return Enum(first.name, (), tuple(dict.fromkeys((*first.symbols, *other.symbols))))
    if isinstance(first, Primitive) and isinstance(other, Primitive):
        wider = _WIDER.get(frozenset((first.kind, other.kind)))
        if wider and first.logical is None and other.logical is None:
            return Primitive(wider)
    raise AvroSchemaError(f"the new field {path} is {first} in some schemas and {other} in others")


def _common_record(first: Record, other: Record, path: str) -> Record:
    kinds = {field.name: field.type for field in first.fields}
    of_other = {field.name: field.type for field in other.fields}
    for name, kind in of_other.items():
        kinds[name] = (
            _common(kinds[name], kind, f"{path}.{name}") if name in kinds else _nullable(kind)
        )
    for name in kinds.keys() - of_other.keys():
        kinds[name] = _nullable(kinds[name])
    fields = (
        Field(name, (), kind, Default(None) if kind == _nullable(kind) else None)
        for name, kind in kinds.items()
    )
    return Record(first.name, (), tuple(fields))


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
