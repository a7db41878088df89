"""Compares a scan of a broker's disk with scans of the same bytes in a tier, and in tier and disk
together.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Final

from benchmarks.bench import NEWEST_SPARK, Bench, Contestant
from benchmarks.report import Row, at_least
from benchmarks.session import Query
from benchmarks.tiers import TOPIC, Tier, TierShape, make_tier
from kts_source.columns import DEFAULT_COLUMNS
from kts_source.layout.remote_segment import IndexType
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.lineage import PartitionLog

_GOAL: Final = 0.95
_TASKS: Final = 12
_SUFFIXES: Final = {
    IndexType.OFFSET: "index",
    IndexType.TIMESTAMP: "timeindex",
    IndexType.TRANSACTION: "txnindex",
}


def run(bench: Bench) -> list[Row]:
    """Measures records of 100 bytes and of 1 KB, in plain and zstd batches."""
    log_bytes = (48 << 20) if bench.quick else (3 << 30)
    rows: list[Row] = []
    for name, value_bytes, codec in (
        ("100 B", 100, "none"),
        ("100 B, zstd batches", 100, "zstd"),
        ("1 KB", 1000, "none"),
    )[: 1 if bench.quick else None]:
        payload = "random" if codec == "none" else "json"
        shape = TierShape(
            value_bytes,
            log_bytes,
            partitions=6,
            segment_bytes=log_bytes // 60,
            codec=codec,
            payload=payload,
        )
        rows += _compare(bench, name, make_tier(shape))
    return rows


def _compare(bench: Bench, name: str, tier: Tier) -> list[Row]:
    folder = bench.folder()
    # Hard links to the same files, so that the page cache has both or neither.
    _write_disk(tier, folder / "disk", first=0)
    last = min(len(log.ranges) for log in _logs(tier)) * 9 // 10
    _write_disk(tier, folder / "tail", first=last)
    shutil.copytree(tier.path, folder / "tier", copy_function=os.link)
    for log in _logs(tier):
        for span in log.ranges[last:]:
            stem = span.segment.objects.log.key.removesuffix(".log")
            for path in (folder / "tier").glob(f"{stem}.*"):
                path.unlink()
    disk = {"path": str(folder / "disk"), "layout": "kafka-logs", "subscribe": TOPIC}
    both = {**tier.options, "path": str(folder / "tier"), "tailPath": str(folder / "tail")}
    timings = bench.in_turns(
        {
            "tier": Contestant(NEWEST_SPARK, _query(tier, tier.options)),
            "disk": Contestant(NEWEST_SPARK, _query(tier, disk)),
            "both": Contestant(NEWEST_SPARK, _query(tier, both)),
        },
    )
    speed = tier.records / timings["disk"].seconds / 1e6
    share = timings["disk"].times_faster_than(timings["tier"])
    joined = timings["both"].times_faster_than(timings["tier"])
    same = f"the same bytes as a tier, {name}"
    return [
        Row(f"a broker's disk in place, {name}", speed, "M records/s"),
        at_least(f"a broker's disk in place by {same}", share, "×", _GOAL),
        Row(f"nine tenths tier, one tenth disk by {same}", joined, "×"),
    ]


def _query(tier: Tier, options: Mapping[str, str]) -> Query:
    more = {
        "columns": ",".join(DEFAULT_COLUMNS),
        "targetPartitionBytes": str(tier.shape.log_bytes // _TASKS + 1),
        "maxSegmentsPerTask": "64",
    }
    return Query("tiered-kafka", {**options, **more}, sink="noop")


def _logs(tier: Tier) -> list[PartitionLog]:
    plan = plan_scan(parse_options(tier.options))
    return [partition.surviving for partition in plan.partitions]


def _write_disk(tier: Tier, root: Path, *, first: int) -> None:
    """Writes the segments of a tier from segment `first` on, as a broker stores them after a clean
    shutdown.
    """
    options = parse_options(tier.options)
    root.mkdir(parents=True)
    ends = []
    opened = open_tier(options)
    source = SegmentSource(opened, options.key_ring)
    for number, log in enumerate(_logs(tier)):
        folder = root / f"{TOPIC}-{number}"
        folder.mkdir()
        for span in log.ranges[first:]:
            _write_segment(tier, source, span.segment, folder)
        segment = log.ranges[-1].segment
        (folder / "leader-epoch-checkpoint").write_bytes(
            source.index(segment.objects, IndexType.LEADER_EPOCH) or b""
        )
        (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {segment.topic_id}")
        ends.append(f"{TOPIC} {number} {log.stop}")
    opened.close()
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        (root / name).write_text("\n".join(["0", str(len(ends)), *ends, ""]))
    starts = [f"{TOPIC} {number} 0" for number in range(len(ends))]
    text = "\n".join(["0", str(len(starts)), *starts, ""])
    (root / "log-start-offset-checkpoint").write_text(text)
    (root / ".kafka_cleanshutdown").touch()


def _write_segment(tier: Tier, source: SegmentSource, segment: RemoteSegment, folder: Path) -> None:
    stem = f"{segment.start_offset:020d}"
    (folder / f"{stem}.log").hardlink_to(tier.path / segment.objects.log.key)
    for kind, suffix in _SUFFIXES.items():
        data = source.index(segment.objects, kind)
        if data is not None:
            (folder / f"{stem}.{suffix}").write_bytes(data)
    snapshot = source.index(segment.objects, IndexType.PRODUCER_SNAPSHOT) or b""
    (folder / f"{segment.stop_offset:020d}.snapshot").write_bytes(snapshot)
