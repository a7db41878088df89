"""Parses a record of `__remote_log_metadata`, the topic of events about tiered segments.

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
    type 3 snapshot    id uuid; then the fields of type 0 from startOffset on

Kafka 4 adds the tagged field 0 `TxnIndexEmpty` (one byte) to types 0 and 3. A record of version 1
is parsed like version 0. Unknown tagged fields are skipped. Record keys are empty; a null value is
a tombstone, not a record.

Source: `org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde`,
message definitions under `storage/src/main/resources/message`.

The events of a partition are in one partition of the topic:

    hc(x) = low 32 bits of (x xor (x >>> 32))                              Java's Long.hashCode
    h     = ((31 + hc(id.lsb)) * 31 + hc(id.msb)) * 31 + partition         32-bit wrap
    p     = (murmur2(big-endian 4 bytes of h) & 0x7fffffff) mod number of metadata partitions

Source: `org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner`,
`Utils.murmur2`.
"""

from __future__ import annotations

import itertools
import struct
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from segment_format._cursor import MessageReader, write_uvarint
from segment_format.errors import InvalidMetadataError, SegmentFormatError
from segment_format.index.checkpoints import EpochEntry
from segment_format.metadata.model import (
    MetadataRecord,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataSnapshot,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDelete,
    RemotePartitionDeleteState,
    TopicIdPartition,
)

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable


FRAME_VERSION = 1
RECORD_VERSIONS = (0, 1)
TXN_INDEX_EMPTY_TAG = 0
_MIN_EPOCH_BYTES = 4 + 8 + 1

_State = TypeVar("_State", RemoteLogSegmentState, RemotePartitionDeleteState)
_Segment = TypeVar("_Segment", RemoteLogSegmentMetadata, RemoteLogSegmentMetadataSnapshot)


def parse_metadata_record(value: bytes) -> MetadataRecord:
    """Parses the value of a record of `__remote_log_metadata`. The caller must skip null values
    (tombstones). Takes at most a small multiple of `len(value)` bytes of memory.

    Raises:
        InvalidMetadataError: The bytes are not a record of a supported type and version, or the
            record contradicts itself.
    """
    reader = MessageReader(bytes(value), InvalidMetadataError)
    frame = reader.uvarint("frame version")
    if frame != FRAME_VERSION:
        raise reader.fail(f"frame version {frame} is not supported; supported: {FRAME_VERSION}")
    record_type = reader.uvarint("record type")
    version = reader.uvarint("record version")
    parse = _PARSERS.get(record_type)
    if parse is None:
        raise reader.fail(
            f"record type {record_type} is not supported; "
            f"supported: {', '.join(map(str, _PARSERS))}"
        )
    if version not in RECORD_VERSIONS:
        raise reader.fail(
            f"version {version} of record type {record_type} is not supported; "
            f"supported: {', '.join(map(str, RECORD_VERSIONS))}"
        )
    record = parse(reader)
    reader.expect_end()
    return record


def check_offsets_and_epochs(
    start_offset: int,
    end_offset: int,
    epochs: tuple[EpochEntry, ...],
    error: Callable[[str], SegmentFormatError],
) -> None:
    """Raises `error(message)` if no broker writes a segment with these offsets and leader epochs.
    `end_offset` is inclusive. `epochs` are the first offsets of the leader epochs, ascending by
    epoch.
    """
    if not 0 <= start_offset <= end_offset:
        raise error(f"a segment has the invalid offsets {start_offset} to {end_offset}")
    if not epochs:
        raise error("a segment has no leader epochs")
    for entry, successor in itertools.pairwise(epochs):
        if entry.epoch == successor.epoch:
            raise error(f"leader epoch {entry.epoch} occurs twice")
        if entry.start_offset > successor.start_offset:
            raise error(f"leader epoch {successor.epoch} starts before epoch {entry.epoch}")
    if epochs[0].epoch < 0 or epochs[0].start_offset < 0:
        raise error("a leader epoch or its start offset is negative")


