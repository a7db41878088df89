"""Plans an export. The plan is a scan of the offsets after those in the table. Its tasks are split
into several commits.

A table has offsets [start, stop) of a partition, and an export can only add offsets from `stop` on.
So the plan begins at `stop`. A gap after `stop` is an error, unless data loss is allowed: then the
gap is skipped and reported. Offsets that the table has are not read again, so the plan does not
fail if the tier has deleted them.

A wave is the group of tasks that one commit makes visible. A wave ends at the end of a segment,
because only there the end offsets of all partitions are known.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from kts_source.errors import (
    DataLossError,
    ExportError,
    OffsetOutOfRangeError,
    RangeGapError,
    RangeOverlapError,
    TopicNotFoundError,
)
from kts_source.export.fingerprint import is_stored_text
from kts_source.export.ranges import (
    PartitionKey,
    RangeAdvance,
    Rollback,
    held_range,
    partition_key,
    topic_identity,
)
from kts_source.export.report import Skipped
from kts_source.export.task_writer import ExportTask
from kts_source.options.selection import EARLIEST_OFFSET, OffsetsBound
from kts_source.planning.bounds import Place, requested_bounds
from kts_source.planning.isolation import EarlyStop, check_early_stops
from kts_source.planning.partition_plan import segment_name
from kts_source.planning.planner import plan_scan
from kts_source.planning.scan_plan import ScanPlan
from kts_source.read.task import SegmentSlice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kts_source.export.ranges import CommittedRanges, OffsetRange
    from kts_source.export.tables.export_table import TableState
    from kts_source.options import ScanOptions
    from kts_source.planning.bounds import BoundsOf, TimestampLookup
    from kts_source.planning.lineage import PartitionLog
    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.read.task import ScanTask

log = logging.getLogger(__name__)

_GONE: Final = "no longer in the tier"
_MAX_REMOVED: Final = 8
"""Maximum number of ranges that a rollback removed in a message."""
_TopicPartition: TypeAlias = "tuple[str, int]"


@dataclass(frozen=True, slots=True)
class Wave:
    """The tasks of one commit, and the offsets that the commit adds to each partition."""

    tasks: tuple[ExportTask, ...]
    advances: tuple[RangeAdvance, ...]


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The tasks of an export, grouped by commit, and the offsets that it skips.

    Attributes:
        scan: Plan for reading the offsets that the table lacks.
        waves: Groups of tasks, one group per commit, in commit order.
        skipped: Requested offsets that the export does not write.
    """

    scan: ScanPlan
    waves: tuple[Wave, ...]
    skipped: tuple[Skipped, ...]


def plan_export(
    options: ScanOptions, state: TableState, *, resume: bool, commit_bytes: int
) -> ExportPlan:
    """Plans an export that continues after the committed offsets of a table. If `resume` is False,
    a request that includes committed offsets is an error. Tasks read at least `commit_bytes`
    original bytes for one commit.

    Raises:
        RangeGapError: Offsets between the committed offsets and the requested offsets would be
            missing in the table.
        RangeOverlapError: Requested offsets are already committed, or are below the committed
            offsets.
        DataLossError: See `check_rollback` and `check_logs`.
        TopicNotFoundError: See `check_expired`.
        StoreError: Offsets would be skipped, but the tier or its mirror did not answer.
        TieredKafkaError: See `plan_scan` and `check_early_stops`.
    """
    rollback = check_rollback(options, state)
    continuation = Continuation(options, state.committed, resume)
    try:
        scan = plan_scan(options, progress=continuation)
    except TopicNotFoundError as error:
        check_expired(options, state, error)
        scan = ScanPlan((), (), options.columns)
    # While a store does not answer, its log or its topic id may be newer.
    checked = options if scan.unanswered is None else replace(options, fail_on_data_loss=True)
    try:
        skipped = [*check_logs(checked, scan.partitions, state), *continuation.skipped]
    except DataLossError:
        if scan.unanswered is None:
            raise
        raise scan.unanswered from None
    plan = _plan_waves(scan, options, state.committed, commit_bytes, skipped)
    if scan.unanswered is not None and (plan.skipped or _is_start_unsure(scan, state)):
        raise scan.unanswered
    if rollback is None:
        return plan
    reason = "a rollback of the table removed its rows, and the loss was accepted"
    lost = (Skipped(*span, reason) for span in rollback.removed)
    # A commit, even without rows, makes the next run accept the restored state.
    waves = plan.waves or (Wave((), ()),)
    return replace(plan, waves=waves, skipped=(*lost, *plan.skipped))


