"""Decodes Avro values as a reference for the kernel, including its errors. Follows the
specification and builds one Python value at a time. `test_decoder` compares it with fastavro,
which accepts more values.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from segment_format.values.avro import schema as s
from segment_format.values.avro.program import default_bytes
from segment_format.values.avro.schema import Schema, simple_name

if TYPE_CHECKING:
    from tests.segment_format.values.avro.generated import Json

NULL: Final = s.Primitive(s.NULL)
MOST_EMPTY: Final = 4096
_PROMOTIONS: Final = {
    ("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"),
    ("float", "double"), ("string", "bytes"), ("bytes", "string"),
}  # fmt: skip


class BadAvroError(Exception):
    """Raised for a value that does not match its schema.

    `path` lists the names of the fields that contain the error.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []


def read(writer: Schema, reader: Schema, data: bytes, *, plain: bool = False) -> Json:
    """Decodes a value for `pa.array` or, if `plain` is true, into the Python types of fastavro."""
    run = _Run(data, plain=plain)
    value = run.value(writer, reader)
    if run.at != len(data):
        raise BadAvroError("rest")
    return value


def least(schema: Schema) -> int:
    """Returns the minimum number of bytes of an encoded value."""
    match schema:
        case s.Record():
            return sum(least(field.type) for field in schema.fields)
        case s.Union():
            return 1 + min(map(least, schema.branches))
        case s.Fixed():
            return schema.size
        case s.Primitive():
            return {"null": 0, "float": 4, "double": 8}.get(schema.kind, 1)
        case _:
            return 1


def fits(writer: Schema, reader: Schema) -> bool:
    """Returns whether a value of the writer type can be read as the reader type, ignoring fields
    and item types.
    """
    match writer, reader:
        case s.Primitive(), s.Primitive():
            if writer.kind != reader.kind and (writer.kind, reader.kind) not in _PROMOTIONS:
                return False
            decimal = [
                schema.logical is not None and bool(schema.logical.precision)
                for schema in (writer, reader)
            ]
            if writer.kind != reader.kind and any(decimal):
                return False
            return None in (writer.logical, reader.logical) or writer.logical == reader.logical
        case s.Fixed(), s.Fixed():
            logical = None in (writer.logical, reader.logical) or writer.logical == reader.logical
            return _named(writer, reader) and writer.size == reader.size and logical
        case (s.Record(), s.Record()) | (s.Enum(), s.Enum()):
            return _named(writer, reader)
        case (s.Array(), s.Array()) | (s.Map(), s.Map()):
            return True
        case _:
            return False


def _named(writer: Json, reader: Json) -> bool:
    names = {simple_name(name) for name in (reader.name, *reader.aliases)}
    return simple_name(writer.name) in names