def _topic_id_partition(reader: MessageReader) -> TopicIdPartition:
    topic = reader.compact_string("topic")
    topic_id = reader.uuid("topic id")
    partition = reader.i32("partition")
    if partition < 0:
        raise reader.fail(f"the partition is negative: {partition}")
    reader.tagged_fields()
    return TopicIdPartition(topic, topic_id, partition)


def _segment_id(reader: MessageReader) -> RemoteLogSegmentId:
    segment_id = RemoteLogSegmentId(_topic_id_partition(reader), reader.uuid("segment id"))
    reader.tagged_fields()
    return segment_id


def _state(reader: MessageReader, states: type[_State], what: str = "segment state") -> _State:
    number = reader.i8(what)
    try:
        return states(number)
    except ValueError:
        raise reader.fail(f"the {what} {number} is unknown") from None


def _body(reader: MessageReader, make: Callable[..., _Segment]) -> _Segment:
    """Reads the fields that record types 0 and 3 have in common, and passes them to `make`. Returns
    the result of `make`.
    """
    start_offset = reader.i64("start offset")
    end_offset = reader.i64("end offset")
    broker_id = reader.i32("broker id")
    max_timestamp_ms = reader.i64("largest timestamp")
    event_timestamp_ms = reader.i64("event timestamp")
    epochs = _epochs(reader)
    check_offsets_and_epochs(start_offset, end_offset, epochs, reader.fail)
    size = reader.i32("segment size")
    if size < 0:
        raise reader.fail(f"the segment size is negative: {size}")
    return make(
        start_offset=start_offset,
        end_offset=end_offset,
        max_timestamp_ms=max_timestamp_ms,
        broker_id=broker_id,
        event_timestamp_ms=event_timestamp_ms,
        segment_leader_epochs=epochs,
        segment_size_in_bytes=size,
        custom_metadata=reader.compact_bytes("custom metadata"),
        state=_state(reader, RemoteLogSegmentState),
        txn_index_empty=_txn_index_empty(reader),
    )


def _epochs(reader: MessageReader) -> tuple[EpochEntry, ...]:
    """Reads leader epochs. Returns them in ascending order, because Kafka writes them in hash
    order.
    """
    entries = []
    for _ in range(reader.compact_array_length("epochs", min_item_bytes=_MIN_EPOCH_BYTES)):
        entries.append(EpochEntry(reader.i32("leader epoch"), reader.i64("epoch start")))
        reader.tagged_fields()
    return tuple(sorted(entries, key=lambda entry: entry.epoch))


def _txn_index_empty(reader: MessageReader) -> bool | None:
    tags = reader.tagged_fields()
    if not tags or tags[0].tag != TXN_INDEX_EMPTY_TAG:
        return None
    data = tags[0].data
    if data not in (b"\0", b"\1"):
        raise reader.fail(
            f"the tagged field TxnIndexEmpty has {len(data)} bytes and is not a boolean (one byte "
            "with the value 0 or 1)"
        )
    return data == b"\1"


def _parse_segment(reader: MessageReader) -> RemoteLogSegmentMetadata:
    return _body(reader, partial(RemoteLogSegmentMetadata, _segment_id(reader)))


def _parse_update(reader: MessageReader) -> RemoteLogSegmentMetadataUpdate:
    update = RemoteLogSegmentMetadataUpdate(
        _segment_id(reader),
        broker_id=reader.i32("broker id"),
        event_timestamp_ms=reader.i64("event timestamp"),
        custom_metadata=reader.compact_bytes("custom metadata"),
        state=_state(reader, RemoteLogSegmentState),
    )
    reader.tagged_fields()
    return update


def _parse_partition_delete(reader: MessageReader) -> RemotePartitionDelete:
    delete = RemotePartitionDelete(
        _topic_id_partition(reader),
        broker_id=reader.i32("broker id"),
        event_timestamp_ms=reader.i64("event timestamp"),
        state=_state(reader, RemotePartitionDeleteState, "partition delete state"),
    )
    reader.tagged_fields()
    return delete


def _parse_snapshot(reader: MessageReader) -> RemoteLogSegmentMetadataSnapshot:
    return _body(reader, partial(RemoteLogSegmentMetadataSnapshot, reader.uuid("segment id")))


