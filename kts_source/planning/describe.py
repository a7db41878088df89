"""Describes a tier: which offsets of each partition a reader can read without brokers, and which
offsets consumer groups committed on the disks of brokers.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from kts_source.errors import (
    CorruptSegmentError,
    TieredKafkaError,
    TopicNotFoundError,
    UnknownKeyError,
)
from kts_source.layout.kafka_logs.kafka_logs import Disks
from kts_source.libraries import require
from kts_source.options import READ_COMMITTED, options_of
from kts_source.options.selection import Assign, EarliestBound, LatestBound, SubscribePattern
from kts_source.planning.planner import plan_scan
from kts_source.planning.segment_catalog import (
    DiscoveredTopic,
    ListedPartition,
    SegmentCatalog,
    check_partitions,
    discover,
    discover_topic,
    incarnations,
    log_topic,
)
from kts_source.planning.side_files import SideFiles
from kts_source.planning.tier_source import layout_of
from kts_source.read.segment_source import SegmentSource
from kts_source.store.joined_store import additional_store_prefix, is_in_additional_store
from kts_source.texts import Displayed, Table, counted, format_bytes
from kts_source.tier import Tier, open_tier
from segment_format.metadata.group_offsets import committed_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pandas as pd

    from kts_source.options import OptionValue, PathOrOptions, ScanOptions
    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.store.object_store import ObjectStore
    from segment_format.metadata.group_offsets import CommittedOffset, GroupPartition
    from segment_format.record.records import DecodedBatch

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_THREADS: Final = 16
OFFSETS_TOPIC: Final = "__consumer_offsets"


@dataclass(frozen=True, slots=True)
class PartitionWatermark:
    """Offsets of a partition that a reader can read from the tier alone.

    Attributes:
        log_start: First offset that a consumer may see.
        tier_end: One past the last tiered offset, where a read with `read_uncommitted` ends.
        tier_end_timestamp_ms: Largest timestamp of the last segment, including transaction markers;
            −1 if unknown.
        last_stable_offset: One past the last offset that a read with `read_committed` returns from
            the tier.
        last_stable_timestamp_ms: Largest timestamp in the segment that contains the last offset
            below `last_stable_offset`; `None` if unknown. If `last_stable_offset` is inside the
            segment, this is the largest timestamp of earlier offsets according to the time index,
            which lacks the last few batches.
        reason: Why a read with `read_committed` ends at `last_stable_offset`.
        segments: Number of segments that are read.
        stored_bytes: Size of the log objects of these segments.
        original_bytes: Size of the logs of these segments before compression and encryption.
        holes: Ranges of missing offsets, as [start, stop) pairs.
        unverifiable: Gaps that may or may not have contained records, as [start, stop) pairs.
        skipped: Segments that are not read, with reasons.
        orphans: Objects that belong to no segment.
        high_watermark: High watermark in the cluster, or the highest one recorded on its disks.
            This attribute and all following ones are `None` if neither brokers nor disks are read.
        cluster_stable_offset: Last stable offset of the cluster.
        local_start: First offset on the leader's own disk, or on the disk that is read; `None` also
            if the leader does not report it.
        broker_offsets: Number of offsets that are read from brokers: holes of the tier, and the
            offsets after the tier.
        broker_bytes: Estimated bytes of `broker_offsets`.
        oldest_untiered_ms: Timestamp in ms of the first batch after the end of the tier, or `None`.
        disk_offsets: Number of offsets that are read from disks (option `tailPath`).
        disk_bytes: Number of bytes that are read from segments on disks.
        catalog_records: Number of records that were read from the partition of
            `__remote_log_metadata` that has the events of this partition. This attribute and all
            following ones are `None` if the tier was listed instead.
        copies_in_progress: Number of segments whose copy to the tier has begun but has not
            finished.
        deletions_in_progress: Number of segments whose deletion from the tier has begun but has not
            finished.
    """

    topic: str
    topic_id: str
    partition: int
    log_start: int
    tier_end: int
    tier_end_timestamp_ms: int
    last_stable_offset: int
    last_stable_timestamp_ms: int | None
    reason: str
    segments: int
    stored_bytes: int
    original_bytes: int
    holes: tuple[tuple[int, int], ...]
    unverifiable: tuple[tuple[int, int], ...]
    skipped: tuple[str, ...]
    orphans: tuple[str, ...]
    high_watermark: int | None = None
    cluster_stable_offset: int | None = None
    local_start: int | None = None
    broker_offsets: int | None = None
    broker_bytes: int | None = None
    oldest_untiered_ms: int | None = None
    disk_offsets: int | None = None
    disk_bytes: int | None = None
    catalog_records: int | None = None
    copies_in_progress: int | None = None
    deletions_in_progress: int | None = None


_TYPES: Final = {
    "str": pa.string(),
    "int": pa.int64(),
    "int | None": pa.int64(),
    "tuple[str, ...]": pa.list_(pa.string()),
    "tuple[tuple[int, int], ...]": pa.list_(pa.list_(pa.int64(), 2)),
}
_SCHEMA: Final = pa.schema(
    (field.name, pa.int32() if field.name == "partition" else _TYPES[str(field.type)])
    for field in fields(PartitionWatermark)
)


@dataclass(frozen=True, slots=True, repr=False)
class TierDescription(Displayed):
    """Watermarks of the selected partitions, in order of topic and partition."""

    partitions: tuple[PartitionWatermark, ...]

    def to_arrow(self) -> pa.Table:
        """Returns an Arrow table with a row per partition. Attributes with several values, such as
        holes, are lists.
        """
        rows = [asdict(mark) for mark in self.partitions]
        return pa.Table.from_pylist(rows, _SCHEMA)

    def _tables(self) -> tuple[Table]:
        return (self.table,)

    @property
    def table(self) -> Table:
        """A short table with a row per partition."""
        header = ("partition", "log start", "tier end", "last stable", "segments", "bytes", "")
        rows = [
            (
                f"{mark.topic}-{mark.partition}",
                mark.log_start,
                mark.tier_end,
                mark.last_stable_offset,
                mark.segments,
                format_bytes(mark.stored_bytes),
                counted(len(mark.holes), "hole") if mark.holes else mark.reason,
            )
            for mark in self.partitions
        ]
        return Table("Tier", header, rows)

    def to_pandas(self) -> pd.DataFrame:
        """Returns the table of `to_arrow` as a pandas DataFrame.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        require("pandas", "pandas", "to_pandas()")
        return self.to_arrow().to_pandas()