def _is_start_unsure(scan: ScanPlan, state: TableState) -> bool:
    """Returns whether a partition is new to the table, and only the mirror could tell its start. A
    table cannot get lower offsets later.
    """
    return scan.is_mirror_alone and any(
        partition.start == partition.surviving.log_start > 0
        and _held(state.committed, partition) is None
        for partition in scan.partitions
    )


def plan_rebuild(options: ScanOptions, committed: CommittedRanges) -> ExportPlan:
    """Plans to build a table again from all requested offsets. If the table has all these offsets
    already, the plan has no tasks.

    Raises:
        RangeGapError: The tier no longer has all offsets from which the table was built.
        RangeOverlapError: A log now ends below the end of the table.
    """
    scan = plan_scan(options)
    for partition in scan.partitions:
        held = _held(committed, partition)
        if held is None or held.start == held.stop:
            continue
        name = f"{partition.topic}-{partition.partition}"
        source = f"the table was built from offsets [{held.start}, {held.stop})"
        if partition.start > held.start:
            raise RangeGapError(
                f"offsets [{held.start}, {partition.start}) of {name} are {_GONE}, and {source}: a"
                " rebuild could lose keys. Export into another table",
                topic=partition.topic,
                partition=partition.partition,
                offset=held.start,
            )
        if partition.stop < held.stop:
            raise RangeOverlapError(
                f"{name} ends at offset {partition.stop} now, and {source}. Export into another"
                " table",
                topic=partition.topic,
                partition=partition.partition,
                offset=partition.stop,
            )
    plan = _plan_waves(scan, options, committed, 1 << 62)
    return plan if any(wave.advances for wave in plan.waves) else replace(plan, waves=())


