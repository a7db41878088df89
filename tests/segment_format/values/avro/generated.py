"""Generates random Avro schemas, reader schemas, and encoded values."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from segment_format.values.avro import schema as s

if TYPE_CHECKING:
    from random import Random

    from segment_format.values.avro.schema import Schema

Json: TypeAlias = Any
"""A JSON or Avro value."""
_PRIMITIVES: Final = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
_LOGICAL: Final[list[dict[str, Any]]] = [
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "timestamp-nanos"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 38},
    {"type": "string", "logicalType": "unheard-of"},
]
_DEFAULTS: Final[list[tuple[Any, Any]]] = [
    ("int", -7), ("long", 2**40), ("string", "né"), ("bytes", "\u00ff\u0000"), ("double", 1.5),
    ("float", 2), ("boolean", True), (["null", "string"], None), (["string", "null"], "x"),
    ({"type": "array", "items": "int"}, [1, 2, 3]), ({"type": "map", "values": "long"}, {"k": 1}),
    ({"type": "array", "items": {"type": "array", "items": "string"}}, [[], ["a", "b"]]),
    (["int", "string"], 3),
]  # fmt: skip
TEXTS: Final = [
    "",
    "a",
    "Zürich",
    "0123456789abcdef",
    "x" * 17,
    "日本語のテキスト",
    "q" * 300,
    "🙂",
]
PROMOTIONS: Final = {
    "int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"],
    "string": ["bytes"], "bytes": ["string"],
}  # fmt: skip


class Schemas:
    """Generates random schemas in JSON form."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._names = 0

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def record(self, depth: int = 3) -> dict[str, Any]:
        """Returns a record of a few fields."""
        count = self.random.randint(1, 6)
        fields = [{"name": self._name("f"), "type": self.any(depth - 1)} for _ in range(count)]
        record = {"type": "record", "name": self._name("R"), "fields": fields}
        if self.random.random() < 0.3:
            record["namespace"] = "some.where"
        return record

    def any(self, depth: int = 3) -> Json:
        """Returns a schema of any type."""
        kind = self.random.random()
        if depth <= 0 or kind < 0.35:
            return self.random.choice(_PRIMITIVES)
        if kind < 0.5:
            return dict(self.random.choice(_LOGICAL))
        if kind < 0.57:
            return {"type": "enum", "name": self._name("E"), "symbols": ["A", "BB", "CCC"]}
        if kind < 0.63:
            fixed = {
                "type": "fixed",
                "name": self._name("F"),
                "size": self.random.choice([1, 5, 20]),
            }
            if self.random.random() < 0.5:
                fixed |= {"logicalType": "decimal", "precision": 2, "scale": 1}
            return fixed
        if kind < 0.7:
            return {"type": "array", "items": self.any(depth - 1)}
        if kind < 0.77:
            return {"type": "map", "values": self.any(depth - 1)}
        if kind < 0.9:
            return self._union(depth)
        return self.record(depth)

    def _union(self, depth: int) -> list[Any]:
        branches: list[Any] = []
        names: set[str] = set()
        for _ in range(self.random.choice([1, 2, 2, 2, 3, 4])):
            branch = self.any(depth - 1)
            kind = (
                branch
                if isinstance(branch, str)
                else ""
                if isinstance(branch, list)
                else branch["type"]
            )
            if isinstance(branch, list) or kind in names:
                continue
            if kind not in ("record", "enum", "fixed"):
                names.add(kind)
            branches.append(branch)
        return branches or ["null", "long"]

    def reader(self, writer: Json) -> Json:
        """Returns a random reader schema for values of the schema `writer`. Covers most kinds of
        schema evolution.
        """
        roll = self.random.random()
        if isinstance(writer, list):
            branches = [self.reader(branch) if roll < 0.3 else branch for branch in writer]
            if roll < 0.1:
                self.random.shuffle(branches)
            if roll > 0.95:
                return branches[-1]
            plain = [branch for branch in branches if not isinstance(branch, list)]
            kinds = [branch if isinstance(branch, str) else branch["type"] for branch in plain]
            twice = any(kinds.count(branch) > 1 for branch in kinds if branch in _PRIMITIVES)
            return writer if twice or not plain else plain
        if roll < 0.12 and writer != "null":
            return ["null", writer] if roll < 0.06 else [writer, "null"]
        if isinstance(writer, str):
            return (
                self.random.choice(PROMOTIONS[writer])
                if writer in PROMOTIONS and roll < 0.4
                else writer
            )
        changed = dict(writer)
        if changed["type"] in ("enum", "fixed", "record") and roll < 0.4:
            changed |= {"name": self._name("N"), "aliases": [writer["name"]]}
        if changed["type"] == "array":
            changed["items"] = self.reader(writer["items"])
        elif changed["type"] == "map":
            changed["values"] = self.reader(writer["values"])
        elif changed["type"] == "enum" and roll < 0.7:
            changed["symbols"] = ["CCC", "new", "A"]
            if roll > 0.5:
                changed["default"] = "new"
        elif changed["type"] == "record":
            changed["fields"] = self._fields(writer["fields"])
        return changed

    def _fields(self, fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
        fields_added = []
        for field in fields:
            roll = self.random.random()
            if roll < 0.15:
                continue
            kept = {"name": field["name"], "type": self.reader(field["type"])}
            if roll < 0.3:
                kept |= {"name": self._name("g"), "aliases": ["other", field["name"]]}
            fields_added.append(kept)
        while not fields_added or self.random.random() < 0.4:
            kind, default = self.random.choice(_DEFAULTS)
            fields_added.append({"name": self._name("d"), "type": kind, "default": default})
        if self.random.random() < 0.3:
            self.random.shuffle(fields_added)
        return fields_added


class Values:
    """Generates random values of a schema in Avro's binary encoding."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def long(self, value: int) -> bytes:
        """Returns the encoded number, sometimes with more bytes than necessary."""
        raw = value << 1 if value >= 0 else (-value << 1) - 1
        out = bytearray()
        while raw > 0x7F:
            out.append(raw & 0x7F | 0x80)
            raw >>= 7
        out.append(raw)
        if len(out) < 10 and self.random.random() < 0.05:
            more = self.random.randint(1, 10 - len(out))
            out[-1] |= 0x80
            out += bytes([0x80] * (more - 1) + [0])
        return bytes(out)

    def _number(self, bits: int) -> int:
        edge = 1 << bits
        choices = [0, -1, 1, 63, 64, -65, edge - 1, -edge, self.random.randrange(-edge, edge)]
        return self.random.choice(choices)

    def sized(self, data: bytes) -> bytes:
        """Returns the encoded length of the bytes, followed by the bytes."""
        return self.long(len(data)) + data

    def of(self, schema: Schema) -> bytes:
        """Returns a random value of `schema` in Avro's binary encoding."""
        random = self.random
        match schema:
            case s.Record():
                return b"".join(self.of(field.type) for field in schema.fields)
            case s.Union():
                index = random.randrange(len(schema.branches))
                return self.long(index) + self.of(schema.branches[index])
            case s.Enum():
                return self.long(random.randrange(len(schema.symbols)))
            case s.Array():
                return self._blocks(
                    [self.of(schema.items) for _ in range(random.choice([0, 1, 2, 5]))]
                )
            case s.Map():
                count = random.choice([0, 1, 3, 12])
                keys = [
                    random.choice(TEXTS).encode() + bytes([97 + random.randrange(9)])
                    for _ in range(count)
                ]
                return self._blocks([self.sized(key) + self.of(schema.values) for key in keys])
            case s.Fixed():
                return (
                    self._decimal(schema.size) if schema.logical else random.randbytes(schema.size)
                )
            case _:
                return self._primitive(schema)

    def _decimal(self, size: int) -> bytes:
        return self.random.randrange(-99, 100).to_bytes(size, "big", signed=True)

    def _primitive(self, schema: s.Primitive) -> bytes:
        random = self.random
        logical = schema.logical.name if schema.logical else ""
        match schema.kind:
            case "null":
                return b""
            case "boolean":
                return bytes([random.randrange(2)])
            case "int":
                return self.long(self._number(31))
            case "long":
                return self.long(self._number(52 if "millis" in logical else 63))
            case "float":
                return struct.pack("<f", random.choice([0.0, -0.0, 1.5, 3e38, 1e-40]))
            case "double":
                return struct.pack("<d", random.choice([0.0, -0.0, 0.1, 1e308, 5e-324]))
            case "bytes" if logical:
                size = random.choice([1, 2, 4, 16, 20])
                return self.sized(self._decimal(size)) if random.random() < 0.9 else self.long(0)
            case "bytes":
                return self.sized(random.choice([b"", b"\xff\x00", random.choice(TEXTS).encode()]))
            case _:
                return self.sized(random.choice(TEXTS).encode())

    def _blocks(self, items: list[bytes]) -> bytes:
        out = b""
        while items:
            count = self.random.randint(1, len(items))
            block = b"".join(items[:count])
            if self.random.random() < 0.4:
                out += self.long(-count) + self.long(len(block)) + block
            else:
                out += self.long(count) + block
            items = items[count:]
        return out + self.long(0)

    def damaged(self, data: bytes) -> bytes:
        """Returns the bytes with a random change, which is usually an error."""
        random = self.random
        if not data:
            return b"\x01"
        roll = random.random()
        if roll < 0.3:
            return data[: random.randrange(len(data))]
        if roll < 0.4:
            return data + random.randbytes(1)
        position = random.randrange(len(data))
        byte = random.choice([0, 1, 0x7F, 0x80, 0xFF, data[position] ^ 1 << random.randrange(8)])
        return data[:position] + bytes([byte]) + data[position + 1 :]
