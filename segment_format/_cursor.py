"""Reads untrusted bytes with cursors that check every read.

Every parser of `segment_format` takes `bytes`, `bytearray`, `memoryview` or a contiguous numpy
array, and views it through `byte_view` without a copy. `Cursor` reads the data types of records.
`MessageReader` also reads the data types of Kafka's flexible messages (KIP-482):

    uvarint           7 bits a byte, least significant first, top bit: more follow; at most 5 bytes
    varlong           like uvarint, at most 10 bytes, then zig-zag
    compact string    uvarint(byte length + 1), UTF-8 bytes; 0 = null
    compact bytes     uvarint(byte length + 1), bytes; 0 = null
    compact array     uvarint(count + 1), items; 0 = null
    uuid              16 bytes, big-endian
    tagged fields     uvarint count; per field: uvarint tag (ascending), uvarint byte length, bytes

Source: `ByteUtils`, `ByteBufferAccessor`, `types.TaggedFields` in `org.apache.kafka.common`.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from segment_format.errors import CorruptIndexError, CorruptRecordError, SegmentFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

BytesLike: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]
"""Types that parsers accept."""

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")

MAX_INT32 = 2**31 - 1
_MASK_32 = 0xFFFF_FFFF
_MASK_64 = 0xFFFF_FFFF_FFFF_FFFF


def byte_view(buffer: BytesLike) -> memoryview:
    """Returns a one-dimensional view of the bytes of `buffer`, without a copy.

    Raises:
        TypeError: `buffer` has no buffer interface or is not contiguous.
    """
    view = memoryview(buffer)  # type: ignore[arg-type]  # numpy arrays have the buffer interface
    return view if view.format == "B" and view.ndim == 1 and view.contiguous else view.cast("B")


def whole_entries(data: BytesLike, entry_size: int, what: str) -> memoryview:
    """Returns a view of the bytes of an index. Raises `CorruptIndexError`, with the index named
    `what`, if the last entry is incomplete.
    """
    view = byte_view(data)
    if rest := len(view) % entry_size:
        raise CorruptIndexError(
            f"{what} has {len(view)} bytes, which is not a multiple of the entry size of"
            f" {entry_size} bytes",
            position=len(view) - rest,
        )
    return view


def wrap_i64(value: int) -> int:
    """Wraps a number to a signed 64-bit integer, like an overflow of Java's `long`."""
    value &= _MASK_64
    return value - (1 << 64) if value >> 63 else value


