"""Sends Kafka's ListOffsets request, version 9, for timestamps that librdkafka rejects."""

from __future__ import annotations

import socket
import struct

EARLIEST_LOCAL = -4
LATEST_TIERED = -5

_VERSION = 9
_TIMEOUT_SECONDS = 10


class ListOffsetsError(RuntimeError):
    """Raised if a broker responds to a ListOffsets request with an error.

    Attributes:
        code: Error code of the Kafka protocol.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(f"{text}: error {code}")
        self.code = code


def list_offset(address: str, topic: str, partition: int, timestamp: int) -> int:
    """Returns the offset that the leader of a partition reports for a special timestamp.

    `timestamp` is `EARLIEST_LOCAL` for the first offset on the leader's disk, or `LATEST_TIERED`
    for the last tiered offset. If nothing is tiered, the last tiered offset is -1.

    Raises:
        ListOffsetsError: The broker responded with an error.
    """
    name = topic.encode()
    # Compact arrays and strings begin with length + 1. Every struct ends with 0 tagged fields.
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
    # Skip correlation id, tagged fields, throttle time, topic count, name and partition count.
    position = 4 + 1 + 4 + 1 + 1 + len(name) + 1
    _, error, _, offset, _ = struct.unpack_from(">ihqqi", response, position)
    if error:
        raise ListOffsetsError(f"ListOffsets({timestamp}) of {topic}-{partition}", error)
    return int(offset)
