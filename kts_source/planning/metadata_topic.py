"""What `__remote_log_metadata` tells of some partitions: the segments that brokers say there are.

Brokers write down there when the copy of a segment begins and ends, and the same of its deletion.
Each partition of the topic is read from its log start to the high watermark that it had at first,
so what comes out is a state that brokers were in. Only the partitions that hold the wanted ones are
read.

A topic that has lost entries names fewer segments than there are, or some that are gone. Neither is
an error here: what no segment holds is read from brokers, and objects are looked up.

Source: `TopicBasedRemoteLogMetadataManager`, `ConsumerTask`, `RemoteLogMetadataCache`; KIP-405.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from kts_source.broker.broker_range import BrokerRange
from kts_source.broker.cluster import EARLIEST, LATEST, Cluster
from kts_source.broker.fetch_range import RangeFetcher
from kts_source.errors import BrokerAccessError, CorruptSegmentError, TopicNotFoundError
from segment_format.errors import SegmentFormatError
from segment_format.kafka_uuid import uuid_from_text, uuid_to_text
from segment_format.metadata.columns import metadata_records, parse_metadata_columns
from segment_format.metadata.live_segments import LiveSegments
from segment_format.metadata.model import RemoteLogSegmentMetadata, RemoteLogSegmentState
from segment_format.metadata.remote_log_segment_metadata import metadata_partition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from kts_source.broker.cluster import TopicPartition
    from kts_source.broker.settings import BrokerSettings
    from kts_source.errors import DataLossError
    from segment_format.metadata.columns import MetadataColumns

REMOTE_LOG_METADATA: Final = "__remote_log_metadata"
_HALF: Final = 64
_MAX_OFFSET: Final = (1 << 63) - 1
_INSTEAD: Final = "or leave option catalog=metadata-topic out, so that the tier is listed"


@dataclass(frozen=True, slots=True)
class MetadataRead:
    """What was read of one partition of the topic.

    Attributes:
        number: Which.
        start: First offset there was, inclusive.
        stop: The high watermark: one past the last offset read.
        records: How many, those of other topics included.
        missing: What is known to lack, in words.
    """

    number: int
    start: int
    stop: int
    records: int
    missing: tuple[str, ...]


@dataclass(slots=True)
class NamedSegments:
    """The segments of one partition that the topic names, in order of start offset.

    Attributes:
        read: Where they were read.
        live: Those that may be read (COPY_SEGMENT_FINISHED).
        copying: Copies in progress, or given up (COPY_SEGMENT_STARTED).
        deleting: Deletions in progress (DELETE_SEGMENT_STARTED).
    """

    read: MetadataRead
    live: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    copying: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    deleting: list[RemoteLogSegmentMetadata] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MetadataState:
    """What the topic told.

    Attributes:
        count: How many partitions the topic has.
        reads: What was read of those that hold the wanted partitions, in order.
        partitions: By topic and number, all that were wanted.
    """

    count: int
    reads: tuple[MetadataRead, ...]
    partitions: Mapping[TopicPartition, NamedSegments]


def read_metadata_topic(
    settings: BrokerSettings, wanted: Mapping[TopicPartition, str], *, max_batch_bytes: int
) -> MetadataState:
    """Reads what the topic tells of some partitions.

    Args:
        settings: How brokers are reached.
        wanted: Partition to the topic id of its incarnation; what is told of others is left out.
        max_batch_bytes: Bound on one batch.

    Raises:
        BrokerAccessError: The user may not read the topic; tells which ACLs that takes.
        TopicNotFoundError: The cluster has no such topic.
        CorruptSegmentError: A record that no broker writes.
        BrokerError: Brokers refuse, or do not answer.
    """
    with closing(Cluster(settings)) as cluster:
        try:
            return _read(cluster, wanted, max_batch_bytes)
        except BrokerAccessError as error:
            raise BrokerAccessError(
                "catalog=metadata-topic reads an internal topic that the user may not read: allow"
                f" the operations Describe and Read on the topic {REMOTE_LOG_METADATA}, {_INSTEAD}",
                topic=REMOTE_LOG_METADATA,
                partition=error.partition,
            ) from error


def _read(
    cluster: Cluster, wanted: Mapping[TopicPartition, str], max_batch_bytes: int
) -> MetadataState:
    topic = cluster.topics([REMOTE_LOG_METADATA]).get(REMOTE_LOG_METADATA)
    if topic is None:
        raise TopicNotFoundError(
            "the cluster has no such topic, or does not show it to this user: it does not tier, or"
            f" keeps its metadata elsewhere; make sure of the ACL Describe, {_INSTEAD}",
            topic=REMOTE_LOG_METADATA,
        )
    count = len(topic.leaders)
    holders = {
        place: metadata_partition(uuid_from_text(topic_id), place[1], count)
        for place, topic_id in wanted.items()
    }
    held: dict[int, dict[tuple[str, int], TopicPartition]] = defaultdict(dict)
    for place, number in holders.items():
        held[number][wanted[place], place[1]] = place
    places = [(REMOTE_LOG_METADATA, number) for number in sorted(held)]
    # The end comes first: what is written from now on is of a later state.
    ends = cluster.offsets(places, LATEST, read_committed=False)
    starts = cluster.offsets(places, EARLIEST, read_committed=False)
    epochs = cluster.last_epochs(ends)
    partitions: dict[TopicPartition, NamedSegments] = {}
    reads = []
    for place in places:
        at = BrokerRange(
            topic=REMOTE_LOG_METADATA,
            topic_id=topic.topic_id,
            partition=place[1],
            leader_epoch=epochs[place],
            start_offset=starts[place],
            stop_offset=max(ends[place], starts[place]),
            read_committed=False,
            nominal_bytes=0,
        )
        named = _named(cluster, at, held[place[1]], max_batch_bytes)
        partitions |= named
        reads.append(next(iter(named.values())).read)
    return MetadataState(count, tuple(reads), {place: partitions[place] for place in wanted})


def _named(
    cluster: Cluster,
    at: BrokerRange,
    wanted: Mapping[tuple[str, int], TopicPartition],
    max_batch_bytes: int,
) -> dict[TopicPartition, NamedSegments]:
    """What one partition of the topic tells; `wanted` by topic id and number."""
    missing: list[str] = []
    if at.start_offset > 0:
        missing.append(f"it begins at offset {at.start_offset}")

    def note_loss(start: int, stop: int, error: DataLossError) -> None:
        missing.append(f"offsets [{start}, {stop}) went while it was read: {error.message}")

    fetcher = RangeFetcher(cluster, at, max_batch_bytes=max_batch_bytes, on_loss=note_loss)
    halves = np.array(
        sorted({uuid_from_text(topic_id).int >> _HALF for topic_id, _ in wanted}), np.uint64
    )
    segments = LiveSegments()
    records = 0
    for rows in _rows(fetcher, at, max_batch_bytes):
        records += len(rows)
        events = _parsed(rows, at)
        mine = np.flatnonzero(np.isin(events.topic_id[:, 0], halves))
        segments.add(events if len(mine) == len(events) else events.rows(mine))
    found = list(metadata_records(segments.segments()))
    dropped = segments.dropped
    if dropped.unknown_segment:
        missing.append(f"{dropped.unknown_segment} updates are of segments that it does not name")
    if dropped.forbidden_transition:
        missing.append(f"{dropped.forbidden_transition} events are out of order")
    read = MetadataRead(at.partition, at.start_offset, at.stop_offset, records, tuple(missing))
    named = {place: NamedSegments(read) for place in wanted.values()}
    for segment in found:
        assert isinstance(segment, RemoteLogSegmentMetadata)
        of = segment.segment_id.topic_id_partition
        user_partition = wanted.get((uuid_to_text(of.topic_id), of.partition))
        if user_partition is None:
            continue
        mine_of = named[user_partition]
        match segment.state:
            case RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                mine_of.live.append(segment)
            case RemoteLogSegmentState.COPY_SEGMENT_STARTED:
                mine_of.copying.append(segment)
            case _:
                mine_of.deleting.append(segment)
    return named


def _rows(fetcher: RangeFetcher, at: BrokerRange, max_batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Offsets and values of the records, without tombstones."""
    from segment_format.arrow import RecordDecoder  # brings in the kernels

    decoder = RecordDecoder(
        columns=("offset", "value"),
        start_offset=at.start_offset,
        stop_offset=at.stop_offset,
        offset_bounds=(0, _MAX_OFFSET),
        max_batch_bytes=max_batch_bytes,
    )
    try:
        with closing(fetcher.batches()) as answers:
            for answer in answers:
                yield from decoder.feed(answer.data)
        yield from decoder.finish()
    except SegmentFormatError as error:
        raise CorruptSegmentError(
            f"a broker sent what is not valid: {error.message}",
            topic=at.topic,
            partition=at.partition,
            offset=error.offset,
        ) from error


def _parsed(rows: pa.RecordBatch, at: BrokerRange) -> MetadataColumns:
    if rows.column("value").null_count:  # a tombstone tells nothing
        rows = rows.filter(rows.column("value").is_valid())
    try:
        return parse_metadata_columns(rows.column("value"), rows.column("offset").to_numpy())
    except SegmentFormatError as error:
        raise CorruptSegmentError(
            f"a record that no broker writes: {error.message}; if the cluster is newer than this"
            f" package, update it, {_INSTEAD}",
            topic=at.topic,
            partition=at.partition,
            offset=error.offset,
        ) from error
