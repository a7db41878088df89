"""Measures `limit(10)` of a topic of 100 GiB on an S3 server with 60 ms latency: bytes read and
time.

Only the first segment has data. All later segments are sparse files with manifests.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.fetch_s3 import BUCKET, gateway, paced, s3_options, server_program
from benchmarks.report import Row, at_most
from benchmarks.tiers import TOPIC, TierShape, make_tier
from kts_source.read.segment_source import FIRST_REQUEST_BYTES
from segment_format.kafka_uuid import uuid_to_text
from segment_format.manifest.chunk_index import FixedChunkIndex
from segment_format.manifest.segment_manifest import SegmentManifest
from tests.segment_format.manifest.writers import manifest_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.tiers import Tier

_SEGMENTS: Final = 100
_SEGMENT_BYTES: Final = 1 << 30
_CHUNK_BYTES: Final = 4 << 20
_REPEATS: Final = 5
_FEW_ROWS: Final = 1000
_FEW: Final = json.dumps({TOPIC: {"0": _FEW_ROWS}})
_SPARKS_DAEMON: Final = "pyspark.daemon"
_OUR_DAEMON: Final = "kts_source.spark.daemon"


def limit_rows(pace: tuple[float, float]) -> list[Row]:
    """Measures a query of ten rows in a Spark session that has already planned and run this query
    once.

    Args:
        pace: Seconds to the first byte, and bytes per second of one connection.
    """
    program = server_program()
    if program is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        root.mkdir()
        small = make_tier(TierShape(100, 64 << 20, partitions=1))
        tier = dataclasses.replace(small, path=root / BUCKET)
        _add_sparse_segments(small.path, tier.path)
        with gateway(program, root) as (port, _), paced(port, pace) as far:
            runs = {
                module: _measured(tier, far, Path(folder) / "metrics", module)
                for module in (_SPARKS_DAEMON, _OUR_DAEMON)
            }
    name = "limit(10) of 100 GiB, 60 ms away, warm Spark"
    wire = pace[0] + FIRST_REQUEST_BYTES / pace[1]
    rows = []
    for module, run in runs.items():
        none = statistics.median(run.of_prebuilt_rows)
        seconds_by_worker = {
            "a new worker of": run.seconds,
            "a worker that has read before of": run.in_used_worker,
        }
        rows.append(Row(f"limit(10) of a Python source that has its rows, {module}", none, "s"))
        for worker, seconds in seconds_by_worker.items():
            ours = statistics.median(seconds)
            title = f"{name}, after planning, {worker} {module}"
            # A worker that Spark's own daemon has just forked has nothing loaded.
            is_warm = module == _OUR_DAEMON or seconds is run.in_used_worker
            row = at_most(title, ours, "s", 0.8) if is_warm else Row(title, ours, "s")
            rows.append(
                row.noted(
                    f"{min(seconds):.2f} to {max(seconds):.2f} s, including {wire:.2f} s on the"
                    f" network; a source with rows in memory takes {none:.2f} s in a new worker"
                )
            )
    touched = max(most for run in runs.values() for most in run.touched)
    return [*rows, at_most(f"{name}, bytes touched", touched / (1 << 20), "MiB", 16)]


class _Runs(NamedTuple):
    """Measured runs of one session, without the first run of each kind, which includes planning.

    Attributes:
        of_prebuilt_rows: Seconds of a query of prebuilt rows, in a new worker.
        seconds: Seconds of a query of this library, in a new worker.
        in_used_worker: Seconds of a query of this library, in a worker that already ran a query.
        touched: Bytes that this library read.
    """

    of_prebuilt_rows: list[float]
    seconds: list[float]
    in_used_worker: list[float]
    touched: list[int]


def _measured(tier: Tier, port: int, metrics: Path, daemon: str) -> _Runs:
    from benchmarks.sparks import EndlessSource, start_spark
    from kts_source import register

    # Spark ends workers that a LIMIT closes early, so each of these queries has a new worker.
    spark = start_spark(settings={"spark.python.daemon.module": daemon})
    register(spark)
    spark.dataSource.register(EndlessSource)
    options = {**s3_options(tier, port), "targetPartitionBytes": "128m"}
    frame = spark.read.format("tiered-kafka").options(**options, metricsPath=str(metrics)).load()
    few = spark.read.format("tiered-kafka").options(**options, endingOffsets=_FEW).load()
    nothing = spark.read.format("endless").load().limit(10)
    runs = _Runs([], [], [], [])
    for number in range(_REPEATS + 1):
        seconds_of_run, touched = [], []
        for ten, before in ((nothing, None), (frame.limit(10), None), (frame.limit(10), few)):
            if before is not None:
                assert len(before.collect()) == _FEW_ROWS  # read to its end, so the worker stays
            shutil.rmtree(metrics, ignore_errors=True)
            began = time.perf_counter()
            assert len(ten.collect()) == 10
            seconds_of_run.append(time.perf_counter() - began)
            time.sleep(0.5)  # a worker may still be writing its metrics
            if metrics.exists():
                touched.append(sum(line["bytes"] for line in _lines(metrics)))
        if number:
            for seconds, took in zip(runs[:3], seconds_of_run, strict=True):
                seconds.append(took)
            runs.touched.append(max(touched))
    spark.stop()
    return runs


def _lines(folder: Path) -> Iterator[dict[str, int]]:
    for path in folder.iterdir():
        yield from map(json.loads, path.read_text().splitlines())


def _add_sparse_segments(small: Path, bucket: Path) -> None:
    """Copies the first segment of tier `small` to `bucket`, and adds sparse segments after it."""
    first = min(small.glob("*/0/*.rsm-manifest"))
    target = bucket / first.parent.relative_to(small)
    target.mkdir(parents=True)
    for suffix in (".log", ".indexes", ".rsm-manifest"):
        shutil.copy(first.with_suffix(suffix), target)
    manifest = SegmentManifest.from_json(first.read_bytes())
    first_metadata = manifest.metadata
    assert first_metadata is not None
    count = first_metadata.end_offset + 1 - first_metadata.start_offset
    last_bytes = _SEGMENT_BYTES % _CHUNK_BYTES or _CHUNK_BYTES
    chunks = FixedChunkIndex(_CHUNK_BYTES, _SEGMENT_BYTES, _CHUNK_BYTES, last_bytes)
    for number in range(1, _SEGMENTS):
        start = first_metadata.start_offset + number * count
        segment_id = dataclasses.replace(first_metadata.segment_id, id=uuid.UUID(int=number))
        metadata = dataclasses.replace(
            first_metadata,
            segment_id=segment_id,
            start_offset=start,
            end_offset=start + count - 1,
            segment_size_in_bytes=_SEGMENT_BYTES,
            segment_leader_epochs=tuple(
                dataclasses.replace(entry, start_offset=start)
                for entry in first_metadata.segment_leader_epochs
            ),
        )
        stem = target / f"{start:020d}-{uuid_to_text(segment_id.id)}"
        described = dataclasses.replace(manifest, chunk_index=chunks, metadata=metadata)
        stem.with_suffix(".rsm-manifest").write_bytes(manifest_json(described))
        shutil.copy(first.with_suffix(".indexes"), stem.with_suffix(".indexes"))
        with stem.with_suffix(".log").open("wb") as hole:
            hole.truncate(_SEGMENT_BYTES)
    for path in target.iterdir():  # the server keeps ETags here
        os.setxattr(path, "user.etag", path.name.encode())