class ArrayValue:
    """Base class that adds equality to frozen dataclasses with array fields. Subclasses must be
    declared with `eq=False`.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # arrays inside

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, field.name), getattr(other, field.name))
            for field in fields(self)  # type: ignore[arg-type]  # subclasses are dataclasses
        )


class Cursor:
    """Reads values from bytes `[position, stop)` of a view, and checks that each value is complete.
    In all methods, `what` is the name of the value in errors.

    Args:
        view: One-dimensional byte view, see `byte_view`.
        position: First byte to read.
        stop: End of the readable bytes, exclusive; `None` means the end of `view`.
        error: Class of the errors that are raised if the bytes end too early or are malformed.
        origin: Number that is added to a position in `view` to get the position in an error.
    """

    __slots__ = ("error", "origin", "position", "stop", "view")

    def __init__(
        self,
        view: memoryview,
        position: int = 0,
        stop: int | None = None,
        *,
        error: type[SegmentFormatError] = CorruptRecordError,
        origin: int = 0,
    ) -> None:
        self.view = view
        self.position = position
        self.stop = len(view) if stop is None else stop
        self.error = error
        self.origin = origin

    @property
    def remaining(self) -> int:
        """Number of bytes that were not read yet."""
        return self.stop - self.position

    def fail(self, message: str) -> SegmentFormatError:
        """Returns an error at the current position. The caller raises it."""
        return self.error(message, position=self.origin + self.position)

    def take(self, size: int, what: str) -> memoryview:
        """Reads the next `size` bytes and returns a view of them."""
        if size < 0 or size > self.remaining:
            raise self.fail(f"{what}: {size} bytes wanted, but only {self.remaining} are left")
        start = self.position
        self.position = start + size
        return self.view[start : start + size]

    def _fixed(self, layout: struct.Struct, what: str) -> int:
        start = self.position
        if layout.size > self.stop - start:
            raise self.fail(
                f"{what}: {layout.size} bytes wanted, but only {self.remaining} are left"
            )
        self.position = start + layout.size
        value: int = layout.unpack_from(self.view, start)[0]
        return value

    def i8(self, what: str) -> int:
        """Reads a signed byte."""
        if self.position >= self.stop:
            raise self.fail(f"{what}: 1 byte wanted, but none is left")
        value = self.view[self.position]
        self.position += 1
        return value - 256 if value > 127 else value

    def i16(self, what: str) -> int:
        """Reads a big-endian signed 16-bit integer."""
        return self._fixed(_I16, what)

    def i32(self, what: str) -> int:
        """Reads a big-endian signed 32-bit integer."""
        return self._fixed(_I32, what)

    def i64(self, what: str) -> int:
        """Reads a big-endian signed 64-bit integer."""
        return self._fixed(_I64, what)

    def _unsigned(self, what: str, max_bytes: int) -> int:
        view, start = self.view, self.position
        end = min(start + max_bytes, self.stop)
        value = shift = 0
        for position in range(start, end):
            byte = view[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.position = position + 1
                return value
            shift += 7
        self.position = end
        if end < start + max_bytes:
            raise self.fail(f"{what}: the varint runs past the end")
        raise self.fail(f"{what}: varint longer than {max_bytes} bytes")

    def varint(self, what: str) -> int:
        """Reads a zig-zag 32-bit integer of at most 5 bytes (`ByteUtils.readVarint`).

        Like Kafka, this ignores bits of the fifth byte that do not fit into 32 bits.
        """
        raw = self._unsigned(what, 5) & _MASK_32
        return (raw >> 1) ^ -(raw & 1)

    def varlong(self, what: str) -> int:
        """Reads a zig-zag 64-bit integer of at most 10 bytes (`ByteUtils.readVarlong`)."""
        raw = self._unsigned(what, 10) & _MASK_64
        return (raw >> 1) ^ -(raw & 1)


@dataclass(frozen=True, slots=True)
class TaggedField:
    """A tagged field: its tag (0 … 2^31−1), and the bytes of its value."""

    tag: int
    data: bytes


class MessageReader(Cursor):
    """Reads a message field by field. Arguments: see `Cursor`."""

    __slots__ = ()

    def __init__(self, data: bytes, error: type[SegmentFormatError], *, origin: int = 0) -> None:
        super().__init__(memoryview(data), error=error, origin=origin)

    def uuid(self, what: str) -> uuid.UUID:
        """Reads 16 bytes as a UUID."""
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
        """Reads the number of items of an array. Checks that the remaining bytes can contain that
        many items of at least `min_item_bytes` bytes.
        """
        count = self.uvarint(f"number of {what}") - 1
        if count < 0:
            raise self.fail(f"{what}: null where an array is required")
        if count * min_item_bytes > self.remaining:
            raise self.fail(f"{what}: {count} items do not fit into {self.remaining} bytes")
        return count

    def tagged_fields(self) -> tuple[TaggedField, ...]:
        """Reads a section of tagged fields. Raises an error if the tags do not ascend."""
        return tuple(field for _, field in self.located_tagged_fields())

    def located_tagged_fields(self) -> Iterator[tuple[int, TaggedField]]:
        """Yields two values for each tagged field of a section: the position of the field's value
        in the buffer, and the field.
        """
        count = self.uvarint("number of tagged fields")
        if 2 * count > self.remaining:
            raise self.fail(f"{count} tagged fields do not fit into {self.remaining} bytes")
        previous = -1
        for _ in range(count):
            tag = self.uvarint("tag")
            if tag <= previous:
                raise self.fail(f"tag {tag} follows tag {previous}: tags must ascend")
            data = bytes(self.take(self.uvarint("tagged field length"), "tagged field"))
            yield self.origin + self.position - len(data), TaggedField(tag, data)
            previous = tag

    def expect_end(self) -> None:
        """Raises an error if bytes follow the message."""
        if self.remaining:
            raise self.fail(f"{self.remaining} bytes after the end of the message")


def write_uvarint(value: int) -> bytes:
    """Encodes an unsigned number as a varint with as few bytes as possible."""
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_varlong(value: int) -> bytes:
    """Encodes a signed 64-bit number as a zig-zag varint."""
    return write_uvarint(((value << 1) ^ (value >> 63)) & 0xFFFF_FFFF_FFFF_FFFF)
