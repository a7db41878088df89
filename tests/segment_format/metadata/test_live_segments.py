from __future__ import annotations

import base64
import itertools
import json
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from segment_format.index.checkpoints import EpochEntry
from segment_format.kafka_uuid import uuid_to_text
from segment_format.metadata.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataSnapshot,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDelete,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from segment_format.metadata.remote_log_segment_metadata import parse_metadata_record
from tests.golden_data import EXPECTED, GOLDEN, LOCAL_TIER
from tests.segment_format.metadata.readable_segments import known_segments, live_segments

if TYPE_CHECKING:
    from pathlib import Path

    from segment_format.metadata.model import MetadataRecord

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
PARTITION = TopicIdPartition("orders", uuid.UUID(int=1), 0)
SEGMENT = RemoteLogSegmentMetadata(
    RemoteLogSegmentId(PARTITION, uuid.UUID(int=2)),
    start_offset=0,
    end_offset=99,
    max_timestamp_ms=5,
    broker_id=1,
    event_timestamp_ms=10,
    segment_leader_epochs=(EpochEntry(0, 0),),
    segment_size_in_bytes=1000,
)


def update(
    state: RemoteLogSegmentState, *, custom: bytes | None = None, at: int = 20
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(SEGMENT.segment_id, 2, at, custom, state)


def broker_records(folder: Path) -> list[MetadataRecord]:
    return [
        parse_metadata_record(base64.b64decode(json.loads(line)["value"]))
        for line in (folder / "metadata-topic" / "records.jsonl").read_text().splitlines()
    ]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (GOLDEN, EXPECTED / "summary.json"),
        (LOCAL_TIER, LOCAL_TIER / "expected" / "summary.json"),
    ],
    ids=["plugin", "local"],
)
def test_live_segments_match_broker(records: Path, expected: Path) -> None:
    def row(topic: dict[str, Any], partition: dict[str, Any], segment: dict[str, Any]) -> object:
        return (
            topic["topic"],
            topic["topicId"],
            partition["partition"],
            segment["base_offset"],
            segment["end_offset"],
            segment["id"],
            segment["size"],
            segment["max_timestamp_ms"],
            {int(epoch): start for epoch, start in segment["leader_epochs"].items()},
            segment["custom_metadata_base64"],
        )

    broker_rows = [
        row(topic, partition, segment)
        for topic in json.loads(expected.read_text())["topics"]
        if not topic.get("previous_incarnation")
        for partition in topic["partitions"]
        for segment in partition["remote_segments"]
    ]
    segments = [
        (
            (segments_of := segment.segment_id.topic_id_partition).topic,
            uuid_to_text(segments_of.topic_id),
            segments_of.partition,
            segment.start_offset,
            segment.end_offset,
            uuid_to_text(segment.segment_id.id),
            segment.segment_size_in_bytes,
            segment.max_timestamp_ms,
            {entry.epoch: entry.start_offset for entry in segment.segment_leader_epochs},
            None
            if segment.custom_metadata is None
            else base64.b64encode(segment.custom_metadata).decode(),
        )
        for segment in live_segments(broker_records(records))
    ]
    assert len(segments) >= 10
    assert segments == sorted(broker_rows, key=lambda entry: entry[:4])  # type: ignore[index]


def test_unfinished_uploads_are_not_live() -> None:
    records = broker_records(GOLDEN)
    states = {segment.segment_id.id: segment.state for segment in known_segments(records)}
    live = {segment.segment_id.id for segment in live_segments(records)}
    unfinished = {segment_id for segment_id, state in states.items() if state is STARTED}
    assert len(unfinished) == 3  # the broker was killed during three uploads
    assert live == set(states) - unfinished


def test_update_record_replaces_fields_of_segment() -> None:
    (segment,) = live_segments([SEGMENT, update(FINISHED, custom=b"x")])
    assert segment == replace(
        SEGMENT, broker_id=2, event_timestamp_ms=20, custom_metadata=b"x", state=FINISHED
    )
    (segment,) = live_segments([SEGMENT, update(FINISHED, custom=b"x"), update(FINISHED, at=30)])
    assert segment.custom_metadata is None
    assert segment.event_timestamp_ms == 30


@pytest.mark.parametrize(
    ("source", "target"), [*itertools.product(RemoteLogSegmentState, repeat=2)]
)
def test_forbidden_transitions_are_dropped(
    source: RemoteLogSegmentState, target: RemoteLogSegmentState
) -> None:
    allowed = {(STARTED, FINISHED), (STARTED, DELETING), (FINISHED, DELETING), (DELETING, DELETED)}
    paths = {
        STARTED: [],
        FINISHED: [FINISHED],
        DELETING: [FINISHED, DELETING],
        DELETED: [FINISHED, DELETING, DELETED],
    }
    assert source.may_become(target) == (source is target or (source, target) in allowed)
    records: list[MetadataRecord] = [SEGMENT, *map(update, paths[source]), update(target, at=99)]
    segments = known_segments(records)
    if source is DELETED or (source, target) == (DELETING, DELETED):
        assert segments == ()
    else:
        followed = source is target or (source, target) in allowed
        assert segments[0].state is (target if followed else source)
        assert (segments[0].event_timestamp_ms == 99) == followed


def test_updates_of_unknown_segments_are_dropped() -> None:
    assert known_segments([update(FINISHED)]) == ()
    assert known_segments([update(FINISHED), SEGMENT]) == (SEGMENT,)
    assert known_segments([replace(SEGMENT, state=FINISHED)]) == ()


def test_repeated_copy_started_event_is_ignored_after_copy_finished() -> None:
    again = replace(SEGMENT, end_offset=120)
    assert known_segments([SEGMENT, again]) == (again,)
    (segment,) = known_segments([SEGMENT, update(FINISHED), again])
    assert (segment.end_offset, segment.state) == (99, FINISHED)


def test_equal_segment_ids_in_different_partitions_are_different_segments() -> None:
    other_segments = [
        replace(SEGMENT, segment_id=RemoteLogSegmentId(partition, SEGMENT.segment_id.id))
        for partition in (
            TopicIdPartition("orders", uuid.UUID(int=9), 0),
            TopicIdPartition("orders", uuid.UUID(int=1), 1),
        )
    ]
    live = live_segments([SEGMENT, *other_segments, update(FINISHED)])
    assert [segment.segment_id for segment in live] == [SEGMENT.segment_id]
    assert len(known_segments([SEGMENT, *other_segments])) == 3


def test_unfinished_partition_delete_changes_no_segment() -> None:
    snapshot = RemoteLogSegmentMetadataSnapshot(
        SEGMENT.segment_id.id,
        *(0, 9, 0, 1, 30),
        segment_leader_epochs=SEGMENT.segment_leader_epochs,
        segment_size_in_bytes=1,
        state=DELETING,
    )
    begun = [
        RemotePartitionDelete(PARTITION, 1, 40, state)
        for state in RemotePartitionDeleteState
        if state is not RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
    ]
    assert len(live_segments([SEGMENT, update(FINISHED), snapshot, *begun])) == 1


def test_finished_partition_delete_removes_its_segments() -> None:
    other = replace(
        SEGMENT,
        segment_id=RemoteLogSegmentId(replace(PARTITION, partition=1), SEGMENT.segment_id.id),
    )
    delete = RemotePartitionDelete(
        PARTITION, 1, 40, RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
    )
    assert known_segments([SEGMENT, other, delete, update(FINISHED)]) == (other,)
    assert known_segments([SEGMENT, delete, SEGMENT]) == (SEGMENT,)