@dataclass(frozen=True, slots=True)
class DescribedPlan:
    """A description of a tier, and the plan from which it was computed.

    Attributes:
        plan: The plan that reads every partition from its log start to its last stable offset.
        uri: Root of the tier, without credentials.
    """

    description: TierDescription
    plan: ScanPlan
    uri: str


def describe(
    source: PathOrOptions | ScanOptions | None = None,
    store: ObjectStore | None = None,
    **more: OptionValue,
) -> TierDescription:
    """Returns the watermarks of the selected partitions. If the options name brokers, includes the
    cluster's offsets after the tier.

    Reports holes in the result instead of raising an error. Ignores bounds and a plan file in the
    options.

    Args:
        source: Options of the data source, or the path of the tier; `None` = they are in `more`.
        store: Store of the tier; by default it is opened from the options.
        **more: Options in addition to those in `source`.

    Raises:
        TieredKafkaError: Planning fails for another reason than holes.
    """
    tier = None if store is None else Tier(store)
    return described_plan(options_of(source, **more), tier, tasks=False).description


def described_plan(
    options: ScanOptions, tier: Tier | None = None, *, tasks: bool = True
) -> DescribedPlan:
    """Describes a tier and also returns the plan. With `tasks=False`, the plan of a tier without
    brokers has no tasks.

    Raises:
        TieredKafkaError: Planning fails for another reason than holes.
    """
    unbounded = replace(
        options,
        starting=EarliestBound(),
        ending=LatestBound(),
        isolation_level=READ_COMMITTED,
        fail_on_data_loss=False,
        plan_file=None,
    )
    opening = closing(open_tier(unbounded)) if tier is None else nullcontext(tier)
    with opening as opened:
        plan = plan_scan(unbounded, opened, tasks=tasks, is_read=False)
        reader = SegmentSource(opened, unbounded.key_ring.loaded())
        side_files = SideFiles(reader, max_batch_bytes=unbounded.max_batch_bytes)
        disk_bytes: dict[tuple[str, int], int] = {}
        for piece in (piece for task in plan.tasks for piece in task.slices):
            if is_in_additional_store(piece.objects.log.key):
                key = piece.topic, piece.partition
                disk_bytes[key] = disk_bytes.get(key, 0) + piece.nominal_bytes
        marks = [
            _watermark(
                partition, side_files, disk_bytes.get((partition.topic, partition.partition), 0)
            )
            for partition in plan.partitions
        ]
        uri = opened.store.uri(unbounded.key_prefix)
    if unbounded.brokers is not None:
        marks = with_brokers(marks, plan, unbounded)
    return DescribedPlan(TierDescription(tuple(marks)), plan, uri)


