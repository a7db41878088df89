"""Records of magic 0 and 1 handed to the kernel in magic 2's record layout, so that all rows take
one way into columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from segment_format.kernels import contract as c
from segment_format.metadata.protocol import write_varlong

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from segment_format.record.decoded import DecodedBatch, Record


def open_legacy_record(frame: NDArray[np.int64], entry: DecodedBatch, record: Record) -> bytes:
    """Make one record the batch under way; returns the payload that holds it."""
    body = b"\x00\x00\x00" + _sized(record.key) + _sized(record.value) + b"\x00"
    frame[c.RECORDS_LEFT] = 1
    frame[c.IN_BATCH] = 1
    frame[c.PLACE] = c.PLACE_PAYLOAD
    frame[c.RECORD_POSITION] = 0
    frame[c.BASE_OFFSET] = record.offset
    frame[c.BATCH_BASE_OFFSET] = entry.base_offset
    frame[c.LAST_OFFSET] = frame[c.LEAST_OFFSET] = record.offset
    frame[c.BASE_TIMESTAMP] = record.timestamp
    frame[c.MAX_TIMESTAMP] = record.timestamp
    frame[c.TIMESTAMP_TYPE] = record.timestamp_type
    frame[[c.LEADER_EPOCH, c.PRODUCER_ID, c.PRODUCER_EPOCH, c.BASE_SEQUENCE]] = -1
    frame[c.TRANSACTIONAL] = 0
    frame[c.CODEC] = entry.compression_type
    return write_varlong(len(body)) + body


def _sized(value: bytes | None) -> bytes:
    return write_varlong(-1) if value is None else write_varlong(len(value)) + value
