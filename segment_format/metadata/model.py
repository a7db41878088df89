"""What the broker knows about a tiered segment, as values.

Source: `org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata` and its neighbours,
KIP-405.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uuid

    from segment_format.index.checkpoints import EpochEntry
    from segment_format.metadata.protocol import TaggedField


class RemoteLogSegmentState(enum.IntEnum):
    """Where a segment is in its life; only COPY_SEGMENT_FINISHED may be read."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3

    def may_become(self, target: RemoteLogSegmentState) -> bool:
        """Whether Kafka lets a segment go from this state to `target`; each may be repeated."""
        return target is self or target in _SUCCESSORS[self]


_SUCCESSORS = {
    RemoteLogSegmentState.COPY_SEGMENT_STARTED: (
        RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
    ),
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED: (RemoteLogSegmentState.DELETE_SEGMENT_STARTED,),
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED: (RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,),
    RemoteLogSegmentState.DELETE_SEGMENT_FINISHED: (),
}


class RemotePartitionDeleteState(enum.IntEnum):
    """How far the deletion of a partition has come."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


@dataclass(frozen=True, slots=True)
class TopicIdPartition:
    """One partition of one incarnation of a topic: one made again under its name has another id.

    Attributes:
        topic: Name of the topic.
        topic_id: Id of the incarnation.
        partition: Number of the partition, from 0.
    """

    topic: str
    topic_id: uuid.UUID
    partition: int


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentId:
    """One attempt to copy a segment; a second attempt has another `id`.

    Attributes:
        topic_id_partition: Partition the segment belongs to.
        id: Random id of the attempt.
    """

    topic_id_partition: TopicIdPartition
    id: uuid.UUID


@dataclass(frozen=True, slots=True)
class WireDetails:
    """What a record held beyond its meaning, kept so that writing gives the same bytes.

    Attributes:
        version: Version of the record, 0 or 1.
        record_tags: Unknown tagged fields of the record.
        segment_id_tags: Those of the segment id.
        topic_id_partition_tags: Those of the partition.
        epochs: Order of the leader epochs as written (Kafka writes them in hash order), each with
            its unknown tagged fields; empty when they were ascending and had none.
    """

    version: int = 0
    record_tags: tuple[TaggedField, ...] = ()
    segment_id_tags: tuple[TaggedField, ...] = ()
    topic_id_partition_tags: tuple[TaggedField, ...] = ()
    epochs: tuple[tuple[int, tuple[TaggedField, ...]], ...] = ()


NO_WIRE_DETAILS = WireDetails()


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadata:
    """A tiered segment: record type 0, and the copy of it in a segment manifest.

    Attributes:
        segment_id: Which segment.
        start_offset: Base offset of the segment.
        end_offset: Last offset, inclusive: one below the next segment's base, so it can exceed the
            last record.
        max_timestamp_ms: Largest timestamp, ms since 1970; −1 when unknown, a file time when no
            record has one.
        broker_id: Broker that made the copy, −1 when unknown.
        event_timestamp_ms: Time of the last event about the segment, ms since 1970.
        segment_leader_epochs: First offset of each epoch within the segment, ascending by epoch,
            never empty.
        segment_size_in_bytes: Size of the `.log` file before any transformation.
        custom_metadata: Opaque bytes of the storage plugin, or None.
        state: State of the segment; a manifest is written in COPY_SEGMENT_STARTED.
        txn_index_empty: Kafka 4's remark that the segment has no transaction index; None when it
            says nothing.
        wire: What else the record held; not part of the value.
    """

    segment_id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    segment_leader_epochs: tuple[EpochEntry, ...]
    segment_size_in_bytes: int
    custom_metadata: bytes | None = None
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    txn_index_empty: bool | None = None
    wire: WireDetails = field(default=NO_WIRE_DETAILS, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadataUpdate:
    """A new state of a known segment: record type 1.

    Attributes:
        segment_id: Which segment.
        broker_id: Broker that reports.
        event_timestamp_ms: Time of the event, ms since 1970.
        custom_metadata: Plugin bytes that replace the old ones; None clears them.
        state: The new state.
        wire: What else the record held; not part of the value.
    """

    segment_id: RemoteLogSegmentId
    broker_id: int
    event_timestamp_ms: int
    custom_metadata: bytes | None
    state: RemoteLogSegmentState
    wire: WireDetails = field(default=NO_WIRE_DETAILS, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RemotePartitionDelete:
    """The deletion of a partition: record type 2, defined but not written by brokers so far.

    Attributes:
        topic_id_partition: Which partition.
        broker_id: Broker that reports.
        event_timestamp_ms: Time of the event, ms since 1970.
        state: How far the deletion has come.
        wire: What else the record held; not part of the value.
    """

    topic_id_partition: TopicIdPartition
    broker_id: int
    event_timestamp_ms: int
    state: RemotePartitionDeleteState
    wire: WireDetails = field(default=NO_WIRE_DETAILS, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadataSnapshot:
    """A segment as a removed local cache of the broker stored it: type 3, without partition.

    Attributes:
        id: Random id of the copy.
        start_offset: As in `RemoteLogSegmentMetadata`, like all that follow.
        end_offset: Last offset, inclusive.
        max_timestamp_ms: Largest timestamp, ms since 1970.
        broker_id: Broker that made the copy.
        event_timestamp_ms: Time of the last event, ms since 1970.
        segment_leader_epochs: First offset of each epoch within the segment, ascending.
        segment_size_in_bytes: Size of the `.log` file before any transformation.
        custom_metadata: Opaque bytes of the storage plugin, or None.
        state: State of the segment.
        txn_index_empty: Kafka 4's remark that the segment has no transaction index, or None.
        wire: What else the record held; not part of the value.
    """

    id: uuid.UUID
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    segment_leader_epochs: tuple[EpochEntry, ...]
    segment_size_in_bytes: int
    custom_metadata: bytes | None = None
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    txn_index_empty: bool | None = None
    wire: WireDetails = field(default=NO_WIRE_DETAILS, compare=False, repr=False)


MetadataRecord = (
    RemoteLogSegmentMetadata
    | RemoteLogSegmentMetadataUpdate
    | RemotePartitionDelete
    | RemoteLogSegmentMetadataSnapshot
)
