"""From options to a fixed list of byte ranges: the plan of one scan.

Whole segments, and slices of those larger than a task should be, packed into tasks in offset
order. What a slice needs to be read exactly (offset range, aborted intervals, lineage) travels
with it, so tasks need nothing from each other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kts_source.errors import InvalidOptionError, TieredKafkaError
from kts_source.layout.find_layout import find_layout
from kts_source.options import parse_options
from kts_source.planning.bounds import (
    Place,
    TimestampLookup,
    check_decided,
    check_no_holes,
    check_order,
    check_outcomes,
    named_partitions,
    resolve_start,
    resolve_stop,
)
from kts_source.planning.discover import DiscoveredPartition, DiscoveredTopic, discover
from kts_source.planning.gc_pause import paused_collector
from kts_source.planning.isolation import Decisions
from kts_source.planning.isolation_report import report_left_out
from kts_source.planning.lineage import PartitionLog
from kts_source.planning.partial_log import PartitionView, needs_a_part
from kts_source.planning.plan_checks import check_plan, check_unchanged, plan_of_file
from kts_source.planning.planning_threads import planning_pools
from kts_source.planning.pruning import fingerprint
from kts_source.planning.scan_plan import PartitionPlan, ScanPlan
from kts_source.planning.segment_catalog import Describer
from kts_source.planning.side_files import SideFiles
from kts_source.planning.slicing import cut, pack, spans, target_bytes
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import Tier, open_tier
from segment_format.isolation import NO_ABORTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor

    from kts_source.options import ScanOptions
    from kts_source.read.task import SegmentSlice
    from kts_source.store.object_store import ObjectStore

log = logging.getLogger(__name__)


BoundsOf: TypeAlias = Callable[[PartitionLog, TimestampLookup], tuple[int, int]]
"""A partition's log and timestamp look-up to the offsets [start, stop) that are read of it."""


class Behind(Protocol):
    """What a reader has of a topic already, so that a plan goes on behind it."""

    def bounds_of(self, topic: str, topic_id: str, partition: int) -> BoundsOf | None:
        """What finds the offsets of a partition that are still to be read; `None` where the reader
        has none of it, and the options alone decide.
        """
        ...

    def first_missing(self, part: PartitionPlan) -> int:
        """The first offset of a planned partition that is still to be read; its end for none."""
        ...


@dataclass(frozen=True, slots=True)
class _Planned:
    """A partition's plan, what of its segments is read, and how many aborted transactions have data
    there.
    """

    plan: PartitionPlan
    spans: list[SegmentSlice]
    aborted: int


def plan(options: Mapping[str, str], store: ObjectStore | None = None) -> ScanPlan:
    """The plan of a scan with these options, as the data source would make it.

    Args:
        options: As for the data source.
        store: The tier; opened from the options when not given.

    Raises:
        TieredKafkaError: See `plan_scan`.
    """
    return plan_scan(parse_options(options), None if store is None else Tier(store))


def plan_scan(
    options: ScanOptions, tier: Tier | None = None, behind: Behind | None = None
) -> ScanPlan:
    """Plans one scan. Lists and reads manifests, checkpoints and transactional side files; no log
    bytes.

    Args:
        options: What to read.
        tier: Where; opened from the options when not given.
        behind: What the reader has already. It is neither planned nor checked.

    Raises:
        TieredKafkaError: See `discover`, `resolve_start`, `resolve_stop` and `check_no_holes`.
    """
    if options.ignored:
        log.info("options without effect on this source: %s", ", ".join(options.ignored))
    opened = tier or open_tier(options)
    try:
        with paused_collector():
            if options.plan_file:
                plan = plan_of_file(options)
                if behind is not None:
                    plan = plan.from_offsets([behind.first_missing(p) for p in plan.partitions])
                check_unchanged(plan, opened.store)
            else:
                plan = _planned(options, opened, behind)
            check_plan(plan, options, opened.store)
    finally:
        if tier is None:
            opened.close()
    return plan


def _planned(options: ScanOptions, tier: Tier, behind: Behind | None) -> ScanPlan:
    key_ring = options.key_ring.loaded()
    layout = find_layout(options.layout)
    with planning_pools("kts-plan", "kts-describe") as (pool, describing):
        describer = Describer(tier, layout, describing, fail_on_data_loss=options.fail_on_data_loss)
        topics = discover(options, tier.store, layout, pool, describer)
        _check_named(options, topics)
        describer.expect(sum(len(topic.partitions) for topic in topics))

        def side_files(part: DiscoveredPartition) -> SideFiles:
            reader = SegmentSource(tier, key_ring, pack=part.listed.side_files)
            return SideFiles(reader, max_batch_bytes=options.max_batch_bytes)

        planned = tuple(_plan_partitions(options, topics, side_files, pool, behind))
    report_left_out([one.plan for one in planned], [one.aborted for one in planned])
    wanted = [span for one in planned for span in one.spans]
    target = target_bytes(wanted, options)
    slices = (part for span in wanted for part in cut(span, target))
    return ScanPlan(
        tuple(one.plan for one in planned),
        tuple(pack(slices, target, options)),
        options.columns,
        fingerprint(options.where),
        tuple(note for topic in topics for note in topic.notes),
    )


