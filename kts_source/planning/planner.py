"""Plans a scan: computes a fixed list of byte ranges and broker ranges from the options.

The same code plans partitions of all sources: it finds the bounds, checks for holes, finds out how
transactions ended, and creates slices. Segments, and slices of segments that are larger than a
task, are packed into tasks in the order of their offsets. A slice contains everything that a task
needs to read it (offset range, aborted intervals, lineage), so tasks are independent of each other.

Option `planFile` names a plan, which is read instead. The other options must not contradict the
plan, and the objects of the plan must be unchanged.
Groups of options:

    error if they differ              the selection, topicId, keyPrefix, layout, catalog,
                                      tail, bounds, isolationLevel, limits on tasks, where (if
                                      the plan skips rows), failOnDataLoss=true
    change the result                 columns, includeHeaders, includeLineage, where and
                                      timestampRange (if the plan skips no rows), and how keys
                                      and values are decoded: the plan contains only byte ranges
    have no effect on the plan        path and its credentials (versions of objects are checked),
                                      keys, checksums, timeouts, caches, limits, metrics
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
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kts_source.errors import (
    ArchivedObjectError,
    DataLossError,
    InvalidOptionError,
    MissingExtraError,
    ObjectChangedError,
    ObjectTooLargeError,
    PlanTooLargeError,
    StoreError,
    TieredKafkaError,
    TopicNotFoundError,
)
from kts_source.options import ScanOptions, options_of
from kts_source.options.selection import Assign, Subscribe
from kts_source.planning.bounds import (
    Place,
    check_decided,
    check_lineage_known,
    check_named,
    check_no_holes,
    check_outcomes,
    first_offset_at_or_after,
    refuse_contradiction,
    requested_bounds,
)
from kts_source.planning.estimate import ARCHIVE_CLASSES, estimate
from kts_source.planning.isolation import Decisions
from kts_source.planning.partition_plan import PartitionPlan
from kts_source.planning.scan_plan import ScanPlan
from kts_source.planning.segment_catalog import PLANNING_THREADS, wanted_topic_id
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
from kts_source.secret import scrub
from kts_source.store.joined_store import head_again, is_in_additional_store, mirror_of
from kts_source.store.open_store import open_store, scheme_of, storage_of_other_path
from kts_source.texts import some
from kts_source.tier import Tier, open_tier
from segment_format.isolation import NO_ABORTED
from segment_format.tuning import is_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kts_source.broker.broker_range import BrokerRange
    from kts_source.layout.remote_segment import ObjectRef
    from kts_source.options import OptionValue, PathOrOptions
    from kts_source.planning.bounds import BoundsOf, Progress
    from kts_source.planning.lineage import PartitionLog
    from kts_source.planning.sources import SourceLog, SourcePartition
    from kts_source.store.object_store import ObjectStore


log = logging.getLogger(__name__)

OnPartitionError: TypeAlias = Callable[[TieredKafkaError], object]
"""Called, from any thread, with the error of a partition that cannot be planned."""
_OpenSource: TypeAlias = Callable[[ScanOptions, Tier, Executor, Executor], Source]


def plan(
    source: PathOrOptions | None = None, store: ObjectStore | None = None, **more: OptionValue
) -> ScanPlan:
    """Plans the scan that the data source would run with these options.

    Args:
        source: Options of the data source, or the path of the tier; `None` = they are in `more`.
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
        mirrored = mirror_of(opened.store)
        try:
            if options.plan_file:
                plan = replayed(options, opened, progress)
            else:
                plan = _plan(options, opened, progress, tasks, on_partition_error)
        except TopicNotFoundError:
            if mirrored is not None:
                mirrored.require_answers()
            raise
        if is_read:
            allows_archived = on_partition_error is not None
            check_plan(plan, options, opened.store, allows_archived=allows_archived)
        plan = replace(plan, remarks=opened.store.remarks)
        if mirrored is None:
            return plan
        unanswered, is_alone = mirrored.unanswered, mirrored.is_mirror_alone
        return replace(plan, unanswered=unanswered, is_mirror_alone=is_alone)


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
                partition.listed.save(releases=True)

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
    archived = {ref.key for ref in plan.objects_read() if ref.storage_class in ARCHIVE_CLASSES}
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