class _Run:
    def __init__(self, data: bytes, *, plain: bool) -> None:
        self.data = data
        self.at = 0
        self.plain = plain

    def long(self) -> int:
        raw = shift = 0
        while True:
            if self.at == len(self.data):
                raise BadAvroError("truncated")
            byte = self.data[self.at]
            self.at += 1
            if shift == 63 and byte > 1:
                raise BadAvroError("varint")
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (raw >> 1) ^ -(raw & 1)
            shift += 7

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data) - self.at:
            raise BadAvroError("length")
        self.at += size
        return self.data[self.at - size : self.at]

    def value(self, writer: Schema, reader: Schema) -> Json:
        if isinstance(writer, s.Union):
            index = self.long()
            if not 0 <= index < len(writer.branches):
                raise BadAvroError("branch")
            return self.value(writer.branches[index], reader)
        if isinstance(reader, s.Union):
            return self._into_union(writer, reader)
        if not fits(writer, reader):
            raise BadAvroError("mismatch")
        match writer:
            case s.Record():
                assert isinstance(reader, s.Record)
                return self._record(writer, reader)
            case s.Array():
                assert isinstance(reader, s.Array)
                count = self._blocks(least(writer.items))
                return [self.value(writer.items, reader.items) for _ in count]
            case s.Map():
                assert isinstance(reader, s.Map)
                entries: list[tuple[str, Any]] = []
                for _ in self._blocks(1 + least(writer.values)):
                    key = self._text(self.take(self.long()))
                    entries.append((key, self.value(writer.values, reader.values)))
                if self.plain:
                    return dict(entries)
                last = {key: number for number, (key, _) in enumerate(entries)}
                return [entries[number] for number in sorted(last.values())]
            case s.Enum():
                assert isinstance(reader, s.Enum)
                index = self.long()
                if not 0 <= index < len(writer.symbols):
                    raise BadAvroError("symbol")
                symbol = writer.symbols[index]
                if symbol not in reader.symbols:
                    if reader.default is None:
                        raise BadAvroError("unknown symbol")
                    symbol = reader.default
                return symbol
            case s.Fixed():
                assert isinstance(reader, s.Fixed)
                return self._meant(self.take(writer.size), reader)
            case _:
                assert isinstance(reader, s.Primitive)
                return self._meant(self._primitive(writer.kind, reader.kind), reader)

    def _into_union(self, writer: Schema, reader: s.Union) -> Json:
        own = [b for b in reader.branches if fits(writer, b) and _kind(b) == _kind(writer)]
        able = [branch for branch in reader.branches if fits(writer, branch)]
        same = [branch for branch in able if branch == writer]
        if not able:
            raise BadAvroError("no branch")
        branch = (same or own or able)[0]
        if branch == NULL:
            return None
        branches = [member for member in reader.branches if member != NULL]
        wide = _merged(branches)
        value = self.value(writer, branch if wide is None else wide)
        if self.plain or len(branches) == 1 or wide is not None:
            return value
        return {f"member{branches.index(branch)}": value}

    def _record(self, writer: s.Record, reader: s.Record) -> Json:
        names = {field.name for field in writer.fields}
        of: dict[str, s.Field] = {f.name: f for f in reader.fields if f.name in names}
        for field in reader.fields:
            if field.name not in names:
                for alias in field.aliases:
                    if alias in names and alias not in of:
                        of[alias] = field
                        break
        values: dict[str, Any] = {}
        for field in writer.fields:
            target = of.get(field.name)
            try:
                if target is None:
                    self.skip(field.type)
                else:
                    values[target.name] = self.value(field.type, target.type)
            except BadAvroError as error:
                error.path.insert(0, field.name if target is None else target.name)
                raise
        for field in reader.fields:
            if field.name not in values:
                assert field.default is not None
                data = default_bytes(field.type, field.default.value)
                values[field.name] = read(field.type, field.type, data, plain=self.plain)
        return values

    def _blocks(self, size: int) -> Json:
        total = 0
        while count := self.long():
            stop = None
            if count < 0:
                length = self.long()
                if not 0 <= length <= len(self.data) - self.at:
                    raise BadAvroError("length")
                count, stop = -count, self.at + length
            total += count
            if total > MOST_EMPTY if size == 0 else count * size > len(self.data) - self.at:
                raise BadAvroError("count")
            yield from range(count)
            if stop is not None and stop != self.at:
                raise BadAvroError("block")

    def _text(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise BadAvroError("utf-8") from None

    def _primitive(self, kind: str, reader_kind: str) -> Json:
        if kind == s.NULL:
            return None
        if kind == s.BOOLEAN:
            byte = self.take(1)[0]
            if byte > 1:
                raise BadAvroError("boolean")
            return bool(byte)
        if kind in (s.INT, s.LONG):
            value = self.long()
            if kind == s.INT and not -(2**31) <= value < 2**31:
                raise BadAvroError("int")
            if reader_kind == s.FLOAT:
                return float(np.float32(np.int64(value)))
            return float(value) if reader_kind == s.DOUBLE else value
        if kind == s.FLOAT:
            return struct.unpack("<f", self.take(4))[0]
        if kind == s.DOUBLE:
            return struct.unpack("<d", self.take(8))[0]
        data = self.take(self.long())
        return self._text(data) if reader_kind == s.STRING else data

    def _meant(self, value: Json, reader: s.Primitive | s.Fixed) -> Json:
        if self.plain or reader.logical is None:
            return value
        if reader.logical.name == s.DECIMAL:
            number = int.from_bytes(value, "big", signed=True)
            if abs(number) >= 10**reader.logical.precision:
                raise BadAvroError("decimal")
            digits = tuple(map(int, str(abs(number))))
            return Decimal((int(number < 0), digits, -reader.logical.scale))
        if reader.logical.name in (s.TIMESTAMP_MILLIS, s.LOCAL_MILLIS):
            if not -(2**63) <= value * 1000 < 2**63:
                raise BadAvroError("time")
            return value * 1000
        return value

    def skip(self, writer: Schema) -> None:
        """Skips the value of a field that is not read: checks its lengths, but not its content."""
        match writer:
            case s.Record():
                for field in writer.fields:
                    self.skip(field.type)
            case s.Union():
                index = self.long()
                if not 0 <= index < len(writer.branches):
                    raise BadAvroError("branch")
                self.skip(writer.branches[index])
            case s.Array() | s.Map():
                self._skip_blocks(writer)
            case s.Fixed():
                self.take(writer.size)
            case s.Enum():
                self.long()
            case _:
                sizes = {"boolean": 1, "float": 4, "double": 8, "null": 0}
                if writer.kind in sizes:
                    self.take(sizes[writer.kind])
                else:
                    number = self.long()
                    if writer.kind in ("string", "bytes"):
                        self.take(number)

    def _skip_blocks(self, writer: s.Array | s.Map) -> None:
        inner = writer.values if isinstance(writer, s.Map) else writer.items
        size = least(inner) + isinstance(writer, s.Map)
        while count := self.long():
            length = None
            if count < 0:
                length = self.long()
                if not 0 <= length <= len(self.data) - self.at:
                    raise BadAvroError("length")
            count = abs(count)
            if count > MOST_EMPTY if size == 0 else count * size > len(self.data) - self.at:
                raise BadAvroError("count")
            if length is not None:
                self.take(length)
                continue
            for _ in range(count):
                if isinstance(writer, s.Map):
                    self.take(self.long())
                self.skip(inner)


def _kind(schema: Schema) -> str:
    return schema.kind if isinstance(schema, s.Primitive) else str(schema)


def _merged(schemas: list[Schema]) -> Schema | None:
    for narrow, wide in (("int", "long"), ("float", "double")):
        pair = s.Primitive(narrow), s.Primitive(wide)
        if schemas in ([*pair], [*reversed(pair)]):
            return s.Primitive(wide)
    return None
