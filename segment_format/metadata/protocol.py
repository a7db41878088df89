"""The wire types of Kafka's "flexible" messages that metadata records and custom metadata use.

    uvarint           7 bits a byte, least significant first, top bit: more follow; at most 5 bytes
    varlong           the same on up to 10 bytes, then zig-zag
    compact string    uvarint(byte length + 1), UTF-8 bytes; 0 = null
    compact bytes     uvarint(byte length + 1), bytes; 0 = null
    compact array     uvarint(count + 1), items; 0 = null
    uuid              16 bytes, big-endian
    tagged fields     uvarint count; per field: uvarint tag (ascending), uvarint byte length, bytes

Source: `org.apache.kafka.common.protocol.ByteBufferAccessor`, `ByteUtils`, `types.TaggedFields`,
KIP-482.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segment_format._cursor import Cursor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segment_format.errors import SegmentFormatError

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


class MessageReader(Cursor):
    """A cursor over a message.

    Args:
        data: The message.
        error: Class to raise for bytes that are not a message.
        origin: Position of the message in the buffer that errors speak of.
    """

    __slots__ = ()

    def __init__(self, data: bytes, error: type[SegmentFormatError], *, origin: int = 0) -> None:
        super().__init__(memoryview(data), error=error, origin=origin)

    def uuid(self, what: str) -> uuid.UUID:
        """16 bytes as an id."""
        return uuid.UUID(bytes=bytes(self.take(16, what)))

    def uvarint(self, what: str) -> int:
        """An unsigned number of at most 31 bits; larger ones stand for no length, count or tag."""
        value = self._unsigned(what, 5)
        if value > MAX_INT32:
            raise self.fail(f"{what}: {value} is larger than 2^31−1")
        return value

    def compact_bytes(self, what: str) -> bytes | None:
        """Length-prefixed bytes, or None for null."""
        length = self.uvarint(f"{what} length")
        return bytes(self.take(length - 1, what)) if length else None

    def compact_string(self, what: str) -> str:
        """Length-prefixed UTF-8 text; null is an error."""
        data = self.compact_bytes(what)
        if data is None:
            raise self.fail(f"{what}: null where a text is required")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what}: text that is not UTF-8") from error

    def compact_array_length(self, what: str, *, min_item_bytes: int) -> int:
        """Number of items of an array, refused when the bytes left cannot hold that many."""
        count = self.uvarint(f"number of {what}") - 1
        if count < 0:
            raise self.fail(f"{what}: null where an array is required")
        if count * min_item_bytes > self.remaining:
            raise self.fail(f"{what}: array of {count} items in {self.remaining} bytes")
        return count

    def tagged_fields(self) -> tuple[TaggedField, ...]:
        """A tagged-field section, in ascending order of tags."""
        return tuple(field for _, field in self.located_tagged_fields())

    def located_tagged_fields(self) -> Iterator[tuple[int, TaggedField]]:
        """The same, each with the position of its data in the buffer."""
        count = self.uvarint("number of tagged fields")
        if 2 * count > self.remaining:
            raise self.fail(f"{count} tagged fields in {self.remaining} bytes")
        previous = -1
        for _ in range(count):
            tag = self.uvarint("tag")
            if tag <= previous:
                raise self.fail(f"tag {tag} after tag {previous}")
            data = bytes(self.take(self.uvarint("tagged field length"), "tagged field"))
            yield self.origin + self.position - len(data), TaggedField(tag, data)
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


def write_tagged_fields(fields: tuple[TaggedField, ...]) -> bytes:
    """A tagged-field section, sorted by tag."""
    out = bytearray(write_uvarint(len(fields)))
    for field in sorted(fields, key=lambda field: field.tag):
        out += write_uvarint(field.tag) + write_uvarint(len(field.data)) + field.data
    return bytes(out)