@dataclass(frozen=True, slots=True)
class Continuation:
    """Implements `planning.bounds.Progress` for an export: the planner calls it to find the offsets
    that the table lacks.

    Attributes:
        committed: The offset ranges that the table has.
        resume: See `plan_export`.
        skipped: Requested offsets that are skipped because data loss is allowed. Planning threads
            share this list.
    """

    options: ScanOptions
    committed: CommittedRanges
    resume: bool
    skipped: list[Skipped] = field(default_factory=list)

    def bounds_of(self, topic: str, topic_id: str, partition: int) -> BoundsOf | None:
        """See `planning.bounds.Progress.bounds_of`."""
        held = held_range(self.committed, topic, topic_id, partition)
        if held is None:
            return None
        location = Place(topic, partition, fail_on_data_loss=self.options.fail_on_data_loss)

        def bounds(tier: PartitionLog, lookup: TimestampLookup) -> tuple[int, int]:
            def lookup_after_table(timestamp_ms: int) -> tuple[PartitionLog, int | None]:
                held_offset = _held_offset_at_time(tier, timestamp_ms, held)
                view, offset = lookup(timestamp_ms) if held_offset is None else (tier, held_offset)
                return _with_held(view, held), offset

            if self.resume:
                start, stop = requested_bounds(
                    self.options, location, _with_held(tier, held), lookup_after_table
                )
            else:
                start, stop = requested_bounds(self.options, location, tier, lookup)
            first = self._first_offset(location, held, start, stop, tier.log_start)
            return min(first, tier.stop), min(max(stop, first), tier.stop)

        return bounds

    def first_missing(self, partition: PartitionPlan) -> int:
        """See `planning.bounds.Progress.first_missing`."""
        held = _held(self.committed, partition)
        if held is None:
            return partition.start
        location = Place(partition.topic, partition.partition)
        log_start = partition.surviving.log_start
        return self._first_offset(location, held, partition.start, partition.stop, log_start)

    def _first_offset(
        self, location: Place, held: OffsetRange, start: int, stop: int, log_start: int
    ) -> int:
        """Returns the first offset in [`start`, `stop`) that must be written; `stop` if the table
        has all of them. `held` is the range of offsets that the table has.
        """
        if start >= stop:
            return stop
        holds = f"the table has offsets [{held.start}, {held.stop})"
        if start < held.start:
            end = min(stop, held.start)
            error = RangeOverlapError(
                f"{location}: offsets [{start}, {end}) were requested, and {holds}: lower offsets"
                " cannot be added to a table. Export them into another table, or set"
                f" startingOffsets to an offset from {held.start} to {held.stop};"
                " failOnDataLoss=false skips and reports the lower offsets",
                topic=location.topic,
                partition=location.partition,
                offset=start,
            )
            self._skip(location, start, end, "below the offsets of the table", error)
        if not self.resume and start < held.stop and stop > held.start:
            low, high = max(start, held.start), min(stop, held.stop)
            raise RangeOverlapError(
                f"{location}: offsets [{low}, {high}) were requested, and {holds}. Remove"
                " resume=False to continue after them",
                topic=location.topic,
                partition=location.partition,
                offset=low,
            )
        first = held.stop
        if first >= stop:
            return stop
        if first < log_start:
            end = min(log_start, stop)
            gap = _gap_error(location, first, end, holds, is_deleted=True)
            self._skip(location, first, end, _GONE, gap)
            first = end
        if start > first:
            gap = _gap_error(location, first, start, holds, is_deleted=False)
            # A time or `latest` would skip offsets that nobody chose.
            if _named_offset(self.options.starting, location, -1) != start:
                raise gap
            self._skip(location, first, start, "below startingOffsets", gap)
            first = start
        return first

    def _skip(
        self, location: Place, start: int, stop: int, reason: str, error: ExportError
    ) -> None:
        if self.options.fail_on_data_loss:
            raise error
        gap = Skipped(location.topic, location.partition, start, stop, reason)
        # The planner may call this method several times for a partition.
        if gap not in self.skipped:
            log.warning("%s: skipping offsets [%d, %d): %s", location, start, stop, reason)
            self.skipped.append(gap)


def _gap_error(
    location: Place, start: int, stop: int, holds: str, *, is_deleted: bool
) -> RangeGapError:
    reason = "were not requested"
    advice = (
        "Request them, or export into another table. If they cannot be read, skip them: set the"
        " first offset after them in startingOffsets, and failOnDataLoss=false, for one run"
    )
    if is_deleted:
        reason = f"are {_GONE}"
        advice = "Restore their segments and run again, or set failOnDataLoss=false to skip them"
    return RangeGapError(
        f"offsets [{start}, {stop}) of {location} {reason}, and {holds}: the table would lack them."
        f" {advice}",
        is_deleted=is_deleted,
        topic=location.topic,
        partition=location.partition,
        offset=start,
    )


def _with_held(tier: PartitionLog, held: OffsetRange) -> PartitionLog:
    """Returns a log that also has all offsets in `held` (the range of offsets that the table has),
    even if the tier has deleted them.
    """
    return replace(
        tier,
        log_start=min(tier.log_start, held.start),
        stop=max(tier.stop, held.stop),
        holes=tuple(hole for hole in tier.holes if hole.stop > held.stop),
        unverifiable=tuple(hole for hole in tier.unverifiable if hole.stop > held.stop),
    )


