"""The message index that Confluent's serializers put before a message: which one of its file it is.

Zigzag varints: a count, then an index among the file's messages, among those nested in that, and
so on; a lone 0 means the first message. It stands behind the magic byte and the schema's id.
"""

from __future__ import annotations

from typing import Final

from segment_format.values.protobuf.wire import read_varint

MOST_INDEXES: Final = 100
FIRST: Final = (0,)


def read_message_index(data: bytes, at: int = 0) -> tuple[tuple[int, ...], int]:
    """The path to a message type, and where the message begins.

    Args:
        data: A value.
        at: Where in it the index begins.

    Raises:
        ValueError: There is no index.
    """
    count, at = _read_zigzag(data, at)
    if count == 0:
        return FIRST, at
    if not 0 < count <= MOST_INDEXES:
        raise ValueError(f"a message index of {count} numbers")
    path = []
    for _ in range(count):
        index, at = _read_zigzag(data, at)
        if index < 0:
            raise ValueError(f"message index {index}")
        path.append(index)
    return tuple(path), at


def _read_zigzag(data: bytes, at: int) -> tuple[int, int]:
    raw, at = read_varint(data, at)
    return raw >> 1 ^ -(raw & 1), at
