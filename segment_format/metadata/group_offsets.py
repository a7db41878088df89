"""Parses the offsets that consumer groups committed: records of the topic `__consumer_offsets`.

    key     int16 version (0, 1), string group, string topic, int32 partition
    value   int16 version (0 to 4), int64 offset, int32 leader epoch (since 3), string metadata,
            int64 commit time in ms, int64 expiration time in ms (only 1), tagged fields (since 4)

A string is an int16 length and UTF-8; since version 4 it is a compact string. Keys of other
versions are about members of groups. A record without a value deletes the group's offset in the
partition.

Source: `OffsetCommitKey.json` and `OffsetCommitValue.json` in Kafka's group coordinator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from segment_format._cursor import MessageReader, byte_view
from segment_format.errors import InvalidMetadataError
from segment_format.record.control_record import ControlRecordType, marker_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from segment_format._cursor import BytesLike
    from segment_format.record.records import DecodedBatch

_OFFSET_KEYS: Final = (0, 1)
_WITH_EPOCH: Final = 3
_FLEXIBLE: Final = 4


@dataclass(frozen=True, slots=True, order=True)
class GroupPartition:
    """A partition for which a group commits offsets."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """An offset that a group committed.

    Attributes:
        offset: Next offset that the group reads.
        leader_epoch: Leader epoch of the last record that the group read; −1 if unknown.
        metadata: Text that the consumer stored with the offset.
        committed_ms: Time of the commit in ms since 1970.
    """

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int


def parse_group_key(data: BytesLike) -> GroupPartition | None:
    """Parses a key. Returns `None` if the record is not about an offset.

    Raises:
        InvalidMetadataError: The bytes are malformed.
    """
    reader = _reader(data)
    if reader.i16("version of the key") not in _OFFSET_KEYS:
        return None
    group, topic = _string(reader, "group"), _string(reader, "topic")
    return GroupPartition(group, topic, reader.i32("partition"))


def parse_group_value(data: BytesLike) -> CommittedOffset:
    """Parses the value of a record about an offset.

    Raises:
        InvalidMetadataError: The bytes are malformed, or their version is unknown.
    """
    reader = _reader(data)
    version = reader.i16("version of the value")
    if not 0 <= version <= _FLEXIBLE:
        raise InvalidMetadataError(
            f"a committed offset has version {version}, but only 0 to {_FLEXIBLE} are known",
            position=0,
        )
    offset = reader.i64("offset")
    epoch = reader.i32("leader epoch") if version >= _WITH_EPOCH else -1
    if version >= _FLEXIBLE:
        metadata = reader.compact_string("metadata")
    else:
        metadata = _string(reader, "metadata")
    return CommittedOffset(offset, epoch, metadata, reader.i64("commit time"))


def committed_offsets(batches: Iterable[DecodedBatch]) -> dict[GroupPartition, CommittedOffset]:
    """Returns the last committed offsets, sorted by group, topic and partition.

    Works like a group coordinator. The offsets of a transaction apply when the transaction commits,
    unless a later record of the same group and partition replaced them before. Offsets of aborted
    and unfinished transactions are dropped.

    Args:
        batches: All batches of one partition of `__consumer_offsets`, in the order of offsets.

    Raises:
        InvalidMetadataError: A record is malformed.
    """
    applied: dict[GroupPartition, tuple[int, CommittedOffset | None]] = {}
    pending: dict[int, dict[GroupPartition, tuple[int, CommittedOffset | None]]] = {}
    for batch in batches:
        if batch.is_control_batch:
            marker = marker_of(batch)
            ended = pending.pop(batch.producer_id, {}) if marker is not None else {}
            if marker is ControlRecordType.COMMIT:
                for partition, change in ended.items():
                    if partition not in applied or applied[partition][0] < change[0]:
                        applied[partition] = change
            continue
        is_pending = batch.is_transactional
        changes = pending.setdefault(batch.producer_id, {}) if is_pending else applied
        for record in batch.records:
            key = None if record.key is None else parse_group_key(record.key)
            if key is not None:
                value = None if record.value is None else parse_group_value(record.value)
                changes[key] = record.offset, value
    return {
        partition: offset
        for partition, (_, offset) in sorted(applied.items())
        if offset is not None
    }


def _reader(data: BytesLike) -> MessageReader:
    return MessageReader(bytes(byte_view(data)), InvalidMetadataError)


def _string(reader: MessageReader, what: str) -> str:
    size = reader.i16(f"{what} length")
    if size < 0:
        raise reader.fail(f"{what}: null where text is required")
    try:
        return bytes(reader.take(size, what)).decode()
    except UnicodeDecodeError as error:
        raise reader.fail(f"{what}: invalid UTF-8") from error
