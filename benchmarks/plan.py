"""Plans a topic of 100,000 segments in 500 partitions on a store that takes 20 ms per request.

Each case runs in a separate process, so the peak memory is that of one case, and of all caches only
the cache on disk is filled. Wall time includes the 20 ms per request; processor time does not. On a
busy machine, compare the processor time.
"""

from __future__ import annotations

import json
import multiprocessing
import pickle
import resource
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.report import Row, at_most
from benchmarks.simulated import FIRST_MS, TOPIC, SimulatedTier
from kts_source.cache.caches import Caches, CacheSettings
from kts_source.cache.disk_cache import CacheLimits
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.tier import Tier

SEGMENTS: Final = 200
HOUR_MS: Final = 3_600_000
WINDOW_MS: Final = FIRST_MS + 15 * 24 * HOUR_MS + 20 * 60_000


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one plan.

    Attributes:
        grown_bytes: Increase of the process's memory up to its peak.
        pickled_bytes: Median size of the pickled tasks.
    """

    wall_seconds: float
    processor_seconds: float
    requests: int
    list_requests: int
    grown_bytes: int
    slices: int
    pickled_bytes: float


def run(*, quick: bool) -> list[Row]:
    """Returns the figures of all cases. A quick run has a tenth of the segments; the goals stay the
    same.
    """
    partitions = 50 if quick else 500
    tier = SimulatedTier(partitions, SEGMENTS)
    kept, fresh = (Path(tempfile.mkdtemp(prefix="kts-plan-")) for _ in range(2))
    hour = {"startingTimestamp": f"{WINDOW_MS}", "endingTimestamp": f"{WINDOW_MS + HOUR_MS}"}
    offsets = {
        "startingOffsets": _offsets(partitions, tier.base_offset(100) + 5_000),
        "endingOffsets": _offsets(partitions, tier.base_offset(102) - 5_000),
    }
    try:
        rows = [
            *_rows("cold plan", 60, _measured(partitions, {}, kept)),
            *_rows("warm plan", 5, _measured(partitions, {}, kept)),
            *_rows("one hour of 30 days, warm", 5, _measured(partitions, hour, kept)),
        ]
        ahead = {**hour, "maxTimestampAheadMs": "60000"}
        measured = _measured(partitions, ahead, fresh)
        name = "one hour of 30 days, cold, maxTimestampAheadMs"
        rows += _rows(name, 3, measured)
        rows.append(at_most(f"{name}: requests", measured.requests / partitions, "/partition", 20))
        shutil.rmtree(fresh)
        measured = _measured(partitions, offsets, fresh)
        rows += _rows("offset window, cold", 3, measured)
        rows.append(
            at_most(
                "offset window, cold: requests", measured.requests / partitions, "/partition", 12
            )
        )
    finally:
        shutil.rmtree(kept, ignore_errors=True)
        shutil.rmtree(fresh, ignore_errors=True)
    return rows


def _rows(name: str, seconds: float, measured: Measured) -> list[Row]:
    return [
        at_most(name, measured.wall_seconds, "s", seconds),
        Row(f"{name}: processor", measured.processor_seconds, "s"),
        Row(f"{name}: requests and listings", measured.requests + measured.list_requests, ""),
        at_most(f"{name}: memory", measured.grown_bytes / (1 << 20), "MiB", 1024),
        at_most(f"{name}: median task", measured.pickled_bytes / 1024, "KiB pickled", 10),
    ]


def _offsets(partitions: int, offset: int) -> str:
    return json.dumps({TOPIC: {f"{number}": offset for number in range(partitions)}})


def _measured(partitions: int, options: dict[str, str], folder: Path) -> Measured:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(measure, (partitions, options, str(folder)))


def measure(partitions: int, options: dict[str, str], folder: str) -> Measured:
    """Plans once, in this process."""
    tier = SimulatedTier(partitions, SEGMENTS)
    tier.prepare()
    limits = CacheLimits(1 << 30, 900)
    caches = Caches(CacheSettings(index=limits, folder=folder))
    parsed = parse_options({"path": "simulated", "subscribe": TOPIC, **options})
    plan_scan(parsed, Tier(SimulatedTier(1, 2, latency_seconds=0))) if not options else None
    before = _largest_bytes()
    wall, processor = time.perf_counter(), time.process_time()
    plan = plan_scan(parsed, Tier(tier, caches))
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    grown = _largest_bytes() - before
    some = plan.tasks[:: max(1, len(plan.tasks) // 500)]
    return Measured(
        wall,
        processor,
        tier.counters.requests,
        tier.counters.list_requests,
        grown,
        sum(len(task.slices) for task in plan.tasks),
        statistics.median(len(pickle.dumps(task)) for task in some),
    )


def _largest_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