_THREADS: Final = 16
_MAX_BYTES: Final = 1 << 30
_MAX_SHOWN: Final = 200


def made_with(options: ScanOptions, partitions: Mapping[str, Sequence[int]]) -> Mapping[str, Any]:
    """Returns the options that affect a plan, without those that another field of the plan stores.
    `partitions` has the numbers of all selected partitions by topic, even of partitions without
    data.
    """
    return {
        "partitions": {topic: list(numbers) for topic, numbers in partitions.items()},
        "isolationLevel": options.isolation_level,
        "failOnDataLoss": options.fail_on_data_loss,
        "layout": options.layout,
        "catalog": options.catalog,
        "endOfLog": options.end_of_log,
        "tailPath": bool(options.tail_paths),
        "tail": options.tail,
        "minPartitions": options.min_partitions,
        "maxRecordsPerPartition": options.max_records_per_partition,
        "targetPartitionBytes": options.target_partition_bytes,
        "maxSegmentsPerTask": options.max_segments_per_task,
    }


def replayed(options: ScanOptions, tier: Tier, progress: Progress | None = None) -> ScanPlan:
    """Reads the plan in `planFile`. Checks that the objects of the plan are unchanged and that no
    other option contradicts the plan.

    If `progress` is set, the result has no offsets that the reader already has.

    Raises:
        InvalidOptionError: The file does not exist or is not a plan, or an option contradicts it.
        DataLossError: The plan skips a hole, and `failOnDataLoss` does not allow it.
        OffsetOutOfRangeError: A bound of the options is outside the log that the plan recorded.
        ObjectNotFoundError: An object was deleted.
        ObjectChangedError: An object was replaced.
        StoreError: The file cannot be read.
    """
    name = scrub(options.plan_file or "")
    try:
        plan = ScanPlan.from_json(_read_file(options))
    except InvalidOptionError as error:
        raise InvalidOptionError(f"option 'planFile' ({name}): {error.message}") from None
    except StoreError as error:
        error.message = scrub(f"option 'planFile' ({name}): {error.message}")
        error.uri = None
        raise
    has_disks = options.tail_paths or options.disk_paths
    if not has_disks and any(is_in_additional_store(ref.key) for ref in plan.objects_read()):
        raise InvalidOptionError(
            f"option 'planFile' ({name}): the plan reads brokers' disks at several paths; set"
            " option 'tailPath' (or 'path' with layout 'kafka-logs') to the same paths"
        )
    _check_options(plan, options)
    _check_selection(plan, options)
    clipped = plan
    if progress is not None:
        clipped = plan.from_offsets(
            [progress.first_missing(partition) for partition in plan.partitions]
        )
    _check_objects(clipped, tier.store)
    _check_brokers(clipped, options)
    source = SegmentSource(tier, options.key_ring.loaded())
    side_files = SideFiles(source, max_batch_bytes=options.max_batch_bytes)
    for partition, rest in zip(plan.partitions, clipped.partitions, strict=True):
        location = Place(
            partition.topic, partition.partition, fail_on_data_loss=options.fail_on_data_loss
        )
        _check_bounds(partition, location, options, side_files)
        check_no_holes(location, rest.surviving, rest.start, rest.stop)
    return replace(clipped, columns=options.columns)


def _read_file(options: ScanOptions) -> str:
    """Reads the plan file with the storage options of the tier."""
    assert options.plan_file is not None
    path = options.plan_file
    scheme = scheme_of(path)
    if scheme == "file":
        from kts_source.store.local_store import local_root

        file = local_root(path).resolve()
        root, key = str(file.parent), file.name
    else:
        before, _, query = path.partition("?")
        folder, _, key = before.rpartition("/")
        root = f"{folder}/" if folder.endswith(("/", ":")) else folder
        key = f"{key}?{query}" if query else key
    storage = storage_of_other_path(options.path, path, options.storage)
    with closing(open_store(root, storage, retry_policy=options.fetch.retry_policy)) as store:
        try:
            info = store.head(key)
            if info.size > _MAX_BYTES:
                raise ObjectTooLargeError(
                    f"the object has {info.size} bytes, more than the limit of {_MAX_BYTES} bytes",
                    uri=store.uri(key),
                )
            return bytes(store.get_range(key, 0, info.size, version=info.version)).decode()
        except FileNotFoundError:
            raise InvalidOptionError(
                "the file does not exist; create it with `kts plan --json` or `ScanPlan.to_json`"
            ) from None
        except UnicodeDecodeError:
            raise InvalidOptionError(
                "the file is not a plan, because it is not UTF-8; plan again"
            ) from None


