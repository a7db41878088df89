"""What of a segment option `where` can match, told from offsets, timestamps and places alone.

Only slices become smaller by it: the range of a partition, its end and its holes are settled
before, and hold for what is not read too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kts_source.planning.estimate import ARCHIVE_CLASSES
from kts_source.planning.timestamps import confirmed_skip, has_confirmed_time, is_skipped
from kts_source.predicate.implied_ranges import (
    EVERYWHERE,
    first_millisecond,
    region,
    specialised,
)
from kts_source.predicate.model import MIN_INT64

if TYPE_CHECKING:
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.side_files import SideFiles
    from kts_source.predicate.model import Predicate

_MOST_DISORDERED: Final = 16
"""Segments out of order whose largest timestamp is compared with their time index, by a request."""


class Pruner:
    """Narrows the segments of one partition, asked for in the order of their offsets.

    Args:
        where: Rows for which it is not true are left out; `None` wants all.
        side_files: Where time indexes are read.
    """

    def __init__(
        self, where: Predicate | None, topic: str, partition: int, side_files: SideFiles
    ) -> None:
        # Offsets and timestamps that rows must have to match.
        self._box = EVERYWHERE if where is None else region(specialised(where, topic, partition))
        self._side_files = side_files
        # A time index is worth a request only where the times wanted begin.
        self._all_earlier = True
        self._disordered = 0

    def narrowed(
        self, segment: RemoteSegment, start: int, stop: int, following: RemoteSegment | None = None
    ) -> tuple[int, int]:
        """The part of offsets [start, stop) of the segment outside of which no row can match; empty
        (start ≥ stop) when none can. `following` is the segment that is asked for next.
        """
        box = self._box
        if box.is_empty:
            return stop, stop
        start, stop = max(start, box.first_offset), min(stop, box.last_offset + 1)
        if start < stop and box.first_timestamp > MIN_INT64:
            start = max(start, self._first_late_enough(segment, following, stop))
        return start, stop

    def _first_late_enough(
        self, segment: RemoteSegment, following: RemoteSegment | None, stop: int
    ) -> int:
        """An offset below which all records are dated too early."""
        first_ms = first_millisecond(self._box)
        if self._all_earlier:
            if is_skipped(segment, following, first_ms, self._side_files):
                return stop
        elif segment.is_dated_before(first_ms):  # although an earlier segment is not
            self._disordered += 1
            is_sure = self._disordered > _MOST_DISORDERED
            if is_sure or has_confirmed_time(segment, self._side_files):
                return stop
        if not self._all_earlier:
            return segment.start_offset
        self._all_earlier = False
        if segment.objects.log.storage_class in ARCHIVE_CLASSES:  # its log cannot be read now
            return segment.start_offset
        skip = confirmed_skip(segment, first_ms, self._side_files)
        return segment.start_offset if skip is None else skip.last_offset + 1


def fingerprint(where: Predicate | None) -> str | None:
    """A text that is the same for equal predicates only."""
    return None if where is None else repr(where)
