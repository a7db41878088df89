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

_MOST_BYTES: Final = 1 << 16
_BITS: Final = {s.INT: 31, s.LONG: 63}
_FORMATS: Final = {s.FLOAT: "<f", s.DOUBLE: "<d"}
_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def default_bytes(schema: Schema, value: object) -> bytes:
    """A default in Avro's encoding.

    Args:
        schema: The field's type.
        value: The default as JSON has it.

    Raises:
        AvroSchemaError: It is none of the type, or takes more than 64 KiB: every row would have
            it, and lists of records that have lists as defaults grow with each level.
    """
    return _Encoder().encoded(schema, value)


def check_defaults(schema: Schema) -> None:
    """Checks the defaults of all fields of a reader's schema, whether writers have them or not.

    Raises:
        AvroSchemaError: One is none of its type or too large; the field is named.
    """
    _check(schema, "", set())


def _check(schema: Schema, path: str, seen: set[str]) -> None:
    if isinstance(schema, s.Union):
        for branch in schema.branches:
            _check(branch, path, seen)
    elif isinstance(schema, s.Array):
        _check(schema.items, path, seen)
    elif isinstance(schema, s.Map):
        _check(schema.values, path, seen)
    elif isinstance(schema, s.Record) and schema.name not in seen:
        seen.add(schema.name)
        for field in schema.fields:
            inner = f"{path}.{field.name}" if path else field.name
            if field.default is not None:
                try:
                    default_bytes(field.type, field.default.value)
                except AvroSchemaError as error:
                    raise AvroSchemaError(f"field {inner!r}: {error}") from None
            _check(field.type, inner, seen)


class _Encoder:
    """Encodes one default, and gives up where it grows too large."""

    def __init__(self) -> None:
        self._left = _MOST_BYTES

    def encoded(self, schema: Schema, value: object) -> bytes:
        self._left -= 1  # also for what has no byte
        data = self._encoded(schema, value)
        if self._left < 0:
            raise AvroSchemaError(f"a default of more than {_MOST_BYTES:,} bytes")
        return data

    def _encoded(self, schema: Schema, value: object) -> bytes:
        if isinstance(schema, s.Union):
            for index, branch in enumerate(schema.branches):
                try:
                    return _long(index) + self.encoded(branch, value)
                except AvroSchemaError:
                    if self._left < 0:
                        raise
        elif isinstance(schema, s.Array) and isinstance(value, list):
            items = b"".join(self.encoded(schema.items, item) for item in value)
            return (_long(len(value)) + items if value else b"") + b"\0"
        elif isinstance(schema, s.Map) and isinstance(value, dict):
            entries = b"".join(
                self._spent(_sized(key.encode())) + self.encoded(schema.values, item)
                for key, item in value.items()
            )
            return (_long(len(value)) + entries if value else b"") + b"\0"
        elif isinstance(schema, s.Record) and isinstance(value, dict):
            return b"".join(self._field(schema, field, value) for field in schema.fields)
        elif isinstance(schema, s.Enum) and isinstance(value, str) and value in schema.symbols:
            return _long(schema.symbols.index(value))
        elif isinstance(schema, s.Fixed) and isinstance(value, str):
            data = _code_points(value)
            if len(data) == schema.size:
                return self._spent(data)
        elif isinstance(schema, s.Primitive):
            return self._spent(_primitive(schema.kind, value))
        raise _wrong(str(schema), value)

    def _spent(self, data: bytes) -> bytes:
        self._left -= len(data)
        return data

    def _field(self, record: s.Record, field: s.Field, value: dict[str, object]) -> bytes:
        if field.name in value:
            return self.encoded(field.type, value[field.name])
        if field.default is None:
            raise AvroSchemaError(f"a default of {record} without field {field.name!r}")
        return self.encoded(field.type, field.default.value)


def _wrong(kind: str, value: object) -> AvroSchemaError:
    return AvroSchemaError(f"a default that is no {kind}: {repr(value)[:100]}")


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
    raise _wrong(kind, value)


def _code_points(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        raise AvroSchemaError("a default of bytes with a code point above 255") from None


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
