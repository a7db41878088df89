"""Scans through Spark from a real S3 server, near and with an object store's latency; and from a
folder.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.bench import NEWEST_SPARK, Contestant, SkippedError
from benchmarks.fetch_s3 import gateway, paced, s3_options, server_program, upload
from benchmarks.report import Row, at_least
from benchmarks.session import Query
from benchmarks.tiers import TierShape, make_tier

if TYPE_CHECKING:
    from benchmarks.bench import Bench

_FAR: Final = (0.06, 90e6)
_SHARE_GOAL: Final = 0.85


def s3_rows(bench: Bench) -> list[Row]:
    """The same tier from a folder and from versitygw, through one proxy with 60 ms and without.

    Raises:
        SkippedError: There is no versitygw.
    """
    program = server_program()
    if program is None:
        raise SkippedError("no versitygw: make bench builds it where Go is installed")
    log_bytes, segment_bytes = (64 << 20, 5 << 20) if bench.quick else (1536 << 20, 64 << 20)
    tier = make_tier(TierShape(100, log_bytes, partitions=6, segment_bytes=segment_bytes))
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory())
        port, _ = stack.enter_context(gateway(program, Path(root)))
        upload(port, tier)
        ports = {
            "S3 on loopback": stack.enter_context(paced(port, (0.0, 0.0))),
            "S3 on loopback with 60 ms and 90 MB/s": stack.enter_context(paced(port, _FAR)),
        }
        target = str(tier.shape.log_bytes // 12)
        options = {
            "a folder": tier.options,
            **{name: s3_options(tier, number) for name, number in ports.items()},
        }
        found = bench.in_turns(
            {
                name: Contestant(
                    NEWEST_SPARK, Query("tiered-kafka", {**given, "targetPartitionBytes": target})
                )
                for name, given in options.items()
            },
            repeats=1 if bench.quick else 3,
        )
    note = "the server and the proxy run on the same cores"
    rows = [
        Row(f"scan, 100 B, from {name}", tier.records / timings.seconds / 1e6, "M records/s").noted(
            "" if name == "a folder" else note
        )
        for name, timings in found.items()
    ]
    near, far = (found[name] for name in ports)
    share = far.times_faster_than(near)
    return [
        *rows,
        at_least(
            "scan, 100 B, from S3 with 60 ms and 90 MB/s by the same without",
            share,
            "×",
            _SHARE_GOAL,
        ),
    ]
