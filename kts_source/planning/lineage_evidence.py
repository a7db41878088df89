"""Looks for evidence that the newest leader-epoch checkpoint of a partition is damaged.

This checkpoint determines which segments are read. It has no checksum, and one changed digit can
make segments look as if they belonged to an abandoned branch. So before segments are dropped, the
checkpoint of the newest segment is compared with the epochs of other segments, with the checkpoints
of other segments, and with the epochs in batch headers.

If two logs share a leader epoch, they are equal before the start of this epoch, because both are
copies of the log of this epoch's leader. So the epoch before the shared epoch, and its start
offset, must be equal in both checkpoints. Epochs after the shared epoch may differ because of an
unclean leader election. One checkpoint may begin at a higher offset than the other, because
retention and DeleteRecords remove entries and raise the first start offset. Source: KIP-101,
`LeaderEpochFileCache.truncateFromStartAsyncFlush`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kts_source.errors import TieredKafkaError
from kts_source.planning.lineage import (
    DEAD_BRANCH,
    MAX_OFFSET,
    NOT_OF_THE_LEADER,
    epoch_at,
    epoch_ranges,
    last_epoch,
)
from kts_source.texts import printable
from segment_format.errors import SegmentFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.lineage import PartitionLog
    from kts_source.planning.side_files import SideFiles
    from segment_format.index.checkpoints import EpochEntry

log = logging.getLogger(__name__)


def contradiction(
    surviving: PartitionLog,
    lineage: Sequence[EpochEntry],
    newest: RemoteSegment,
    segments: Sequence[RemoteSegment],
    side_files: SideFiles,
    lineage_name: str = "",
) -> str | None:
    """Looks for evidence that a lineage wrongly excludes segments from the log. Returns the
    evidence as a message, or `None` without evidence.

    Reads nothing if the lineage excludes no segment.

    Args:
        surviving: The log according to the lineage.
        lineage: Entries of the checkpoint that determines which segments are read.
        newest: The newest segment that has a checkpoint.
        segments: All complete segments of the partition.
        side_files: Reads the checkpoints and batch headers of segments.
        lineage_name: Text that names the source of the lineage in the message; by default, the
            message names `newest`.
    """
    dropped = dropped_segments(surviving, lineage)
    if not dropped:
        return None
    is_newest = not lineage_name
    lineage_name = lineage_name or f"the leader-epoch checkpoint of {_name(newest)}"
    for segment in segments:
        if text := difference(lineage, segment.leader_epochs):
            return f"{lineage_name} contradicts the epochs of {_name(segment)}: {text}"
    for segment in _last_of_each_epoch(segments, newest if is_newest else None):
        try:
            entries = side_files.leader_epochs(segment).entries
        except (SegmentFormatError, TieredKafkaError) as error:
            log.warning("%s", printable(str(error)))
            continue
        if text := difference(lineage, entries):
            return f"{lineage_name} contradicts that of {_name(segment)}: {text}"
    if unsupported := _dropped_before_first_range(surviving, lineage, dropped):
        return f"{lineage_name} {unsupported}"
    for segment in (newest, *dropped):
        if text := _header_difference(segment, lineage, side_files):
            return text
    return None


def _dropped_before_first_range(
    surviving: PartitionLog, lineage: Sequence[EpochEntry], dropped: Iterable[RemoteSegment]
) -> str | None:
    """Returns a message if a dropped segment ends exactly where the first range of the log begins,
    and no segment of the lineage has these offsets. For other dropped segments, logs a warning.

    Brokers copy a log in order and delete its oldest segments first. So before the first range,
    there may be segments of an abandoned branch, but none of the lineage. A segment of an abandoned
    branch rarely ends exactly there, so a dropped segment that does is evidence that the lineage is
    wrong.
    """
    start = lineage[0].start_offset if lineage else 0
    for segment in dropped:
        low = max(segment.start_offset, start)
        stop = min(segment.stop_offset, surviving.log_start)
        if low >= stop:
            continue
        text = (
            f"assigns offsets [{low}, {stop}) to leader epoch {epoch_at(lineage, low)}, but no"
            f" segment of that epoch holds them, and {_name(segment)} holds them in epoch"
            f" {epoch_at(segment.leader_epochs, low)}"
        )
        first = surviving.ranges[0] if surviving.ranges else None
        if first is None or stop == segment.stop_offset == first.segment.start_offset:
            return text
        log.warning(
            "%s-%s: the newest leader-epoch checkpoint %s; these offsets are not read",
            *(segment.topic, segment.partition, text),
        )
    return None


def difference(
    lineage: Sequence[EpochEntry], other: Sequence[EpochEntry], *, starts: bool = True
) -> str | None:
    """Returns a text that describes how two lineages differ at or before a common epoch; `None` if
    they do not differ.

    Args:
        lineage: Lineage that the text calls "the former".
        other: Lineage that the text calls "the latter".
        starts: True to compare the first offsets of epochs, too. Pass False if one lineage is from
            a follower of a compacted topic: a follower records the first offset that compaction
            kept, which may be higher.
    """
    number_of = {entry.epoch: number for number, entry in enumerate(lineage)}
    for other_number, entry in enumerate(other):
        number = number_of.get(entry.epoch)
        if number is None:
            continue
        start = lineage[number].start_offset
        if other_number and number:
            before, other_before = lineage[number - 1].epoch, other[other_number - 1].epoch
            if before != other_before:
                return (
                    f"epoch {entry.epoch} follows epoch {before} in the former and epoch"
                    f" {other_before} in the latter"
                )
        # The first entry of a checkpoint may have a higher offset than the start of its epoch,
        # because the log start moved. So a higher offset in a first entry is no difference.
        is_early = entry.start_offset < start if number else False
        is_late = entry.start_offset > start if other_number else False
        if starts and (is_early or is_late):
            return (
                f"epoch {entry.epoch} begins at offset {start} in the former and at"
                f" {entry.start_offset} in the latter"
            )
    return None


def dropped_segments(surviving: PartitionLog, lineage: Sequence[EpochEntry]) -> list[RemoteSegment]:
    """Returns the segments with offsets above the log start that, because of `lineage`, are not
    read or not completely read.
    """
    return list(_dropped(surviving, lineage))


def _dropped(surviving: PartitionLog, lineage: Sequence[EpochEntry]) -> Iterator[RemoteSegment]:
    for skipped in surviving.skipped:
        if skipped.reason in (DEAD_BRANCH, NOT_OF_THE_LEADER):
            yield skipped.segment
    for span in surviving.ranges:
        segment, stop = span.segment, span.stop
        if stop < segment.stop_offset and epoch_at(surviving.lineage, stop) != epoch_at(
            segment.leader_epochs, stop
        ):
            yield segment
    if surviving.ranges and lineage:
        span = surviving.ranges[0]
        if span.start > max(span.segment.start_offset, lineage[0].start_offset):
            yield span.segment


def _last_of_each_epoch(
    segments: Sequence[RemoteSegment], newest: RemoteSegment | None
) -> Iterable[RemoteSegment]:
    """Returns the last segment of each leader epoch except segment `newest`, newest epoch first.
    The last segment of an epoch has the longest checkpoint of the epoch's leader.
    """
    by_epoch: dict[int, RemoteSegment] = {}
    for segment in segments:
        last = by_epoch.get(last_epoch(segment))
        if segment is not newest and (last is None or segment.end_offset > last.end_offset):
            by_epoch[last_epoch(segment)] = segment
    return [by_epoch[epoch] for epoch in sorted(by_epoch, reverse=True)]


def _header_difference(
    segment: RemoteSegment, lineage: Sequence[EpochEntry], side_files: SideFiles
) -> str | None:
    """Compares the leader epochs that a segment's manifest records with the epochs in the headers
    of its first and last batches. Returns a message about a difference, or `None`.
    """
    if not segment.leader_epochs:
        return None
    # If the segment is on another branch, its leader may have had a higher log start.
    is_on_branch = all(
        epoch_at(lineage, low) == epoch == epoch_at(lineage, high - 1)
        for epoch, low, high in epoch_ranges(segment)
    )
    log_start = lineage[0].start_offset if lineage and is_on_branch else MAX_OFFSET
    try:
        for offset, epoch in side_files.batch_epochs(segment):
            own = epoch_at(segment.leader_epochs, offset)
            # Offsets below the first epoch are deleted records, or batches of formats without
            # epochs.
            if epoch >= 0 and epoch != own and (own >= 0 or offset >= log_start):
                recorded = f"say {own}" if own >= 0 else "begin later"
                return (
                    f"the batch at offset {offset} of {_name(segment)} is of leader epoch {epoch},"
                    f" but the segment's epochs {recorded}"
                )
    except (SegmentFormatError, TieredKafkaError) as error:  # reported by a read of its rows
        log.warning("%s", printable(str(error)))
    return None


def unconfirmed_start(
    lineage: Sequence[EpochEntry],
    newest: RemoteSegment,
    segments: Sequence[RemoteSegment],
    side_files: SideFiles,
) -> tuple[int, int] | None:
    """Finds offsets of the tier that are below the log start of `lineage`, if no other checkpoint
    confirms this log start.

    Such offsets are normal after DeleteRecords, until the next segment is copied. But they may also
    result from a damaged checkpoint.

    Returns:
        The offsets [start, stop); `None` if the tier has no offsets below the log start, or if
        another checkpoint confirms the log start.
    """
    log_start = lineage[0].start_offset if lineage else 0
    low = min((segment.start_offset for segment in segments), default=log_start)
    if low >= log_start:
        return None
    others = [segment for segment in segments if segment is not newest]
    if others:
        witness = max(others, key=lambda segment: segment.end_offset)
        try:
            entries = side_files.leader_epochs(witness).entries
        except (SegmentFormatError, TieredKafkaError) as error:
            log.warning("%s", printable(str(error)))
            entries = ()
        if entries and entries[0].start_offset >= log_start:
            return None
    return low, log_start


def _name(segment: RemoteSegment) -> str:
    return printable(segment.objects.log.key)
