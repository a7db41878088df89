"""Writes records of `__remote_log_metadata` for tests.

`segment_format.metadata.remote_log_segment_metadata` describes the layout.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from segment_format._cursor import TaggedField, write_uvarint
from segment_format.metadata.model import (
    MetadataRecord,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataSnapshot,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDelete,
    TopicIdPartition,
)
from segment_format.metadata.remote_log_segment_metadata import FRAME_VERSION, TXN_INDEX_EMPTY_TAG


@dataclass(frozen=True, slots=True)
class WireDetails:
    """Selects one encoding of a record. All encodings have the same meaning.

    Attributes:
        version: Version of the record, 0 or 1.
        record_tags: Unknown tagged fields of the record.
        segment_id_tags: Unknown tagged fields of the segment id.
        topic_id_partition_tags: Unknown tagged fields of the partition.
        epochs: Order of the leader epochs, each with its tagged fields.
            If it is empty, the epochs ascend and have no tagged fields.
    """

    version: int = 0
    record_tags: tuple[TaggedField, ...] = ()
    segment_id_tags: tuple[TaggedField, ...] = ()
    topic_id_partition_tags: tuple[TaggedField, ...] = ()
    epochs: tuple[tuple[int, tuple[TaggedField, ...]], ...] = ()


def write_compact_bytes(value: bytes | None) -> bytes:
    """Returns length-prefixed bytes, or Kafka's encoding of null if `value` is None."""
    return b"\0" if value is None else write_uvarint(len(value) + 1) + value


def write_compact_string(value: str) -> bytes:
    """Returns length-prefixed UTF-8 text."""
    return write_compact_bytes(value.encode("utf-8"))


def write_tagged_fields(fields: tuple[TaggedField, ...]) -> bytes:
    """Returns a section of tagged fields, sorted by tag."""
    out = bytearray(write_uvarint(len(fields)))
    for field in sorted(fields, key=lambda field: field.tag):
        out += write_uvarint(field.tag) + write_uvarint(len(field.data)) + field.data
    return bytes(out)


def write_metadata_record(record: MetadataRecord, wire: WireDetails = WireDetails()) -> bytes:
    """Returns the record value that Kafka's own class writes for `record`."""
    if isinstance(record, RemoteLogSegmentMetadata):
        head, body = 0, _write_segment_id(record.segment_id, wire) + _write_body(record, wire)
    elif isinstance(record, RemoteLogSegmentMetadataUpdate):
        head, body = 1, _write_update(record, wire)
    elif isinstance(record, RemotePartitionDelete):
        head, body = 2, _write_partition_delete(record, wire)
    else:
        head, body = 3, record.id.bytes + _write_body(record, wire)
    return write_uvarint(FRAME_VERSION) + write_uvarint(head) + write_uvarint(wire.version) + body


def _write_partition(partition: TopicIdPartition, tags: tuple[TaggedField, ...]) -> bytes:
    return (
        write_compact_string(partition.topic)
        + partition.topic_id.bytes
        + struct.pack(">i", partition.partition)
        + write_tagged_fields(tags)
    )


def _write_segment_id(segment: RemoteLogSegmentId, wire: WireDetails) -> bytes:
    return (
        _write_partition(segment.topic_id_partition, wire.topic_id_partition_tags)
        + segment.id.bytes
        + write_tagged_fields(wire.segment_id_tags)
    )


def _write_body(
    record: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataSnapshot, wire: WireDetails
) -> bytes:
    starts = {entry.epoch: entry.start_offset for entry in record.segment_leader_epochs}
    order = wire.epochs
    if {epoch for epoch, _ in order} != set(
        starts
    ):  # no order is kept, or the epochs were replaced
        order = tuple((epoch, ()) for epoch in starts)
    tags = wire.record_tags
    if record.txn_index_empty is not None:
        value = b"\1" if record.txn_index_empty else b"\0"
        tags = (TaggedField(TXN_INDEX_EMPTY_TAG, value), *tags)
    return b"".join(
        (
            struct.pack(">qqi", record.start_offset, record.end_offset, record.broker_id),
            struct.pack(">qq", record.max_timestamp_ms, record.event_timestamp_ms),
            write_uvarint(len(order) + 1),
            *(
                struct.pack(">iq", epoch, starts[epoch]) + write_tagged_fields(epoch_tags)
                for epoch, epoch_tags in order
            ),
            struct.pack(">i", record.segment_size_in_bytes),
            write_compact_bytes(record.custom_metadata),
            struct.pack(">b", record.state),
            write_tagged_fields(tags),
        )
    )


def _write_update(record: RemoteLogSegmentMetadataUpdate, wire: WireDetails) -> bytes:
    return (
        _write_segment_id(record.segment_id, wire)
        + struct.pack(">iq", record.broker_id, record.event_timestamp_ms)
        + write_compact_bytes(record.custom_metadata)
        + struct.pack(">b", record.state)
        + write_tagged_fields(wire.record_tags)
    )


def _write_partition_delete(record: RemotePartitionDelete, wire: WireDetails) -> bytes:
    return (
        _write_partition(record.topic_id_partition, wire.topic_id_partition_tags)
        + struct.pack(">iqb", record.broker_id, record.event_timestamp_ms, record.state)
        + write_tagged_fields(wire.record_tags)
    )