def _held_offset_at_time(tier: PartitionLog, timestamp_ms: int, held: OffsetRange) -> int | None:
    """Finds the first record whose timestamp is `timestamp_ms` or later. If manifests prove that
    this record is in the table, returns the first offset of its segment. Otherwise returns `None`.
    Reads no index.
    """
    for span in tier.ranges:
        segment = span.segment
        if not segment.is_dated_before(timestamp_ms):
            # If only a part of the segment is in the log, the record may be outside this part.
            is_whole = (span.start, span.stop) == (segment.start_offset, segment.stop_offset)
            is_held = held.start <= span.start and span.stop <= held.stop
            is_sure = segment.max_timestamp_ms > 0 and is_whole and is_held
            return span.start if is_sure else None
    return None


# -- checks of the table and its logs


def check_rollback(options: ScanOptions, state: TableState) -> Rollback | None:
    """Checks that the table was not restored to an earlier state. A restored table lacks rows at
    offsets that its commits recorded.

    Returns:
        What the table lost, if it was restored and data loss is allowed; otherwise `None`.

    Raises:
        DataLossError: The table was restored to an earlier state, and data loss is not allowed.
    """
    rollback = state.rollback() if state.fingerprint else None
    if rollback is None:
        return None
    removed = rollback.removed
    extent = "; ".join(map(str, removed[:_MAX_REMOVED])) or "its history does not have the offsets"
    if len(removed) > _MAX_REMOVED:
        extent += f"; and {len(removed) - _MAX_REMOVED} more ranges"
    text = (
        f"the table records offsets whose rows it no longer has: {rollback.text}: {extent}. Restore"
        " the newest state that the export committed, or export into another table"
    )
    if options.fail_on_data_loss:
        first = removed[0] if removed else None
        raise DataLossError(
            f"{text}; failOnDataLoss=false continues without these rows, and verify=True then fails"
            " for this table",
            topic=None if first is None else first.topic,
            partition=None if first is None else first.partition,
            offset=None if first is None else first.start,
        )
    log.warning("%s; continuing without these rows", text)
    return rollback


def check_expired(options: ScanOptions, state: TableState, error: TopicNotFoundError) -> None:
    """Checks that an export may end without new rows although the tier has none of its topics: the
    options name them, earlier runs exported them, retention may have deleted them, and data loss is
    allowed. A pattern without a match may be wrong.

    Raises:
        TopicNotFoundError: One of these conditions is not met.
    """
    topics = options.selection.wanted(())
    is_exported = bool(topics) and all(state.topic_id(topic) is not None for topic in topics)
    may_have_expired = error.may_have_expired and not error.advice
    if options.brokers is not None or not is_exported or not may_have_expired:
        raise error
    if options.fail_on_data_loss:
        raise error.extended(
            ". The table has rows of earlier runs: if retention has deleted all segments since, set"
            " failOnDataLoss=false to end without new rows, or remove the topic from the job"
        )
    log.warning("%s; nothing new to write, the table keeps the rows of earlier runs", error)


def check_logs(
    options: ScanOptions, partitions: Sequence[PartitionPlan], state: TableState
) -> list[Skipped]:
    """Checks that the logs of the planned partitions still match the rows in the table. Returns the
    lost first offsets of new partitions if data loss is allowed.

    Raises:
        DataLossError: Data loss is not allowed, and one of these faults was found: a log ends below
            the end of the table; offsets of the table now belong to another leader epoch; a topic
            was created again; or a new partition has lost its first records.
    """
    if not state.fingerprint:
        return []
    held_topics: dict[tuple[str, str], bool] = {}
    new_partitions = []
    for partition in partitions:
        held = _held(state.committed, partition)
        topic = partition.topic, partition.topic_id
        held_topics[topic] = held_topics.get(topic, False) or held is not None
        if held is None:
            new_partitions.append(partition)
        else:
            _check_log(options, partition, held)
    lost = [
        gap
        for partition in new_partitions
        if held_topics[partition.topic, partition.topic_id]
        for gap in _lost_first_offsets(options, partition)
    ]
    for (name, topic_id), is_held in held_topics.items():
        if is_held or name in options.topic_ids or "" in options.topic_ids:
            continue
        before = state.topic_id(name)
        if before is not None and not is_stored_text(before, topic_identity(name, topic_id)):
            _check_recreated(options, name, before, topic_id)
    return lost


