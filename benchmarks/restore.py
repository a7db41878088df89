"""Measures the steps of a restore: the plan, the write to a log directory, and the events that
announce segments for zero copy.

A write is compared with `cp` and `fsync` of the same logs, on the same disk. It also reads all
batches to check them and to rebuild their indexes.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.report import Row, at_least, at_most
from kts_source.restore.restore_plan import plan_restore, plan_source, source_options
from kts_source.restore.serving import publish_events, served_segments
from kts_source.restore.target import target_settings
from kts_source.restore.writing import write_restore
from segment_format.testing import LocalTierWriter
from tests.kts_source.broker.fake_broker import FakeCluster
from tests.kts_source.restore.world import new_cluster
from tests.uniform_batches import uniform_segment, write_uniform_batches

if TYPE_CHECKING:
    from benchmarks.bench import Bench
    from kts_source.restore.restore_plan import RestorePlan

_TOPIC: Final = "bench"
_RECORDS: Final = 16
"""Records in a batch."""
_SEGMENTS: Final = 200
"""Segments in each partition of the tier to plan."""
_MEGA: Final = 1e6


def run(bench: Bench) -> list[Row]:
    """Measures a write of large segments, and a plan and events of many small ones."""
    rows = _writing(bench.folder(), (64 if bench.quick else 512) << 20, bench.repeats)
    small = bench.folder()
    options = _write_tier(small / "tier", 5 if bench.quick else 50, _SEGMENTS, 4 * _RECORDS)
    seconds, _ = _planned(small / "copied", options, zero_copy=False)
    served_seconds, plan = _planned(small / "served", options, zero_copy=True)
    count = sum(each.served for each in plan.partitions)
    rows += [
        at_most(f"plan of {count:,} segments", seconds, "s", 30),
        at_most(f"plan of {count:,} segments, zero copy", served_seconds, "s", 30),
    ]
    return rows + bench.unless_skipped(
        "events of segments for zero copy", lambda bench: _events(bench, options, plan)
    )


def _write_tier(folder: Path, partitions: int, segments: int, records: int) -> dict[str, str]:
    """Writes a tier with segments of this number of records of 1,000 B. Returns its options."""
    for partition in range(partitions):
        writer = LocalTierWriter(
            folder, topic=_TOPIC, topic_id="AAAAAAAAAAAAAAAAAAAAAQ", partition=partition
        )
        for number in range(segments):
            batches = write_uniform_batches(
                batch_count=records // _RECORDS,
                records_per_batch=_RECORDS,
                value_size=1000,
                key_size=8,
                base_offset=number * records,
                seed=number,
            )
            writer.write_segment(uniform_segment(batches, log_start=0))
    return {"path": str(folder), "layout": "local-tiered-storage", "subscribe": _TOPIC}


def _writing(folder: Path, log_bytes: int, repeats: int) -> list[Row]:
    segments = 8
    options = _write_tier(folder / "tier", 1, segments, log_bytes // segments // 1024)
    logs = sorted((folder / "tier").rglob("*.log"))
    size = sum(path.stat().st_size for path in logs)
    writes, totals, ratios = [], [], []
    for number in range(repeats + 1):  # the first round warms up
        copied = _copy(logs, folder / "copy")
        written, total = _write(folder / f"new-{number}", options)
        if number:
            writes.append(written)
            totals.append(total)
            ratios.append(copied / written)
    name = f"write of {size / _MEGA:,.0f} MB in {segments} segments"
    return [
        Row(name, size / statistics.median(writes) / _MEGA, "MB/s"),
        at_least(f"{name}: against cp and fsync", statistics.median(ratios), "×", 0.8),
        Row(
            f"{name}, and comparison of all rows with the tier",
            size / statistics.median(totals) / _MEGA,
            "MB/s",
        ),
    ]


def _copy(logs: list[Path], folder: Path) -> float:
    """Copies the logs and syncs each copy. Returns the seconds, and removes the copies."""
    folder.mkdir()
    os.sync()
    began = time.perf_counter()
    for path in logs:
        copy = folder / path.name
        subprocess.run(["cp", str(path), str(copy)], check=True)
        with copy.open("rb") as file:
            os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    shutil.rmtree(folder)
    return seconds


def _write(folder: Path, options: dict[str, str]) -> tuple[float, float]:
    """Writes the log directory of a new broker. Returns the seconds until all files are written,
    and until they are compared with the tier. Removes the log directory.
    """
    with FakeCluster() as brokers:
        cluster = new_cluster(folder, brokers)
        cluster.add_topic(_TOPIC)
        cluster.plan(options)
        os.sync()
        written: list[float] = []
        began = time.perf_counter()
        write_restore(
            str(cluster.plan_file),
            options,
            str(cluster.log_dir),
            on_partition=lambda _: written.append(time.perf_counter()),
        )
        total = time.perf_counter() - began
    shutil.rmtree(folder)
    return written[-1] - began, total


def _planned(
    folder: Path, options: dict[str, str], *, zero_copy: bool
) -> tuple[float, RestorePlan]:
    """Plans the restore of all partitions. Returns the seconds, and the plan."""
    partitions = len(list(Path(options["path"]).glob("*/*")))
    with FakeCluster() as brokers:
        cluster = new_cluster(folder, brokers)
        cluster.add_topic(_TOPIC, partitions)
        began = time.perf_counter()
        plan = plan_restore(options, cluster.target, zero_copy=zero_copy)
        return time.perf_counter() - began, plan


def _events(bench: Bench, options: dict[str, str], plan: RestorePlan) -> list[Row]:
    """Publishes the events of all segments to a broker, for a topic that it does not have."""
    bench.need("java", "mvn")
    from tests.integration.broker import running_broker

    parsed = source_options(options)
    scan, _ = plan_source(parsed)
    sources = {(each.topic, each.partition): each for each in scan.partitions}
    served = [
        segment
        for each in plan.partitions
        for segment in served_segments(
            each, plan.target_ids[_TOPIC], sources[each.topic, each.partition]
        )
    ]
    with running_broker(bench.folder()) as broker:
        settings = target_settings({"kafka.bootstrap.servers": broker.bootstrap})
        began = time.perf_counter()
        publish_events(settings, plan, served, max_batch_bytes=parsed.max_batch_bytes)
        minutes = (time.perf_counter() - began) / 60
    name = f"events of {len(served):,} segments, published and read again"
    return [at_least(name, len(served) / minutes, "segments/min", 2000)]
