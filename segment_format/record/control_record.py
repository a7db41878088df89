"""Parses the records of control batches: transaction markers, and control records of Kafka's
metadata log (KRaft).

Key: version i16, type i16. Value of ABORT and COMMIT: version i16, coordinatorEpoch i32. Records of
a higher version, or with additional bytes, are read like version 0. A record of an unknown type has
an offset but does not change any transaction.

Source: `ControlRecordType`, `EndTransactionMarker` in Kafka (KIP-98).
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from segment_format._cursor import Cursor, byte_view

if TYPE_CHECKING:
    from segment_format._cursor import BytesLike
    from segment_format.record.records import DecodedBatch


class ControlRecordType(IntEnum):
    """Type of a control record."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


def parse_control_record_type(key: BytesLike) -> ControlRecordType:
    """Returns the type that the key of a control record contains; UNKNOWN if Kafka does not define
    the number.

    Raises:
        CorruptRecordError: The key has fewer than four bytes, or a negative version.
    """
    cursor = Cursor(byte_view(key))
    version = cursor.i16("control record version")
    number = cursor.i16("control record type")
    if version < 0:
        raise cursor.fail(f"the control record has the negative version {version}")
    try:
        return ControlRecordType(number)
    except ValueError:
        return ControlRecordType.UNKNOWN


def batch_control_type(batch: DecodedBatch) -> ControlRecordType | None:
    """Returns the type of a control batch's first record; `None` for a data batch or a batch
    without records.

    Raises:
        CorruptRecordError: The record has no key, or its key is invalid, see
            `parse_control_record_type`.
    """
    if not batch.is_control_batch or not batch.records:
        return None
    return parse_control_record_type(batch.records[0].key or b"")


def marker_of(batch: DecodedBatch) -> ControlRecordType | None:
    """Returns ABORT or COMMIT if the batch is a control batch that ends a transaction; `None`
    otherwise.
    """
    kind = batch_control_type(batch)
    return kind if kind in (ControlRecordType.ABORT, ControlRecordType.COMMIT) else None
