"""Protobuf's wire format, read plainly: for descriptors and message indexes, not for values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
GROUP: Final = 3
END_GROUP: Final = 4
FIXED32: Final = 5
_SIZES: Final = {FIXED64: 8, FIXED32: 4}
_MOST_VARINT_BYTES: Final = 10
_MASK_64: Final = 2**64 - 1


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned 64-bit number, and where the next thing begins.

    Raises:
        ValueError: It does not end within ten bytes, or the data do.
    """
    value = 0
    for index, byte in enumerate(data[at : at + _MOST_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & _MASK_64, at + index + 1
    raise ValueError(f"no whole number at byte {at}")


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a message: a number for varints, else bytes.

    Raises:
        ValueError: No message, or one with groups.
    """
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == VARINT:
            value, at = read_varint(data, at)
            yield number, value
            continue
        if wire == BYTES:
            size, at = read_varint(data, at)
        elif wire in _SIZES:
            size = _SIZES[wire]
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if size > len(data) - at:
            raise ValueError(f"{size} bytes at byte {at} go beyond the end")
        yield number, data[at : at + size]
        at += size
