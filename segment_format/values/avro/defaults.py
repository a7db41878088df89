"""Defaults of a reader's fields as Avro's bytes: the one kernel decodes them like any value.

A default of a union is of the first branch that it fits; bytes and fixed are texts of code points
up to 255, as Avro has it.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final

from segment_format.values.avro import schema as s
from segment_format.values.avro.schema import AvroSchemaError

if TYPE_CHECKING:
    from segment_format.values.avro.schema import Schema

_BITS: Final = {s.INT: 31, s.LONG: 63}
_FORMATS: Final = {s.FLOAT: "<f", s.DOUBLE: "<d"}
_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def default_bytes(schema: Schema, value: object) -> bytes:
    """A default in Avro's encoding.

    Args:
        schema: The field's type.
        value: The default as JSON has it.

    Raises:
        AvroSchemaError: It is none of the type.
    """
    if isinstance(schema, s.Union):
        for index, branch in enumerate(schema.branches):
            try:
                return _long(index) + default_bytes(branch, value)
            except AvroSchemaError:
                continue
    elif isinstance(schema, s.Array) and isinstance(value, list):
        items = b"".join(default_bytes(schema.items, item) for item in value)
        return (_long(len(value)) + items if value else b"") + b"\0"
    elif isinstance(schema, s.Map) and isinstance(value, dict):
        entries = b"".join(
            _sized(key.encode()) + default_bytes(schema.values, item) for key, item in value.items()
        )
        return (_long(len(value)) + entries if value else b"") + b"\0"
    elif isinstance(schema, s.Record) and isinstance(value, dict):
        return b"".join(_field_bytes(schema, field, value) for field in schema.fields)
    elif isinstance(schema, s.Enum) and isinstance(value, str) and value in schema.symbols:
        return _long(schema.symbols.index(value))
    elif isinstance(schema, s.Fixed) and isinstance(value, str):
        data = _code_points(value)
        if len(data) == schema.size:
            return data
    elif isinstance(schema, s.Primitive):
        return _primitive(schema.kind, value)
    raise AvroSchemaError(f"a default that is no {schema}: {value!r}")


def _field_bytes(record: s.Record, field: s.Field, value: dict[str, object]) -> bytes:
    if field.name in value:
        return default_bytes(field.type, value[field.name])
    if field.default is None:
        raise AvroSchemaError(f"a default of {record} without field {field.name!r}")
    return default_bytes(field.type, field.default.value)


def _primitive(kind: str, value: object) -> bytes:
    if kind == s.NULL and value is None:
        return b""
    if kind == s.BOOLEAN and isinstance(value, bool):
        return b"\1" if value else b"\0"
    if kind == s.STRING and isinstance(value, str):
        try:
            return _sized(value.encode())
        except UnicodeEncodeError:
            pass
    if kind == s.BYTES and isinstance(value, str):
        return _sized(_code_points(value))
    if kind in _BITS and isinstance(value, int) and not isinstance(value, bool):
        limit = 1 << _BITS[kind]
        if -limit <= value < limit:
            return _long(value)
    if kind in _FORMATS:
        number = _WORDS.get(value) if isinstance(value, str) else value
        if isinstance(number, int | float) and not isinstance(number, bool):
            try:
                return struct.pack(_FORMATS[kind], number)
            except (OverflowError, struct.error):
                pass
    raise AvroSchemaError(f"a default that is no {kind}: {value!r}")


def _code_points(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise AvroSchemaError(f"a default of bytes with a code point above 255: {text!r}") from None


def _sized(data: bytes) -> bytes:
    return _long(len(data)) + data


def _long(value: int) -> bytes:
    raw = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)
