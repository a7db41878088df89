"""The records of control batches: transaction markers and Kafka's own bookkeeping.

Key: version i16, type i16. Value of ABORT and COMMIT: version i16, coordinatorEpoch i32. More bytes
and higher versions are read as version 0.

Types other than those named are to be ignored: they take an offset and change no transaction.

Source: `ControlRecordType`, `EndTransactionMarker` in Kafka (KIP-98).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from segment_format._cursor import Cursor, byte_view

if TYPE_CHECKING:
    from segment_format._cursor import BytesLike
    from segment_format.record.records import DecodedBatch


class ControlRecordType(IntEnum):
    """What a control record says."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


@dataclass(frozen=True, slots=True)
class EndTransactionMarker:
    """The end of a transaction on one partition.

    Attributes:
        type: ABORT or COMMIT.
        coordinator_epoch: Epoch of the transaction coordinator that wrote it.
    """

    type: ControlRecordType
    coordinator_epoch: int


def parse_control_record_type(key: BytesLike) -> ControlRecordType:
    """The type in a control record's key; UNKNOWN for numbers this library has no name for.

    Raises:
        CorruptRecordError: Fewer than four bytes or a negative version.
    """
    cursor = Cursor(byte_view(key))
    version = cursor.i16("control record version")
    number = cursor.i16("control record type")
    if version < 0:
        raise cursor.fail(f"control record of version {version}")
    try:
        return ControlRecordType(number)
    except ValueError:
        return ControlRecordType.UNKNOWN


def parse_end_transaction_marker(key: BytesLike, value: BytesLike) -> EndTransactionMarker:
    """The marker in a control record.

    Raises:
        CorruptRecordError: The key is neither ABORT's nor COMMIT's, the value has fewer than six
            bytes, or a version is negative.
    """
    kind = parse_control_record_type(key)
    cursor = Cursor(byte_view(value))
    if kind not in (ControlRecordType.ABORT, ControlRecordType.COMMIT):
        raise cursor.fail(f"a control record of type {kind.name} ends no transaction")
    version = cursor.i16("marker version")
    if version < 0:
        raise cursor.fail(f"transaction marker of version {version}")
    return EndTransactionMarker(kind, cursor.i32("coordinator epoch"))


def batch_control_type(batch: DecodedBatch) -> ControlRecordType | None:
    """What a control batch says: its first record's type. None for data, and for an emptied batch.

    Raises:
        CorruptRecordError: The record has no key or not that of a control record.
    """
    if not batch.is_control_batch or not batch.records:
        return None
    return parse_control_record_type(batch.records[0].key or b"")
