"""Measures audits on one core.

The first part audits every byte of a tier, and compares the time with that of checksums and
decompression alone. The second part audits the manifests and side files of 100,000 segments on a
store that takes 20 ms per request, first without a cache and then with one.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import google_crc32c
import numpy as np
import zstandard

import kts_source
from benchmarks.report import Row, at_least, at_most, best_seconds
from benchmarks.simulated import TOPIC, SimulatedTier
from benchmarks.tiers import TierShape, make_tier
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.tiers import Tier

_MIB: Final = 1 << 20
_SEGMENTS: Final = 200
_NOW_MS: Final = 1 << 41


@dataclass(frozen=True, slots=True)
class Measured:
    """One audit of the simulated tier.

    Attributes:
        grown_bytes: Increase of the memory of the process up to its peak.
    """

    wall_seconds: float
    processor_seconds: float
    requests: int
    list_requests: int
    grown_bytes: int


def run(*, quick: bool) -> list[Row]:
    """Returns the rows of both parts. A quick run has a tenth of the bytes and of the segments; the
    goals stay the same.
    """
    return [*_bytes(quick), *_metadata(50 if quick else 500)]


def _bytes(quick: bool) -> list[Row]:
    log_bytes = (64 if quick else 512) * _MIB
    repeats = 3 if quick else 5
    plain = make_tier(TierShape(value_bytes=100, log_bytes=log_bytes))
    packed = make_tier(
        TierShape(value_bytes=100, log_bytes=log_bytes, compression=True, payload="json")
    )
    frames, memory = _stored_chunks(packed), bytearray(64 * _MIB)
    # Processor time of all threads, because an audit uses several.
    checked, bound, undone, codec, least = best_seconds(
        _audit(plain),
        lambda: _read_with_crc(plain),
        _audit(packed),
        lambda: _decompress(frames, memory),
        lambda: _decompress(frames, memory, with_crc=True),
        repeats=repeats,
        clock=time.process_time,
    )
    giga = log_bytes / 1e9
    return [
        at_least("level bytes, codec none: of reading and CRC-32C", bound / checked, "×", 0.8),
        Row("level bytes, codec none", giga / checked, "GB/s"),
        Row("reading the same bytes, and their CRC-32C", giga / bound, "GB/s"),
        at_least("level bytes, zstd tier: of the codec alone", codec / undone, "×", 0.8),
        Row("level bytes, zstd tier", giga / undone, "GB/s"),
        Row("zstd of the same chunks alone", giga / codec, "GB/s"),
        Row("zstd of the same chunks, and CRC-32C of their content", giga / least, "GB/s"),
    ]


def _audit(tier: Tier) -> Callable[[], object]:
    def run() -> None:
        report = kts_source.audit(tier.options, level="bytes")
        if report.records != tier.records:
            raise AssertionError(f"the audit read {report.records} of {tier.records} records")

    return run


def _read_with_crc(tier: Tier) -> None:
    """Reads every log into one buffer and computes its CRC-32C."""
    memory = mmap.mmap(-1, 8 * _MIB)
    array = np.frombuffer(memory, np.uint8)
    for path in sorted(tier.path.glob("*/*/*.log")):
        descriptor = os.open(path, os.O_RDONLY)
        while count := os.readv(descriptor, [memory]):
            google_crc32c.value(array[:count])
        os.close(descriptor)


def _stored_chunks(tier: Tier) -> list[bytes]:
    """Returns the stored chunks of a tier."""
    frames = []
    tasks = plan_scan(parse_options(tier.options)).tasks
    slices = [task_slice for task in tasks for task_slice in task.slices]
    segments = {task_slice.objects.log.key: task_slice.objects for task_slice in slices}
    for objects in segments.values():
        data = (tier.path / objects.log.key).read_bytes()
        frames += [
            data[chunk.transformed_position : chunk.transformed_stop]
            for chunk in objects.chunk_index.chunks(0, objects.size_in_bytes)
        ]
    return frames


def _decompress(frames: Sequence[bytes], memory: bytearray, *, with_crc: bool = False) -> None:
    """Decompresses chunks into `memory`, where each chunk overwrites the one before. If `with_crc`
    is set, also computes the CRC-32C.
    """
    array = np.frombuffer(memory, np.uint8)
    decompressor = zstandard.ZstdDecompressor()
    for frame in frames:
        with decompressor.stream_reader(frame) as reader:
            count = reader.readinto(memory)
        if with_crc:
            google_crc32c.value(array[:count])


def _metadata(partitions: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        state = str(Path(folder) / "audit.state")
        cold = _measured(partitions, state)
        again = _measured(partitions, state)
    name = f"level metadata, {partitions * _SEGMENTS:,} segments"
    return [*_rows(f"{name}, at first", 60, cold), *_rows(f"{name}, again", 5, again)]


def _rows(name: str, seconds: float, measured: Measured) -> list[Row]:
    return [
        at_most(name, measured.wall_seconds, "s", seconds),
        Row(f"{name}: processor", measured.processor_seconds, "s"),
        Row(f"{name}: requests and listings", measured.requests + measured.list_requests, ""),
        Row(f"{name}: memory", measured.grown_bytes / _MIB, "MiB"),
    ]


def _measured(partitions: int, state: str) -> Measured:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (partitions, state))


def measure(partitions: int, state: str) -> Measured:
    """Audits the second part's tier once, in this process."""
    tier = SimulatedTier(partitions, _SEGMENTS)
    tier.prepare()
    options = {"path": "simulated", "subscribe": TOPIC}
    small = SimulatedTier(1, 2, latency_seconds=0)
    kts_source.audit(options, store=small, now_ms=_NOW_MS)  # imports are not measured
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, processor = time.perf_counter(), time.process_time()
    report = kts_source.audit(options, store=tier, now_ms=_NOW_MS, state=state)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    if report.findings or len(report.partitions) != partitions:
        raise AssertionError(f"the audit of a healthy tier has {len(report.findings)} findings")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    counters = tier.counters
    return Measured(wall, processor, counters.requests, counters.list_requests, grown)
