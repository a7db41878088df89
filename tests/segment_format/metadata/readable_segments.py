"""Computes the set of live segments by applying single events in order, as a reference for
`LiveSegments`.

Source: `org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataCache`, KIP-405; for
deletions of partitions `RemotePartitionMetadataStore`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from segment_format.metadata.model import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDelete,
    RemotePartitionDeleteState,
)

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable

    from segment_format.metadata.model import MetadataRecord, RemoteLogSegmentId

_Key = tuple["uuid.UUID", int, "uuid.UUID"]


def known_segments(records: Iterable[MetadataRecord]) -> tuple[RemoteLogSegmentMetadata, ...]:
    """Applies the events and returns all segments that are not in DELETE_SEGMENT_FINISHED.

    Events from one partition of the metadata topic must be in order; the partitions may be
    interleaved in any way. DELETE_PARTITION_FINISHED removes all segments of a partition. Ignores
    the same events as a broker:

    * the first event of a segment, if its state is not COPY_SEGMENT_STARTED
    * a repeated first event, if the segment is no longer in state COPY_SEGMENT_STARTED
    * an update of an unknown segment
    * a transition that Kafka does not allow
    * snapshots (type 3)

    The returned segments have their last state, broker, event time and custom metadata. They are in
    order of topic, topic id, partition, start offset and event time.
    """
    segments: dict[_Key, RemoteLogSegmentMetadata] = {}
    for record in records:
        if isinstance(record, RemoteLogSegmentMetadata):
            _add(segments, record)
        elif isinstance(record, RemoteLogSegmentMetadataUpdate):
            _update(segments, record)
        elif isinstance(record, RemotePartitionDelete):
            _forget_partition(segments, record)
    return tuple(sorted(segments.values(), key=_order))


def live_segments(records: Iterable[MetadataRecord]) -> tuple[RemoteLogSegmentMetadata, ...]:
    """Returns the `known_segments` in state COPY_SEGMENT_FINISHED, which readers can use. They can
    contain duplicates, overlaps and segments of replaced leaders, among which readers choose by
    leader epochs.
    """
    finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    return tuple(segment for segment in known_segments(records) if segment.state is finished)


def _key(segment_id: RemoteLogSegmentId) -> _Key:
    partition = segment_id.topic_id_partition
    return partition.topic_id, partition.partition, segment_id.id


def _order(segment: RemoteLogSegmentMetadata) -> tuple[str, bytes, int, int, int, bytes]:
    partition = segment.segment_id.topic_id_partition
    return (
        partition.topic,
        partition.topic_id.bytes,
        partition.partition,
        segment.start_offset,
        segment.event_timestamp_ms,
        segment.segment_id.id.bytes,
    )


def _add(segments: dict[_Key, RemoteLogSegmentMetadata], record: RemoteLogSegmentMetadata) -> None:
    started = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    key = _key(record.segment_id)
    previous = segments.get(key)
    if record.state is started and (previous is None or previous.state is started):
        segments[key] = record


def _update(
    segments: dict[_Key, RemoteLogSegmentMetadata], update: RemoteLogSegmentMetadataUpdate
) -> None:
    key = _key(update.segment_id)
    previous = segments.get(key)
    if previous is None or not previous.state.may_become(update.state):
        return
    if update.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
        del segments[key]
        return
    segments[key] = replace(
        previous,
        broker_id=update.broker_id,
        event_timestamp_ms=update.event_timestamp_ms,
        custom_metadata=update.custom_metadata,  # None clears the old value
        state=update.state,
    )


def _forget_partition(
    segments: dict[_Key, RemoteLogSegmentMetadata], delete: RemotePartitionDelete
) -> None:
    if delete.state is not RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
        return
    partition = delete.topic_id_partition
    for key in [key for key in segments if key[:2] == (partition.topic_id, partition.partition)]:
        del segments[key]
