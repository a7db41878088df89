"""Records of `__remote_log_metadata`, the topic in which brokers write down what is in the tier.

    uvarint 1 (frame version), uvarint record type, uvarint record version (0), body, nothing else

    TopicIdPartition   name compact string, id uuid, partition i32, tagged fields
    SegmentId          TopicIdPartition, id uuid, tagged fields
    type 0 segment     SegmentId; startOffset i64; endOffset i64; brokerId i32; maxTimestampMs i64;
                       eventTimestampMs i64; array of {epoch i32, offset i64, tagged fields};
                       segmentSizeInBytes i32; customMetadata compact bytes or null; state i8;
                       tagged fields
    type 1 update      SegmentId; brokerId i32; eventTimestampMs i64; customMetadata; state i8;
                       tagged fields
    type 2 partition   TopicIdPartition; brokerId i32; eventTimestampMs i64; deleteState i8; tagged
                       fields
    type 3 snapshot    segment uuid; then as type 0 from startOffset on

Kafka 4 adds the tagged field 0 `TxnIndexEmpty` (one byte) to types 0 and 3. Record version 1 is
accepted when its body parses as version 0 does. Record keys carry nothing and are ignored; a null
value is a tombstone, not a record.

Source: `org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde`,
message definitions under `storage/src/main/resources/message`.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from segment_format.errors import InvalidMetadataError, SegmentFormatError
from segment_format.index.leader_epoch_checkpoint import EpochEntry
from segment_format.metadata.model import (
    NO_WIRE_DETAILS,
    MetadataRecord,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataSnapshot,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDelete,
    RemotePartitionDeleteState,
    TopicIdPartition,
    WireDetails,
)
from segment_format.metadata.protocol import MessageReader, TaggedField
from segment_format.metadata.record_writer import (
    FRAME_VERSION,
    TXN_INDEX_EMPTY_TAG,
    write_metadata_record,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MetadataRecord",
    "RemoteLogSegmentId",
    "RemoteLogSegmentMetadata",
    "RemoteLogSegmentMetadataSnapshot",
    "RemoteLogSegmentMetadataUpdate",
    "RemoteLogSegmentState",
    "RemotePartitionDelete",
    "RemotePartitionDeleteState",
    "TopicIdPartition",
    "check_offsets_and_epochs",
    "parse_metadata_record",
    "write_metadata_record",
]

RECORD_VERSIONS = (0, 1)
_MIN_EPOCH_BYTES = 4 + 8 + 1


def parse_metadata_record(value: bytes) -> MetadataRecord:
    """The event that a record value of `__remote_log_metadata` stands for.

    Args:
        value: The record's value. A null value (tombstone) is the caller's to skip.

    Returns:
        One of the four record classes; what it holds beyond their fields is kept in `wire`. Memory
        is bounded by a small multiple of `len(value)`.

    Raises:
        InvalidMetadataError: The bytes are not a record of a known type and version, or contradict
            themselves.
    """
    reader = MessageReader(bytes(value), InvalidMetadataError)
    frame = reader.uvarint()
    if frame != FRAME_VERSION:
        raise reader.fail(f"frame version {frame}; supported: {FRAME_VERSION}")
    record_type = reader.uvarint()
    version = reader.uvarint()
    parse = _PARSERS.get(record_type)
    if parse is None:
        raise reader.fail(f"record type {record_type}; supported: {', '.join(map(str, _PARSERS))}")
    if version not in RECORD_VERSIONS:
        raise reader.fail(
            f"version {version} of record type {record_type}; "
            f"supported: {', '.join(map(str, RECORD_VERSIONS))}"
        )
    record = parse(reader, version)
    reader.expect_end()
    return record


def check_offsets_and_epochs(
    start_offset: int,
    end_offset: int,
    epochs: tuple[EpochEntry, ...],
    error: Callable[[str], SegmentFormatError],
) -> None:
    """Refuses the offsets and epochs of a segment that no broker can have written.

    Args:
        start_offset: Base offset.
        end_offset: Last offset, inclusive.
        epochs: First offset of each epoch, ascending by epoch.
        error: Makes the error to raise from its text.
    """
    if not 0 <= start_offset <= end_offset:
        raise error(f"segment from offset {start_offset} to {end_offset}")
    if not epochs:
        raise error("segment without leader epochs")
    for entry, successor in itertools.pairwise(epochs):
        if entry.epoch == successor.epoch:
            raise error(f"leader epoch {entry.epoch} occurs twice")
        if entry.start_offset > successor.start_offset:
            raise error(f"leader epoch {successor.epoch} starts before epoch {entry.epoch}")
    if epochs[0].epoch < 0 or epochs[0].start_offset < 0:
        raise error("negative leader epoch or start offset")


def _topic_id_partition(reader: MessageReader) -> tuple[TopicIdPartition, tuple[TaggedField, ...]]:
    topic = reader.compact_string()
    topic_id = reader.uuid()
    partition = reader.int32()
    if partition < 0:
        raise reader.fail(f"partition {partition}")
    return TopicIdPartition(topic, topic_id, partition), reader.tagged_fields()


class _SegmentIdParts(NamedTuple):
    segment_id: RemoteLogSegmentId
    partition_tags: tuple[TaggedField, ...]
    tags: tuple[TaggedField, ...]


def _segment_id(reader: MessageReader) -> _SegmentIdParts:
    partition, partition_tags = _topic_id_partition(reader)
    return _SegmentIdParts(
        RemoteLogSegmentId(partition, reader.uuid()), partition_tags, reader.tagged_fields()
    )


def _state(reader: MessageReader) -> RemoteLogSegmentState:
    number = reader.int8()
    try:
        return RemoteLogSegmentState(number)
    except ValueError:
        raise reader.fail(f"segment state {number}") from None


class _Body(NamedTuple):
    """The part that types 0 and 3 share."""

    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    segment_leader_epochs: tuple[EpochEntry, ...]
    segment_size_in_bytes: int
    custom_metadata: bytes | None
    state: RemoteLogSegmentState
    txn_index_empty: bool | None
    wire_epochs: tuple[tuple[int, tuple[TaggedField, ...]], ...]
    tags: tuple[TaggedField, ...]


def _body(reader: MessageReader) -> _Body:
    start_offset = reader.int64()
    end_offset = reader.int64()
    broker_id = reader.int32()
    max_timestamp_ms = reader.int64()
    event_timestamp_ms = reader.int64()
    written = [
        (EpochEntry(reader.int32(), reader.int64()), reader.tagged_fields())
        for _ in range(reader.compact_array_length(min_item_bytes=_MIN_EPOCH_BYTES))
    ]
    epochs = tuple(sorted((entry for entry, _ in written), key=lambda entry: entry.epoch))
    check_offsets_and_epochs(start_offset, end_offset, epochs, reader.fail)
    wire_epochs = tuple((entry.epoch, tags) for entry, tags in written)
    if wire_epochs == tuple((entry.epoch, ()) for entry in epochs):
        wire_epochs = ()
    size = reader.int32()
    if size < 0:
        raise reader.fail(f"segment of {size} bytes")
    custom_metadata = reader.compact_bytes()
    state = _state(reader)
    txn_index_empty, tags = _split_txn_index_empty(reader)
    return _Body(
        start_offset,
        end_offset,
        max_timestamp_ms,
        broker_id,
        event_timestamp_ms,
        epochs,
        size,
        custom_metadata,
        state,
        txn_index_empty,
        wire_epochs,
        tags,
    )


def _split_txn_index_empty(
    reader: MessageReader,
) -> tuple[bool | None, tuple[TaggedField, ...]]:
    tags = reader.tagged_fields()
    if not tags or tags[0].tag != TXN_INDEX_EMPTY_TAG:
        return None, tags
    data = tags[0].data
    if data not in (b"\0", b"\1"):
        raise reader.fail(f"tagged field TxnIndexEmpty of {len(data)} bytes is not a boolean")
    return data == b"\1", tags[1:]


def _wire(
    version: int,
    *,
    record: tuple[TaggedField, ...],
    segment_id: tuple[TaggedField, ...] = (),
    partition: tuple[TaggedField, ...] = (),
    epochs: tuple[tuple[int, tuple[TaggedField, ...]], ...] = (),
) -> WireDetails:
    details = WireDetails(version, record, segment_id, partition, epochs)
    return NO_WIRE_DETAILS if details == NO_WIRE_DETAILS else details


def _parse_segment(reader: MessageReader, version: int) -> RemoteLogSegmentMetadata:
    segment = _segment_id(reader)
    body = _body(reader)
    wire = _wire(
        version,
        record=body.tags,
        segment_id=segment.tags,
        partition=segment.partition_tags,
        epochs=body.wire_epochs,
    )
    return RemoteLogSegmentMetadata(segment.segment_id, *body[:-2], wire=wire)


def _parse_update(reader: MessageReader, version: int) -> RemoteLogSegmentMetadataUpdate:
    segment = _segment_id(reader)
    broker_id = reader.int32()
    event_timestamp_ms = reader.int64()
    custom_metadata = reader.compact_bytes()
    state = _state(reader)
    wire = _wire(
        version,
        record=reader.tagged_fields(),
        segment_id=segment.tags,
        partition=segment.partition_tags,
    )
    return RemoteLogSegmentMetadataUpdate(
        segment.segment_id, broker_id, event_timestamp_ms, custom_metadata, state, wire
    )


def _parse_partition_delete(reader: MessageReader, version: int) -> RemotePartitionDelete:
    partition, partition_tags = _topic_id_partition(reader)
    broker_id = reader.int32()
    event_timestamp_ms = reader.int64()
    number = reader.int8()
    try:
        state = RemotePartitionDeleteState(number)
    except ValueError:
        raise reader.fail(f"partition delete state {number}") from None
    wire = _wire(version, record=reader.tagged_fields(), partition=partition_tags)
    return RemotePartitionDelete(partition, broker_id, event_timestamp_ms, state, wire)


def _parse_snapshot(reader: MessageReader, version: int) -> RemoteLogSegmentMetadataSnapshot:
    segment_id = reader.uuid()
    body = _body(reader)
    wire = _wire(version, record=body.tags, epochs=body.wire_epochs)
    return RemoteLogSegmentMetadataSnapshot(segment_id, *body[:-2], wire=wire)


_PARSERS: dict[int, Callable[[MessageReader, int], MetadataRecord]] = {
    0: _parse_segment,
    1: _parse_update,
    2: _parse_partition_delete,
    3: _parse_snapshot,
}
