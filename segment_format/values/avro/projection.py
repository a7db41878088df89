"""A reader's schema with only the fields that are wanted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from segment_format.values.avro import schema as s
from segment_format.values.avro.schema import AvroSchemaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from segment_format.values.avro.schema import Schema


def projected(schema: Schema, paths: Sequence[str]) -> Schema:
    """The schema with the fields of some paths alone, in the schema's order.

    Args:
        schema: A record, or a union of null and one.
        paths: Names of fields, joined by dots where a field is a record itself. One that names a
            record is all of it.

    Raises:
        AvroSchemaError: A path that names no field, or a schema without fields.
    """
    return _projected(schema, [tuple(path.split(".")) for path in paths], ())


def _projected(schema: Schema, paths: Sequence[tuple[str, ...]], above: tuple[str, ...]) -> Schema:
    if any(not path for path in paths):
        return schema
    if isinstance(schema, s.Union):
        others = [one for one in schema.branches if isinstance(one, s.Record)]
        if (
            len(others) == 1
            and len(schema.branches) == 2
            and s.Primitive(s.NULL) in schema.branches
        ):
            return s.Union(
                tuple(
                    _projected(one, paths, above) if isinstance(one, s.Record) else one
                    for one in schema.branches
                )
            )
    if not isinstance(schema, s.Record):
        where = f"field {'.'.join(above)!r}" if above else "the value"
        raise AvroSchemaError(f"{where} is no record, so it has no field {'.'.join(paths[0])!r}")
    names = [field.name for field in schema.fields]
    for path in paths:
        if path[0] not in names:
            wrong = ".".join((*above, path[0]))
            raise AvroSchemaError(f"there is no field {wrong!r}; there are {', '.join(names)}")
    fields = []
    for field in schema.fields:
        below = [path[1:] for path in paths if path[0] == field.name]
        if below:
            kind = _projected(field.type, below, (*above, field.name))
            # A default may name fields that are gone: it is cut as the type is.
            fields.append(replace(field, type=kind))
    return replace(schema, fields=tuple(fields))
