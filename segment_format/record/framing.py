"""Iterates over the entries of a log. A log is the concatenation of its entries.

Every entry of every magic begins with the same 17 bytes:

| position | size | field |
|---:|---:|---|
| 0 | 8 | offset i64: of the first record (magic 2), or of the last message in it (magic 0 and 1) |
| 8 | 4 | size i32: bytes after this field |
| 12 | 4 | partition leader epoch (magic 2), CRC (magic 0 and 1) |
| 16 | 1 | magic i8 |

A log in use may end with an incomplete entry, so Kafka's readers stop there without an error. A
tiered segment is complete, so this module raises an error.

Source: `ByteBufferLogInputStream`, `RemoteLogInputStream` in Kafka.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from segment_format._cursor import byte_view
from segment_format.errors import CorruptRecordError, TruncatedBatchError, UnsupportedMagicError
from segment_format.record.batch_header import LENGTH_PREFIX_SIZE, MIN_BATCH_LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segment_format._cursor import BytesLike

ENTRY_PREFIX_SIZE: Final = 17
"""Bytes of an entry up to its magic (inclusive)."""
MIN_ENTRY_LENGTH: Final = (14, 22, MIN_BATCH_LENGTH)
"""Smallest value of the size field, by magic."""

_PREFIX = struct.Struct(">qiib")


@dataclass(frozen=True, slots=True)
class Entry:
    """Position and size of one entry, and two fields of its first 17 bytes.

    Attributes:
        position: Position of the first byte of the entry in the buffer.
        offset: The stored offset field; its meaning depends on `magic`.
        magic: 0, 1 or 2.
    """

    position: int
    size: int
    offset: int
    magic: int

    @property
    def stop(self) -> int:
        """Position after the entry."""
        return self.position + self.size


def read_prefix(buffer: BytesLike, position: int = 0, *, at: int | None = None) -> Entry:
    """Parses the first 17 bytes of an entry. The buffer may end before the rest of the entry.

    Args:
        buffer: Buffer that contains at least the first 17 bytes of the entry.
        position: Position of the first byte of the entry in `buffer`.
        at: Position of the entry in the log, for the returned entry and for errors. Default:
            `position`.

    Raises:
        TruncatedBatchError: Fewer than 17 bytes are left.
        UnsupportedMagicError: The magic is not 0, 1 or 2.
        CorruptRecordError: The size is below the minimum of the entry's magic, for example because
            the end of the file is filled with zeros.
    """
    view = byte_view(buffer)
    where = position if at is None else at
    left = len(view) - position
    if position < 0 or left < ENTRY_PREFIX_SIZE:
        raise TruncatedBatchError(
            f"{max(0, left)} bytes are left, but an entry begins with {ENTRY_PREFIX_SIZE} bytes",
            position=where,
        )
    offset, length, _, magic = _PREFIX.unpack_from(view, position)
    if length < MIN_ENTRY_LENGTH[0]:
        raise CorruptRecordError(
            f"entry length {length} is below {MIN_ENTRY_LENGTH[0]}", position=where, offset=offset
        )
    if not 0 <= magic <= 2:
        raise UnsupportedMagicError(f"unknown magic {magic}", position=where, offset=offset)
    if length < MIN_ENTRY_LENGTH[magic]:
        raise CorruptRecordError(
            f"entry length {length} is below the minimum of magic {magic}, "
            f"{MIN_ENTRY_LENGTH[magic]}",
            position=where,
            offset=offset,
        )
    return Entry(where, LENGTH_PREFIX_SIZE + length, offset, magic)


def read_entry(buffer: BytesLike, position: int) -> Entry:
    """Returns the position, size and prefix of the entry that begins at `position`. Checks that the
    entry is complete.

    Raises:
        TruncatedBatchError: The entry runs past the end of the buffer.
        UnsupportedMagicError: See `read_prefix`.
        CorruptRecordError: See `read_prefix`.
    """
    view = byte_view(buffer)
    entry = read_prefix(view, position)
    left = len(view) - position
    if entry.size > left:
        raise TruncatedBatchError(
            f"the entry has {entry.size} bytes, but only {left} bytes are left",
            position=position,
            offset=entry.offset,
        )
    return entry


def iter_entries(buffer: BytesLike, *, position: int = 0) -> Iterator[Entry]:
    """Yields every entry from `position` to the end of `buffer`. Reads only the first 17 bytes of
    each entry.

    Args:
        buffer: Complete entries, one after the other.
        position: Position of the first entry to yield.

    Raises:
        TruncatedBatchError: The last entry is not complete.
        UnsupportedMagicError: The magic is not 0, 1 or 2.
        CorruptRecordError: A size is below the minimum of its magic.
    """
    view = byte_view(buffer)
    end = len(view)
    while position < end:
        entry = read_entry(view, position)
        yield entry
        position = entry.stop
