"""What a reader of a topic has already, so that a plan goes on behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kts_source.planning.bounds import TimestampLookup
from kts_source.planning.lineage import PartitionLog

if TYPE_CHECKING:
    from kts_source.planning.scan_plan import PartitionPlan

BoundsOf: TypeAlias = Callable[[PartitionLog, TimestampLookup], tuple[int, int]]
"""A partition's log and timestamp look-up to the offsets [start, stop) that are read of it."""


class Behind(Protocol):
    """What a reader has of a topic already, so that a plan goes on behind it."""

    def bounds_of(self, topic: str, topic_id: str, partition: int) -> BoundsOf | None:
        """What finds the offsets of a partition that are still to be read; `None` where the reader
        has none of it, and the options alone decide.
        """
        ...

    def first_missing(self, part: PartitionPlan) -> int:
        """The first offset of a planned partition that is still to be read; its end for none."""
        ...
