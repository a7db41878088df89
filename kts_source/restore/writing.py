"""Writes the log of every planned partition into the log directory of a stopped broker, and
compares the result with the tier.
"""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING

from kts_source.errors import CorruptSegmentError, InvalidOptionError, ObjectChangedError
from kts_source.read.segment_source import SegmentSource
from kts_source.restore.digests import row_digests
from kts_source.restore.journal import Journal
from kts_source.restore.log_dir import LOG_STARTS, RECOVERY_POINTS, LogDir, check_empty, place
from kts_source.restore.partition_writer import PartitionWriter
from kts_source.restore.planning import fingerprint, plan_source, source_options
from kts_source.restore.restore_plan import ABORT, read_plan
from kts_source.texts import format_bytes, some
from kts_source.tier import open_uncached_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kts_source.options import ScanOptions
    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.restore.restore_plan import PartitionRestore, RestorePlan

LEVELS = ("read_uncommitted", "read_committed")


def write_restore(
    plan_path: str,
    options: Mapping[str, str],
    log_dir: str,
    *,
    on_partition: Callable[[str], object] = lambda name: None,
) -> RestorePlan:
    """Writes the planned partitions. The broker of the log directory must be stopped. Call it again
    with the same arguments to continue after an error or a crash.

    Args:
        plan_path: Path of the plan file. The journal is written next to it.
        options: Options of the tier, as passed to `plan_restore`.
        log_dir: A log directory of the broker that has the only replicas of the target topics.
        on_partition: Called with the name of each partition after it is written.

    Raises:
        InvalidOptionError: The plan was refused, the log directory is not the planned one, a
            partition is not empty, or a broker runs on the log directory.
        ObjectChangedError: The tier changed after the plan.
        CorruptSegmentError: A segment is invalid, or the written rows differ from the tier.
        TieredKafkaError: The tier cannot be read.
    """
    plan = read_plan(plan_path)
    if plan.refusals:
        raise InvalidOptionError(
            f"the plan is refused: {some(plan.refusals)}. Remove the reasons and plan again"
        )
    target = LogDir(log_dir, plan.cluster_id, plan.node_id)
    journal = Journal(plan_path, plan)
    parsed = source_options(options)
    with target.locked():
        folders = {
            each.name: target.partition(each.name, plan.target_ids[each.target_topic])
            for each in plan.partitions
        }
        for name, folder in folders.items():
            if journal.staged(name) is None:
                check_empty(folder)
        sources = _plan_unchanged_tier(plan, parsed)
        if journal.has("checked"):
            return plan
        journal.begin(str(target.path.resolve()))
        _check_space(plan, journal, target.path)
        with closing(open_uncached_tier(parsed)) as tier:
            source = SegmentSource(tier, parsed.key_ring.loaded())
            for each in plan.partitions:
                _write_partition(source, each, sources, folders[each.name], plan, journal)
                on_partition(each.name)
        if not journal.has("written"):
            _merge_checkpoints(plan, journal, target)
            journal.add("written")
        journal.add("checked", digests=_checked_digests(plan, options, target.path))
    return plan


def _plan_unchanged_tier(
    plan: RestorePlan, options: ScanOptions
) -> dict[tuple[str, int], PartitionPlan]:
    """Plans the tier again, and checks that it has the segments in `plan`. Returns the new plan of
    each partition.
    """
    errors: list[str] = []
    scan = plan_source(options, errors)
    found = {(each.topic, each.partition): each for each in scan.partitions}
    for each in plan.partitions:
        source = found.get((each.topic, each.partition))
        if source is None or fingerprint(source) != each.fingerprint or errors:
            raise ObjectChangedError(
                "the tier changed after the restore was planned, perhaps because the old cluster"
                f" still runs: stop it and plan again{'; ' + some(errors) if errors else ''}",
                topic=each.topic,
                partition=each.partition,
            )
    return found


def _check_space(plan: RestorePlan, journal: Journal, folder: Path) -> None:
    needed = sum(each.bytes for each in plan.partitions if journal.staged(each.name) is None)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InvalidOptionError(
            f"{folder} has {format_bytes(free)} free, but the restore needs {format_bytes(needed)}:"
            " free disk space, or restore fewer topics per plan"
        )


def _write_partition(
    source: SegmentSource,
    restore: PartitionRestore,
    sources: Mapping[tuple[str, int], PartitionPlan],
    folder: Path,
    plan: RestorePlan,
    journal: Journal,
) -> None:
    if journal.is_placed(restore.name):
        return
    staged = journal.staged(restore.name)
    if staged is None:
        partition = sources[restore.topic, restore.partition]
        writer = PartitionWriter(folder, restore, partition, plan.undecided)
        writer.write(source)
        staged = journal.add(
            "staged",
            partition=restore.name,
            end=writer.end,
            maxProducerId=writer.max_producer_id,
            files=writer.files,
        )
    place(folder, staged["files"])
    journal.add("placed", partition=restore.name)


def _merge_checkpoints(plan: RestorePlan, journal: Journal, target: LogDir) -> None:
    starts: dict[tuple[str, int], int | None] = {}
    ends: dict[tuple[str, int], int | None] = {}
    for each in plan.partitions:
        staged = journal.staged(each.name)
        assert staged is not None
        pair = each.target_topic, each.partition
        first = min(int(name[:20]) for name in staged["files"] if name.endswith(".log"))
        starts[pair] = each.log_start if each.log_start > first else None
        ends[pair] = staged["end"]
    target.merge_offsets(LOG_STARTS, starts)
    target.merge_offsets(RECOVERY_POINTS, ends)


def _checked_digests(
    plan: RestorePlan, options: Mapping[str, str], folder: Path
) -> dict[str, dict[str, str]]:
    """Compares the rows on the disk with the rows of the tier, and returns the digests of the rows
    on the disk.

    In `read_committed`, rows from the first transaction without a known end on are not compared,
    because a read of the tier ends before them.
    """
    digests = {}
    for level in LEVELS:
        disk = {
            "path": str(folder),
            "layout": "kafka-logs",
            "endOfLog": "true",
            "subscribe": ",".join(sorted(plan.target_ids)),
            "isolationLevel": level,
        }
        digests[level] = row_digests(disk)
        is_partial = plan.undecided == ABORT and level == "read_committed"
        stops = {
            each.name: each.stable_stop if is_partial else each.stop for each in plan.partitions
        }
        written = row_digests(disk, stops=stops) if is_partial else digests[level]
        names = {f"{e.topic}-{e.partition}": e.name for e in plan.partitions}
        source = row_digests(
            {**options, "isolationLevel": level},
            stops={old: stops[new] for old, new in names.items()},
        )
        for old, new in names.items():
            if source.get(old) != written.get(new):
                raise CorruptSegmentError(
                    f"{folder / new}: rows on the disk ({level}) differ from rows in the tier:"
                    f" {written.get(new, '0 rows')}, but the tier has {source.get(old, '0 rows')}."
                    " Do not start the broker on this log directory; report this error"
                )
    return digests
