"""What an export has still to write: the scan's plan behind what the table holds, in waves.

A wave is committed as a whole, so it ends where every partition in it has a known end: between
segments, never within one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kts_source.errors import ExportError, RangeGapError, RangeOverlapError
from kts_source.export.continuation import (
    Continuation,
    check_logs,
    check_rollback,
    epoch_before,
    left_out_by_bounds,
)
from kts_source.export.ranges import (
    PartitionKey,
    RangeAdvance,
    held_range,
    partition_key,
    topic_identity,
)
from kts_source.export.report import Skipped
from kts_source.export.task import ExportTask
from kts_source.planning.early_stops import EarlyStop, check_early_stops
from kts_source.planning.planner import plan_scan
from kts_source.planning.scan_plan import segment_name
from kts_source.read.task import SegmentSlice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kts_source.export.ranges import CommittedRanges, OffsetRange
    from kts_source.export.tables.export_table import TableState
    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import PartitionPlan, ScanPlan
    from kts_source.read.task import ScanTask


@dataclass(frozen=True, slots=True)
class Wave:
    """Tasks whose files are committed together, and the ranges they move."""

    tasks: tuple[ExportTask, ...]
    advances: tuple[RangeAdvance, ...]


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """All that is to be written.

    Attributes:
        scan: Of the offsets still missing.
        waves: In order.
        skipped: What is left out of what was asked for.
    """

    scan: ScanPlan
    waves: tuple[Wave, ...]
    skipped: tuple[Skipped, ...]


def plan_export(
    options: ScanOptions, state: TableState, *, resume: bool, commit_bytes: int
) -> ExportPlan:
    """Plans an export behind what is committed.

    Args:
        options: What was asked for.
        state: What the table holds.
        resume: Whether to continue behind it; otherwise whatever of it is asked for again is an
            error.
        commit_bytes: Original bytes of a wave, at least.

    Raises:
        RangeGapError: Offsets between what is committed and what was asked for would be missing.
        RangeOverlapError: Offsets asked for are committed already, or lie below them.
        DataLossError: See `check_rollback` and `check_logs`.
        TieredKafkaError: See `plan_scan` and `check_early_stops`.
    """
    check_rollback(options, state)
    behind = Continuation(options, state.committed, resume)
    plan = plan_scan(options, progress=behind)
    check_logs(options, plan.partitions, state)
    return _in_waves(plan, options, state.committed, commit_bytes, behind.skipped)


def plan_rebuild(options: ScanOptions, committed: CommittedRanges) -> ExportPlan:
    """Plans a table built anew from all that was asked for; no wave when nothing is new.

    Raises:
        RangeGapError: The tier no longer holds all that the table was built from.
        RangeOverlapError: The tier ends before the table does.
    """
    scan = plan_scan(options)
    for part in scan.partitions:
        held = _held(committed, part)
        if held is None or held.start == held.stop:
            continue
        place = f"{part.topic}-{part.partition}"
        where = f"the table was built from [{held.start}, {held.stop})"
        if part.start > held.start:
            raise RangeGapError(
                f"offsets [{held.start}, {part.start}) of {place} are no longer in the tier, and"
                f" {where}: a rebuild could lose keys",
                topic=part.topic,
                partition=part.partition,
                offset=held.start,
            )
        if part.stop < held.stop:
            raise RangeOverlapError(
                f"{place} ends at {part.stop} now, and {where}",
                topic=part.topic,
                partition=part.partition,
                offset=part.stop,
            )
    plan = _in_waves(scan, options, committed, 1 << 62)
    return plan if any(wave.advances for wave in plan.waves) else replace(plan, waves=())


def _key(part: PartitionPlan) -> PartitionKey:
    return partition_key(part.topic, part.topic_id, part.partition)


def _held(committed: CommittedRanges, part: PartitionPlan) -> OffsetRange | None:
    return held_range(committed, part.topic, part.topic_id, part.partition)


def _check_identities(parts: Iterable[PartitionPlan]) -> None:
    """Raises `ExportError` where a table could not tell two topics apart."""
    names: dict[str, str] = {}
    for part in parts:
        identity = topic_identity(part.topic, part.topic_id)
        other = names.setdefault(identity, part.topic)
        if other != part.topic:
            raise ExportError(
                f"topics {other} and {part.topic} have the same topic id {part.topic_id}, by which"
                " a table knows what it holds of a topic. Export each of them into a table of its"
                " own",
                topic=part.topic,
            )


def _in_waves(
    scan: ScanPlan,
    options: ScanOptions,
    committed: CommittedRanges,
    commit_bytes: int,
    skipped: Iterable[Skipped] = (),
) -> ExportPlan:
    _check_identities(scan.partitions)
    held = [_held(committed, part) for part in scan.partitions]
    left_out = [*skipped]
    for part, known in zip(scan.partitions, held, strict=True):
        left_out.extend(_left_out(part, options, known))
    left_out.sort(key=lambda gap: (gap.topic, gap.partition, gap.start))
    waves = tuple(_waves(scan, held, commit_bytes, options))
    check_early_stops(options, _early_stops(scan, waves))
    return ExportPlan(scan, waves, tuple(left_out))


def _early_stops(scan: ScanPlan, waves: Iterable[Wave]) -> list[EarlyStop]:
    """Return where a wave ends before the plan of a partition does."""
    plans = {_key(plan): plan for plan in scan.partitions}
    return [
        EarlyStop(plans[advance.key], advance.start, advance.stop)
        for wave in waves
        for advance in wave.advances
        if advance.start < advance.stop < plans[advance.key].stop
    ]


def _left_out(
    part: PartitionPlan, options: ScanOptions, held: OffsetRange | None
) -> Iterator[Skipped]:
    yield from left_out_by_bounds(options, part, held)
    for hole in (*part.surviving.holes, *part.surviving.unverifiable):
        low, high = max(hole.start, part.start), min(hole.stop, part.stop)
        if low < high:
            reason = "missing in the tier"
            if hole in part.surviving.unverifiable:
                reason = "the tier does not tell whether there were records"
            yield Skipped(part.topic, part.partition, low, high, reason)
    if part.stop < part.wanted_stop:
        yield Skipped(part.topic, part.partition, part.stop, part.wanted_stop, part.end_reason)


def _waves(
    scan: ScanPlan,
    held: Sequence[OffsetRange | None],
    commit_bytes: int,
    options: ScanOptions,
) -> Iterator[Wave]:
    partitions = {(part.topic, part.partition): part for part in scan.partitions}
    ahead: dict[tuple[str, int], RangeAdvance] = {}
    for (place, part), known in zip(partitions.items(), held, strict=True):
        # A table built anew is read from its start, and grows behind what it was built from.
        expected = None if known is None else known.stop
        start = max(part.start, expected or 0)
        ahead[place] = RangeAdvance(part.topic, _key(part), expected, start, start)
    last_task = {
        (part.topic, part.partition): number
        for number, task in enumerate(scan.tasks)
        for part in task.parts
    }

    def wave(tasks: Sequence[ScanTask], first: int) -> Wave:
        stops = {
            (part.topic, part.partition): part.stop_offset for task in tasks for part in task.parts
        }
        # All offsets behind a partition's last task are holes, and so are those of one without any.
        stops |= {
            place: part.stop
            for place, part in partitions.items()
            if last_task.get(place, -1) < first + len(tasks)
        }
        if first == 0:
            # If this run dies, the next one knows where the records of all partitions begin.
            new = {place for place, part in partitions.items() if _is_new(part, ahead[place])}
            stops = {place: partitions[place].start for place in new} | stops
        else:
            new = set()
        advances = []
        for place, stop in stops.items():
            part = partitions[place]
            if stop > ahead[place].start or place in new:
                epoch = epoch_before(part, stop, options)
                advances.append(replace(ahead[place], stop=stop, epoch=epoch))
                ahead[place] = replace(ahead[place], expected=stop, start=stop, stop=stop)
        exports = []
        for number, task in enumerate(tasks, first):
            places = [(part.topic, part.partition) for part in task.parts]
            topic_ids = {place: _key(partitions[place]).topic_id for place in places}
            exports.append(ExportTask(number, task, topic_ids))
        return Wave(tuple(exports), tuple(advances))

    group: list[ScanTask] = []
    size = done = 0
    for number, task in enumerate(scan.tasks):
        group.append(task)
        size += task.nominal_bytes
        if size >= commit_bytes and _ends_a_segment(scan.tasks, number):
            yield wave(group, done)
            done, group, size = done + len(group), [], 0
    if group or done == 0:
        last = wave(group, done)
        if last.tasks or last.advances:
            yield last


def _is_new(part: PartitionPlan, ahead: RangeAdvance) -> bool:
    """Returns whether the table has nothing of a partition that has lost its first records."""
    return ahead.expected is None and part.start == part.surviving.log_start > 0


def _ends_a_segment(tasks: Sequence[ScanTask], number: int) -> bool:
    """Returns whether no later task reads the segment in which a task ends.

    Slices of a segment rely on the comparison of all transactions in it, also where each of them
    has offsets of its own.
    """
    if number + 1 == len(tasks):
        return True
    last, following = tasks[number].parts[-1], tasks[number + 1].parts[0]
    if not (isinstance(last, SegmentSlice) and isinstance(following, SegmentSlice)):
        return True
    return segment_name(last) != segment_name(following)