def _watermark(
    partition: PartitionPlan, side_files: SideFiles, disk_bytes: int
) -> PartitionWatermark:
    surviving, disks = partition.surviving, partition.disks
    tiered = [span.segment for span in surviving.ranges]
    if disks is not None:
        tiered = [
            segment for segment in tiered if not is_in_additional_store(segment.objects.log.key)
        ]
    mark = PartitionWatermark(
        topic=partition.topic,
        topic_id=partition.topic_id,
        partition=partition.partition,
        log_start=surviving.log_start,
        tier_end=surviving.stop if disks is None else partition.tier_end,
        tier_end_timestamp_ms=tiered[-1].max_timestamp_ms if tiered else -1,
        last_stable_offset=partition.stop,
        last_stable_timestamp_ms=_stable_timestamp(partition, side_files),
        reason=partition.end_reason,
        segments=len(tiered),
        stored_bytes=sum(segment.objects.log.size for segment in tiered),
        original_bytes=sum(segment.objects.size_in_bytes for segment in tiered),
        holes=tuple((hole.start, hole.stop) for hole in surviving.holes),
        unverifiable=tuple((gap.start, gap.stop) for gap in surviving.unverifiable),
        skipped=tuple(f"{s.segment.segment_id}: {s.reason}" for s in surviving.skipped),
        orphans=tuple(f"{', '.join(o.keys)}: {o.reason}" for o in partition.orphans),
    )
    if disks is None:
        return mark
    return replace(
        mark,
        high_watermark=disks.high_watermark,
        local_start=disks.local_start,
        disk_offsets=sum(span.stop - span.start for span in partition.disk_ranges),
        disk_bytes=disk_bytes,
        oldest_untiered_ms=_oldest_on_disk(partition, side_files),
    )


def _stable_timestamp(partition: PartitionPlan, side_files: SideFiles) -> int | None:
    below = [span for span in partition.surviving.ranges if span.start < partition.stop]
    if not below:
        return None
    segment = below[-1].segment
    if min(partition.stop, below[-1].stop) == segment.stop_offset:
        return segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else None
    try:
        times = side_files.time_index(segment)
    except CorruptSegmentError as error:  # the key may be missing
        log.warning("no timestamp of the last stable offset: %s", error)
        return None
    if times is None:
        return None
    # An entry of the time index has the largest timestamp of all batches up to its offset.
    earlier = times.timestamps[times.offsets < partition.stop]
    return int(earlier[-1]) if len(earlier) and earlier[-1] >= 0 else None


def _oldest_on_disk(partition: PartitionPlan, side_files: SideFiles) -> int | None:
    """Returns the timestamp (ms) of the first record on disks after the end of the tier; `None` if
    there is no such record.
    """
    for span in partition.disk_ranges:
        if span.start < partition.tier_end:
            continue
        index = side_files.offset_index(span.segment)
        position = 0 if index is None else index.lookup(span.start).position
        times = side_files.record_times(span.segment, position, dated_from_ms=-1)
        for offset, record_ms in times:
            if span.start <= offset < span.stop:
                return record_ms
    return None


