"""Generates random Protobuf message types and encodes values in every form that the wire format
allows.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from google.protobuf import descriptor_pb2

from tests.segment_format.values.protobuf.oracle import WELL_KNOWN, Proto

if TYPE_CHECKING:
    from random import Random

PACKAGE = "t"
_NAMES = ("Timestamp", "Duration", "Int64Value", "StringValue", "BoolValue", "DoubleValue")
_PLAIN = [kind for kind in range(1, 19) if kind not in (10, 11, 14)]
_KEYS = [kind for kind in _PLAIN if kind not in (1, 2, 12)]
_VARINTS = (3, 4, 5, 8, 13, 14, 17, 18)
_WIRES = {**dict.fromkeys(_VARINTS, 0), **dict.fromkeys((1, 6, 16), 1), 10: 3} | dict.fromkeys(
    (2, 7, 15), 5
)
_DEFAULTS = {
    1: "-1.5",
    2: "inf",
    4: "18446744073709551615",
    7: "4294967295",
    8: "true",
    9: "é",
    12: r"a\000\377\"",
    **{kind: str(kind) for kind in (3, 5, 6, 13, 15, 16, 17, 18)},
}
_TEXTS = ("", "a", "Zürich", "x" * 40, "\0", "日本語のテキ", "twelve bytes", "seventeen bytes!!")
_BAD_TEXTS = (b"\xff", b"abcdefgh\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80")
_UNKNOWN = (77_777, 199_999)
_EDGES = (0, 1, 127, 128, 300, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)


def random_file(random: Random) -> Proto:
    """Returns a file whose last message, `t.Top`, uses only messages without reference cycles."""
    is_proto3 = random.random() < 0.5
    file = descriptor_pb2.FileDescriptorProto(
        name="t.proto", package=PACKAGE, syntax="proto3" if is_proto3 else "proto2"
    )
    file.dependency.extend(well_known_file.name for well_known_file in WELL_KNOWN)
    enum = file.enum_type.add(name="E")
    for name, number in (("ZERO", 0), ("ONE", 1), ("MINUS", -5), ("BIG", 2**31 - 1), ("UNO", 1)):
        enum.value.add(name=name, number=number)
    enum.options.allow_alias = True
    names = [*(f"M{index}" for index in range(random.randrange(4))), "Top"]
    for index, name in enumerate(names):
        _add_message(file.message_type, name, names[:index], is_proto3, random)
    return file


def _add_message(
    messages: Proto,
    name: str,
    other_messages: list[str],
    is_proto3: bool,
    random: Random,
    scope: str = "",
) -> None:
    message = messages.add(name=name)
    full = f".{PACKAGE}.{scope}{name}"
    count = random.choice((0, 1, 3, 6, 9)) if scope or name != "Top" else random.randrange(1, 12)
    numbers = random.sample([*range(1, 20), 99, 2047, 2048, 70_000, 2**29 - 1], count)
    oneofs = 0
    optional: list[Proto] = []
    for index, number in enumerate(numbers):
        field = message.field.add(name=f"f{index}", number=number, label=1)
        shape = random.random()
        if shape < 0.12:
            entry = message.nested_type.add(name=f"F{index}Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=1, type=random.choice(_KEYS))
            _set_type(entry.field.add(name="value", number=2, label=1), other_messages, random)
            field.type, field.type_name, field.label = 11, f"{full}.F{index}Entry", 3
            continue
        if not is_proto3 and shape < 0.2 and not scope:
            field.type, field.type_name = 10, f"{full}.G{index}"
            field.label = random.choice((1, 3))
            field.name = f"g{index}"
            _add_message(
                message.nested_type, f"G{index}", other_messages, False, random, f"{name}."
            )
            continue
        _set_type(field, other_messages, random)
        if shape < 0.4:
            field.label = 3
        elif shape < 0.6:
            if not oneofs or random.random() < 0.3:
                message.oneof_decl.add(name=f"o{oneofs}")
                oneofs += 1
            field.oneof_index = oneofs - 1
        elif is_proto3:
            if shape < 0.75 and field.type != 11:
                field.proto3_optional = True
                optional.append(field)
        elif shape < 0.7:
            field.label = 2
        elif shape < 0.85 and field.type in _DEFAULTS:
            field.default_value = _DEFAULTS[field.type]
        elif field.type == 14 and shape < 0.85:
            field.default_value = "UNO"
    for field in optional:  # protoc puts these oneofs last
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{field.name}")


def _set_type(field: Proto, other_messages: list[str], random: Random) -> None:
    choice = random.random()
    if choice < 0.25 and other_messages:
        field.type, field.type_name = 11, f".{PACKAGE}.{random.choice(other_messages)}"
    elif choice < 0.35:
        field.type, field.type_name = 11, f".google.protobuf.{random.choice(_NAMES)}"
    elif choice < 0.45:
        field.type, field.type_name = 14, f".{PACKAGE}.E"
    else:
        field.type = random.choice(_PLAIN)


class Writer:
    """Encodes random values of a file's messages.

    Args:
        file: A file from `random_file`.
        random: The source of randomness.
        faults: Share of strings that are not UTF-8, from 0 to 1.
    """

    def __init__(self, file: Proto, random: Random, faults: float = 0.0) -> None:
        self._random = random
        self._faults = faults
        self._messages: dict[str, Proto] = {}
        for well_known_file in WELL_KNOWN:
            proto = descriptor_pb2.FileDescriptorProto()
            well_known_file.CopyToProto(proto)
            self._know(proto.message_type, ".google.protobuf.")
        self._know(file.message_type, f".{PACKAGE}.")

    def _know(self, messages: Proto, scope: str) -> None:
        for message in messages:
            self._messages[scope + message.name] = message
            self._know(message.nested_type, f"{scope}{message.name}.")

    def value(self, name: str = f".{PACKAGE}.Top", depth: int = 0) -> bytes:
        """Returns a random encoded message of the type `name`. It contains known and unknown fields
        in random order, some of them repeatedly.
        """
        random = self._random
        fields = self._messages[name].field
        encoded_fields = [b""]
        for _ in range(random.choice((0, 1, 2, 4, 8) if depth < 3 else (0, 1))):
            if fields and random.random() < 0.9:
                encoded_fields.append(self._field(random.choice(fields), depth))
            else:
                encoded_fields.append(self._unknown(random.choice(_UNKNOWN), depth))
        return b"".join(encoded_fields)

    def _field(self, field: Proto, depth: int) -> bytes:
        random = self._random
        wire = _WIRES.get(field.type, 2)
        if random.random() < 0.04:  # a field of another wire type counts as unknown
            wire_types = [0, 1, 3, 5]
            if field.label != 3 or field.type in (9, 10, 11, 12):
                wire_types.append(2)
            return self._unknown(
                field.number, depth, random.choice([other for other in wire_types if other != wire])
            )
        if field.label == 3 and field.type not in (9, 10, 11, 12) and random.random() < 0.5:
            data = b"".join(self._plain(field.type) for _ in range(random.choice((0, 1, 2, 30))))
            return self._tag(field.number, 2) + self._size(len(data)) + data
        if field.type == 10:
            inner = self.value(field.type_name, depth + 1)
            return self._tag(field.number, 3) + inner + self._tag(field.number, 4)
        if field.type == 11:
            data = self.value(field.type_name, depth + 1)
        elif field.type in (9, 12):
            data = random.choice(_TEXTS).encode()
            if random.random() < self._faults:
                data = random.choice(_BAD_TEXTS)
        else:
            return self._tag(field.number, wire) + self._plain(field.type)
        return self._tag(field.number, 2) + self._size(len(data)) + data

    def _plain(self, kind: int) -> bytes:
        random = self._random
        if kind == 14:
            return self._varint(random.choice((0, 1, 2**64 - 5, 2**31 - 1, 7, 2**32 + 1)), 10)
        if kind in _VARINTS:
            number = random.choice((random.getrandbits(8), random.choice(_EDGES)))
            return self._varint(number, 10)
        if kind in (1, 2):
            return struct.pack(
                "<d" if kind == 1 else "<f", random.choice((0.0, -0.0, 1.5, float("nan"), -1e30))
            )
        return random.randbytes(8 if _WIRES[kind] == 1 else 4)

    def _unknown(self, number: int, depth: int, wire: int | None = None) -> bytes:
        random = self._random
        if wire is None:
            wire = random.choice((0, 1, 2, 3, 5))
        tag = self._tag(number, wire)
        if wire == 0:
            return tag + self._varint(random.choice(_EDGES), 10)
        if wire == 2:
            data = random.randbytes(random.randrange(5))
            return tag + self._size(len(data)) + data
        if wire == 3:
            inner = self._unknown(random.choice(_UNKNOWN), depth + 1) if depth < 5 else b""
            return tag + inner + self._tag(number, 4)
        return tag + random.randbytes(8 if wire == 1 else 4)

    def _tag(self, number: int, wire: int) -> bytes:
        return self._varint(number << 3 | wire, 5)

    def _size(self, size: int) -> bytes:
        return self._varint(size, 5)

    def _varint(self, number: int, max_size: int) -> bytes:
        """Returns a varint of at most `max_size` bytes, sometimes longer than necessary."""
        data = bytearray()
        while number > 0x7F:
            data.append(number & 0x7F | 0x80)
            number >>= 7
        data.append(number)
        if self._random.random() < 0.1:
            while len(data) < self._random.randrange(1, max_size + 1):
                data[-1] |= 0x80
                data.append(0)
        return bytes(data)