def epoch_before(partition: PartitionPlan, stop: int, options: ScanOptions) -> int | None:
    """Returns the leader epoch of offset `stop - 1`. Returns `None` if it is unknown."""
    # A plan from a file with brokers contains only the epochs of the tier's segments.
    if options.plan_file is not None and partition.brokers is not None:
        return None
    epochs = [entry.epoch for entry in partition.surviving.lineage if entry.start_offset < stop]
    return epochs[-1] if epochs else None


def _check_log(options: ScanOptions, partition: PartitionPlan, held: OffsetRange) -> None:
    location = Place(
        partition.topic, partition.partition, fail_on_data_loss=options.fail_on_data_loss
    )
    stop = partition.surviving.stop
    if held.stop > stop:
        if options.plan_file is None:  # an old plan ends earlier, so it has no new offsets
            hint = ""
            if options.brokers is None and not options.tail_paths:
                hint = (
                    " If earlier runs also read brokers or disks, set kafka.bootstrap.servers or"
                    " tailPath again."
                )
            location.raise_or_warn(
                f"the table has offsets [{held.start}, {held.stop}), but the log ends at offset"
                f" {stop}.{hint} If the missing records were lost in an unclean election or with"
                " their segments, export into another table; failOnDataLoss=false keeps the table's"
                f" rows and continues at offset {held.stop}"
            )
        return
    owner = epoch_before(partition, held.stop, options)
    if None not in (owner, held.epoch) and owner != held.epoch:
        location.raise_or_warn(
            f"the table has offsets [{held.start}, {held.stop}), and the last of them belonged to"
            f" leader epoch {held.epoch}, but belongs to epoch {owner} now: an unclean election"
            " replaced records that the table has. Export into another table;"
            f" failOnDataLoss=false keeps the table's rows and continues at offset {held.stop}"
        )


def _lost_first_offsets(options: ScanOptions, partition: PartitionPlan) -> Iterator[Skipped]:
    """Yields the offsets before the start of a partition that is new to the table, unless the
    options name its start. Raises `OffsetOutOfRangeError` if data loss is not allowed.
    """
    location = Place(
        partition.topic, partition.partition, fail_on_data_loss=options.fail_on_data_loss
    )
    first = partition.surviving.log_start
    is_named = _named_offset(options.starting, partition, EARLIEST_OFFSET) != EARLIEST_OFFSET
    if first == 0 or partition.start != first or is_named:
        return
    location.raise_or_warn(
        f"the partition is new to the table and begins at offset {first}: offsets [0, {first}) may"
        " have been deleted before they were exported; set failOnDataLoss=false to export the"
        f" partition from offset {first}, or set this offset in startingOffsets",
        OffsetOutOfRangeError,
    )
    yield Skipped(partition.topic, partition.partition, 0, first, _GONE)


def _check_recreated(options: ScanOptions, topic: str, before: str, topic_id: str) -> None:
    # Delta tables store only a digest of the id.
    owner, earlier = before, f"={before}"
    if before.isdigit():
        owner, earlier = "another topic id", " set to its id, which the log of this run names"
    text = (
        f"topic {topic} was created again: the table has records of {owner}, but the topic has id"
        f" {topic_id} now. If the tier still has records of the earlier topic that were not"
        f" exported, first run once with topicId{earlier}"
    )
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{text}. Then export the new topic into another table, or add its records to this"
            f" table: set topicId={topic_id}, or failOnDataLoss=false",
            topic=topic,
        )
    log.warning("%s", text)


