"""Compares the leader-epoch checkpoint that determines the live segments with the rest of the tier.

The checkpoint has no checksum, and one changed digit can turn live segments into a dead branch. So
before segments are dropped, the checkpoint of the newest segment is compared with the epochs of
other segments, the checkpoints that were copied with them, and the epochs in batch headers.

Two logs that share a leader epoch are equal before its start, because that leader had one log. So
the previous epoch and its start offset must be the same in both. Histories that differ after a
shared epoch are normal after an unclean leader election. Checkpoints that begin later are normal,
too: retention and DeleteRecords remove entries and raise the first start offset. Source: KIP-101,
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
    """Looks for evidence against a lineage that drops segments.

    Reads nothing if no segment is dropped, so healthy logs cost nothing.

    Args:
        surviving: The log according to the lineage.
        lineage: The checkpoint that determines the live segments.
        newest: The newest segment with a checkpoint.
        segments: All complete segments of the partition.
        side_files: Reads their checkpoints and batch headers.
        lineage_name: Origin of the lineage, for the message; by default the newest segment.
    """
    dropped = dropped_segments(surviving, lineage)
    if not dropped:
        return None
    is_newest = not lineage_name
    lineage_name = lineage_name or f"the leader-epoch checkpoint of {_name(newest)}"
    for segment in segments:
        if text := difference(lineage, segment.leader_epochs):
            return f"{lineage_name} contradicts the epochs of {_name(segment)}: {text}"
    for segment in _witnesses(segments, newest if is_newest else None):
        try:
            entries = side_files.leader_epochs(segment).entries
        except (SegmentFormatError, TieredKafkaError) as error:
            log.warning("%s", printable(str(error)))
            continue
        if text := difference(lineage, entries):
            return f"{lineage_name} contradicts that of {_name(segment)}: {text}"
    if unsupported := _unsupported(surviving, lineage, dropped):
        return f"{lineage_name} {unsupported}"
    for segment in (newest, *dropped):
        if text := _header_difference(segment, lineage, side_files):
            return text
    return None


def _unsupported(
    surviving: PartitionLog, lineage: Sequence[EpochEntry], dropped: Iterable[RemoteSegment]
) -> str | None:
    """Returns a message if no segment supports the lineage for offsets below the first range.

    It is a contradiction if only dropped segments have these offsets and they end at the start of
    the first range, like its predecessors would. Brokers copy a log in order and delete the oldest
    segments first, so retention leaves no segments of the lineage there. Segments of a dead branch
    may remain, but they have other boundaries.
    """
    start = lineage[0].start_offset if lineage else 0
    for segment in dropped:
        low = max(segment.start_offset, start)
        stop = min(segment.stop_offset, surviving.log_start)
        if low >= stop:
            continue
        text = (
            f"gives offsets [{low}, {stop}) to leader epoch {epoch_at(lineage, low)}, but no"
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
    """Returns how two lineages differ before a common epoch; `None` if they do not differ.

    Args:
        lineage: The former lineage of the message.
        other: The latter lineage of the message.
        starts: False to ignore first offsets. A follower that copied a compacted log saw an epoch
            begin at its first remaining record.
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
        # The first entry of a checkpoint may have a higher offset than the start of its epoch.
        is_early = entry.start_offset < start if number else False
        is_late = entry.start_offset > start if other_number else False
        if starts and (is_early or is_late):
            return (
                f"epoch {entry.epoch} begins at offset {start} in the former and at"
                f" {entry.start_offset} in the latter"
            )
    return None


def dropped_segments(surviving: PartitionLog, lineage: Sequence[EpochEntry]) -> list[RemoteSegment]:
    """Returns segments with offsets above the log start that the lineage excludes."""
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


def _witnesses(
    segments: Sequence[RemoteSegment], newest: RemoteSegment | None
) -> Iterable[RemoteSegment]:
    """Returns the last segment of each epoch, which has the longest checkpoint of that leader."""
    by_epoch: dict[int, RemoteSegment] = {}
    for segment in segments:
        last = by_epoch.get(last_epoch(segment))
        if segment is not newest and (last is None or segment.end_offset > last.end_offset):
            by_epoch[last_epoch(segment)] = segment
    return [by_epoch[epoch] for epoch in sorted(by_epoch, reverse=True)]


def _header_difference(
    segment: RemoteSegment, lineage: Sequence[EpochEntry], side_files: SideFiles
) -> str | None:
    """Compares the epochs of a segment with the epochs in its first and last batch headers."""
    if not segment.leader_epochs:
        return None
    # The leader of another branch may have had a higher log start when it copied the segment.
    is_on_branch = all(
        epoch_at(lineage, low) == epoch == epoch_at(lineage, high - 1)
        for epoch, low, high in epoch_ranges(segment)
    )
    log_start = lineage[0].start_offset if lineage and is_on_branch else MAX_OFFSET
    try:
        for offset, epoch in side_files.batch_epochs(segment):
            own = epoch_at(segment.leader_epochs, offset)
            # Offsets below its first epoch are deleted records, or batches without epochs.
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
    """Finds offsets in the tier that only one checkpoint places below the log start.

    This is normal after DeleteRecords until another segment is copied. A damaged checkpoint looks
    the same.

    Returns:
        The offsets [start, stop); `None` if there are none, or another checkpoint confirms the log
        start.
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
