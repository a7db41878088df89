"""Defines the values of records of `__remote_log_metadata`: tiered segments and their states
(KIP-405).

Source: `org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata` and related classes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import uuid

    from segment_format.index.checkpoints import EpochEntry


class RemoteLogSegmentState(enum.IntEnum):
    """State of a segment; only segments in COPY_SEGMENT_FINISHED may be read."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3

    def may_become(self, target: RemoteLogSegmentState) -> bool:
        """Returns whether Kafka allows a change from this state to `target`. A state may follow
        itself.
        """
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
    """State of the deletion of a partition."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


@dataclass(frozen=True, slots=True)
class TopicIdPartition:
    """A partition of a topic. The topic id is needed, because a topic that is deleted and created
    again gets a new id.
    """

    topic: str
    topic_id: uuid.UUID
    partition: int


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentId:
    """Id of one attempt to copy a segment. If the copy is attempted again, the second attempt has
    another `id`.
    """

    topic_id_partition: TopicIdPartition
    id: uuid.UUID


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadata:
    """A tiered segment. This is record type 0, and a part of segment manifests.

    Attributes:
        end_offset: Last offset, inclusive. It is the base offset of the next segment minus 1, and
            can be above the offset of the last record.
        max_timestamp_ms: Largest timestamp, ms since 1970; −1 if unknown. If no record has a
            timestamp, brokers write the modification time of the file.
        broker_id: Broker that made the copy, −1 if unknown.
        event_timestamp_ms: Time of the last event of the segment, ms since 1970.
        segment_leader_epochs: First offset of each leader epoch within the segment, ascending by
            epoch. Never empty.
        segment_size_in_bytes: Size of the `.log` file in bytes, before it is compressed or
            encrypted.
        custom_metadata: Opaque bytes of the storage plugin, or None.
        state: State of the segment. It is COPY_SEGMENT_STARTED in manifests, which brokers write
            before the copy is finished.
        txn_index_empty: True if the segment has no transaction index; None if unknown, because the
            record was written before Kafka 4.
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


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadataUpdate:
    """A new state of an announced segment: record type 1.

    Attributes:
        broker_id: Broker that reports the new state.
        event_timestamp_ms: Time of the event, ms since 1970.
        custom_metadata: Plugin bytes that replace the previous ones. `None` removes the previous
            ones.
        state: The new state.
    """

    segment_id: RemoteLogSegmentId
    broker_id: int
    event_timestamp_ms: int
    custom_metadata: bytes | None
    state: RemoteLogSegmentState


@dataclass(frozen=True, slots=True)
class RemotePartitionDelete:
    """The deletion of a partition: record type 2. No released broker writes such records."""

    topic_id_partition: TopicIdPartition
    broker_id: int
    event_timestamp_ms: int
    state: RemotePartitionDeleteState


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadataSnapshot:
    """A segment in the local snapshot file that brokers of earlier Kafka versions wrote: record
    type 3, which does not state the partition.

    `RemoteLogSegmentMetadata` describes the fields after `id`.
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


MetadataRecord = (
    RemoteLogSegmentMetadata
    | RemoteLogSegmentMetadataUpdate
    | RemotePartitionDelete
    | RemoteLogSegmentMetadataSnapshot
)
