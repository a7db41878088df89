"""Kafka's ListOffsets request, version 9, for special timestamps that librdkafka rejects."""

from __future__ import annotations

import socket
import struct

EARLIEST_LOCAL = -4
LATEST_TIERED = -5

_VERSION = 9
_TIMEOUT_SECONDS = 10


class ListOffsetsError(RuntimeError):
    """The broker responded with an error.

    Attributes:
        code: Kafka's error code.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(f"{text}: error {code}")
        self.code = code


def list_offset(address: str, topic: str, partition: int, timestamp: int) -> int:
    """Lists an offset of a partition.

    Args:
        address: `host:port` of the leader, plaintext.
        topic: Its name.
        partition: Its number.
        timestamp: `EARLIEST_LOCAL`, or `LATEST_TIERED` (inclusive, -1: nothing is tiered).

    Raises:
        ListOffsetsError: The broker responded with an error.
    """
    name = topic.encode()
    # Compact lengths are encoded as length + 1. Each struct ends with its tagged fields, here none.
    body = b"".join(
        (
            struct.pack(">ib", -1, 0),
            b"\x02" + bytes([len(name) + 1]) + name,
            b"\x02" + struct.pack(">iiq", partition, -1, timestamp) + b"\0",
            b"\0\0",
        )
    )
    header = struct.pack(">hhih", 2, _VERSION, 1, -1) + b"\0"
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), _TIMEOUT_SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(header + body)) + header + body)
        stream = connection.makefile("rb")
        (length,) = struct.unpack(">i", stream.read(4))
        response = stream.read(length)
    # Correlation id, tags, throttle time, one topic, its name, one partition.
    position = 4 + 1 + 4 + 1 + 1 + len(name) + 1
    _, error, _, offset, _ = struct.unpack_from(">ihqqi", response, position)
    if error:
        raise ListOffsetsError(f"ListOffsets({timestamp}) of {topic}-{partition}", error)
    return int(offset)
