"""Defines the interface of the sources of a scan: a tier, a tier with brokers, or a tier with
brokers' disks.

A `Source` lists the selected partitions. For each partition it opens a `SourceLog`, which combines
the segments and offsets of the tier, brokers or disks into one `PartitionLog` and finds out how its
transactions ended. The code for bounds, isolation and slices uses only this log.
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
    """The log of one partition. This class has the complete log in memory; subclasses read parts of
    the log when they are needed.

    Args:
        location: The partition, and whether data loss is an error.

    Attributes:
        log: Log start, end and ranges. If `is_complete` is False, it may have only the ranges that
            were requested.
        is_complete: True if every segment was read. If False, log start and end may be wrong.
        is_empty: True if the log proved to have no segment.
        unknown_lineage: A damaged segment whose leader epoch is unknown or the newest; `None` if
            there is no such segment. If there is one, it is uncertain which segments belong to the
            log.
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
        """Message about evidence that the newest leader-epoch checkpoint is wrong; `None` if there
        is no evidence. Because of a wrong checkpoint, segments of the log would be skipped.
        """
        return self._contradiction

    def covering(self, start: int, stop: int) -> PartitionLog:
        """Returns the log with at least the ranges that contain offsets in [start, stop)."""
        del start, stop
        return self.log

    def decided(self, start: int, stop: int) -> tuple[PartitionLog, Decisions]:
        """Returns two values: the log with at least the ranges in [start, stop), and the outcomes
        of the transactions that have data in these offsets.
        """
        return self.log, decide(self.log, start, stop, self.side_files)

    def confirm(
        self, surviving: PartitionLog, decisions: Decisions, read: Sequence[tuple[int, int]]
    ) -> bool:
        """Compares the outcomes of transactions that are open at the end of a read with their
        markers, which are later in the log.

        Args:
            surviving: The log that `decided` returned last.
            decisions: The outcomes that `decided` returned with this log.
            read: Offset ranges [start, stop) that tasks read from segments, ascending.

        Returns:
            True if the log confirms the decisions. If False, call `decided` again: it now returns
            other outcomes.

        Raises:
            CorruptSegmentError: The log contradicts the decisions, and no other source has the
                outcome.
        """
        check_ends(surviving, decisions, read, self.side_files)
        return True

    def first_offset_at_or_after(self, timestamp_ms: int) -> int | None:
        """Returns the offset of the first record dated at or after `timestamp_ms` (ms since 1970),
        or `None`.

        After the call, `log.holes` contains the holes below this offset that may have contained an
        earlier match.
        """
        return first_offset_at_or_after(self.log, timestamp_ms, self.side_files)

    def last_batch_stop(self) -> int:
        """Returns one past the last offset of the log's last batch; the end of the log if this
        batch cannot be read.
        """
        return self.log.stop

    def broker_ranges(self, start: int, stop: int) -> Sequence[BrokerRange]:
        """Returns the broker ranges for the offsets in [start, stop) that brokers serve."""
        del start, stop
        return ()

    def completed(self, plan: PartitionPlan) -> PartitionPlan:
        """Returns `plan` with facts that only this kind of source has, such as broker ranges or
        disks.
        """
        return plan


@dataclass(frozen=True, slots=True)
class SourcePartition:
    """A partition that the options select and that has data.

    Attributes:
        listed: The segments of the partition in the tier; `None` if it has none.
        open_log: Opens the log of the partition; returns `None` if the log is empty. Its first
            argument reads the side files of segments. Its second argument is True if the scan
            continues where an earlier read of the partition ended.
    """

    topic: str
    topic_id: str
    partition: int
    listed: ListedPartition | None
    open_log: Callable[[SideFiles, bool], SourceLog | None]


class Source(Protocol):
    """A tier, a tier with brokers, or a tier with brokers' disks."""

    @property
    def topics(self) -> AbstractSet[str]:
        """Names of known topics. JSON bounds may name any partition of these topics, even a
        partition without data.
        """

    @property
    def asked(self) -> Mapping[str, Sequence[int]]:
        """Numbers of the partitions that the options select, by topic."""

    def partitions(self) -> Sequence[SourcePartition]:
        """Lists the selected partitions that have data, ascending by topic and number."""

    def finish(self) -> Iterable[str]:
        """Checks that the source has not changed during planning. Returns notes for the user."""
