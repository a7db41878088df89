"""What an export has still to write: the scan's plan behind what the table holds, in waves.

A wave is committed as a whole, so it ends where every partition in it has a known end: between
segments, never within one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kts_source.errors import RangeGapError, RangeOverlapError
from kts_source.export.continuation import Continuation, left_out_by_bounds
from kts_source.export.ranges import PartitionKey, RangeAdvance
from kts_source.export.report import Skipped
from kts_source.export.task import ExportTask
from kts_source.planning.planner import plan_scan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kts_source.export.ranges import CommittedRanges, OffsetRange
    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import PartitionPlan, ScanPlan
    from kts_source.read.task import ScanTask, SegmentSlice
    from kts_source.tier import Tier


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
    options: ScanOptions,
    committed: CommittedRanges,
    *,
    resume: bool,
    commit_bytes: int,
    store: Tier | None = None,
) -> ExportPlan:
    """Plans an export behind what is committed.

    Args:
        options: What was asked for.
        committed: What the table holds.
        resume: Whether to continue behind it; otherwise whatever of it is asked for again is an
            error.
        commit_bytes: Original bytes of a wave, at least.
        store: The tier; opened from the options when not given.

    Raises:
        RangeGapError: Offsets between what is committed and what was asked for would be missing.
        RangeOverlapError: Offsets asked for are committed already, or lie below them.
        TieredKafkaError: See `plan_scan`.
    """
    behind = Continuation(options, committed, resume)
    plan = plan_scan(options, store, behind)
    expected = {_key(part): committed.get(_key(part)) for part in plan.partitions}
    skipped = list(behind.skipped)
    for part in plan.partitions:
        skipped.extend(_left_out(part, options, expected[_key(part)]))
    skipped.sort(key=lambda gap: (gap.topic, gap.partition, gap.start))
    return ExportPlan(plan, tuple(_waves(plan, expected, commit_bytes)), tuple(skipped))


def plan_rebuild(
    options: ScanOptions, committed: CommittedRanges, store: Tier | None = None
) -> ExportPlan:
    """Plans a table built anew from all that was asked for; no wave when nothing is new.

    Raises:
        RangeGapError: The tier no longer holds all that the table was built from.
        RangeOverlapError: The tier ends before the table does.
    """
    plan = plan_scan(options, store)
    held = {_key(part): committed.get(_key(part)) for part in plan.partitions}
    for part in plan.partitions:
        before = held[_key(part)]
        if before is None:
            continue
        place = f"{part.topic}-{part.partition}"
        where = f"the table was built from [{before.start}, {before.stop})"
        if part.start > before.start:
            raise RangeGapError(
                f"offsets [{before.start}, {part.start}) of {place} are no longer in the tier, and"
                f" {where}: a rebuild could lose keys",
                topic=part.topic,
                partition=part.partition,
                offset=before.start,
            )
        if part.stop < before.stop:
            raise RangeOverlapError(
                f"{place} ends at {part.stop} now, and {where}",
                topic=part.topic,
                partition=part.partition,
                offset=part.stop,
            )
    skipped = tuple(
        gap for part in plan.partitions for gap in _left_out(part, options, held[_key(part)])
    )
    is_new = any(
        part.stop > (before.stop if (before := held[_key(part)]) else part.start)
        for part in plan.partitions
    )
    waves = tuple(_waves(plan, held, 1 << 62)) if is_new else ()
    return ExportPlan(plan, waves, skipped)


def _key(part: PartitionPlan) -> PartitionKey:
    return PartitionKey(part.topic_id, part.partition)


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
    plan: ScanPlan, expected: dict[PartitionKey, OffsetRange | None], commit_bytes: int
) -> Iterator[Wave]:
    parts = {(part.topic, part.partition): part for part in plan.partitions}
    at = {
        _key(part): None if (held := expected.get(_key(part))) is None else held.stop
        for part in plan.partitions
    }
    # A table that is built anew is read from its start, and grows behind what it was built from.
    reached = {_key(part): max(part.start, at[_key(part)] or 0) for part in plan.partitions}
    last_slice: dict[tuple[str, int], SegmentSlice] = {}
    for task in plan.tasks:
        for part in task.slices:
            last_slice[part.topic, part.partition] = part
    # Ranges without a task: all of their offsets are holes.
    taskless = [p for p in plan.partitions if (p.topic, p.partition) not in last_slice]

    def advance(part: PartitionPlan, stop: int) -> Iterator[RangeAdvance]:
        key = _key(part)
        if stop > reached[key]:
            yield RangeAdvance(part.topic, key, at[key], reached[key], stop)
            at[key] = reached[key] = stop

    def wave(tasks: Sequence[ScanTask], first: int) -> Wave:
        ends: dict[tuple[str, int], SegmentSlice] = {}
        for task in tasks:
            for part in task.slices:
                ends[part.topic, part.partition] = part
        moved: list[RangeAdvance] = []
        for place, part in ends.items():
            stop = parts[place].stop if part is last_slice[place] else part.stop_offset
            moved.extend(advance(parts[place], stop))
        if first == 0:
            for partition in taskless:
                moved.extend(advance(partition, partition.stop))
        return Wave(
            tuple(
                ExportTask(first + number, task, _topic_ids(task, parts))
                for number, task in enumerate(tasks)
            ),
            tuple(moved),
        )

    group: list[ScanTask] = []
    size = done = 0
    for number, task in enumerate(plan.tasks):
        group.append(task)
        size += task.nominal_bytes
        if size >= commit_bytes and _ends_a_segment(plan.tasks, number):
            yield wave(group, done)
            done, group, size = done + len(group), [], 0
    if group or done == 0:
        last = wave(group, done)
        if last.tasks or last.advances:
            yield last


def _ends_a_segment(tasks: Sequence[ScanTask], number: int) -> bool:
    if number + 1 == len(tasks):
        return True
    last, following = tasks[number].slices[-1], tasks[number + 1].slices[0]
    return _span(last) != _span(following)


def _span(part: SegmentSlice) -> tuple[str, int, str, int]:
    return part.topic, part.partition, part.segment_id, part.start_offset


def _topic_ids(
    task: ScanTask, parts: dict[tuple[str, int], PartitionPlan]
) -> dict[tuple[str, int], str]:
    places = {(part.topic, part.partition) for part in task.slices}
    return {place: parts[place].topic_id for place in places}
