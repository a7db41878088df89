"""Reads the wire types of Kafka's flexible messages (KIP-482), as in metadata records.

    uvarint           7 bits a byte, least significant first, top bit: more follow; at most 5 bytes
    varlong           the same on up to 10 bytes, then zig-zag
    compact string    uvarint(byte length + 1), UTF-8 bytes; 0 = null
    compact bytes     uvarint(byte length + 1), bytes; 0 = null
    compact array     uvarint(count + 1), items; 0 = null
    uuid              16 bytes, big-endian
    tagged fields     uvarint count; per field: uvarint tag (ascending), uvarint byte length, bytes

Source: `org.apache.kafka.common.protocol.ByteBufferAccessor`, `ByteUtils`, `types.TaggedFields`.
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
    """A tagged field: its number, 0 … 2^31−1, and its bytes without the length."""

    tag: int
    data: bytes


class MessageReader(Cursor):
    """Reads a message field by field; see `Cursor` for the arguments."""

    __slots__ = ()

    def __init__(self, data: bytes, error: type[SegmentFormatError], *, origin: int = 0) -> None:
        super().__init__(memoryview(data), error=error, origin=origin)

    def uuid(self, what: str) -> uuid.UUID:
        """Reads 16 bytes as an id."""
        return uuid.UUID(bytes=bytes(self.take(16, what)))

    def uvarint(self, what: str) -> int:
        """Reads an unsigned number of at most 31 bits: a length, a count or a tag."""
        value = self._unsigned(what, 5)
        if value > MAX_INT32:
            raise self.fail(f"{what}: {value} is larger than 2^31−1")
        return value

    def compact_bytes(self, what: str) -> bytes | None:
        """Reads length-prefixed bytes; returns `None` for null."""
        length = self.uvarint(f"{what} length")
        return bytes(self.take(length - 1, what)) if length else None

    def compact_string(self, what: str) -> str:
        """Reads length-prefixed UTF-8 text; null is an error."""
        data = self.compact_bytes(what)
        if data is None:
            raise self.fail(f"{what}: null where text is required")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what}: invalid UTF-8") from error

    def compact_array_length(self, what: str, *, min_item_bytes: int) -> int:
        """Reads the length of an array and checks that the bytes left can hold it."""
        count = self.uvarint(f"number of {what}") - 1
        if count < 0:
            raise self.fail(f"{what}: null where an array is required")
        if count * min_item_bytes > self.remaining:
            raise self.fail(f"{what}: array of {count} items in {self.remaining} bytes")
        return count

    def tagged_fields(self) -> tuple[TaggedField, ...]:
        """Reads a section of tagged fields, which ascend by tag."""
        return tuple(field for _, field in self.located_tagged_fields())

    def located_tagged_fields(self) -> Iterator[tuple[int, TaggedField]]:
        """Yields tagged fields, each with the position of its data in the buffer."""
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
        """Checks that no bytes follow the message."""
        if self.remaining:
            raise self.fail(f"{self.remaining} bytes after the end of the message")


def write_uvarint(value: int) -> bytes:
    """Returns the shortest varint of an unsigned number."""
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_varlong(value: int) -> bytes:
    """Returns the zig-zag varint of a signed 64-bit number."""
    return write_uvarint(((value << 1) ^ (value >> 63)) & 0xFFFF_FFFF_FFFF_FFFF)
