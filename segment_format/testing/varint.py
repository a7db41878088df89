"""Varints as Kafka writes them: 7 bits a byte, least significant first, zig-zag for signed values.

Source: `org.apache.kafka.common.utils.ByteUtils`.
"""

from __future__ import annotations

_INT32_MASK = (1 << 32) - 1
_INT64_MASK = (1 << 64) - 1


def write_uvarint(value: int) -> bytes:
    """The unsigned varint of `value`.

    Raises:
        ValueError: `value` is negative.
    """
    if value < 0:
        raise ValueError(f"an unsigned varint cannot hold {value}")
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_varint(value: int) -> bytes:
    """The zig-zag varint of a 32-bit `value`: at most 5 bytes.

    Raises:
        ValueError: `value` does not fit 32 signed bits.
    """
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"{value} does not fit 32 bits")
    return write_uvarint(((value << 1) ^ (value >> 31)) & _INT32_MASK)


def write_varlong(value: int) -> bytes:
    """The zig-zag varint of a 64-bit `value`: at most 10 bytes.

    Raises:
        ValueError: `value` does not fit 64 signed bits.
    """
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} does not fit 64 bits")
    return write_uvarint(((value << 1) ^ (value >> 63)) & _INT64_MASK)