def _contradiction(option: str, value: object, plan: str) -> InvalidOptionError:
    text = str(value)
    shown = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
    return InvalidOptionError(
        f"option {option!r} ({shown}) contradicts option 'planFile', whose plan"
        f" {plan[:_MAX_SHOWN]}: remove one of them, or plan again"
    )


def _check_options(plan: ScanPlan, options: ScanOptions) -> None:
    wanted, planned = made_with(options, {}), plan.made_with
    if options.tail_paths and not planned.get("tailPath", False):
        raise _contradiction("tailPath", "given", "was made without disks")
    level = planned["isolationLevel"]
    if level != options.isolation_level:
        raise _contradiction("isolationLevel", options.isolation_level, f"was made with {level}")
    if options.fail_on_data_loss and planned.get("failOnDataLoss", True) is not True:
        raise _contradiction("failOnDataLoss", "true", "was made with false")
    for name in sorted(options.given & wanted.keys() - {"failOnDataLoss"}):
        before = planned.get(name, wanted[name])
        if before != wanted[name]:
            raise _contradiction(name, wanted[name], f"was made with {before}")
    if plan.where not in (None, fingerprint(options.where)):
        where = fingerprint(options.where) or "none"
        raise _contradiction(
            "where", where, f"skips rows that its own condition excludes: {plan.where}"
        )


def _check_selection(plan: ScanPlan, options: ScanOptions) -> None:
    held = {
        (partition.topic, partition.partition): partition.topic_id for partition in plan.partitions
    }
    asked = plan.made_with["partitions"]
    planned = held.keys() | {
        (topic, number) for topic, numbers in asked.items() for number in numbers
    }
    topics = {topic for topic, _ in planned} | asked.keys()
    selection = options.selection
    if isinstance(selection, Assign):
        option, numbers_of = "assign", selection.partitions
        pairs = {(topic, number) for topic, numbers in numbers_of.items() for number in numbers}
        differs = pairs != planned
    else:
        option = "subscribe" if isinstance(selection, Subscribe) else "subscribePattern"
        differs = set(selection.wanted(topics)) != topics
    if differs:
        names = ", ".join(f"{topic}-{number}" for topic, number in sorted(planned)) or "nothing"
        raise _contradiction(option, selection, f"reads {names}")
    for (topic, number), topic_id in held.items():
        wanted = wanted_topic_id(options, topic)
        if wanted not in (None, topic_id):
            raise _contradiction("topicId", wanted, f"reads {topic_id} of {topic}-{number}")
    for partition in plan.partitions:
        if (
            partition.catalog is not None
        ):  # the metadata topic may name objects under other prefixes
            continue
        for span in partition.surviving.ranges:
            key = span.segment.objects.log.key
            if not (key.startswith(options.key_prefix) or is_in_additional_store(key)):
                raise _contradiction("keyPrefix", options.key_prefix, f"reads {key}")
    check_named(options, held.keys(), topics)


def _check_objects(plan: ScanPlan, store: ObjectStore) -> None:
    def check(ref: ObjectRef) -> None:
        info = head_again(store, ref.key, ref.version)
        if (info.size, info.version) != (ref.size, ref.version):
            raise ObjectChangedError(
                "the object has changed since the plan was made; plan again", uri=store.uri(ref.key)
            )

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="kts-plan") as pool:
        for _ in pool.map(check, dict.fromkeys(plan.objects_read())):
            pass


