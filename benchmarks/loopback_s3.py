"""Measures Spark scans of a folder and of a real S3 server, without and with the latency of an
object store.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.bench import NEWEST_SPARK, Contestant, SkippedError
from benchmarks.fetch_s3 import gateway, paced, s3_options, server_program, upload
from benchmarks.report import Row, at_least, at_most
from benchmarks.session import Query
from benchmarks.tiers import TierShape, make_tier
from kts_source.read.segment_source import FIRST_REQUEST_BYTES

if TYPE_CHECKING:
    from benchmarks.bench import Bench

_FAR: Final = (0.06, 90e6)
_SHARE_GOAL: Final = 0.93
_TASKS: Final = 12
_CORES: Final = 2
_FOLDER: Final = "a folder"
_DIRECT: Final = "S3 on loopback"
_NEAR: Final = "S3 on loopback, through a proxy"
_FAR_AWAY: Final = "S3 on loopback, through a proxy with 60 ms and 90 MB/s"


def run(bench: Bench) -> list[Row]:
    """Reads the same tier in four ways: from a folder, from versitygw directly, and from versitygw
    through a proxy without and with 60 ms latency.

    Raises:
        SkippedError: versitygw is not installed.
    """
    program = server_program()
    if program is None:
        raise SkippedError("versitygw is missing: install Go, then run `make bench`")
    return [
        *_rows(bench, program, 100, max_processor=1.15),
        *_rows(bench, program, 1000, max_processor=1.35),
    ]


def _rows(bench: Bench, program: str, value_bytes: int, *, max_processor: float) -> list[Row]:
    log_bytes, segment_bytes = (64 << 20, 5 << 20) if bench.quick else (1536 << 20, 64 << 20)
    tier = make_tier(TierShape(value_bytes, log_bytes, partitions=6, segment_bytes=segment_bytes))
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory())
        port, _ = stack.enter_context(gateway(program, Path(root)))
        upload(port, tier)
        target = str(tier.shape.log_bytes // _TASKS)
        options = {
            _FOLDER: tier.options,
            _DIRECT: s3_options(tier, port),
            _NEAR: s3_options(tier, stack.enter_context(paced(port, (0.0, 0.0)))),
            _FAR_AWAY: s3_options(tier, stack.enter_context(paced(port, _FAR))),
        }
        timings = bench.in_turns(
            {
                name: Contestant(
                    NEWEST_SPARK,
                    Query("tiered-kafka", {**source_options, "targetPartitionBytes": target}),
                )
                for name, source_options in options.items()
            },
            repeats=1 if bench.quick else 3,
        )
    first = _FAR[0] + FIRST_REQUEST_BYTES / _FAR[1]
    near, waiting = timings[_NEAR].seconds, _TASKS / _CORES * first
    label = "100 B" if value_bytes == 100 else "1 KB"
    rows = [
        Row(
            f"scan, {label}, from {name}",
            tier.records / contestant_timings.seconds / 1e6,
            "M records/s",
        ).noted("" if name == _FOLDER else "the server and the proxy run on the same cores")
        for name, contestant_timings in timings.items()
    ]
    direct, folder = timings[_DIRECT], timings[_FOLDER]
    return [
        *rows,
        at_most(
            f"scan, {label}, from S3 on loopback, processor time by that from a folder",
            direct.processor_share_of(folder),
            "×",
            max_processor,
        ).noted(
            f"JVM and Python, {direct.processor / tier.records * 1e9:.0f} and"
            f" {folder.processor / tier.records * 1e9:.0f} ns a record"
        ),
        at_least(
            f"scan, {label}, from S3 with 60 ms and 90 MB/s by the same without",
            timings[_FAR_AWAY].times_faster_than(timings[_NEAR]),
            "×",
            _SHARE_GOAL,
        ).noted(
            f"{_TASKS} tasks on {_CORES} cores: each begins {first * 1e3:.0f} ms later,"
            f" after its first remote MiB. This alone allows {near / (near + waiting):.2f} ×"
        ),
    ]