def _check_named(options: ScanOptions, topics: Sequence[DiscoveredTopic]) -> None:
    """As in Spark, a bound in JSON must name exactly the partitions that are read."""
    held = {(part.topic, part.partition) for topic in topics for part in topic.partitions}
    known = held | {(topic.topic, number) for topic in topics for number in topic.empty_partitions}
    for option, bound in (("starting", options.starting), ("ending", options.ending)):
        named = named_partitions(bound)
        if named is None:
            continue
        pairs = {(topic, number) for topic, numbers in named.items() for number in numbers}
        missing = held - pairs
        extra = {pair for pair in pairs - known if pair[0] not in {topic.topic for topic in topics}}
        for problem, what in ((missing, "does not name"), (extra, "names")):
            if problem:
                names = ", ".join(f"{topic}-{number}" for topic, number in sorted(problem))
                raise InvalidOptionError(
                    f"the {option} offsets must name the partitions that are read (−2 earliest,"
                    f" −1 latest): the"
                    f" option {what} {names}"
                )


def _plan_partitions(
    options: ScanOptions,
    topics: Iterable[DiscoveredTopic],
    side_files: Callable[[DiscoveredPartition], SideFiles],
    pool: Executor,
    behind: Behind | None,
) -> Iterator[_Planned]:
    found = [part for topic in topics for part in topic.partitions]

    def plan(part: DiscoveredPartition) -> _Planned | None:
        try:
            return _plan_partition(options, part, side_files(part), behind)
        except TieredKafkaError as error:
            raise error.located(topic=part.topic, partition=part.partition) from error.__cause__
        finally:
            part.listed.save()

    yield from (planned for planned in pool.map(plan, found) if planned is not None)


def _plan_partition(
    options: ScanOptions,
    part: DiscoveredPartition,
    side_files: SideFiles,
    behind: Behind | None,
) -> _Planned | None:
    place = Place(part.topic, part.partition)
    place_id = part.topic, part.topic_id, part.partition
    bounds_of = None if behind is None else behind.bounds_of(*place_id)
    view = PartitionView(
        part.listed,
        side_files,
        in_part=needs_a_part(options, part.topic, part.partition, from_the_start=bounds_of is None),
        max_ahead_ms=options.max_timestamp_ahead_ms,
    )
    if view.is_empty:
        return None

    def lookup(_log: PartitionLog, timestamp_ms: int) -> int | None:
        return view.first_offset_at_or_after(timestamp_ms)

    if bounds_of is None:
        bounds_of = partial(requested_bounds, options, place)
    start, stop = bounds_of(view.log, lookup)
    side_files.bounds = start, stop
    surviving = view.covering(start, stop)
    loss = options.fail_on_data_loss
    check_no_holes(place, surviving, start, stop, fail_on_data_loss=loss)
    surviving, decisions = _decisions(options, view, start, stop)
    for skipped in surviving.skipped:
        log.info("%s: segment %s not read: %s", place, skipped.segment.segment_id, skipped.reason)
    check_outcomes(place, surviving, decisions.lost, fail_on_data_loss=loss)
    plan = PartitionPlan(
        part.topic,
        part.topic_id,
        part.partition,
        surviving,
        part.orphans,
        start,
        decisions.stop,
        stop,
        decisions.undecided,
    )
    check_decided(options.ending, place, stop, plan.stop, plan.end_reason, fail_on_data_loss=loss)
    return _Planned(plan, list(spans(plan, decisions, options, side_files)), len(decisions.aborted))


def requested_bounds(
    options: ScanOptions, place: Place, partition: PartitionLog, lookup: TimestampLookup
) -> tuple[int, int]:
    """The offsets [start, stop) that the options ask for.

    Raises:
        TieredKafkaError: See `resolve_start`, `resolve_stop` and `check_order`.
    """
    loss = options.fail_on_data_loss
    start = resolve_start(
        options.starting,
        place,
        partition,
        lookup=lookup,
        unmatched_is_latest=options.timestamp_strategy == "latest",
        fail_on_data_loss=loss,
    )
    stop = resolve_stop(options.ending, place, partition, lookup=lookup, fail_on_data_loss=loss)
    check_order(place, start, stop)
    return start, stop


def _decisions(
    options: ScanOptions, view: PartitionView, start: int, stop: int
) -> tuple[PartitionLog, Decisions]:
    if start >= stop or not options.read_committed:
        return view.covering(start, stop), Decisions(NO_ABORTED, max(start, stop), ())
    return view.decided(start, stop)