def with_brokers(
    marks: Iterable[PartitionWatermark], plan: ScanPlan, options: ScanOptions
) -> list[PartitionWatermark]:
    """Returns the watermarks with facts from brokers added, such as the offsets after the tier.
    `plan` must be a plan of a tier together with its brokers.

    Raises:
        BrokerError: Brokers refuse a request, or do not answer.
    """
    from kts_source.planning.cluster_view import ClusterView  # most plans are of the tier alone

    assert options.brokers is not None
    sizes: dict[tuple[str, int], int] = {}
    for piece in (piece for task in plan.tasks for piece in task.ranges):
        key = piece.topic, piece.partition
        sizes[key] = sizes.get(key, 0) + piece.nominal_bytes
    extended = []
    with closing(ClusterView(options.brokers, options)) as view:
        for mark, partition in zip(marks, plan.partitions, strict=True):
            brokers, catalog = partition.brokers, partition.catalog
            assert brokers is not None
            key = partition.topic, partition.partition
            extended.append(
                replace(
                    mark,
                    tier_end=partition.tier_end,
                    holes=tuple(span for span in brokers.ranges if span[0] < partition.tier_end),
                    high_watermark=brokers.high_watermark,
                    cluster_stable_offset=brokers.last_stable_offset,
                    local_start=brokers.local_start,
                    broker_offsets=sum(stop - start for start, stop in brokers.ranges),
                    broker_bytes=sizes.get(key, 0),
                    oldest_untiered_ms=view.first_timestamp_ms(view.logs[key], partition.tier_end),
                    catalog_records=None if catalog is None else catalog.records,
                    copies_in_progress=None if catalog is None else catalog.copying,
                    deletions_in_progress=None if catalog is None else catalog.deleting,
                )
            )
    return extended


@dataclass(frozen=True, slots=True)
class LockedPartition:
    """A partition that cannot be read because private keys are missing. The facts are from its
    manifests.

    Attributes:
        keys_needed: Ids of the missing keys. Each is needed by at least one segment.
        segments: Number of complete segments.
        stored_bytes: Size of the log objects of these segments.
        original_bytes: Size of the logs of these segments before compression and encryption.
        orphans: Objects that belong to no segment.
    """

    topic: str
    topic_id: str
    partition: int
    keys_needed: tuple[str, ...]
    segments: int
    stored_bytes: int
    original_bytes: int
    orphans: tuple[str, ...]

    @property
    def reason(self) -> str:
        """Message that names the missing private keys."""
        return f"key {', '.join(self.keys_needed)} needed"


def unless_locked(make: Callable[[], _Result]) -> _Result | None:
    """Returns the result of a call; `None` if the call fails because a private key is missing."""
    try:
        return make()
    except TieredKafkaError as error:
        cause: BaseException | None = error
        while not isinstance(cause, UnknownKeyError):
            if cause is None:
                raise
            cause = cause.__cause__
    return None


def topics_of_tier(options: ScanOptions) -> list[str]:
    """Returns the names of the selected topics. Lists folders, but reads no object.

    Raises:
        TierNotFoundError: There is no tier at the path.
    """
    with closing(open_tier(options)) as tier, ThreadPoolExecutor(1) as pool:
        catalog = SegmentCatalog(tier, layout_of(options), pool, fail_on_data_loss=False)
        return sorted(incarnations(options, catalog))


def selected_topics(options: ScanOptions) -> list[str]:
    """Returns the names of the topics that a scan reads, sorted. Includes damaged topics, and lacks
    topics that match `subscribePattern` but have no segment yet.

    Names in `subscribe` and `assign` are not checked. For a pattern, lists the tier, the topics of
    the cluster, or the disks. Reads descriptions of segments only of topics with several topic ids.

    Raises:
        TieredKafkaError: The topics cannot be listed, or none matches.
    """
    wanted = options.selection.wanted
    if not isinstance(options.selection, SubscribePattern):
        return list(wanted(()))
    if options.brokers is not None:
        from kts_source.broker.cluster import Cluster

        with closing(Cluster(options.brokers)) as cluster:
            in_cluster = wanted(cluster.topics(None, selects=wanted))
        if not in_cluster:
            pattern = options.selection.pattern
            raise TopicNotFoundError(
                f"no topic of the cluster matches {pattern!r}: correct option 'subscribePattern'"
            )
        return list(in_cluster)
    with (
        closing(open_tier(options)) as tier,
        ThreadPoolExecutor(_THREADS) as pool,
        ThreadPoolExecutor(_THREADS) as describing,
    ):
        roots = map(additional_store_prefix, range(len(options.tail_paths)))
        on_disks = wanted(Disks(tier.store, roots).topics())
        catalog = SegmentCatalog(tier, layout_of(options), describing, fail_on_data_loss=False)
        tiered = incarnations(options, catalog, may_lack=on_disks)
        found: list[DiscoveredTopic] = []
        names = set(on_disks)
        for topic in tiered.keys() - names:
            try:
                found.append(discover_topic(options, topic, tiered[topic], catalog, pool))
            except TieredKafkaError:  # a read of the topic reports the error
                names.add(topic)
        for each in found:
            is_damaged = any(orphan.described is not None for _, orphan in each.parts)
            if each.partitions or each.older_ids or is_damaged:
                names.add(each.topic)
            else:
                log_topic(each, options)
        if not names:
            check_partitions(options, found, catalog)
            raise TopicNotFoundError(
                f"no topic that matches {options.selection.pattern!r} has a complete segment:"
                " correct option 'subscribePattern', or wait until a segment is copied"
            )
        return sorted(names)


