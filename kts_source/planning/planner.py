"""Plans a scan: computes a fixed list of byte ranges and broker ranges from the options.

The same code plans partitions of all sources: it finds the bounds, checks for holes, finds out how
transactions ended, and creates slices. Segments, and slices of segments that are larger than a
task, are packed into tasks in the order of their offsets. A slice contains everything that a task
needs to read it (offset range, aborted intervals, lineage), so tasks are independent of each other.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from kts_source.errors import (
    ArchivedObjectError,
    InvalidOptionError,
    MissingExtraError,
    PlanTooLargeError,
    TieredKafkaError,
)
from kts_source.options import ScanOptions, options_of
from kts_source.planning.bounds import (
    check_decided,
    check_lineage_known,
    check_named,
    check_no_holes,
    check_outcomes,
    refuse_contradiction,
    requested_bounds,
)
from kts_source.planning.estimate import ARCHIVE_CLASSES, estimate
from kts_source.planning.isolation import Decisions
from kts_source.planning.partition_plan import PartitionPlan
from kts_source.planning.replay import made_with, replayed
from kts_source.planning.scan_plan import ScanPlan
from kts_source.planning.segment_catalog import PLANNING_THREADS
from kts_source.planning.side_files import SideFiles
from kts_source.planning.slicing import (
    cut,
    cut_range,
    fingerprint,
    limited_to_max_slices,
    pack,
    spans,
    target_bytes,
)
from kts_source.planning.sources import Source
from kts_source.planning.tier_source import TierSource
from kts_source.read.segment_source import SegmentSource
from kts_source.read.task import SegmentSlice
from kts_source.texts import some
from kts_source.tier import Tier, open_tier
from segment_format.isolation import NO_ABORTED
from segment_format.tuning import is_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kts_source.broker.broker_range import BrokerRange
    from kts_source.options import OptionValue, PathOrOptions
    from kts_source.planning.bounds import BoundsOf, Progress
    from kts_source.planning.lineage import PartitionLog
    from kts_source.planning.sources import SourceLog, SourcePartition
    from kts_source.store.object_store import ObjectStore

log = logging.getLogger(__name__)

OnPartitionError: TypeAlias = Callable[[TieredKafkaError], object]
"""Called, from any thread, with the error of a partition that cannot be planned."""
_OpenSource: TypeAlias = Callable[[ScanOptions, Tier, Executor, Executor], Source]


def plan(source: PathOrOptions, store: ObjectStore | None = None, **more: OptionValue) -> ScanPlan:
    """Plans the scan that the data source would run with these options.

    Args:
        source: Options of the data source, or the path of the tier.
        store: Store of the tier; by default it is opened from the options.
        **more: Options in addition to those in `source`.

    Raises:
        TieredKafkaError: See `plan_scan`.
    """
    return plan_scan(options_of(source, **more), None if store is None else Tier(store))


def plan_scan(
    options: ScanOptions,
    tier: Tier | None = None,
    progress: Progress | None = None,
    *,
    tasks: bool = True,
    is_read: bool = True,
    on_partition_error: OnPartitionError | None = None,
) -> ScanPlan:
    """Plans one scan.

    Reads listings, manifests and side files. Reads logs only if side files are unusable, a bound is
    a timestamp, or the reader will continue at the end of the plan (`progress`).

    Args:
        options: Options of the scan.
        tier: The tier; by default it is opened from the options.
        progress: Offsets that the reader already has. The plan contains only later offsets, and
            only these are checked for holes.
        tasks: True to plan tasks. If False, the plan of a tier without brokers and disks has
            partitions but no tasks.
        is_read: True to raise an error if the plan is too large or needs archived objects.
        on_partition_error: Called with the error of each partition of a tier that cannot be
            planned, and which the plan therefore skips. If it is set, archived objects raise no
            error.

    Raises:
        TieredKafkaError: See `segment_catalog.discover`, `requested_bounds` and `check_no_holes`.
    """
    if options.ignored:
        log.info("options without effect on this source: %s", ", ".join(options.ignored))
    opening = closing(open_tier(options)) if tier is None else nullcontext(tier)
    with opening as opened, paused_collector():
        if options.plan_file:
            plan = replayed(options, opened, progress)
        else:
            plan = _plan(options, opened, progress, tasks, on_partition_error)
        if is_read:
            allows_archived = on_partition_error is not None
            check_plan(plan, options, opened.store, allows_archived=allows_archived)
        return replace(plan, remarks=opened.store.remarks)


def _plan(
    options: ScanOptions,
    tier: Tier,
    progress: Progress | None,
    tasks: bool,
    on_partition_error: OnPartitionError | None,
) -> ScanPlan:
    # Import other sources on demand, because most plans read only the tier.
    plan_source = partial(_plan_source, options, tier, progress)
    if options.brokers is not None:
        from kts_source.planning.broker_source import BrokerSource, with_cluster

        return with_cluster(
            options,
            lambda view: plan_source(partial(BrokerSource, view=view, progress=progress)),
        )
    if options.tail_paths:
        from kts_source.planning.disk_source import DiskSource

        return plan_source(DiskSource)
    return plan_source(TierSource, tasks=tasks, on_partition_error=on_partition_error)


def _plan_source(
    options: ScanOptions,
    tier: Tier,
    progress: Progress | None,
    open_source: _OpenSource,
    *,
    tasks: bool = True,
    on_partition_error: OnPartitionError | None = None,
) -> ScanPlan:
    key_ring = options.key_ring.loaded()

    def plan(partition: SourcePartition) -> PlannedPartition | None:
        pack = None if partition.listed is None else partition.listed.side_files
        reader = SegmentSource(tier, key_ring, pack=pack)
        side_files = SideFiles(reader, max_batch_bytes=options.max_batch_bytes)
        bounds_of = None
        try:
            if progress is not None:
                bounds_of = progress.bounds_of(
                    partition.topic, partition.topic_id, partition.partition
                )
            source_log = partition.open_log(side_files, bounds_of is not None)
            if source_log is None:
                return None
            return plan_log(
                *(options, source_log, bounds_of),
                with_slices=tasks,
                records_end=progress is not None,
            )
        except TieredKafkaError as error:
            topic, number = partition.topic, partition.partition
            if on_partition_error is None or isinstance(
                error, InvalidOptionError | MissingExtraError
            ):
                raise error.located(topic=topic, partition=number) from error.__cause__
            on_partition_error(error.located(topic=topic, partition=number))
            return None
        finally:
            if partition.listed is not None:
                partition.listed.save()

    with (
        ThreadPoolExecutor(PLANNING_THREADS, "kts-describe") as describing,
        ThreadPoolExecutor(PLANNING_THREADS, "kts-plan") as pool,
    ):
        source = open_source(options, tier, describing, pool)
        partitions = source.partitions()
        check_named(
            options,
            {(partition.topic, partition.partition) for partition in partitions},
            source.topics,
        )
        planned = [partition for partition in pool.map(plan, partitions) if partition is not None]
    return assemble(options, planned, source.finish(), source.asked)


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """The result of planning one partition.

    Attributes:
        spans: Slices and broker ranges to read, ascending by offset.
        aborted: Number of aborted transactions that have data in the planned offsets.
    """

    plan: PartitionPlan
    spans: list[SegmentSlice | BrokerRange]
    aborted: int


def plan_log(
    options: ScanOptions,
    source_log: SourceLog,
    bounds_of: BoundsOf | None = None,
    *,
    with_slices: bool = True,
    records_end: bool = False,
) -> PlannedPartition | None:
    """Plans one partition. Returns `None` if its log has no segment.

    Args:
        options: Options of the scan.
        source_log: The log of the partition.
        bounds_of: Returns the start and end offset of the plan; by default, the options determine
            them.
        with_slices: True to create slices and broker ranges.
        records_end: True if a reader will later continue at the end of the plan. Then the plan ends
            after the last batch, because the reader would skip records below a higher end.

    Raises:
        TieredKafkaError: See `requested_bounds` and the checks of `bounds`.
    """
    bounds_of = bounds_of or partial(requested_bounds, options, source_log.place)
    while not source_log.is_empty:
        was_complete = source_log.is_complete
        planned = _plan_log(options, source_log, bounds_of, with_slices, records_end)
        # If planning had to read more segments, plan again: the bounds may have been wrong.
        if was_complete or not source_log.is_complete:
            return planned
    return None


def _plan_log(
    options: ScanOptions,
    source_log: SourceLog,
    bounds_of: BoundsOf,
    with_slices: bool,
    records_end: bool,
) -> PlannedPartition:
    location, side_files = source_log.place, source_log.side_files
    if source_log.unknown_lineage is not None:
        check_lineage_known(location, source_log.unknown_lineage)
    if source_log.contradiction is not None:
        refuse_contradiction(location, source_log.contradiction)

    def lookup(timestamp_ms: int) -> tuple[PartitionLog, int | None]:
        offset = source_log.first_offset_at_or_after(timestamp_ms)
        return source_log.log, offset

    start, stop = bounds_of(source_log.log, lookup)
    if records_end and start < stop == source_log.log.stop:
        stop = max(start, source_log.last_batch_stop())
    side_files.bounds = start, stop
    surviving = source_log.covering(start, stop)
    check_no_holes(location, surviving, start, stop)
    while True:
        decisions = Decisions(NO_ABORTED, max(start, stop), ())
        if start < stop and options.read_committed:
            surviving, decisions = source_log.decided(start, stop)
        plan = PartitionPlan(
            topic=location.topic,
            topic_id=source_log.topic_id,
            partition=location.partition,
            surviving=surviving,
            orphans=location.orphans,
            start=start,
            stop=decisions.stop,
            wanted_stop=stop,
            undecided=decisions.undecided,
        )
        check_outcomes(location, surviving, decisions)
        check_decided(options.ending, location, stop, plan.stop, plan.end_reason)
        slices = (
            list(limited_to_max_slices(spans(plan, decisions, options, side_files)))
            if with_slices
            else []
        )
        read = [(piece.start_offset, piece.stop_offset) for piece in slices]
        if source_log.confirm(surviving, decisions, read):
            break
    for skipped in surviving.skipped:
        log.info(
            "%s: segment %s not read: %s", location, skipped.segment.segment_id, skipped.reason
        )
    pieces: list[SegmentSlice | BrokerRange] = [*slices]
    if with_slices and (ranges := source_log.broker_ranges(start, stop)):
        pieces = sorted([*pieces, *ranges], key=lambda piece: piece.start_offset)
    return PlannedPartition(source_log.completed(plan), pieces, len(decisions.aborted))


def assemble(
    options: ScanOptions,
    planned: Sequence[PlannedPartition],
    notes: Iterable[str],
    asked: Mapping[str, Sequence[int]],
) -> ScanPlan:
    """Returns the plan of a scan: splits the slices and ranges of all partitions, and packs them
    into tasks. `notes` are messages for the user; `asked` has the numbers of the selected
    partitions by topic.
    """
    _log_isolation(planned)
    wanted = [span for partition in planned for span in partition.spans]
    target = target_bytes(wanted, options)
    pieces = limited_to_max_slices(
        piece
        for span in wanted
        for piece in (
            cut(span, target)
            if isinstance(span, SegmentSlice)
            else cut_range(span, target, options.max_records_per_partition)
        )
    )
    return ScanPlan(
        tuple(partition.plan for partition in planned),
        tuple(pack(pieces, target, options)),
        options.columns,
        fingerprint(options.where),
        tuple(notes),
        made_with(options, asked),
    )


def _log_isolation(planned: Sequence[PlannedPartition]) -> None:
    """Logs how many aborted transactions `read_committed` skips. Warns if a partition ends early
    because of a transaction that may still be committed.
    """
    aborted = [f"{each.plan.topic_partition}: {each.aborted}" for each in planned if each.aborted]
    if aborted:
        total = sum(each.aborted for each in planned)
        log.info("read_committed: %d aborted transactions are skipped (%s)", total, some(aborted))
    undecided = [
        f"{each.plan.topic_partition} ends at offset {each.plan.stop}: {each.plan.end_reason}"
        for each in planned
        if each.plan.stop < each.plan.wanted_stop
    ]
    if undecided:
        log.warning("read_committed: undecided offsets are skipped (%s)", some(undecided))


def check_plan(
    plan: ScanPlan, options: ScanOptions, store: ObjectStore, *, allows_archived: bool = False
) -> None:
    """Checks that no object of a plan is archived, and that the plan does not exceed the user's
    limits.

    Raises:
        ArchivedObjectError: Objects are archived, and `allows_archived` is False.
        PlanTooLargeError: The plan exceeds `maxPlanBytes` or `maxPlanRequests`.
    """
    archived = [ref.key for ref in plan.objects_read() if ref.storage_class in ARCHIVE_CLASSES]
    if archived and not allows_archived:
        shown = some(store.uri(key) for key in sorted(archived))
        raise ArchivedObjectError(
            f"{len(archived)} objects of the plan are archived; restore them first: {shown}"
        )
    if options.max_plan_bytes is None and options.max_plan_requests is None:
        return
    work = estimate(plan.tasks)
    from_brokers = sum(piece.nominal_bytes for task in plan.tasks for piece in task.ranges)
    for name, limit, size in (
        ("maxPlanBytes", options.max_plan_bytes, work.bytes + from_brokers),
        ("maxPlanRequests", options.max_plan_requests, work.requests),
    ):
        if limit is not None and size > limit:
            brokers = f" and about {from_brokers:,} bytes from brokers" if from_brokers else ""
            raise PlanTooLargeError(
                f"the plan needs {work.requests:,} requests for {work.bytes:,} bytes{brokers},"
                f" which exceeds {name}={limit}; select fewer offsets, timestamps or topics, or"
                " raise the limit"
            )


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """Pauses garbage collection while the block runs.

    A plan allocates millions of objects, and all of them are needed until it is complete. Repeated
    searches for cycles in them would take longer than their creation. With `KTS_TUNING=off`
    (`docs/tuning.md`) garbage collection is not paused.
    """
    if not (is_on() and gc.isenabled()):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            # Move the new objects to the oldest generation, which the next collections skip.
            gc.freeze()
            gc.unfreeze()
        gc.enable()
