"""From options to a fixed list of byte ranges: the plan of one scan.

Whole segments, and slices of those larger than a task should be, packed into tasks in offset
order. What a slice needs to be read exactly (offset range, aborted intervals, lineage) travels
with it, so tasks need nothing from each other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from kts_source.errors import InvalidOptionError, TieredKafkaError
from kts_source.layout.find_layout import find_layout
from kts_source.options import parse_options
from kts_source.planning.assemble import assembled
from kts_source.planning.bounds import Place, check_named, requested_bounds
from kts_source.planning.discover import discover
from kts_source.planning.gc_pause import paused_collector
from kts_source.planning.partial_log import PartitionView, can_plan_in_part
from kts_source.planning.plan_checks import check_plan
from kts_source.planning.plan_log import plan_log
from kts_source.planning.replay import replayed
from kts_source.planning.segment_catalog import PLANNING_THREADS, SegmentCatalog
from kts_source.planning.side_files import SideFiles
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import Tier, open_tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.options import ScanOptions
    from kts_source.planning.assemble import PlannedPartition
    from kts_source.planning.bounds import Progress
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.store.object_store import ObjectStore

log = logging.getLogger(__name__)

Apart: TypeAlias = Callable[[TieredKafkaError], object]
"""Told why a partition cannot be planned; in any thread."""


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
    options: ScanOptions,
    tier: Tier | None = None,
    progress: Progress | None = None,
    *,
    tasks: bool = True,
    is_read: bool = True,
    apart: Apart | None = None,
) -> ScanPlan:
    """Plans one scan. Lists and reads manifests, checkpoints and transactional side files; no log
    bytes.

    With `apart`, one partition of the tier that cannot be planned does not end the rest: it is told
    why, and the partition left out. Neither do archived objects: whoever reads deals with them.

    The tier is opened from the options when not given. What the reader has already by `progress`
    is neither planned nor checked. A plan that nobody runs may do without `tasks`: of the tier
    alone, it then has none. Unless it `is_read`, it may be of any size, and of archived objects.

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
        elif options.tail_paths:
            from kts_source.planning.tail import planned_with_disks

            plan = planned_with_disks(options, opened, progress)
        else:
            plan = _planned(options, opened, progress, tasks=tasks, apart=apart)
        if is_read:
            check_plan(plan, options, opened.store, archived_too=apart is not None)
    return plan


def _planned(
    options: ScanOptions,
    tier: Tier,
    progress: Progress | None,
    *,
    tasks: bool,
    apart: Apart | None,
) -> ScanPlan:
    key_ring = options.key_ring.loaded()
    layout = find_layout(
        options.layout, end_of_log=options.end_of_log, paths=1 + len(options.disk_paths)
    )
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
                return _plan_partition(options, part, side_files, progress, tasks=tasks)
            except TieredKafkaError as error:
                error = error.located(topic=part.topic, partition=part.partition)
                if apart is None or isinstance(error, InvalidOptionError):
                    raise error from error.__cause__
                apart(error)
                return None
            finally:
                part.save()

        planned = [one for one in pool.map(plan, parts) if one is not None]
    return assembled(
        options,
        planned,
        [*(note for topic in topics for note in topic.notes), *tier.store.remarks],
        {topic.topic: topic.asked_partitions for topic in topics},
    )


def _plan_partition(
    options: ScanOptions,
    part: ListedPartition,
    side_files: SideFiles,
    progress: Progress | None,
    *,
    tasks: bool,
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
        planned = plan_log(
            *(options, place, part.topic_id, side_files, view, bounds_of),
            with_slices=tasks,
            records_end=progress is not None,
        )
        # What a part of the log said of its start and end may be wrong where it did not do.
        if not (in_part and view.is_complete):
            return planned
    return None
