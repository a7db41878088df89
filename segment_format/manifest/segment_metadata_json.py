"""The copy of the broker's segment metadata in a manifest: member `remoteLogSegmentMetadata`.

    remoteLogSegmentId: {topicIdPartition: {topicId, topicPartition: {topic, partition}}, id}
    startOffset, endOffset (inclusive), maxTimestampMs, brokerId, eventTimestampMs
    segmentLeaderEpochs: {"<epoch>": <start offset>, …}
    txnIdxEmpty: only from Kafka 4 on

It was made when the copy began: no custom metadata, no size, state COPY_SEGMENT_STARTED.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from segment_format.errors import InvalidManifestError
from segment_format.index.leader_epoch_checkpoint import EpochEntry
from segment_format.kafka_uuid import uuid_from_text, uuid_to_text
from segment_format.manifest.json_members import MAX_INT64, MIN_INT64
from segment_format.metadata.remote_log_segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
    check_offsets_and_epochs,
)

if TYPE_CHECKING:
    from segment_format.manifest.json_members import Members

_EPOCH = re.compile(r"0|[1-9][0-9]{0,9}")
_MIN_INT32, _MAX_INT32 = -(2**31), 2**31 - 1


def metadata_from_members(members: Members, *, segment_size: int) -> RemoteLogSegmentMetadata:
    """The metadata in a manifest.

    Args:
        members: Member `remoteLogSegmentMetadata`.
        segment_size: `originalFileSize` of the chunk index, which stands for the size that this
            copy lacks.

    Raises:
        InvalidManifestError: A member is missing or not what a broker writes.
    """
    segment = members.members("remoteLogSegmentId")
    topic_id_partition = segment.members("topicIdPartition")
    topic_partition = topic_id_partition.members("topicPartition")
    segment_id = RemoteLogSegmentId(
        TopicIdPartition(
            topic_partition.text("topic"),
            uuid_from_text(topic_id_partition.text("topicId")),
            topic_partition.integer("partition"),
        ),
        uuid_from_text(segment.text("id")),
    )
    start_offset = members.integer("startOffset", high=MAX_INT64)
    end_offset = members.integer("endOffset", high=MAX_INT64)
    epochs = _epochs(members)
    check_offsets_and_epochs(start_offset, end_offset, epochs, InvalidManifestError)
    empty = members.optional("txnIdxEmpty")
    if empty is not None and not isinstance(empty, bool):
        raise members.fail("txnIdxEmpty", "is neither true nor false")
    return RemoteLogSegmentMetadata(
        segment_id,
        start_offset,
        end_offset,
        max_timestamp_ms=members.integer("maxTimestampMs", low=MIN_INT64, high=MAX_INT64),
        broker_id=members.integer("brokerId", low=_MIN_INT32),
        event_timestamp_ms=members.integer("eventTimestampMs", low=MIN_INT64, high=MAX_INT64),
        segment_leader_epochs=epochs,
        segment_size_in_bytes=segment_size,
        txn_index_empty=empty,
    )


def metadata_to_members(metadata: RemoteLogSegmentMetadata) -> dict[str, object]:
    """The member's value, in the order the plugin writes."""
    partition = metadata.segment_id.topic_id_partition
    members: dict[str, object] = {
        "remoteLogSegmentId": {
            "topicIdPartition": {
                "topicId": uuid_to_text(partition.topic_id),
                "topicPartition": {"topic": partition.topic, "partition": partition.partition},
            },
            "id": uuid_to_text(metadata.segment_id.id),
        },
        "startOffset": metadata.start_offset,
        "endOffset": metadata.end_offset,
        "maxTimestampMs": metadata.max_timestamp_ms,
        "brokerId": metadata.broker_id,
        "eventTimestampMs": metadata.event_timestamp_ms,
        "segmentLeaderEpochs": {
            str(entry.epoch): entry.start_offset for entry in metadata.segment_leader_epochs
        },
    }
    if metadata.txn_index_empty is not None:
        members["txnIdxEmpty"] = metadata.txn_index_empty
    return members


def _epochs(members: Members) -> tuple[EpochEntry, ...]:
    epochs = members.members("segmentLeaderEpochs")
    entries: list[EpochEntry] = []
    for name in epochs.items():
        if not _EPOCH.fullmatch(name) or int(name) > _MAX_INT32:
            raise epochs.fail(name[:40], "is not a leader epoch")
        entries.append(EpochEntry(int(name), epochs.integer(name, high=MAX_INT64)))
    return tuple(sorted(entries, key=lambda entry: entry.epoch))
