"""A tier and the disks of brokers that are gone, as one log.

The branch of the highest leader epoch survives, of tier or disks. What the tier has of it is read
from the tier, by the rule for tier and brokers; everything else (the tail, copies that were under
way, holes) from the one replica that goes furthest along it, and from others of the branch where
that lacks offsets. The log starts at the highest offset
that either knows: brokers write it down every minute and when they stop, and the leader-epoch
checkpoint moves with it. It ends at the disks' high watermark, or where the tier ends, which was
copied from below the high watermark of its time.

Source: `UnifiedLog`, `LogLoader`, `RemoteLogManager`, `LogManager.checkpointLogStartOffsetsInDir`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kts_source.layout.kafka_logs.recovered_segments import described, lost_partition, lost_reason
from kts_source.layout.kafka_logs.replica import EPOCHS_FILE, Recovery
from kts_source.layout.kafka_logs.replica_choice import (
    Branch,
    Filler,
    ReplicaSource,
    agreed_to,
    furthest,
    newest_branch,
    surviving_log,
)
from kts_source.layout.layout import Orphan
from kts_source.layout.remote_segment import IndexType
from kts_source.planning.lineage import (
    MAX_OFFSET,
    Hole,
    PartitionLog,
    SegmentRange,
    last_epoch,
    usable_range,
    with_epochs,
)
from kts_source.planning.lineage_evidence import contradiction
from kts_source.planning.partial_log import newest_lineage
from kts_source.planning.scan_plan import DiskPart
from kts_source.planning.union_log import OffsetSpan, between, union_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kts_source.layout.kafka_logs.kafka_logs import Disks
    from kts_source.layout.kafka_logs.recovered_segments import Lost
    from kts_source.layout.kafka_logs.replica import Replica, SurvivingLog
    from kts_source.layout.layout import TopicFolder
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.lineage import SkippedSegment
    from kts_source.planning.side_files import SideFiles
    from segment_format.index.checkpoints import EpochEntry


@dataclass(frozen=True, slots=True)
class TailLog:
    """The log of a partition, from tier and disks.

    Attributes:
        log: Its ranges are of both.
        disks: What the disks say.
        notes: What of the disks is not read.
        unknown_lineage: A damaged segment of the tier that may be newer than all else.
        not_decided: A segment of the disk before which nothing tells which transactions were open,
            though the tier holds what is before it; `None` = there is no such.
        contradiction: What segments of the tier say against the lineage that drops some of them;
            `None` if nothing does.
    """

    log: PartitionLog
    disks: DiskPart
    notes: tuple[Orphan, ...]
    unknown_lineage: RemoteSegment | None
    not_decided: RemoteSegment | None
    contradiction: str | None


@dataclass(frozen=True, slots=True)
class Tiered:
    """What the tier has of a partition: whole segments, and those that lack objects."""

    segments: Sequence[RemoteSegment] = ()
    damaged: Sequence[RemoteSegment] = ()


def tail_log(
    disks: Disks,
    folder: TopicFolder,
    partition: int,
    tiered: Tiered,
    side_files: SideFiles,
    *,
    end_of_log: bool,
) -> TailLog:
    """The log of a partition from its start to its end.

    Args:
        disks: They hold at least one replica.
        folder: Topic and topic id.
        partition: Its number.
        tiered: Of this topic id.
        side_files: Reads the tier's leader-epoch checkpoint.
        end_of_log: Whether disks are read beyond the high watermark.

    Raises:
        DataLossError: Nothing tells where the log ends.
        CorruptSegmentError: A checkpoint cannot be read.
    """
    place = folder.topic, partition
    store, replicas = disks.store, disks.replicas(place, folder.topic_id)
    tier = _tier_share(place, tiered, replicas, side_files)
    disk = surviving_log(
        place, replicas, end_of_log=end_of_log, branch=tier.branch, replicated=tier.stop
    )
    recovery = Recovery(store, disk.replica.log_dir, place, disk.replica.files)
    recovered, lost = described(store, folder, partition, disk, recovery)
    segments = [segment for segment, _ in recovered]
    low = _confirmed_start(tier, disk, segments)
    main = ReplicaSource(disk.replica, recovered, recovery)
    others = [replica for replica in replicas if replica is not disk.replica]
    filler = Filler(store, folder, partition, tier.branch, main, others, low, disk.stop)
    gaps = between(tier.ranges, low, MAX_OFFSET)
    from_disk = [span for gap in gaps for span in _held(gap, segments)]
    held = _ascending(tier.ranges, from_disk)
    ranges = _ascending(held, _filled(filler, held, low, disk.stop))
    gone_replicas, remarks = _gone_replicas(disks, folder, partition, disk, tier.stop)
    lost += gone_replicas
    gone = _gone_ranges(lost, tiered.damaged, tier.lineage)
    stop = max([low, disk.stop, tier.stop, *(span.stop for span in gone)])
    holes, unverifiable = _holes(ranges, gone, low, stop)
    lineage = tuple(entry for entry in tier.lineage if entry.start_offset < stop)
    unread = (Orphan((one.key,), one.reason) for one in lost)
    begins_on_disk = not ranges or ranges[0] in from_disk
    return TailLog(
        PartitionLog(lineage, low, stop, ranges, tuple(holes), tier.skipped, tuple(unverifiable)),
        DiskPart(
            store.uri(disk.replica.folder), disk.replica.log_start, disk.stop, disk.high_watermark
        ),
        (*disk.notes, *dict.fromkeys(filler.notes), *remarks, *unread),
        tier.newer_damage,
        None if begins_on_disk or recovery.knows_open() else _first_rebuilt(from_disk),
        tier.contradiction,
    )


@dataclass(frozen=True, slots=True)
class _TierShare:
    """The part of the log that the tier serves, before the disks are read.

    Attributes:
        branch: The surviving branch, of tier or disks.
        lineage: Its leader epochs, with those of damaged segments.
        low: The first offset that a consumer may see.
        ranges: Offsets that the tier serves.
        skipped: Segments of the tier that are not on the branch.
        newer_damage: A damaged segment that may be newer than all other evidence.
        contradiction: See `TailLog`.
    """

    branch: Branch
    lineage: Sequence[EpochEntry]
    low: int
    ranges: Sequence[SegmentRange]
    skipped: tuple[SkippedSegment, ...]
    newer_damage: RemoteSegment | None
    contradiction: str | None

    @property
    def stop(self) -> int:
        """The offset after the last one in the tier; 0 if the tier serves none."""
        return self.ranges[-1].stop if self.ranges else 0


def _tier_share(
    place: tuple[str, int], tiered: Tiered, replicas: Sequence[Replica], side_files: SideFiles
) -> _TierShare:
    """Chooses the branch and returns what the tier serves of it."""
    told, newest = newest_lineage(tiered.segments, tiered.damaged, side_files)
    known = -1 if newest is None else last_epoch(newest)
    newest_epoch = max(known, *(one.last_epoch for one in replicas))
    branch = _branch(replicas, tiered, told, known)
    lineage = with_epochs(branch.lineage, tiered.damaged)
    low = _log_start(place, tiered, told, branch, replicas)
    log = union_log(tiered.segments, low, MAX_OFFSET, _owned(lineage))
    evidence = None
    if newest is not None:
        is_of_tier = told and branch.lineage == tuple(told)
        source = "" if is_of_tier else "the leader-epoch checkpoint of the disks"
        evidence = contradiction(log, branch.lineage, newest, tiered.segments, side_files, source)
    newer_damage = (one for one in tiered.damaged if last_epoch(one) > newest_epoch)
    return _TierShare(
        branch, lineage, low, log.ranges, log.skipped, next(newer_damage, None), evidence
    )


def _confirmed_start(
    tier: _TierShare, disk: SurvivingLog, segments: Sequence[RemoteSegment]
) -> int:
    """Returns the first offset that a consumer may see.

    If the tier continued after the disks were copied, so did deletion: only a segment that was
    copied later would record the log start of that time.
    """
    if tier.stop <= disk.replica.stop:
        return tier.low
    first = min([tier.ranges[0].start, *(segment.start_offset for segment in segments)])
    return max(tier.low, first)


def _first_rebuilt(from_disk: Sequence[SegmentRange]) -> RemoteSegment | None:
    """Returns the first segment of the disk whose transaction index was rebuilt from its log."""
    for span in from_disk:
        index = span.segment.objects.indexes.get(IndexType.TRANSACTION)
        if index is not None and index.content is not None:
            return span.segment
    return None


def _branch(
    replicas: Sequence[Replica], tiered: Tiered, told: Sequence[EpochEntry], newest_tiered: int
) -> Branch:
    """Returns the branch of the highest leader epoch, of tier or disks."""
    branch = newest_branch(replicas)
    newest = max(one.last_epoch for one in replicas)
    is_older = newest_tiered == newest and branch.log_start > told[0].start_offset
    if newest_tiered > newest or is_older:
        # Of one epoch there is one history, but not every disk tells all of it.
        end = max((segment.stop_offset for segment in tiered.segments), default=0)
        end = end if newest_tiered > newest else MAX_OFFSET
        branch = Branch(tuple(told), told[0].start_offset, end)
    return branch


def _owned(lineage: Sequence[EpochEntry]) -> dict[int, tuple[int, int]]:
    """The offsets [start, stop) of every leader epoch."""
    stops = [*(entry.start_offset for entry in lineage[1:]), MAX_OFFSET]
    return {
        entry.epoch: (entry.start_offset, stop) for entry, stop in zip(lineage, stops, strict=False)
    }


def _log_start(
    place: tuple[str, int],
    tiered: Tiered,
    told: Sequence[EpochEntry],
    branch: Branch,
    replicas: Sequence[Replica],
) -> int:
    """The first offset a consumer may see, as far as tier and disks tell.

    On a tiered topic's disk the first segment does not tell it: older ones are deleted once they
    were copied.
    """
    known = []
    if told:
        end = max(one.stop_offset for one in (*tiered.segments, *tiered.damaged))
        first = told[0].start_offset
        known += [first] if first <= agreed_to(Branch(tuple(told), first, end), branch) else []
    from_epochs = []
    for one in replicas:
        agreed = agreed_to(one, branch)
        recorded = one.log_dir.log_starts.get(place)
        if recorded is not None and recorded <= agreed:
            known.append(recorded)
        if one.history and EPOCHS_FILE in one.files.others:
            first = one.history[0].start_offset
            from_epochs += [first] if first <= agreed else []
    local = furthest(replicas, branch).log_start
    is_tiered = tiered.segments or tiered.damaged
    if is_tiered or any(offset < local for offset in known):
        return max([*known, *from_epochs], default=0)
    return max([*known, local])


def _held(gap: OffsetSpan, segments: Iterable[RemoteSegment]) -> Iterator[SegmentRange]:
    """What segments of a disk hold of a gap."""
    for segment in segments:
        start, stop = max(gap.start, segment.start_offset), min(gap.stop, segment.stop_offset)
        if start < stop:
            yield SegmentRange(segment, start, stop)


def _filled(
    filler: Filler, held: Sequence[SegmentRange], low: int, stop: int
) -> list[SegmentRange]:
    """Returns what other replicas hold of the offsets [low, stop) that `held` lacks."""
    return [
        span
        for gap in between(held, low, max(low, stop))
        for piece in filler.fill(gap.start, gap.stop)
        for span in _held(
            OffsetSpan(piece.start, piece.stop), (segment for segment, _ in piece.segments)
        )
    ]


def _gone_replicas(
    disks: Disks, folder: TopicFolder, partition: int, disk: SurvivingLog, tier_end: int
) -> tuple[list[Lost], list[Orphan]]:
    """Returns the records above the end of the log that a checkpoint names of a replica whose
    folder is gone, and notes of those replicas that had nothing more.
    """
    reach = max(disk.promised, disk.replica.stop, tier_end)
    lost, notes = [], []
    for replica in disks.lost_replicas((folder.topic, partition)):
        if replica.stop > max(reach, replica.start):
            after = replace(disk, promised=max(disk.promised, tier_end))
            lost.append(lost_partition(disks.store, folder, partition, replica, after))
        else:
            text = lost_reason(folder.topic, partition, replica)
            notes.append(Orphan((replica.checkpoint,), text))
    return lost, notes


def _gone_ranges(
    lost: Sequence[Lost], damaged: Sequence[RemoteSegment], lineage: Sequence[EpochEntry]
) -> list[SegmentRange]:
    """Returns the offsets of segments that disks lost or that lack objects in the tier."""
    segments = [one.segment for one in lost]
    ranges = [SegmentRange(one, one.start_offset, one.stop_offset) for one in segments]
    clipped = (usable_range(segment, lineage) for segment in damaged)
    return [*ranges, *(span for span in clipped if span is not None)]


def _ascending(*parts: Iterable[SegmentRange]) -> tuple[SegmentRange, ...]:
    """Returns the ranges of all parts by their start."""
    return tuple(sorted(itertools.chain(*parts), key=lambda span: span.start))


def _holes(
    ranges: Sequence[SegmentRange], gone: Sequence[SegmentRange], low: int, stop: int
) -> tuple[list[Hole], list[Hole]]:
    """The offsets that neither holds; and those of which nothing tells that they were there."""
    holes: list[Hole] = []
    unverifiable: list[Hole] = []
    for gap in between(ranges, low, stop):
        below = [span for span in ranges if span.stop <= gap.start]
        above = [span for span in (*ranges, *gone) if span.stop > gap.start]
        before = below[-1] if below else None
        after = min(above, key=lambda span: (span.start, span.stop)) if above else below[-1]
        hole = Hole(gap.start, gap.stop, None if before is None else before.segment, after.segment)
        told = any(span.start < gap.stop and span.stop > gap.start for span in gone)
        is_loose = (
            before is not None
            and before.stop == before.segment.stop_offset == gap.start
            and not before.segment.end_is_exact
        )
        (unverifiable if is_loose and not told else holes).append(hole)
    return holes, unverifiable