def partitions_with_keys(
    options: ScanOptions, tier: Tier | None = None
) -> list[tuple[ListedPartition, tuple[str, ...]]]:
    """Returns every partition, with the ids of the private keys that its segments need and the
    options lack.
    """
    held = set(options.key_ring.key_ids)
    with (
        closing(open_tier(options)) if tier is None else nullcontext(tier) as opened,
        ThreadPoolExecutor(_THREADS) as pool,
        ThreadPoolExecutor(_THREADS) as describing,
    ):
        catalog = SegmentCatalog(opened, layout_of(options), describing, fail_on_data_loss=False)
        topics = discover(options, catalog, pool)
        listed = [each for topic in topics for each in topic.partitions]
        return [(each, _missing_keys(each, held)) for each in listed]


def _missing_keys(listed: ListedPartition, held: set[str]) -> tuple[str, ...]:
    encryptions = (segment.objects.encryption for segment in listed.all())
    needed = {encryption.data_key.key_id for encryption in encryptions if encryption is not None}
    return tuple(sorted(key_id for key_id in needed if key_id.lower() not in held))


def only(options: ScanOptions, partitions: Iterable[ListedPartition]) -> ScanOptions:
    """Returns a copy of the options that selects exactly the partitions in `partitions`."""
    numbers: dict[str, tuple[int, ...]] = {}
    for listed in partitions:
        numbers[listed.topic] = (*numbers.get(listed.topic, ()), listed.partition)
    return replace(options, selection=Assign(numbers))


def locked_partition(listed: ListedPartition, keys: tuple[str, ...]) -> LockedPartition:
    """Returns the facts about a partition that cannot be read without the private keys with the ids
    `keys`.
    """
    segments = listed.all()
    return LockedPartition(
        listed.topic,
        listed.topic_id,
        listed.partition,
        keys,
        len(segments),
        sum(segment.objects.log.size for segment in segments),
        sum(segment.objects.size_in_bytes for segment in segments),
        tuple(f"{', '.join(orphan.keys)}: {orphan.reason}" for orphan in listed.orphans),
    )


def groups_on_disks(options: ScanOptions) -> dict[GroupPartition, CommittedOffset]:
    """Returns the last committed offsets of all groups, sorted by group, topic and partition.

    Args:
        options: Options of a read_uncommitted scan of `OFFSETS_TOPIC` with `layout=kafka-logs`. In
            read_committed, an open transaction would hide the later commits of other groups.

    Raises:
        TieredKafkaError: The disks cannot be read, or lack offsets.
        InvalidMetadataError: A record is malformed.
    """
    offsets: dict[GroupPartition, CommittedOffset] = {}
    plan = plan_scan(options, tasks=False)
    with closing(open_tier(options)) as tier:
        source = SegmentSource(tier, options.key_ring.loaded())
        side_files = SideFiles(source, max_batch_bytes=options.max_batch_bytes)
        for partition in plan.partitions:
            offsets |= committed_offsets(_batches(partition, side_files))
    return dict(sorted(offsets.items()))


def _batches(partition: PartitionPlan, side_files: SideFiles) -> Iterator[DecodedBatch]:
    for span, start, stop in partition.wanted_ranges():
        for batch in side_files.batches(span.segment, 0):
            if batch.base_offset >= stop:
                break
            if batch.last_offset >= start:
                yield batch
