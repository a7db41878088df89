"""A partition's share of a tier beside brokers, and where the tier's log ends.

`tail=false` ends a read there. The end does not depend on which segments can be read: brokers serve
the offsets of a segment that lost an object. So damaged segments count, and so does the leader's
local log start, since brokers delete their copy of a segment only after it was uploaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kts_source.planning.lineage import epoch_ranges
from kts_source.planning.union_log import claimed_epochs
from kts_source.texts import some

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kts_source.broker.cluster import TopicPartition
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.bounds import Place
    from kts_source.planning.cluster_view import BrokerLog
    from kts_source.planning.metadata_layout import MetadataTopicLayout
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.planning.side_files import SideFiles


@dataclass(frozen=True, slots=True)
class TieredPart:
    """What the tier has of a partition.

    Attributes:
        segments: All whole segments that can be described, in any order.
        side_files: Reads their side files.
        damaged: Segments that lost objects and still have a description; empty unless the end of
            the tier matters.
        unreadable: Base offset and URI of segments whose description is gone or not valid, or does
            not tell where they end; likewise.
        epoch_stops: Leader epoch to one past its last offset in segments that the metadata topic
            names; empty where it is not read.
    """

    segments: Sequence[RemoteSegment]
    side_files: SideFiles
    damaged: Sequence[RemoteSegment] = ()
    unreadable: Sequence[tuple[int, str]] = ()
    epoch_stops: Mapping[int, int] = field(default_factory=dict)

    @property
    def epochs(self) -> set[int]:
        """The leader epochs that segments name."""
        return claimed_epochs([*self.segments, *self.damaged]) | self.epoch_stops.keys()


def tiered_part(
    listed: ListedPartition | None,
    side_files: SideFiles,
    named: MetadataTopicLayout | None,
    place: TopicPartition,
    *,
    needs_end: bool,
) -> TieredPart:
    """Describes the listed segments of a partition; `None` = the tier has nothing of it.

    Args:
        listed: The listing.
        side_files: Reads side files of its segments.
        named: The segments that the metadata topic names, where it is read.
        place: The partition.
        needs_end: Whether the end of the tier matters, so damaged segments are described, too.
    """
    segments = listed.all() if listed is not None else ()
    if not needs_end:
        return TieredPart(segments, side_files)
    stops = named.epoch_stops(place) if named is not None else {}
    if listed is None:
        return TieredPart((), side_files, epoch_stops=stops)
    damaged, unreadable = listed.damaged(), listed.unreadable()
    if without_end := listed.without_end():
        damaged = [one for one in damaged if one.segment_id not in without_end]
        unreadable += without_end.values()
    return TieredPart(segments, side_files, damaged, unreadable, stops)


def tier_end(
    tiered: TieredPart,
    brokers: BrokerLog,
    owned: Mapping[int, tuple[int, int]],
    place: Place,
) -> int:
    """Returns one past the last offset of the leader's log that was tiered.

    Args:
        tiered: What the tier has.
        brokers: What the leader reports.
        owned: The offsets [start, stop) of the epochs on the leader's branch.
        place: The partition, and whether an unknown end is an error.

    Raises:
        DataLossError: A segment beyond the end has no valid description, and loss is not allowed.
    """
    reached = [brokers.log_start, brokers.local_start or 0]
    reached += (
        min(stop, owned[epoch][1]) for epoch, stop in tiered.epoch_stops.items() if epoch in owned
    )
    reached += (_stop_on_branch(one, owned) for one in (*tiered.segments, *tiered.damaged))
    end = min(max(reached), brokers.end)
    unknown = [uri for base, uri in tiered.unreadable if base >= end]
    if unknown:
        place.raise_or_warn(
            f"tail=false ends where the tier ends, and nothing describes where these segments end:"
            f" {some(unknown)}. Restore what describes them, leave tail=false out, or set"
            f" failOnDataLoss=false to end at offset {end}"
        )
    return end


def _stop_on_branch(segment: RemoteSegment, owned: Mapping[int, tuple[int, int]]) -> int:
    """One past the last offset of a segment on the leader's branch; 0 where all of it is dead.

    A segment without leader epochs is of message formats 0 and 1, or lost its checkpoint.
    """
    if not segment.leader_epochs:
        return segment.stop_offset
    stops = [0]
    for epoch, low, high in epoch_ranges(segment):
        start, stop = owned.get(epoch, (0, 0))
        if max(low, start) < min(high, stop):
            stops.append(min(high, stop))
    return max(stops)
