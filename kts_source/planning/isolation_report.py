"""One line about what read_committed leaves out of a scan; Spark's Kafka source would return it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kts_source.texts import some

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kts_source.planning.scan_plan import PartitionPlan

log = logging.getLogger(__name__)


def report_left_out(partitions: Sequence[PartitionPlan], aborted: Sequence[int]) -> None:
    """Logs what is left out, if anything is: a warning where rows may still be committed.

    Args:
        partitions: As planned.
        aborted: Aborted transactions with data in the range of each.
    """
    parts = []
    with_aborted = [
        f"{_name(part)}: {count}" for part, count in zip(partitions, aborted, strict=True) if count
    ]
    if with_aborted:
        parts.append(f"{sum(aborted)} aborted transactions are left out ({some(with_aborted)})")
    undecided = [
        f"{_name(part)} ends at offset {part.stop}: {part.end_reason}"
        for part in partitions
        if part.stop < part.wanted_stop
    ]
    if undecided:
        parts.append(f"what is not decided in the tier is left out ({some(undecided)})")
    if parts:
        level = logging.WARNING if undecided else logging.INFO
        log.log(level, "read_committed: %s", "; ".join(parts))


def _name(part: PartitionPlan) -> str:
    return f"{part.topic}-{part.partition}"
