"""One line about what read_committed leaves out of a scan; Spark's Kafka source would return it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kts_source.texts import some

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kts_source.planning.scan_plan import PartitionPlan

log = logging.getLogger(__name__)


def report_isolation(partitions: Sequence[tuple[PartitionPlan, int]]) -> None:
    """Logs what is left out, if anything is: a warning where rows may still be committed.

    Args:
        partitions: The plan of each, and how many aborted transactions have data in its range.
    """
    parts = []
    aborted = [f"{_name(part)}: {count}" for part, count in partitions if count]
    if aborted:
        total = sum(count for _, count in partitions)
        parts.append(f"{total} aborted transactions are left out ({some(aborted)})")
    undecided = [
        f"{_name(part)} ends at offset {part.stop}: {part.end_reason}"
        for part, _ in partitions
        if part.stop < part.wanted_stop
    ]
    if undecided:
        parts.append(f"what is not decided in the tier is left out ({some(undecided)})")
    if parts:
        level = logging.WARNING if undecided else logging.INFO
        log.log(level, "read_committed: %s", "; ".join(parts))


def _name(part: PartitionPlan) -> str:
    return f"{part.topic}-{part.partition}"
