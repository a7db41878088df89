"""Makes a new topic serve segments of the old cluster's tier in place.

A broker serves a segment if its storage plugin finds the segment's objects under the new topic id,
and if two events in the topic `__remote_log_metadata` state that its copy started and finished.

* `LocalTieredStorage`: the files in the new folder are hard links to the old files. So retention of
  the new topic deletes only links.
* Aiven's plugin: the new folder has copies of the manifests. The plugin finds the log and the
  indexes by the object key in the custom metadata of the event. It deletes only objects whose names
  are derived from the new topic id: so retention of the new topic deletes only manifests.

The events must exist when the broker of the written log starts, and they must not exist while it
leads the empty log. In any other order, the broker deletes the segments from the tier. So the
events are published last, while the log directory is locked.
"""

from __future__ import annotations

import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kts_source.broker.cluster import Cluster
from kts_source.broker.connection import PASSING, LostConnectionError, refusal
from kts_source.errors import BrokerUnavailableError, CorruptSegmentError, InvalidOptionError
from kts_source.layout.aiven import LOG_SUFFIX, MANIFEST_SUFFIX
from kts_source.layout.layout import read_whole
from kts_source.layout.remote_segment import IndexType
from kts_source.planning.metadata_topic import REMOTE_LOG_METADATA, read_metadata_topic
from kts_source.restore.journal import MAX_PRODUCER_ID, high_producer_id
from kts_source.restore.partition_writer import sync
from segment_format.errors import InvalidManifestError
from segment_format.kafka_uuid import uuid_from_text, uuid_to_text
from segment_format.manifest.object_names import CustomMetadata
from segment_format.manifest.segment_manifest import MAX_MANIFEST_BYTES
from segment_format.metadata.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from segment_format.metadata.remote_log_segment_metadata import (
    metadata_partition,
    write_segment_event,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from kts_source.broker.settings import BrokerSettings
    from kts_source.export.tables.target_store import TargetStore
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.planning.side_files import SideFiles
    from kts_source.restore.restore_plan import PartitionRestore, RestorePlan

_COPY_THREADS: Final = 16
_BATCH_BYTES: Final = 256 << 10
_PATIENCE_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.2
_ALL_REPLICAS: Final = -1
_TIMEOUT_MS: Final = 30_000
_PRODUCE_VERSION: Final = 7  # identifies topics by name


@dataclass(frozen=True, slots=True)
class ServedSegment:
    """A segment that the new topic serves.

    Attributes:
        segment: The segment of the old topic.
        target: The partition of the new topic.
        end_offset: Last offset, inclusive: the offset before the next segment.
        custom_metadata: Bytes that brokers pass to their storage plugin.
    """

    segment: RemoteSegment
    target: TopicIdPartition
    end_offset: int
    custom_metadata: bytes | None = None

    def events(self, broker_id: int, now_ms: int) -> tuple[bytes, bytes]:
        """Returns the events that the copy of the segment started and finished."""
        segment = self.segment
        segment_id = RemoteLogSegmentId(self.target, uuid_from_text(segment.segment_id))
        has_index = IndexType.TRANSACTION in segment.objects.indexes
        started = RemoteLogSegmentMetadata(
            segment_id,
            start_offset=segment.start_offset,
            end_offset=self.end_offset,
            max_timestamp_ms=segment.max_timestamp_ms,
            broker_id=broker_id,
            event_timestamp_ms=now_ms,
            segment_leader_epochs=segment.leader_epochs,
            segment_size_in_bytes=segment.objects.size_in_bytes,
            txn_index_empty=None if has_index else True,
        )
        finished = RemoteLogSegmentMetadataUpdate(
            *(segment_id, broker_id, now_ms, self.custom_metadata),
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        )
        return write_segment_event(started), write_segment_event(finished)


def served_segments(
    restore: PartitionRestore, topic_id: str, source: PartitionPlan
) -> tuple[ServedSegment, ...]:
    """Returns the segments below the local log of a partition, ascending by offset.

    Args:
        restore: The partition.
        topic_id: Id of the topic in the new cluster.
        source: Plan of the partition in the tier.
    """
    target = TopicIdPartition(restore.target_topic, uuid_from_text(topic_id), restore.partition)
    spans = [span for span in source.surviving.ranges if span.stop <= restore.local_start]
    stops = [*(span.start for span in spans[1:]), restore.local_start]
    return tuple(
        ServedSegment(span.segment, target, stop - 1)
        for span, stop in zip(spans, stops, strict=False)
    )


def link_objects(root: Path, served: Iterable[ServedSegment], folder_name: str) -> None:
    """Links the files of segments into the folder of the new topic id. Existing links are kept.

    Args:
        root: Folder of the tier.
        served: Segments of one partition.
        folder_name: Name of the new folder, next to the folder of the old topic id.

    Raises:
        InvalidOptionError: A file cannot be linked, or the folder has another file of this name.
    """
    folders = set()
    for each in served:
        objects = each.segment.objects
        for ref in (objects.log, *(index.source for index in objects.indexes.values())):
            source = root / ref.key
            link = source.parent.parent / folder_name / source.name
            try:
                link.parent.mkdir(exist_ok=True)
                if not link.exists():
                    link.hardlink_to(source)
                if not link.samefile(source):
                    raise InvalidOptionError(
                        f"{link} is not a link to {source}: another process wrote to the folder of"
                        " the new topic. Restore into a new topic"
                    )
            except OSError as error:
                raise InvalidOptionError(
                    f"{source} cannot be linked to {link}: {error}. Run kts restore write as the"
                    " user of the brokers, or plan again without zero copy"
                ) from error
            folders.add(link.parent)
    for folder in folders:
        sync(folder)
        sync(folder.parent)


def copy_manifests(
    store: TargetStore, served: Iterable[ServedSegment], key_prefix: str
) -> list[ServedSegment]:
    """Copies the manifests of segments into the folder of the new topic id. Existing copies are
    kept. Returns the segments with the custom metadata of their events.

    Args:
        store: Store of the tier.
        served: Segments in the layout of Aiven's plugin.
        key_prefix: Key prefix of the old and the new cluster.

    Raises:
        InvalidOptionError: The new folder has another object with the name of a copy.
        CorruptSegmentError: A manifest is larger than a scan reads.
        TieredKafkaError: A manifest cannot be read or written.
    """

    def copy(each: ServedSegment) -> ServedSegment:
        objects, target = each.segment.objects, each.target
        stem = objects.log.key.removesuffix(LOG_SUFFIX)
        manifest = _read_manifest(store, stem + MANIFEST_SUFFIX)
        folder = f"{target.topic}-{uuid_to_text(target.topic_id)}/{target.partition}"
        key = f"{key_prefix}{folder}/{stem.rpartition('/')[2]}{MANIFEST_SUFFIX}"
        if not store.create(key, manifest) and _read_manifest(store, key) != manifest:
            raise InvalidOptionError(
                f"{store.uri(key)} is not a copy of {store.uri(stem + MANIFEST_SUFFIX)}: another"
                " process wrote to the folder of the new topic. Restore into a new topic"
            )
        indexes = {index.source.key: index.source.size for index in objects.indexes.values()}
        metadata = CustomMetadata(
            remote_size=objects.log.size + sum(indexes.values()) + len(manifest),
            # Without a prefix, the plugin uses its own, which also depends on its bucket or root.
            object_key=stem.removeprefix(key_prefix).removesuffix("."),
        )
        return replace(each, custom_metadata=metadata.to_bytes())

    with ThreadPoolExecutor(_COPY_THREADS, "kts-copy") as pool:
        return list(pool.map(copy, served))


def _read_manifest(store: TargetStore, key: str) -> bytes:
    try:
        return read_whole(store, store.head(key), MAX_MANIFEST_BYTES, InvalidManifestError)
    except InvalidManifestError as error:
        raise CorruptSegmentError(error.message, uri=store.uri(key)) from error


def max_producer_id(side_files: SideFiles, served: Iterable[ServedSegment]) -> int:
    """Returns the highest producer id in the snapshots with which new replicas begin: those of the
    last served segment of each partition. Returns −1 if there is none.

    Raises:
        InvalidOptionError: A snapshot is missing or invalid.
        CorruptSegmentError: A snapshot has an id above `MAX_PRODUCER_ID`.
    """
    last = {each.target: each.segment for each in served}
    highest = -1
    for target, segment in last.items():
        entries = side_files.snapshot(segment)
        if entries is None:
            raise InvalidOptionError(
                f"{target.topic}-{target.partition}: the producer snapshot of the segment at offset"
                f" {segment.start_offset} cannot be read. Plan again without zero copy"
            )
        highest = max([highest, *(entry.producer_id for entry in entries)])
        if highest > MAX_PRODUCER_ID:
            raise CorruptSegmentError(
                high_producer_id(highest),
                topic=segment.topic,
                partition=segment.partition,
                offset=segment.start_offset,
            )
    return highest


def publish_events(
    settings: BrokerSettings,
    plan: RestorePlan,
    served: Sequence[ServedSegment],
    *,
    max_batch_bytes: int,
) -> None:
    """Publishes the events of segments that the topic `__remote_log_metadata` does not have, and
    waits until it has all of them. Needs the permissions Read, Write and Describe on this topic.

    Raises:
        InvalidOptionError: The new topic has other segments, so its broker ran too early.
        BrokerError: A broker refuses a request.
        BrokerUnavailableError: The brokers do not answer.
    """
    topic_ids = {
        (each.target_topic, each.partition): plan.target_ids[each.target_topic]
        for each in plan.partitions
    }
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        state = read_metadata_topic(settings, topic_ids, max_batch_bytes=max_batch_bytes)
        finished, known = set(), set()
        for named in state.partitions.values():
            finished |= {segment.segment_id for segment in named.live}
            known |= {s.segment_id for s in (*named.live, *named.copying, *named.deleting)}
        expected = {_id(each) for each in served}
        deleted = [s for named in state.partitions.values() for s in named.deleting]
        if deleted or not known <= expected:
            raise InvalidOptionError(
                f"the new topics have other segments in {REMOTE_LOG_METADATA} than the plan: a"
                " broker led them before the write was complete. Restore into new topics"
            )
        pending = [each for each in served if _id(each) not in finished]
        if not pending:
            return
        if time.monotonic() > deadline:
            raise BrokerUnavailableError(
                f"{len(pending)} segments are still missing in {REMOTE_LOG_METADATA}: check its"
                " brokers, and run kts restore write again"
            )
        _produce(settings, plan.node_id, pending)


def _id(served: ServedSegment) -> RemoteLogSegmentId:
    return RemoteLogSegmentId(served.target, uuid_from_text(served.segment.segment_id))


def _produce(settings: BrokerSettings, broker_id: int, served: Iterable[ServedSegment]) -> None:
    """Appends the events of segments to the topic `__remote_log_metadata`. After an error that may
    be temporary, it waits and returns, so that the caller finds out which events are missing.
    """
    from kafka.protocol.producer.produce import ProduceRequest

    topic_type = ProduceRequest.TopicProduceData
    with closing(Cluster(settings)) as cluster:
        leaders = cluster.topics([REMOTE_LOG_METADATA])[REMOTE_LOG_METADATA].leaders
        events: dict[int, list[bytes]] = defaultdict(list)
        now_ms = time.time_ns() // 1_000_000
        for each in served:
            target = each.target
            number = metadata_partition(target.topic_id, target.partition, len(leaders))
            events[number] += each.events(broker_id, now_ms)
        for number, values in events.items():
            for records in _batches(values, now_ms):
                part = topic_type.PartitionProduceData(index=number, records=records)
                request = ProduceRequest(
                    transactional_id=None,
                    acks=_ALL_REPLICAS,
                    timeout_ms=_TIMEOUT_MS,
                    topic_data=[topic_type(name=REMOTE_LOG_METADATA, partition_data=[part])],
                    version=_PRODUCE_VERSION,
                )
                try:
                    answer = cluster.ask(leaders[number].node, request)
                except LostConnectionError:
                    time.sleep(_PAUSE_SECONDS)
                    return
                (response,) = answer.responses[0].partition_responses
                if response.error_code in PASSING:
                    time.sleep(_PAUSE_SECONDS)
                    return
                if response.error_code:
                    raise refusal(
                        response.error_code, topic=REMOTE_LOG_METADATA, partition=number
                    ).extended(" (Produce)")


def _batches(values: Iterable[bytes], now_ms: int) -> Iterator[bytes]:
    """Yields record batches with these values, in their order."""
    from kafka.record.default_records import DefaultRecordBatchBuilder

    def new_builder() -> DefaultRecordBatchBuilder:
        return DefaultRecordBatchBuilder(
            magic=2,
            compression_type=0,
            is_transactional=False,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=_BATCH_BYTES,
        )

    builder, count = new_builder(), 0
    for value in values:
        if builder.append(count, now_ms, None, value, ()) is None:
            yield bytes(builder.build())
            builder, count = new_builder(), 0
            builder.append(count, now_ms, None, value, ())
        count += 1
    yield bytes(builder.build())