def _check_identities(partitions: Iterable[PartitionPlan]) -> None:
    """Raises `ExportError` if two topics have the same topic id. A table identifies topics by topic
    id, so it could not distinguish them.
    """
    names: dict[str, str] = {}
    for partition in partitions:
        other = names.setdefault(
            topic_identity(partition.topic, partition.topic_id), partition.topic
        )
        if other != partition.topic:
            raise ExportError(
                f"topics {other} and {partition.topic} have the same topic id {partition.topic_id},"
                " by which a table identifies a topic. Export each of them into a table of its own",
                topic=partition.topic,
            )


# -- groups of tasks, one per commit


def _held(committed: CommittedRanges, partition: PartitionPlan) -> OffsetRange | None:
    return held_range(committed, partition.topic, partition.topic_id, partition.partition)


def _named_offset(bound: object, partition: PartitionPlan | Place, default: int) -> int:
    """Returns the offset of a partition in `bound`, the value of option `startingOffsets` or
    `endingOffsets`. Returns `default` if the option has no offset for this partition.
    """
    offsets = bound.offsets if isinstance(bound, OffsetsBound) else {}
    return offsets.get(partition.topic, {}).get(partition.partition, default)


def _plan_waves(
    scan: ScanPlan,
    options: ScanOptions,
    committed: CommittedRanges,
    commit_bytes: int,
    skipped: Iterable[Skipped] = (),
) -> ExportPlan:
    _check_identities(scan.partitions)
    gaps = [*skipped]
    for partition in scan.partitions:
        gaps.extend(_gaps(partition, options, _held(committed, partition)))
    gaps.sort(key=lambda gap: (gap.topic, gap.partition, gap.start))
    waves = tuple(_Waves(scan, committed, options).split(commit_bytes))
    check_early_stops(options, _early_stops(scan, waves))
    return ExportPlan(scan, waves, tuple(gaps))


def _early_stops(scan: ScanPlan, waves: Iterable[Wave]) -> list[EarlyStop]:
    """Returns the commits that end below the planned end of a partition, with the offsets that they
    add to this partition.
    """
    plans = {_key(plan): plan for plan in scan.partitions}
    return [
        EarlyStop(plans[advance.key], advance.start, advance.stop)
        for wave in waves
        for advance in wave.advances
        if advance.start < advance.stop < plans[advance.key].stop
    ]


def _gaps(
    partition: PartitionPlan, options: ScanOptions, held: OffsetRange | None
) -> Iterator[Skipped]:
    """Yields the requested offset ranges that the export skips, each with its reason. `held` is the
    range of offsets that the table has.
    """
    tier = partition.surviving

    def gap(start: int, stop: int, reason: str) -> Skipped:
        return Skipped(partition.topic, partition.partition, start, stop, reason)

    start, stop = (
        _named_offset(bound, partition, -1) for bound in (options.starting, options.ending)
    )
    low, high = tier.log_start, max(tier.stop, start)
    if held is not None:
        low, high = min(low, held.start), max(high, held.stop)
    if stop >= 0:
        low = min(low, stop)
    if 0 <= start < low:
        yield gap(start, low, _GONE)
    if stop > high:
        yield gap(high, stop, "not tiered yet")
    for holes, reason in (
        (tier.holes, "missing in the tier"),
        (tier.unverifiable, "the tier does not show whether there were records"),
    ):
        for hole in holes:
            if max(hole.start, partition.start) < min(hole.stop, partition.stop):
                yield gap(max(hole.start, partition.start), min(hole.stop, partition.stop), reason)
    if partition.stop < partition.wanted_stop:
        yield gap(partition.stop, partition.wanted_stop, partition.end_reason)


