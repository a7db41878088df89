"""From options to a fixed list of byte ranges: the plan of one scan.

Whole segments, and slices of those larger than a task should be, packed into tasks in offset
order. What a slice needs to be read exactly (offset range, aborted intervals, lineage) travels
with it, so tasks need nothing from each other.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from kts_source.errors import TieredKafkaError
from kts_source.layout.find_layout import find_layout
from kts_source.options import parse_options
from kts_source.planning.assemble import PlannedPartition, assembled
from kts_source.planning.bounds import (
    Place,
    check_decided,
    check_lineage_known,
    check_named,
    check_no_holes,
    check_outcomes,
    requested_bounds,
)
from kts_source.planning.discover import discover
from kts_source.planning.gc_pause import paused_collector
from kts_source.planning.isolation import Decisions
from kts_source.planning.partial_log import PartitionView, can_plan_in_part
from kts_source.planning.plan_checks import check_plan
from kts_source.planning.replay import replayed
from kts_source.planning.scan_plan import PartitionPlan
from kts_source.planning.segment_catalog import PLANNING_THREADS, SegmentCatalog
from kts_source.planning.side_files import SideFiles
from kts_source.planning.slicing import bounded, spans
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import Tier, open_tier
from segment_format.isolation import NO_ABORTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.options import ScanOptions
    from kts_source.planning.bounds import BoundsOf, Progress
    from kts_source.planning.lineage import PartitionLog
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.store.object_store import ObjectStore

log = logging.getLogger(__name__)


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
    options: ScanOptions, tier: Tier | None = None, progress: Progress | None = None
) -> ScanPlan:
    """Plans one scan. Lists and reads manifests, checkpoints and transactional side files; no log
    bytes.

    The tier is opened from the options when not given. What the reader has already by `progress`
    is neither planned nor checked.

    Raises:
        TieredKafkaError: See `discover`, `requested_bounds` and `check_no_holes`.
    """
    if options.ignored:
        log.info("options without effect on this source: %s", ", ".join(options.ignored))
    opening = closing(open_tier(options)) if tier is None else nullcontext(tier)
    with opening as opened, paused_collector():
        if options.plan_file:
            plan = replayed(options, opened, progress)
        elif options.brokers is not None:
            # Not at import time: most plans are of the tier alone.
            from kts_source.planning.hybrid import planned_with_brokers

            plan = planned_with_brokers(options, options.brokers, opened, progress)
        else:
            plan = _planned(options, opened, progress)
        check_plan(plan, options, opened.store)
    return plan


def _planned(options: ScanOptions, tier: Tier, progress: Progress | None) -> ScanPlan:
    key_ring = options.key_ring.loaded()
    layout = find_layout(options.layout, end_of_log=options.end_of_log)
    with (
        ThreadPoolExecutor(PLANNING_THREADS, "kts-describe") as describing,
        ThreadPoolExecutor(PLANNING_THREADS, "kts-plan") as pool,
    ):
        catalog = SegmentCatalog(
            tier, layout, describing, fail_on_data_loss=options.fail_on_data_loss
        )
        topics = discover(options, catalog, pool)
        parts = [part for topic in topics for part in topic.partitions]
        held = {(part.topic, part.partition) for part in parts}
        check_named(options, held, {topic.topic for topic in topics})
        catalog.expect(len(parts))

        def plan(part: ListedPartition) -> PlannedPartition | None:
            source = SegmentSource(tier, key_ring, pack=part.side_files)
            side_files = SideFiles(source, max_batch_bytes=options.max_batch_bytes)
            try:
                return _plan_partition(options, part, side_files, progress)
            except TieredKafkaError as error:
                raise error.located(topic=part.topic, partition=part.partition) from error.__cause__
            finally:
                part.save()

        planned = [one for one in pool.map(plan, parts) if one is not None]
    return assembled(
        options,
        planned,
        (note for topic in topics for note in topic.notes),
        {topic.topic: topic.asked_partitions for topic in topics},
    )


def _plan_partition(
    options: ScanOptions, part: ListedPartition, side_files: SideFiles, progress: Progress | None
) -> PlannedPartition | None:
    place = Place(part.topic, part.partition, part.orphans, options.fail_on_data_loss)
    goes_on = None
    if progress is not None:
        goes_on = progress.bounds_of(part.topic, part.topic_id, part.partition)
    view = PartitionView(
        part,
        side_files,
        in_part=can_plan_in_part(
            options, part.topic, part.partition, from_the_start=goes_on is None
        ),
        max_ahead_ms=options.max_timestamp_ahead_ms,
    )
    bounds_of = goes_on or partial(requested_bounds, options, place)
    while not view.is_empty:
        in_part = not view.is_complete
        planned = plan_view(options, part, place, side_files, view, bounds_of)
        # What a part of the log said of its start and end may be wrong where it did not do.
        if not (in_part and view.is_complete):
            return planned
    return None


def plan_view(
    options: ScanOptions,
    part: ListedPartition,
    place: Place,
    side_files: SideFiles,
    view: PartitionView,
    bounds_of: BoundsOf,
) -> PlannedPartition:
    """Plans what `bounds_of` says of one partition.

    Raises:
        DataLossError: A hole in it, or transactions whose outcome is lost.
        OffsetOutOfRangeError: See `check_decided`.
    """
    if view.unknown_lineage is not None:
        check_lineage_known(place, view.unknown_lineage)

    def lookup(timestamp_ms: int) -> tuple[PartitionLog, int | None]:
        found = view.first_offset_at_or_after(timestamp_ms)
        return view.log, found

    start, stop = bounds_of(view.log, lookup)
    side_files.bounds = start, stop
    surviving = view.covering(start, stop)
    check_no_holes(place, surviving, start, stop)
    decisions = Decisions(NO_ABORTED, max(start, stop), ())
    if start < stop and options.read_committed:
        surviving, decisions = view.decided(start, stop)
    for skipped in surviving.skipped:
        log.info("%s: segment %s not read: %s", place, skipped.segment.segment_id, skipped.reason)
    check_outcomes(place, surviving, decisions)
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
    check_decided(options.ending, place, stop, plan.stop, plan.end_reason)
    slices = bounded(spans(plan, decisions, options, side_files))
    return PlannedPartition(plan, [*slices], len(decisions.aborted))
