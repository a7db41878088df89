"""Plans a scan of tier and brokers: the whole topic, from its log start to its end.

What the tier has on the leader's branch is read from it; everything else is a range of offsets that
brokers serve. So a hole, a damaged segment or one that cannot be described is no loss here.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from kts_source.broker.broker_range import BrokerRange
from kts_source.broker.old_brokers import LEAK
from kts_source.errors import (
    LeaderChangedError,
    OldBrokerError,
    TieredKafkaError,
    TopicNotFoundError,
)
from kts_source.layout.find_layout import find_layout
from kts_source.planning.assemble import PlannedPartition, assembled
from kts_source.planning.bounds import Place, check_named, requested_bounds
from kts_source.planning.cluster_view import ClusterView
from kts_source.planning.isolation import Decisions
from kts_source.planning.metadata_layout import MetadataTopicLayout
from kts_source.planning.metadata_topic import REMOTE_LOG_METADATA, read_metadata_topic
from kts_source.planning.scan_plan import BrokerPart, PartitionPlan
from kts_source.planning.segment_catalog import PLANNING_THREADS, SegmentCatalog
from kts_source.planning.side_files import SideFiles
from kts_source.planning.slicing import bounded, spans
from kts_source.planning.tiered_part import TieredPart, tier_end, tiered_part
from kts_source.planning.union_isolation import NotUsableError, aborted_in_tier, check_ends_in_tier
from kts_source.planning.union_log import between, union_log
from kts_source.read.segment_source import SegmentSource
from segment_format.isolation import NO_ABORTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.broker.settings import BrokerSettings
    from kts_source.layout.layout import TopicFolder
    from kts_source.options import ScanOptions
    from kts_source.planning.bounds import BoundsOf, Progress
    from kts_source.planning.cluster_view import BrokerLog
    from kts_source.planning.lineage import PartitionLog
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.planning.union_isolation import TierRun
    from kts_source.planning.union_log import OffsetSpan
    from kts_source.read.task import SegmentSlice
    from kts_source.tier import Tier
    from segment_format.index.leader_epoch_checkpoint import EpochEntry

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 5
"""A plan begins anew where a leader changes under it."""
_SIZED_BY: Final = 3
"""The newest segments tell how many bytes an offset takes."""
_FEW_OFFSETS: Final = 100_000
"""Where no segment tells, a range of so many offsets is not worth a request to find out."""
_GUESSED_BYTES: Final = 200.0
_EMPTY_IN_A_ROW: Final = 16
"""A reader has no offsets of partitions without records, so those after them are looked up, too."""


def planned_with_brokers(
    options: ScanOptions, settings: BrokerSettings, tier: Tier, progress: Progress | None
) -> ScanPlan:
    """Plans one scan of tier and brokers.

    Raises:
        TieredKafkaError: See `ClusterView` and `requested_bounds`.
    """
    blamed = False
    counts: dict[str, int] = {}
    for attempt in range(_ATTEMPTS):
        try:
            with closing(ClusterView(settings, options, counts=counts)) as view:
                try:
                    return _planned(options, tier, view, progress)
                finally:
                    counts |= view.partition_counts
        except (LeaderChangedError, OldBrokerError) as error:
            # Segments may have moved into the tier after it was listed, but not twice.
            is_old = isinstance(error, OldBrokerError)
            if attempt + 1 == _ATTEMPTS or (is_old and blamed):
                raise
            blamed |= is_old
            log.info("planning anew: %s", error)
    raise AssertionError


@dataclass(frozen=True, slots=True)
class ListedTier:
    """Objects in the tier of the topics in a view of the cluster.

    Attributes:
        partitions: Those of the view, by topic and number.
        topics: Topics of the view of which the tier has a partition, in the view or not.
        named: The metadata topic's names; `None` if the tier was listed.
    """

    partitions: Mapping[tuple[str, int], ListedPartition]
    topics: frozenset[str]
    named: MetadataTopicLayout | None


def _planned(
    options: ScanOptions, tier: Tier, view: ClusterView, progress: Progress | None
) -> ScanPlan:
    key_ring = options.key_ring.loaded()
    if progress is not None:
        _check_described(view, progress)
    # The cluster knows which partitions there are: none may be named that is not read.
    check_named(options, view.logs.keys(), frozenset())
    with (
        ThreadPoolExecutor(PLANNING_THREADS, "kts-describe") as describing,
        ThreadPoolExecutor(PLANNING_THREADS, "kts-plan") as pool,
    ):
        listing = list_tier(options, tier, view, describing, pool)
        named = listing.named

        def plan(brokers: BrokerLog) -> PlannedPartition:
            place = brokers.topic, brokers.partition
            part = listing.partitions.get(place)
            source = SegmentSource(tier, key_ring, pack=part.side_files if part else None)
            side_files = SideFiles(source, max_batch_bytes=options.max_batch_bytes)
            goes_on = None
            if progress is not None:
                goes_on = progress.bounds_of(brokers.topic, brokers.topic_id, brokers.partition)
            try:
                tiered = tiered_part(part, side_files, named, place, needs_end=not options.tail)
                planned = plan_partition(options, brokers, tiered, view, goes_on)
                if progress is not None:
                    lineage = view.lineage(brokers, planned.plan.start - 1)
                    planned = _with_lineage(planned, lineage)
                if named is None:
                    return planned
                return replace(planned, plan=_with_catalog(planned.plan, named))
            except TieredKafkaError as error:
                error.located(topic=brokers.topic, partition=brokers.partition)
                raise error from error.__cause__
            finally:
                if part is not None:
                    part.save()

        found = list(pool.map(plan, view.logs.values()))
    view.check_topics()
    asked: dict[str, list[int]] = {}
    for topic, number in view.logs:
        asked.setdefault(topic, []).append(number)
    notes: list[str] = []
    if options.path:
        check_tier(options, tier, listing, view)
        notes = _notes(options, tier, listing, view)
    return assembled(options, found, notes, asked)


def _check_described(view: ClusterView, progress: Progress) -> None:
    """Compares the partitions that brokers described with those that the reader has read.

    Raises:
        LeaderChangedError: Brokers describe all of them only now.
        BrokerUnavailableError: They still do not.
    """
    for name, topic in view.topics.items():
        described = count = number = len(topic.leaders)
        while number < count + _EMPTY_IN_A_ROW:
            number += 1
            if progress.bounds_of(name, topic.topic_id, number - 1) is not None:
                count = number
        if count > described:
            view.require_partitions(name, count)


def list_tier(
    options: ScanOptions,
    tier: Tier,
    view: ClusterView,
    describing: ThreadPoolExecutor,
    pool: ThreadPoolExecutor,
) -> ListedTier:
    """Lists the partitions of a view that have objects in the tier, of the topic ids that the
    cluster has; with the option for it, by the metadata topic.
    """
    named = _named_segments(options, tier, view, describing)
    # What cannot be described is left to brokers.
    catalog = SegmentCatalog(
        tier, named or find_layout(options.layout), describing, fail_on_data_loss=False
    )
    partitions, topics = _listed(options, catalog, view, pool)
    catalog.expect(len(view.logs))
    return ListedTier(partitions, topics, named)


def _named_segments(
    options: ScanOptions, tier: Tier, view: ClusterView, pool: ThreadPoolExecutor
) -> MetadataTopicLayout | None:
    """The tier as the metadata topic names it, where that is asked for."""
    if not options.by_metadata_topic:
        return None
    assert options.brokers is not None
    wanted = {place: brokers.topic_id for place, brokers in view.logs.items()}
    layout = find_layout(options.layout)
    state = read_metadata_topic(options.brokers, wanted, max_batch_bytes=options.max_batch_bytes)
    named = MetadataTopicLayout(layout, state, view.logs)
    named.look_up(tier.store, options.key_prefix, pool)
    return named


def _with_lineage(planned: PlannedPartition, lineage: tuple[EpochEntry, ...]) -> PlannedPartition:
    surviving = replace(planned.plan.surviving, lineage=lineage)
    return replace(planned, plan=replace(planned.plan, surviving=surviving))


def _with_catalog(plan: PartitionPlan, named: MetadataTopicLayout) -> PartitionPlan:
    place = plan.topic, plan.partition
    return replace(plan, orphans=named.orphans(place), catalog=named.catalog_part(place))


def _listed(
    options: ScanOptions, catalog: SegmentCatalog, view: ClusterView, pool: ThreadPoolExecutor
) -> tuple[dict[tuple[str, int], ListedPartition], frozenset[str]]:
    folders: list[TopicFolder] = []
    for topic in view.topics.values():
        found = catalog.layout.topic_folders(catalog.store, options.key_prefix, topic.topic)
        folders += [folder for folder in found if folder.topic_id == topic.topic_id]
    places = []
    topics = set()
    for folder in folders:
        numbers = catalog.layout.partitions(catalog.store, folder)
        if set(numbers) - view.topics[folder.topic].leaders.keys():
            view.require_partitions(folder.topic, max(numbers) + 1)
        places += [(folder, number) for number in numbers if (folder.topic, number) in view.logs]
        if numbers:
            topics.add(folder.topic)
    listed = pool.map(lambda place: catalog.listed(*place), places)
    return {(part.topic, part.partition): part for part in listed}, frozenset(topics)


def check_tier(
    options: ScanOptions,
    tier: Tier,
    listing: ListedTier,
    view: ClusterView,
) -> None:
    """Refuses a tier that has nothing of a topic of which brokers say that it is tiered.

    Raises:
        TopicNotFoundError: It is another tier, or named wrongly.
    """
    named = listing.named
    where = tier.store.uri(options.key_prefix)
    for log_ in view.logs.values():
        tiered = log_.local_start is not None and log_.local_start > log_.log_start
        if tiered and log_.topic not in listing.topics and options.fail_on_data_loss:
            what = f"there is nothing of topic id {log_.topic_id} at {where}"
            check = "check path, keyPrefix and layout"
            if named is not None and not named.names_any(log_.topic):
                what = f"{REMOTE_LOG_METADATA} names no segment of topic id {log_.topic_id}"
                check = "leave option catalog=metadata-topic out, so that the tier is listed"
            raise TopicNotFoundError(
                f"brokers say that offsets [{log_.log_start}, {log_.local_start}) are tiered, and"
                f" {what}: {check}; without 'path' all of it is read from brokers",
                topic=log_.topic,
                partition=log_.partition,
            )


def _notes(
    options: ScanOptions,
    tier: Tier,
    listing: ListedTier,
    view: ClusterView,
) -> list[str]:
    named = listing.named
    where = tier.store.uri(options.key_prefix)
    found = [
        f"topic {name}: nothing of topic id {topic.topic_id} at {where}; all of it is read from"
        " brokers"
        for name, topic in view.topics.items()
        if name not in listing.topics
    ]
    for note in found:
        log.warning("%s", note)
    return [*found, *(() if named is None else named.notes()), *tier.store.remarks]


def plan_partition(
    options: ScanOptions,
    brokers: BrokerLog,
    tiered: TieredPart,
    view: ClusterView,
    bounds_of: BoundsOf | None,
) -> PlannedPartition:
    """Plans what is read of one partition.

    Args:
        options: What is read.
        brokers: What its leader says.
        tiered: What the tier has of it.
        view: Asks the leader.
        bounds_of: Finds the offsets; the options do where it is `None`.

    Raises:
        TieredKafkaError: See `requested_bounds` and `aborted_in_tier`.
    """
    place = Place(
        brokers.topic,
        brokers.partition,
        fail_on_data_loss=options.fail_on_data_loss,
        holder="the cluster" if options.tail else "the tier",
        beyond=_beyond(options),
    )
    side_files = tiered.side_files
    epochs = tiered.epochs
    owned = view.owned(brokers, epochs) if epochs else {}
    end = brokers.end if options.tail else tier_end(tiered, brokers, owned, place)
    not_usable: frozenset[str] = frozenset()
    while True:
        known = union_log(tiered.segments, brokers.log_start, brokers.end, owned, not_usable)
        known = replace(known, stop=end)
        start, stop = _bounds(options, place, known, brokers, view, bounds_of)
        side_files.bounds = start, stop
        rest = tuple(between(known.ranges, start, stop))
        plan = _partition_plan(brokers, known, start, stop, rest)
        try:
            slices, aborted = _tier_slices(options, place, plan, side_files, brokers, view)
        except NotUsableError as error:
            log.warning("%s: segment %s is read from brokers", place, error.segment_id)
            not_usable |= {error.segment_id}
            continue
        break
    if rest and rest[0].start < (decided := view.decided_from(brokers)):
        raise OldBrokerError(
            f"offsets from {rest[0].start} to {decided} would be read by brokers from their tier,"
            f" and {LEAK}: give the tier's path, or read with isolationLevel=read_uncommitted"
        )
    pieces: list[SegmentSlice | BrokerRange] = [*slices]
    if rest:
        each = bytes_per_offset(known, brokers, rest[0].start, rest[-1].stop, view)
        pieces += [
            BrokerRange(
                brokers.topic,
                brokers.topic_id,
                brokers.partition,
                brokers.leader_epoch,
                span.start,
                span.stop,
                options.read_committed,
                max(1, round((span.stop - span.start) * each)),
            )
            for span in rest
        ]
        pieces.sort(key=lambda piece: piece.start_offset)
    return PlannedPartition(plan, pieces, aborted)


def _partition_plan(
    brokers: BrokerLog, known: PartitionLog, start: int, stop: int, rest: tuple[OffsetSpan, ...]
) -> PartitionPlan:
    """Returns the plan of a partition of which brokers serve the offsets in `rest`."""
    return PartitionPlan(
        brokers.topic,
        brokers.topic_id,
        brokers.partition,
        known,
        (),
        start,
        stop,
        stop,
        (),
        BrokerPart(
            brokers.leader_epoch,
            tuple((span.start, span.stop) for span in rest),
            brokers.high_watermark,
            brokers.last_stable_offset,
            brokers.local_start,
        ),
    )


def _tier_slices(
    options: ScanOptions,
    place: Place,
    plan: PartitionPlan,
    side_files: SideFiles,
    brokers: BrokerLog,
    view: ClusterView,
) -> tuple[list[SegmentSlice], int]:
    """Returns what is read from the tier, and the number of aborted transactions with data in it.

    Raises:
        NotUsableError: A segment whose side files cannot be used.
        TieredKafkaError: See `aborted_in_tier`.
    """
    aborted = NO_ABORTED
    tier_runs: tuple[TierRun, ...] = ()
    if plan.start < plan.stop and options.read_committed:
        aborted, tier_runs = aborted_in_tier(
            plan.surviving, plan.start, plan.stop, side_files, brokers, view, place
        )
    decisions = Decisions(aborted, plan.stop, ())
    slices = list(bounded(spans(plan, decisions, options, side_files)))
    read = [(part.start_offset, part.stop_offset) for part in slices]
    check_ends_in_tier(tier_runs, aborted, read, side_files)
    return slices, len(aborted)


def _beyond(options: ScanOptions) -> str:
    """What is behind the end, in words."""
    if not options.tail:
        return "not tiered yet (tail=false)"
    return "above the last stable offset" if options.read_committed else "not written yet"


def _bounds(
    options: ScanOptions,
    place: Place,
    known: PartitionLog,
    brokers: BrokerLog,
    view: ClusterView,
    bounds_of: BoundsOf | None,
) -> tuple[int, int]:
    def lookup(timestamp_ms: int) -> tuple[PartitionLog, int | None]:
        offset = view.first_offset_dated(brokers, timestamp_ms)
        # The leader looks at all of its log, tail=false ends before.
        return known, None if offset is None or offset >= known.stop else offset

    return (bounds_of or partial(requested_bounds, options, place))(known, lookup)


def bytes_per_offset(
    known: PartitionLog, brokers: BrokerLog, start: int, stop: int, view: ClusterView
) -> float:
    """About how many original bytes an offset of a partition takes that brokers serve."""
    newest = [span.segment for span in known.ranges[-_SIZED_BY:]]
    if newest:
        offsets = sum(segment.stop_offset - segment.start_offset for segment in newest)
        return sum(segment.objects.size_in_bytes for segment in newest) / max(offsets, 1)
    if stop - start < _FEW_OFFSETS:
        return _GUESSED_BYTES
    return view.bytes_per_offset(brokers, start) or _GUESSED_BYTES