class _Waves:
    """Splits the tasks of a scan into waves (groups of tasks with one commit). Computes the end
    offset of each partition after each commit.
    """

    def __init__(self, scan: ScanPlan, committed: CommittedRanges, options: ScanOptions) -> None:
        self._tasks = scan.tasks
        self._options = options
        self._partitions = {
            (partition.topic, partition.partition): partition for partition in scan.partitions
        }
        self._ahead: dict[_TopicPartition, RangeAdvance] = {}
        for topic_partition, partition in self._partitions.items():
            held = _held(committed, partition)
            # A rebuild reads the table's offsets again, but its commit moves the end of the table's
            # range, too.
            expected = None if held is None else held.stop
            start = max(partition.start, expected or 0)
            self._ahead[topic_partition] = RangeAdvance(
                partition.topic, _key(partition), expected, start, start
            )
        self._last_task = {
            (partition.topic, partition.partition): number
            for number, task in enumerate(scan.tasks)
            for partition in task.parts
        }

    def split(self, commit_bytes: int) -> Iterator[Wave]:
        """Yields the waves in commit order. All waves except the last have at least `commit_bytes`
        original bytes.
        """
        group: list[ScanTask] = []
        size = done = 0
        for number, task in enumerate(self._tasks):
            group.append(task)
            size += task.nominal_bytes
            if size >= commit_bytes and self._ends_segment(number):
                yield self._wave(group, done)
                done, group, size = done + len(group), [], 0
        if group or done == 0:
            last = self._wave(group, done)
            if last.tasks or last.advances:
                yield last

    def _ends_segment(self, number: int) -> bool:
        """Returns True if a wave may end after task `number`, because no later task reads the last
        segment of this task.

        All slices of a segment must be in one wave, because tasks compare the transactions of the
        whole segment with the transaction index. So a fault in one slice affects the other slices.
        """
        if number + 1 == len(self._tasks):
            return True
        last, following = self._tasks[number].parts[-1], self._tasks[number + 1].parts[0]
        if not (isinstance(last, SegmentSlice) and isinstance(following, SegmentSlice)):
            return True
        return segment_name(last) != segment_name(following)

    def _wave(self, tasks: Sequence[ScanTask], first: int) -> Wave:
        new = self._new_partitions() if first == 0 else set()
        advances = []
        for topic_partition, stop in self._stops(tasks, first, new).items():
            ahead = self._ahead[topic_partition]
            if stop > ahead.start or topic_partition in new:
                epoch = epoch_before(self._partitions[topic_partition], stop, self._options)
                advances.append(replace(ahead, stop=stop, epoch=epoch))
                self._ahead[topic_partition] = replace(ahead, expected=stop, start=stop, stop=stop)
        exports = []
        for number, task in enumerate(tasks, first):
            topic_partitions = [(partition.topic, partition.partition) for partition in task.parts]
            topic_ids = {
                topic_partition: _key(self._partitions[topic_partition]).topic_id
                for topic_partition in topic_partitions
            }
            exports.append(ExportTask(number, task, topic_ids))
        return Wave(tuple(exports), tuple(advances))

    def _stops(
        self, tasks: Sequence[ScanTask], first: int, new: set[_TopicPartition]
    ) -> dict[_TopicPartition, int]:
        """Returns the end offsets after the wave of `tasks`, for the partitions that these tasks
        read and for all partitions that no later task reads.

        `first` is the number of the first task in `tasks`. In the first wave, `new` contains the
        partitions from `_new_partitions`.
        """
        stops = {
            topic_partition: self._partitions[topic_partition].start for topic_partition in new
        }
        stops |= {
            (partition.topic, partition.partition): partition.stop_offset
            for task in tasks
            for partition in task.parts
        }
        # If a partition has no later task, only holes follow, so its planned end is reached.
        stops |= {
            topic_partition: partition.stop
            for topic_partition, partition in self._partitions.items()
            if self._last_task.get(topic_partition, -1) < first + len(tasks)
        }
        return stops

    def _new_partitions(self) -> set[_TopicPartition]:
        """Returns the partitions of which the table has no offsets and whose first records were
        deleted.

        The first commit records the start offsets of these partitions, because the run may end
        before it reads them.
        """
        return {
            topic_partition
            for topic_partition, partition in self._partitions.items()
            if self._ahead[topic_partition].expected is None
            and partition.start == partition.surviving.log_start > 0
        }


def _key(partition: PartitionPlan) -> PartitionKey:
    return partition_key(partition.topic, partition.topic_id, partition.partition)
