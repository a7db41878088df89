"""Plans and runs a scan in this process, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import Tier, open_tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.planning.scan_plan import ScanPlan


def scan(option_texts: Mapping[str, str]) -> pa.Table:
    """Returns all rows of a scan, in task order."""
    options = parse_options(option_texts)
    return run(plan_scan(options), option_texts)


def run(plan: ScanPlan, option_texts: Mapping[str, str], tier: Tier | None = None) -> pa.Table:
    """Reads all tasks of a plan, returns their rows in task order, and closes the tier."""
    options = parse_options(option_texts)
    tier = tier or open_tier(options)
    reader = SegmentSource(tier, options.key_ring)
    settings = ReadSettings.of(options)
    try:
        batches = [batch for task in plan.tasks for batch in read_task(task, reader, settings)]
    finally:
        tier.close()
    if not batches:
        return pa.table({name: [] for name in options.columns})
    return pa.Table.from_batches(batches)
