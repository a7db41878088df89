"""Encodes the batches that a restore appends to a log."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Final

from segment_format.record.batch_header import (
    CONTROL_BIT,
    CRC_START,
    HEADER_SIZE,
    MAGIC_2,
    MIN_BATCH_LENGTH,
    TRANSACTIONAL_BIT,
    RecordBatchHeader,
    crc32c,
)

# A record of 16 bytes: length, attributes, timestamp delta, offset delta, key (version 0, type 0 =
# ABORT), value (version 0, coordinator epoch 0), no headers. Lengths are zigzag varints.
_ABORT_RECORD: Final = struct.pack(">5bhhbhib", 32, 0, 0, 0, 8, 0, 0, 12, 0, 0, 0)


def abort_marker(
    offset: int, producer_id: int, producer_epoch: int, timestamp_ms: int, leader_epoch: int
) -> bytes:
    """Returns the control batch that aborts a producer's open transaction."""
    return _batch(
        RecordBatchHeader(
            base_offset=offset,
            batch_length=MIN_BATCH_LENGTH + len(_ABORT_RECORD),
            partition_leader_epoch=leader_epoch,
            magic=MAGIC_2,
            crc=0,
            attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
            last_offset_delta=0,
            base_timestamp=timestamp_ms,
            max_timestamp=timestamp_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=-1,
            record_count=1,
        ),
        _ABORT_RECORD,
    )


def empty_batch(start: int, stop: int, leader_epoch: int) -> bytes:
    """Returns a batch without records that spans offsets [start, stop). The next record that a
    broker appends gets offset `stop`.
    """
    return _batch(
        RecordBatchHeader(
            base_offset=start,
            batch_length=MIN_BATCH_LENGTH,
            partition_leader_epoch=leader_epoch,
            magic=MAGIC_2,
            crc=0,
            attributes=0,
            last_offset_delta=stop - start - 1,
            base_timestamp=-1,
            max_timestamp=-1,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            record_count=0,
        ),
        b"",
    )


def _batch(header: RecordBatchHeader, records: bytes) -> bytes:
    covered = header.to_bytes()[CRC_START:HEADER_SIZE] + records
    return replace(header, crc=crc32c(covered)).to_bytes() + records
