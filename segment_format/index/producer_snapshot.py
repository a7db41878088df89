"""Reads a producer snapshot (`.snapshot`): the state of each producer at the end of a segment.

All numbers are big-endian:

| position | size | field |
|---:|---:|---|
| 0 | 2 | version i16, 1 |
| 2 | 4 | crc u32: CRC-32C over position 6 to the end |
| 6 | 4 | entry count i32 |
| 10 | 46 n | entries, any order |

Entry: producerId i64, producerEpoch i16, lastSequence i32, lastOffset i64, offsetDelta i32,
timestamp i64, coordinatorEpoch i32, currentTxnFirstOffset i64 (−1: no open transaction).

Producers with an open transaction are always included. Idle producers are removed after a day.

Source: `org.apache.kafka.storage.internals.log.ProducerStateManager`.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Final

from segment_format._cursor import byte_view
from segment_format.errors import CorruptIndexError
from segment_format.record.batch_header import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable

    from segment_format._cursor import BytesLike

VERSION: Final = 1
_HEADER: Final = struct.Struct(">hIi")
_CRC_START: Final = 6
_ENTRY: Final = struct.Struct(">qhiqiqiq")


@dataclass(frozen=True, slots=True)
class ProducerStateEntry:
    """The state of one producer.

    Attributes:
        last_sequence: Last sequence number written, −1 if it wrote only markers.
        last_offset: Offset of the last record written, −1 if it wrote only markers.
        offset_delta: Difference between the last and the first offset of the last batch.
        timestamp: Timestamp of the last batch or marker, in milliseconds.
        coordinator_epoch: Epoch of the transaction coordinator in the last marker; −1 if there was
            no marker.
        current_txn_first_offset: First offset of the producer's open transaction; −1 if none is
            open.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def parse_producer_snapshot(data: BytesLike) -> tuple[ProducerStateEntry, ...]:
    """Returns the entries of a snapshot in file order. An entry takes 46 bytes of `data`.

    Raises:
        CorruptIndexError: The file is truncated, its version is unknown, or its checksum or count
            is wrong.
    """
    view = byte_view(data)
    if len(view) < _HEADER.size:
        raise CorruptIndexError(
            f"producer snapshot has {len(view)} bytes, but needs at least {_HEADER.size}",
            position=len(view),
        )
    version, crc, count = _HEADER.unpack_from(view)
    if version != VERSION:
        raise CorruptIndexError(f"unknown version {version} of a producer snapshot", position=0)
    computed = crc32c(view[_CRC_START:])
    if computed != crc:
        raise CorruptIndexError(
            f"producer snapshot: the stored CRC is {crc:#010x}, but {computed:#010x} was computed",
            position=2,
        )
    entries = view[_HEADER.size :]
    if len(entries) != count * _ENTRY.size:
        raise CorruptIndexError(
            f"producer snapshot: {count} entries are stated, but {len(entries)} bytes follow",
            position=_CRC_START,
        )
    return tuple(ProducerStateEntry(*fields) for fields in _ENTRY.iter_unpack(entries))


def write_producer_snapshot(entries: Iterable[ProducerStateEntry]) -> bytes:
    """Returns the content of a `.snapshot` file."""
    packed = [_ENTRY.pack(*astuple(entry)) for entry in entries]
    body = b"".join((struct.pack(">i", len(packed)), *packed))
    return struct.pack(">hI", VERSION, crc32c(body)) + body


def open_first_offsets(entries: Iterable[ProducerStateEntry]) -> dict[int, int]:
    """Returns the first offset of each producer's open transaction, by producer id."""
    return {
        entry.producer_id: entry.current_txn_first_offset
        for entry in entries
        if entry.current_txn_first_offset >= 0
    }
