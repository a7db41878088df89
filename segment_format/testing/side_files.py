"""The files beside a segment's log, written from plain values.

    .index      8 bytes an entry: i32 offset - base offset, i32 file position
    .timeindex  12 bytes an entry: i64 timestamp, i32 offset - base offset
    .txnindex   34 bytes an entry: i16 version 0, i64 producer id, first offset, last offset, last
                stable offset
    .snapshot   i16 version 1, u32 CRC-32C from byte 6, i32 count, 46 bytes an entry
    epochs      text: "0", number of entries, then "epoch start_offset" a line

Source: `OffsetIndex`, `TimeIndex`, `TransactionIndex`, `ProducerStateManager`,
`LeaderEpochCheckpointFile` of `org.apache.kafka.storage.internals`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segment_format.testing.checksum import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """One entry of a transaction index.

    Attributes:
        producer_id: Whose transaction.
        first_offset: Base offset of its first batch in the partition.
        last_offset: Offset of its abort marker.
        last_stable_offset: First offset of the oldest other open transaction at that time, else the
            marker's + 1.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """One entry of a producer snapshot.

    Attributes:
        producer_id: The producer.
        producer_epoch: Its newest epoch seen.
        last_sequence: Last sequence of its last batch; -1 when only a marker is known.
        last_offset: Last offset of its last batch; -1 when only a marker is known.
        offset_delta: Last minus first offset of that batch.
        timestamp: Milliseconds of its last batch or marker.
        coordinator_epoch: From its last marker; -1 before any.
        current_txn_first_offset: First offset of its open transaction; -1 for none.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def write_offset_index(entries: Iterable[tuple[int, int]], *, base_offset: int) -> bytes:
    """A `.index` file of (absolute offset, file position) entries."""
    return b"".join(struct.pack(">ii", offset - base_offset, at) for offset, at in entries)


def write_time_index(entries: Iterable[tuple[int, int]], *, base_offset: int) -> bytes:
    """A `.timeindex` file of (timestamp in ms, absolute offset) entries."""
    return b"".join(struct.pack(">qi", time, offset - base_offset) for time, offset in entries)


def write_transaction_index(transactions: Iterable[AbortedTransaction]) -> bytes:
    """A `.txnindex` file."""
    return b"".join(
        struct.pack(
            ">hqqqq",
            0,
            entry.producer_id,
            entry.first_offset,
            entry.last_offset,
            entry.last_stable_offset,
        )
        for entry in transactions
    )


def write_producer_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """A `.snapshot` file, entries in the order given."""
    packed = [
        struct.pack(
            ">qhiqiqiq",
            entry.producer_id,
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.offset_delta,
            entry.timestamp,
            entry.coordinator_epoch,
            entry.current_txn_first_offset,
        )
        for entry in entries
    ]
    body = struct.pack(">i", len(packed)) + b"".join(packed)
    return struct.pack(">hI", 1, crc32c(body)) + body


def write_leader_epoch_checkpoint(epochs: Iterable[tuple[int, int]]) -> bytes:
    """A `leader-epoch-checkpoint` file of (epoch, start offset) entries, ascending."""
    lines = [f"{epoch} {start}" for epoch, start in epochs]
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()
