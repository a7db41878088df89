"""Scans without Spark from a real S3 server: what the client costs, and how soon rows are there."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import kts_source
from benchmarks.bench import SkippedError
from benchmarks.fetch_s3 import gateway, paced, s3_options, server_program, upload
from benchmarks.report import Row, at_most
from kts_source.read.segment_source import FIRST_REQUEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.bench import Bench
    from benchmarks.tiers import Tier

_FAR: Final = (0.06, 90e6)
_OF_GOALS: Final = "1 KB"
"""Per gigabyte, small records cost more for what is no store's doing."""
# An argument that changes nothing, but that only s3fs knows.
_BY_S3FS: Final = {"storageOptions": '{"use_ssl": true}'}


def s3_rows(bench: Bench, *, tier: Tier, what: str) -> list[Row]:
    """The client's processor time with either library, what a store's latency costs, and the first
    rows from afar.

    Raises:
        SkippedError: There is no versitygw.
    """
    program = server_program()
    if program is None:
        raise SkippedError("no versitygw: make bench builds it where Go is installed")
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory())
        port, _ = stack.enter_context(gateway(program, Path(root)))
        upload(port, tier)
        direct, far = (
            s3_options(tier, port),
            s3_options(tier, stack.enter_context(paced(port, _FAR))),
        )
        options = {
            "obstore": direct,
            "s3fs": {**direct, **_BY_S3FS},
            "near": s3_options(tier, stack.enter_context(paced(port, (0.0, 0.0)))),
            "far": far,
        }
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in options}
        for number in range(bench.repeats + 1):
            for name, given in options.items():
                times = _drained(given, tier.records)
                if number:  # the first one warms up
                    found[name].append(times)
        soon = [_ten(far) for _ in range(bench.repeats + 1)][1:]
    costs, speeds = (
        {
            name: statistics.median(one[at] for one in runs) / (tier.stored_bytes / 1e9)
            for name, runs in found.items()
        }
        for at in (1, 0)
    )
    seconds = {name: statistics.median(one[0] for one in runs) for name, runs in found.items()}
    start = _FAR[0] + FIRST_REQUEST_BYTES / _FAR[1]
    share = statistics.median(
        near[0] / far[0] for near, far in zip(found["near"], found["far"], strict=True)
    )
    name = f"S3 on loopback, {what}, processor time of the client, decoding included"
    cost = costs["obstore"]
    goal = at_most(name, cost, "s/GB", 0.85) if what == _OF_GOALS else Row(name, cost, "s/GB")
    return [
        goal.noted(
            f"one thread, versitygw, {1 / speeds['obstore']:.2f} GB/s; by s3fs"
            f" {costs['s3fs']:.2f} s/GB, {1 / speeds['s3fs']:.2f} GB/s"
        ),
        Row(
            f"scan().to_reader() from S3 with 60 ms and 90 MB/s by the same without, {what}",
            share,
            "×",
        ).noted(
            f"one thread, both through the same proxy, without the plan; of {seconds['far']:.2f} s,"
            f" the first answer alone takes {start:.2f}; parts fetch and scan have longer reads"
        ),
        at_most(
            f"first rows of scan().limit(10), plan included, from S3 with 60 ms, {what}",
            statistics.median(soon),
            "s",
            0.5,
        ),
    ]


def _drained(options: Mapping[str, str], records: int) -> tuple[float, float]:
    """Seconds without the plan, and processor seconds of this process with it."""
    own = time.process_time()
    scan = kts_source.scan(options)
    assert scan.plan.tasks
    began = time.perf_counter()
    with scan.to_reader(threads=1) as reader:
        assert sum(batch.num_rows for batch in reader) == records
    return time.perf_counter() - began, time.process_time() - own


def _ten(options: Mapping[str, str]) -> float:
    began = time.perf_counter()
    assert kts_source.scan(options).limit(10).to_table().num_rows == 10
    return time.perf_counter() - began
