"""The interface of the sources of a scan: a tier, a tier with brokers, or a tier with disks.

A `Source` lists the selected partitions. Each partition opens a `SourceLog`, which merges the
segments of its sources into one `PartitionLog` and decides its transactions. Bounds, isolation and
slices only use that log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kts_source.planning.bounds import first_offset_at_or_after
from kts_source.planning.isolation import check_ends, decide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from kts_source.broker.broker_range import BrokerRange
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.bounds import Place
    from kts_source.planning.isolation import Decisions
    from kts_source.planning.lineage import PartitionLog
    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.planning.side_files import SideFiles


class SourceLog:
    """A partition's log. This class has the complete log; a subclass reads it on demand.

    Args:
        place: The partition, and whether loss is an error.
        topic_id: The incarnation of the topic.
        side_files: Reads the side files of its segments.

    Attributes:
        log: Log start, end and ranges. Ranges may be limited to requested offsets.
        is_complete: True once every segment was read. Until then, log start and end may be wrong.
        is_empty: True if the log turned out to have no segment.
        unknown_lineage: A damaged segment that makes it uncertain which segments belong to the log.
    """

    log: PartitionLog
    is_complete: bool = True
    is_empty: bool = False
    unknown_lineage: RemoteSegment | None = None
    _contradiction: str | None = None

    def __init__(self, location: Place, topic_id: str, side_files: SideFiles) -> None:
        self.place = location
        self.topic_id = topic_id
        self.side_files = side_files

    @property
    def contradiction(self) -> str | None:
        """Message about evidence against the lineage that drops segments; `None` without
        evidence.
        """
        return self._contradiction

    def covering(self, start: int, stop: int) -> PartitionLog:
        """Returns the log with all ranges of offsets [start, stop), and possibly other ranges."""
        del start, stop
        return self.log

    def decided(self, start: int, stop: int) -> tuple[PartitionLog, Decisions]:
        """Returns the log around [start, stop) and the outcome of its transactions."""
        return self.log, decide(self.log, start, stop, self.side_files)

    def confirm(
        self, surviving: PartitionLog, decisions: Decisions, read: Sequence[tuple[int, int]]
    ) -> bool:
        """Compares transactions that end after the offsets read with the log.

        Args:
            surviving: The log that `decided` returned last.
            decisions: Its outcome.
            read: Offsets [start, stop) that are read from segments, in order.

        Returns:
            True if the log confirms the decisions. If False, `decided` now returns another outcome.

        Raises:
            CorruptSegmentError: The log contradicts the decisions, and no other source has the
                outcome.
        """
        check_ends(surviving, decisions, read, self.side_files)
        return True

    def first_offset_at_or_after(self, timestamp_ms: int) -> int | None:
        """Returns the first offset dated at or after a time, or `None`.

        Afterwards `log` has the holes below it that may contain an earlier match.
        """
        return first_offset_at_or_after(self.log, timestamp_ms, self.side_files)

    def end_of_batches(self) -> int:
        """Returns one past the last offset of the log's last batch if it can be determined."""
        return self.log.stop

    def broker_ranges(self, start: int, stop: int) -> Sequence[BrokerRange]:
        """Returns the offsets of [start, stop) that brokers serve."""
        del start, stop
        return ()

    def completed(self, plan: PartitionPlan) -> PartitionPlan:
        """Adds facts that only this source has, such as broker ranges or disks, to a plan of the
        log.
        """
        return plan


@dataclass(frozen=True, slots=True)
class SourcePartition:
    """A selected partition.

    Attributes:
        listed: Its segments in the tier, or `None`.
        open_log: Opens its log; arguments are its side files and whether a reader resumes in it.
            Returns `None` if the log is empty.
    """

    topic: str
    topic_id: str
    partition: int
    listed: ListedPartition | None
    open_log: Callable[[SideFiles, bool], SourceLog | None]


class Source(Protocol):
    """A tier, alone or with brokers or disks."""

    @property
    def topics(self) -> AbstractSet[str]:
        """Topics whose partitions may be named in JSON bounds even if they have no data."""

    @property
    def asked(self) -> Mapping[str, Sequence[int]]:
        """Partition numbers that the options select, by topic."""

    def partitions(self) -> Sequence[SourcePartition]:
        """Lists the selected partitions with data, in order of topic and number."""

    def finish(self) -> Iterable[str]:
        """Checks for changes during planning, and returns notes for the user."""
