"""Reads test vectors that Kafka's own classes wrote, and builds batches from them."""

from __future__ import annotations

import functools
import json
import struct
from typing import Any

import google_crc32c

from tests.golden_data import VECTORS

CODEC_NUMBERS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@functools.cache
def kafka_vectors() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((VECTORS / "kafka-vectors.json").read_text())
    return document


def record_set(name: str) -> bytes:
    """Returns the bytes of the record set with this name."""
    return bytes.fromhex(
        next(entry["hex"] for entry in kafka_vectors()["batches"] if entry["name"] == name)
    )


def with_crc(batch: bytes) -> bytes:
    """Returns the batch (magic 2) after correcting the length and the CRC in its header."""
    body = batch[:8] + struct.pack(">i", len(batch) - 12) + batch[12:]
    return body[:17] + struct.pack(">I", google_crc32c.value(body[21:])) + body[21:]


def batch_with_payload(
    payload: bytes, *, codec: int, count: int, last_offset_delta: int | None = None
) -> bytes:
    """Returns a batch with this payload and the header of the record set `v2-none-createtime`.

    The default of `last_offset_delta` is the value in that header, but at least `count - 1`.
    """
    header = bytearray(record_set("v2-none-createtime")[:61])
    struct.pack_into(">h", header, 21, codec)
    (stored,) = struct.unpack_from(">i", header, 23)
    delta = max(stored, count - 1) if last_offset_delta is None else last_offset_delta
    struct.pack_into(">i", header, 23, delta)
    struct.pack_into(">i", header, 57, count)
    return with_crc(bytes(header) + payload)
