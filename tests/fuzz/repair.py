"""Corrects the checksums of mutated inputs, so that parsers do not reject them for a wrong CRC."""

from __future__ import annotations

import struct
import zlib

import google_crc32c


def repaired_batches(data: bytes) -> bytes:
    """Returns a copy of a log in which the CRC of each record batch is correct.

    Stops at the first batch with an invalid length; the bytes from there on are not changed.
    """
    changed = bytearray(data)
    position = 0
    while position + 17 <= len(changed):
        stop = position + 12 + int.from_bytes(changed[position + 8 : position + 12], "big")
        magic = changed[position + 16]
        if stop > len(changed) or stop < position + 26:
            break
        if magic == 2 and stop >= position + 61:
            crc = google_crc32c.value(bytes(changed[position + 21 : stop]))
            struct.pack_into(">I", changed, position + 17, crc)
        elif magic < 2:
            struct.pack_into(
                ">I", changed, position + 12, zlib.crc32(changed[position + 16 : stop])
            )
        position = stop
    return bytes(changed)


def repaired_snapshot(data: bytes) -> bytes:
    """Returns a copy of a producer snapshot in which the CRC is correct."""
    if len(data) < 6:
        return data
    return data[:2] + struct.pack(">I", google_crc32c.value(data[6:])) + data[6:]


def batch_around(payload: bytes, *, codec: int, count: int, attributes: int = 0) -> bytes:
    """Builds a batch of magic 2 with a valid length and CRC. The payload, that is, the bytes after
    the header, may be invalid. `codec` is a codec number from 0 to 7, `count` the number of
    records in the header, and `attributes` contains the remaining attribute bits.
    """
    body = (
        struct.pack(">hiqqqhii", codec | attributes, max(count - 1, 0), 0, 1000, 5, 0, 0, count)
        + payload
    )
    crc = google_crc32c.value(body)
    return struct.pack(">qiibI", 100, len(body) + 9, 0, 2, crc) + body
