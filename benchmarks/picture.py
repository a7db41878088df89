"""Measures the time of a report of 100,000 segments in 500 partitions, and of `kts topics` for the
same tier.

The store takes 20 ms per request. A plan in another process has cached the manifests. The measured
time begins after the options are parsed and ends with the finished page. It excludes imports and a
warm-up report of a small tier.
"""

from __future__ import annotations

import multiprocessing
import shutil
import tempfile
import time
from pathlib import Path
from typing import TypeAlias

from benchmarks.plan import SEGMENTS
from benchmarks.report import Row, at_most
from benchmarks.simulated import FIRST_MS, TOPIC, SimulatedTier
from kts_source.cache.caches import Caches, CacheSettings
from kts_source.cache.disk_cache import CacheLimits
from kts_source.options import parse_options
from kts_source.planning.describe import described_plan
from kts_source.planning.planner import paused_collector
from kts_source.reporting.facts import tier_facts
from kts_source.reporting.page import page
from kts_source.tier import Tier

MONTH_MS = 30 * 86_400_000


def run(*, quick: bool) -> list[Row]:
    """Returns the figures. A quick run has a tenth of the segments; the goals stay the same."""
    partitions = 50 if quick else 500
    folder = Path(tempfile.mkdtemp(prefix="kts-picture-"))
    try:
        _measured(partitions, folder)
        described, made, size = _measured(partitions, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [
        at_most("partitions described, warm (kts topics)", described[0], "s", 5),
        Row("partitions described, warm (kts topics): processor", described[1], "s"),
        at_most("report made, warm", made[0], "s", 10),
        Row("report made, warm: processor", made[1], "s"),
        at_most("report's file", size / 1e6, "MB", 2),
    ]


Seconds: TypeAlias = tuple[float, float]
"""Wall time and processor time."""


def _measured(partitions: int, folder: Path) -> tuple[Seconds, Seconds, int]:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(measure, (partitions, str(folder)))


def measure(partitions: int, folder: str) -> tuple[Seconds, Seconds, int]:
    """Describes the tier and makes a report, once each, in this process. Returns the seconds of the
    description and of the report, and the bytes of the page.
    """
    small, tier = SimulatedTier(1, 2, latency_seconds=0), SimulatedTier(partitions, SEGMENTS)
    tier.prepare()
    caches = Caches(CacheSettings(index=CacheLimits(1 << 30, 900), folder=folder))
    parsed = parse_options({"path": "simulated", "subscribe": TOPIC})
    now_ms = FIRST_MS + MONTH_MS
    page(tier_facts(described_plan(parsed, Tier(small)), now_ms, None))
    started = _now()
    described_plan(parsed, Tier(tier, caches), tasks=False)
    described = _since(started)
    started = _now()
    plan = described_plan(parsed, Tier(tier, caches))
    with paused_collector():
        html = page(tier_facts(plan, now_ms, None))
    return described, _since(started), len(html.encode())


def _now() -> Seconds:
    return time.perf_counter(), time.process_time()


def _since(started: Seconds) -> Seconds:
    wall, processor = _now()
    return wall - started[0], processor - started[1]
