"""Builds records of topic `__remote_log_metadata` and writes them to a fake cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kts_source.errors import AccessDeniedError
from segment_format.index.checkpoints import EpochEntry
from segment_format.kafka_uuid import uuid_from_text
from segment_format.metadata.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from segment_format.metadata.remote_log_segment_metadata import metadata_partition
from segment_format.testing import LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import empty_log, fake_log
from tests.kts_source.planning.memory_store import MemoryStore
from tests.segment_format.metadata.writers import write_metadata_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kts_source.store.object_store import ObjectInfo
    from segment_format.testing import SegmentFiles
    from tests.kts_source.broker.fake_log import FakeLog

METADATA = "__remote_log_metadata"
STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
Place = tuple[str, str, int]
"""A partition: topic, topic id and partition number."""


class UnlistableStore(MemoryStore):
    """A store that allows reads and lookups of keys, but refuses listings.

    If `hides` is true, it also refuses lookups of missing keys, as S3 does without the list
    permission.
    """

    def __init__(self, objects: Mapping[str, bytes], *, hides: bool = False) -> None:
        super().__init__(objects)
        self._hides = hides
        self.looked_up: list[str] = []

    def list_folders(self, prefix: str) -> list[str]:
        raise AccessDeniedError("listing of objects is refused", uri=self.uri(prefix))

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        raise AccessDeniedError("listing of objects is refused", uri=self.uri(prefix))

    def head(self, key: str) -> ObjectInfo:
        self.looked_up.append(key)
        if self._hides and key not in self._objects:
            raise AccessDeniedError("access to the key is refused", uri=self.uri(key))
        return super().head(key)


def make_copy_started(
    topic_partition: Place, files: SegmentFiles, segment_id: str, **changed: int
) -> RemoteLogSegmentMetadata:
    """Returns the event for the start of a copy. `changed` replaces fields of the event."""
    fields: dict[str, Any] = {
        "segment_id": _make_segment_id(topic_partition, segment_id),
        "start_offset": files.base_offset,
        "end_offset": files.end_offset,
        "max_timestamp_ms": files.max_timestamp_ms,
        "broker_id": 1,
        "event_timestamp_ms": 1,
        "segment_leader_epochs": tuple(EpochEntry(*entry) for entry in files.epochs),
        "segment_size_in_bytes": len(files.log),
    }
    return RemoteLogSegmentMetadata(**{**fields, **changed})


def make_update(
    topic_partition: Place,
    segment_id: str,
    state: RemoteLogSegmentState,
    custom: bytes | None = None,
) -> RemoteLogSegmentMetadataUpdate:
    """Returns the event that changes the state of a segment."""
    return RemoteLogSegmentMetadataUpdate(
        _make_segment_id(topic_partition, segment_id), 1, 2, custom, state
    )


def copied(
    topic_partition: Place, files: SegmentFiles, segment_id: str, *states: RemoteLogSegmentState
) -> list[bytes]:
    """Returns the records of a copy that started and then changed to each of `states`."""
    started = write_metadata_record(make_copy_started(topic_partition, files, segment_id))
    updates = (make_update(topic_partition, segment_id, state) for state in states)
    return [started, *map(write_metadata_record, updates)]


def create_metadata_topic(
    cluster: FakeCluster,
    records: Mapping[Place, Sequence[bytes | None]],
    count: int = 3,
    *,
    key: bytes | None = None,
) -> list[FakePartition]:
    """Creates the metadata topic with `count` partitions.

    `records` contains the records about each partition of the tiered topics. Each record is written
    to the partition of the metadata topic that Kafka chooses for it. `key` is the key of all
    records.
    """
    values_by_partition: dict[int, list[bytes | None]] = {number: [] for number in range(count)}
    for (_, topic_id, partition), values in records.items():
        values_by_partition[metadata_partition(uuid_from_text(topic_id), partition, count)] += (
            values
        )
    partitions = [
        FakePartition(build_metadata_log(values, key)) for values in values_by_partition.values()
    ]
    cluster.create(METADATA, partitions)
    return partitions


def build_metadata_log(values: Iterable[bytes | None], key: bytes | None = None) -> FakeLog:
    """Builds the log of one partition of the metadata topic, with three records in each batch."""
    records = [SimpleRecord(value, key) for value in values]
    if not records:
        return empty_log()
    builder = LogBuilder()
    for start in range(0, len(records), 3):
        builder.append(records[start : start + 3])
    return fake_log(builder.build())


def _make_segment_id(topic_partition: Place, segment_id: str) -> RemoteLogSegmentId:
    topic, topic_id, partition = topic_partition
    partition_id = TopicIdPartition(topic, uuid_from_text(topic_id), partition)
    return RemoteLogSegmentId(partition_id, uuid_from_text(segment_id))
