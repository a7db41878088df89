"""Reads the producer snapshot (`.snapshot`): the state of each producer at a segment's end.

Big-endian:

| position | size | field |
|---:|---:|---|
| 0 | 2 | version i16, 1 |
| 2 | 4 | crc u32: CRC-32C over position 6 to the end |
| 6 | 4 | entry count i32 |
| 10 | 46 n | entries, any order |

Entry: producerId i64, producerEpoch i16, lastSequence i32, lastOffset i64, offsetDelta i32,
timestamp i64, coordinatorEpoch i32, currentTxnFirstOffset i64 (−1: no open transaction).

Producers with an open transaction are always included; idle ones expire after a day.

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
        producer_id: Id of the producer.
        producer_epoch: Epoch of the producer.
        last_sequence: Last sequence number written, −1 if it wrote only markers.
        last_offset: Offset of the last record written, −1 if it wrote only markers.
        offset_delta: Last offset delta of the last batch.
        timestamp: Milliseconds of the last batch or marker.
        coordinator_epoch: Epoch of the transaction coordinator in the last marker, −1 for none.
        current_txn_first_offset: First offset of its open transaction, −1 for none.
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
    """Returns the entries of a snapshot in file order, one object for each 46 bytes of `data`.

    Raises:
        CorruptIndexError: The file is cut, its version unknown, its checksum or count wrong.
    """
    view = byte_view(data)
    if len(view) < _HEADER.size:
        raise CorruptIndexError(
            f"producer snapshot of {len(view)} bytes, at least {_HEADER.size} expected",
            position=len(view),
        )
    version, crc, count = _HEADER.unpack_from(view)
    if version != VERSION:
        raise CorruptIndexError(f"unknown version {version} of a producer snapshot", position=0)
    computed = crc32c(view[_CRC_START:])
    if computed != crc:
        raise CorruptIndexError(
            f"producer snapshot: stored CRC {crc:#010x}, computed {computed:#010x}", position=2
        )
    entries = view[_HEADER.size :]
    if len(entries) != count * _ENTRY.size:
        raise CorruptIndexError(
            f"producer snapshot: {count} entries stated, {len(entries)} bytes found",
            position=_CRC_START,
        )
    return tuple(ProducerStateEntry(*fields) for fields in _ENTRY.iter_unpack(entries))


def write_producer_snapshot(entries: Iterable[ProducerStateEntry]) -> bytes:
    """Returns the content of a `.snapshot` file."""
    packed = [_ENTRY.pack(*astuple(entry)) for entry in entries]
    body = b"".join((struct.pack(">i", len(packed)), *packed))
    return struct.pack(">hI", VERSION, crc32c(body)) + body


def open_first_offsets(entries: Iterable[ProducerStateEntry]) -> dict[int, int]:
    """Returns the first offset of each open transaction, by producer id."""
    return {
        entry.producer_id: entry.current_txn_first_offset
        for entry in entries
        if entry.current_txn_first_offset >= 0
    }
