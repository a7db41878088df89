"""Names of files that `LocalTieredStorage`, the storage manager of Kafka's own tests, writes.

    kafka-tiered-storage/<topic>-<partition>-<topic id>/
        <start offset, 20 digits>-<segment id>.<suffix>

    suffix   log, index, timeindex, txnindex (only if the broker had one), leader_epoch_checkpoint,
             snapshot

Files are copied in that order, so a complete segment has its `snapshot`, which is named after the
segment's *start* offset but holds the state at its end. There is no manifest: files are plain
copies.

Source: `org.apache.kafka.server.log.remote.storage.RemoteLogSegmentFileset`,
`RemoteTopicPartitionDirectory`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from segment_format.errors import InvalidManifestError
from segment_format.kafka_uuid import uuid_to_text
from segment_format.manifest.object_key import (
    is_topic_name,
    parse_partition,
    parse_segment_file_name,
    split_topic_id,
)
from segment_format.metadata.model import TopicIdPartition

if TYPE_CHECKING:
    import uuid

ROOT_DIRECTORY = "kafka-tiered-storage"
LOCAL_SUFFIXES = ("log", "index", "timeindex", "txnindex", "leader_epoch_checkpoint", "snapshot")
_MAX_PARTITION = 2**31 - 1
_MAX_OFFSET = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LocalFileName:
    """The parts of a file's name.

    Attributes:
        base_offset: First offset of the segment.
        segment_id: Id of the copy.
        suffix: One of `LOCAL_SUFFIXES`.
    """

    base_offset: int
    segment_id: uuid.UUID
    suffix: str


def parse_local_partition_directory(name: str) -> TopicIdPartition | None:
    """The partition from `<topic>-<partition>-<topic id>`, or None for another kind of name."""
    parts = split_topic_id(name)
    if parts is None:
        return None
    topic, _, digits = parts[0].rpartition("-")
    partition = parse_partition(digits)
    if partition is None or not is_topic_name(topic):
        return None
    return TopicIdPartition(topic, parts[1], partition)


def format_local_partition_directory(partition: TopicIdPartition) -> str:
    """The name `<topic>-<partition>-<topic id>`.

    Raises:
        InvalidManifestError: Not a topic name, or not a partition number.
    """
    if not is_topic_name(partition.topic) or not 0 <= partition.partition <= _MAX_PARTITION:
        raise InvalidManifestError(f"partition {partition.topic[:80]!r}-{partition.partition}")
    return f"{partition.topic}-{partition.partition}-{uuid_to_text(partition.topic_id)}"


def parse_local_file_name(name: str) -> LocalFileName | None:
    """The parts of a segment file's name, or None for another kind of name.

    Non-ASCII digits are accepted as in `object_key`: such a file's siblings differ from it in the
    suffix alone.
    """
    parts = parse_segment_file_name(name, LOCAL_SUFFIXES)
    return None if parts is None else LocalFileName(*parts)


def format_local_file_name(name: LocalFileName) -> str:
    """The name `<start offset, 20 digits>-<segment id>.<suffix>`.

    Raises:
        InvalidManifestError: Not an offset, or not a suffix.
    """
    if not 0 <= name.base_offset <= _MAX_OFFSET or name.suffix not in LOCAL_SUFFIXES:
        raise InvalidManifestError(f"offset {name.base_offset}, suffix {name.suffix[:80]!r}")
    return f"{name.base_offset:020d}-{uuid_to_text(name.segment_id)}.{name.suffix}"