def _check_brokers(plan: ScanPlan, options: ScanOptions) -> None:
    """Compares a plan with the cluster. Topic ids must be unchanged, brokers must still have all
    planned offsets, and after a leader change the new leader must have all planned records of the
    previous leader.

    Raises:
        InvalidOptionError: The plan reads from brokers, but option `kafka.bootstrap.servers` is not
            set.
        DataLossError: The cluster lost planned offsets.
        BrokerError: Brokers refuse a request, or do not answer.
    """
    wanted = {
        (partition.topic, partition.partition): (partition, partition.brokers.leader_epoch)
        for partition in plan.partitions
        if partition.brokers is not None
    }
    if not wanted:
        return
    if options.brokers is None:
        raise InvalidOptionError(
            "the plan of option 'planFile' reads from brokers; set option kafka.bootstrap.servers"
        )
    from kts_source.broker.cluster import EARLIEST, Cluster

    with closing(Cluster(options.brokers)) as cluster:
        counts: dict[str, int] = {}
        for partition, _ in wanted.values():
            counts[partition.topic_id] = max(
                partition.partition + 1, counts.get(partition.topic_id, 0)
            )
        topics = cluster.topics({topic for topic, _ in wanted}, counts=counts)
        for (name, number), (partition, _) in wanted.items():
            topic = topics.get(name)
            if topic is None or topic.topic_id != partition.topic_id or number not in topic.leaders:
                now = "is gone" if topic is None else f"has topic id {topic.topic_id}"
                raise _lost(
                    partition,
                    f"the plan reads topic id {partition.topic_id}, but now the topic {now}",
                )
        starts = cluster.offsets(wanted, EARLIEST, read_committed=False)
        for key, (partition, epoch) in wanted.items():
            if partition.start < starts[key] and partition.start < partition.stop:
                raise _lost(
                    partition,
                    f"the plan begins at offset {partition.start}, but the brokers' log now starts"
                    f" at offset {starts[key]}",
                )
            if topics[partition.topic].leaders[partition.partition].epoch == epoch:
                continue
            (end,) = cluster.epoch_ends({key: [epoch]})[key]
            if end.epoch != epoch or end.end_offset < partition.stop:
                raise _lost(
                    partition,
                    f"records were lost in an unclean election: the plan reads leader epoch"
                    f" {epoch} up to offset {partition.stop}, but the leader's log has epoch"
                    f" {end.epoch} up to offset {end.end_offset}",
                )


def _lost(partition: PartitionPlan, text: str) -> DataLossError:
    return DataLossError(
        f"{text}; plan again",
        topic=partition.topic,
        partition=partition.partition,
        offset=partition.start,
    )


def _check_bounds(
    partition: PartitionPlan, location: Place, options: ScanOptions, side_files: SideFiles
) -> None:
    """Resolves the bounds of the options in the log that the plan recorded. Raises
    `InvalidOptionError` if the result differs from the offsets of the plan.
    """
    log = partition.surviving

    def lookup(timestamp_ms: int) -> tuple[PartitionLog, int | None]:
        if partition.brokers is not None:
            raise InvalidOptionError(
                f"{location}: the plan of option 'planFile' also reads from brokers, so a bound by"
                " timestamp cannot be compared with the plan; remove the bound, or plan again"
            )
        offset = first_offset_at_or_after(log, timestamp_ms, side_files)
        ranges = log.ranges
        if ranges and ranges[0].start > log.log_start and offset in (None, ranges[0].start):
            raise InvalidOptionError(
                f"{location}: the plan of option 'planFile' has no segments below offset"
                f" {ranges[0].start}, so a bound by timestamp cannot be compared with the plan;"
                " remove the bound, or plan again"
            )
        return log, offset

    start, stop = requested_bounds(options, location, log, lookup)
    starting, ending = (
        _bound_option_name(options, "starting"),
        _bound_option_name(options, "ending"),
    )
    if starting and start != partition.start:
        raise _contradiction(
            starting, f"offset {start} of {location}", f"begins at {partition.start}"
        )
    if ending and stop != partition.wanted_stop:
        raise _contradiction(
            ending, f"offset {stop} of {location}", f"ends at {partition.wanted_stop}"
        )
    check_decided(options.ending, location, stop, partition.stop, partition.end_reason)


def _bound_option_name(options: ScanOptions, side: str) -> str:
    """Returns the name of the option that sets the bound `side`, which is `starting` or `ending`;
    an empty text if no option sets it.
    """
    names = (f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets")
    return next((name for name in names if name in options.given), "")
