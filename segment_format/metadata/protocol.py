"""The wire types of Kafka's "flexible" messages that metadata records and custom metadata use.

    uvarint           7 bits a byte, least significant first, top bit = continuation; at most 5
                      bytes
    varlong           the same on up to 10 bytes, then zig-zag
    compact string    uvarint(byte length + 1), UTF-8 bytes; 0 = null
    compact bytes     uvarint(byte length + 1), bytes; 0 = null
    compact array     uvarint(count + 1), items; 0 = null
    uuid              16 bytes, big-endian
    tagged fields     uvarint count, then per field: uvarint tag (ascending), uvarint byte length,
                      bytes

Source: `org.apache.kafka.common.protocol.ByteBufferAccessor`, `ByteUtils`, `types.TaggedFields`,
KIP-482.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segment_format.errors import SegmentFormatError

_I8 = struct.Struct(">b")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")
MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class TaggedField:
    """A tagged field this code does not know, kept so that it can be written back.

    Attributes:
        tag: Number of the field, 0 … 2^31−1.
        data: Its bytes, without the length.
    """

    tag: int
    data: bytes


class MessageReader:
    """A position in a message; every read checks the bytes that are left first.

    Args:
        data: The message.
        error: Class to raise for bytes that are not a message.
        origin: Position of the message in the buffer that errors speak of.
    """

    __slots__ = ("_data", "_error", "_origin", "position")

    def __init__(self, data: bytes, error: type[SegmentFormatError], *, origin: int = 0) -> None:
        self._data = data
        self._error = error
        self._origin = origin
        self.position = 0

    @property
    def remaining(self) -> int:
        """Number of bytes not read yet."""
        return len(self._data) - self.position

    def fail(self, message: str) -> SegmentFormatError:
        """The error to raise, with the current position."""
        return self._error(message, position=self._origin + self.position)

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        if size < 0 or size > self.remaining:
            raise self.fail(f"{size} bytes expected, {self.remaining} left")
        start = self.position
        self.position = start + size
        return self._data[start : self.position]

    def int8(self) -> int:
        """A signed byte."""
        return int(_I8.unpack(self.take(1))[0])

    def int32(self) -> int:
        """A signed 32-bit number."""
        return int(_I32.unpack(self.take(4))[0])

    def int64(self) -> int:
        """A signed 64-bit number."""
        return int(_I64.unpack(self.take(8))[0])

    def uuid(self) -> uuid.UUID:
        """16 bytes as an id."""
        return uuid.UUID(bytes=self.take(16))

    def uvarint(self) -> int:
        """An unsigned number of at most 31 bits; larger ones stand for no length, count or tag."""
        value = self._groups(max_bytes=5)
        if value > MAX_INT32:
            raise self.fail(f"number {value} is larger than 2^31−1")
        return value

    def varlong(self) -> int:
        """A zig-zag number of at most 64 bits."""
        value = self._groups(max_bytes=10) & 0xFFFF_FFFF_FFFF_FFFF
        return (value >> 1) ^ -(value & 1)

    def _groups(self, *, max_bytes: int) -> int:
        value = 0
        for group in range(max_bytes):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * group)
            if byte < 0x80:
                return value
        raise self.fail(f"variable-length number of more than {max_bytes} bytes")

    def compact_bytes(self) -> bytes | None:
        """Length-prefixed bytes, or None for null."""
        length = self.uvarint()
        return self.take(length - 1) if length else None

    def compact_string(self) -> str:
        """Length-prefixed UTF-8 text; null is an error."""
        data = self.compact_bytes()
        if data is None:
            raise self.fail("null where a text is required")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail("text that is not UTF-8") from error

    def compact_array_length(self, *, min_item_bytes: int) -> int:
        """Number of items of an array, refused when the bytes left cannot hold that many."""
        count = self.uvarint() - 1
        if count < 0:
            raise self.fail("null where an array is required")
        if count * min_item_bytes > self.remaining:
            raise self.fail(f"array of {count} items in {self.remaining} bytes")
        return count

    def tagged_fields(self) -> tuple[TaggedField, ...]:
        """A tagged-field section, in ascending order of tags."""
        return tuple(field for _, field in self.located_tagged_fields())

    def located_tagged_fields(self) -> Iterator[tuple[int, TaggedField]]:
        """The same, each with the position of its data in the buffer."""
        count = self.uvarint()
        if 2 * count > self.remaining:
            raise self.fail(f"{count} tagged fields in {self.remaining} bytes")
        previous = -1
        for _ in range(count):
            tag = self.uvarint()
            if tag <= previous:
                raise self.fail(f"tag {tag} after tag {previous}")
            data = self.take(self.uvarint())
            yield self._origin + self.position - len(data), TaggedField(tag, data)
            previous = tag

    def expect_end(self) -> None:
        """Refuses bytes after the message."""
        if self.remaining:
            raise self.fail(f"{self.remaining} bytes after the end of the message")


def write_uvarint(value: int) -> bytes:
    """An unsigned number in the least number of bytes."""
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_varlong(value: int) -> bytes:
    """A signed number of at most 64 bits, zig-zag."""
    return write_uvarint(((value << 1) ^ (value >> 63)) & 0xFFFF_FFFF_FFFF_FFFF)


def write_compact_bytes(value: bytes | None) -> bytes:
    """Length-prefixed bytes; None is null."""
    return b"\0" if value is None else write_uvarint(len(value) + 1) + value


def write_compact_string(value: str) -> bytes:
    """Length-prefixed UTF-8 text."""
    return write_compact_bytes(value.encode("utf-8"))


def write_int8(value: int) -> bytes:
    """A signed byte."""
    return _I8.pack(value)


def write_int32(value: int) -> bytes:
    """A signed 32-bit number."""
    return _I32.pack(value)


def write_int64(value: int) -> bytes:
    """A signed 64-bit number."""
    return _I64.pack(value)


def write_tagged_fields(fields: tuple[TaggedField, ...]) -> bytes:
    """A tagged-field section, sorted by tag."""
    out = bytearray(write_uvarint(len(fields)))
    for field in sorted(fields, key=lambda field: field.tag):
        out += write_uvarint(field.tag) + write_uvarint(len(field.data)) + field.data
    return bytes(out)