_PARSERS: dict[int, Callable[[MessageReader], MetadataRecord]] = {
    0: _parse_segment,
    1: _parse_update,
    2: _parse_partition_delete,
    3: _parse_snapshot,
}

_NO_TAGS = b"\0"


def write_segment_event(
    record: RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate,
) -> bytes:
    """Returns the value of a record of `__remote_log_metadata`, as brokers write it."""
    owner = record.segment_id.topic_id_partition
    segment_id = b"".join(
        (
            *(_compact_bytes(owner.topic.encode()), owner.topic_id.bytes),
            *(struct.pack(">i", owner.partition), _NO_TAGS),
            *(record.segment_id.id.bytes, _NO_TAGS),
        )
    )
    tags = _NO_TAGS
    if isinstance(record, RemoteLogSegmentMetadataUpdate):
        record_type = 1
        fields = struct.pack(">iq", record.broker_id, record.event_timestamp_ms)
    else:
        record_type = 0
        epochs = (
            struct.pack(">iq", entry.epoch, entry.start_offset) + _NO_TAGS
            for entry in record.segment_leader_epochs
        )
        fields = b"".join(
            (
                struct.pack(">qqi", record.start_offset, record.end_offset, record.broker_id),
                struct.pack(">qq", record.max_timestamp_ms, record.event_timestamp_ms),
                *(write_uvarint(len(record.segment_leader_epochs) + 1), *epochs),
                struct.pack(">i", record.segment_size_in_bytes),
            )
        )
        if record.txn_index_empty is not None:
            tags = bytes((1, TXN_INDEX_EMPTY_TAG, 1, record.txn_index_empty))
    head = bytes((FRAME_VERSION, record_type, RECORD_VERSIONS[0]))
    custom = _compact_bytes(record.custom_metadata)
    return head + segment_id + fields + custom + struct.pack(">b", record.state) + tags


def _compact_bytes(value: bytes | None) -> bytes:
    return b"\0" if value is None else write_uvarint(len(value) + 1) + value


_MASK = 0xFFFF_FFFF
_MURMUR2_SEED = 0x9747B28C
_MURMUR2_M = 0x5BD1E995
DEFAULT_METADATA_PARTITIONS = 50


def metadata_partition(
    topic_id: uuid.UUID, partition: int, num_partitions: int = DEFAULT_METADATA_PARTITIONS
) -> int:
    """Returns the number of the partition of `__remote_log_metadata` that contains the events of a
    user partition. `num_partitions` is the number of partitions of `__remote_log_metadata`.

    Raises:
        ValueError: `num_partitions` is below 1.
    """
    if num_partitions < 1:
        raise ValueError(f"num_partitions is {num_partitions}, but must be at least 1")
    msb, lsb = topic_id.int >> 64, topic_id.int & 0xFFFF_FFFF_FFFF_FFFF
    hashed = ((31 + _long_hash(lsb)) * 31 + _long_hash(msb)) * 31 + partition
    return (murmur2((hashed & _MASK).to_bytes(4, "big")) & 0x7FFF_FFFF) % num_partitions


def _long_hash(value: int) -> int:
    return (value ^ (value >> 32)) & _MASK


def murmur2(data: bytes) -> int:
    """Returns the unsigned 32-bit murmur2 hash of `data`, as Kafka computes it."""
    hashed = (_MURMUR2_SEED ^ len(data)) & _MASK
    word_bytes = len(data) & ~3
    for start in range(0, word_bytes, 4):
        word = int.from_bytes(data[start : start + 4], "little") * _MURMUR2_M & _MASK
        word = (word ^ (word >> 24)) * _MURMUR2_M & _MASK
        hashed = (hashed * _MURMUR2_M & _MASK) ^ word
    if word_bytes < len(data):
        hashed ^= int.from_bytes(data[word_bytes:], "little")
        hashed = hashed * _MURMUR2_M & _MASK
    hashed = (hashed ^ (hashed >> 13)) * _MURMUR2_M & _MASK
    return hashed ^ (hashed >> 15)
