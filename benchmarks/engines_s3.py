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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.tiers import Tier

_FAR: Final = (0.06, 90e6)
# An argument that changes nothing, but that only s3fs knows.
_BY_S3FS: Final = {"storageOptions": '{"use_ssl": true}'}


def s3_rows(tier: Tier, what: str, rounds: int) -> list[Row]:
    """The client's processor time with either library, and the first rows from afar.

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
        far = stack.enter_context(paced(port, _FAR))
        near = s3_options(tier, port)
        found: dict[str, list[tuple[float, float]]] = {"obstore": [], "s3fs": []}
        for number in range(rounds + 1):
            for name, more in (("obstore", {}), ("s3fs", _BY_S3FS)):
                times = _drained({**near, **more}, tier.records)
                if number:  # the first one warms up
                    found[name].append(times)
        soon = [_ten(s3_options(tier, far)) for _ in range(rounds + 1)][1:]
    costs, speeds = (
        {
            name: statistics.median(one[at] for one in runs) / (tier.stored_bytes / 1e9)
            for name, runs in found.items()
        }
        for at in (1, 0)
    )
    return [
        at_most(
            f"S3 on loopback, {what}, processor time of the client, decoding included",
            costs["obstore"],
            "s/GB",
            0.85,
        ).noted(
            f"one thread, versitygw, {1 / speeds['obstore']:.2f} GB/s; by s3fs"
            f" {costs['s3fs']:.2f} s/GB, {1 / speeds['s3fs']:.2f} GB/s"
        ),
        at_most(
            "first rows of scan().limit(10), plan included, from S3 with 60 ms and 90 MB/s",
            statistics.median(soon),
            "s",
            0.5,
        ),
    ]


def _drained(options: Mapping[str, str], records: int) -> tuple[float, float]:
    """Seconds, and processor seconds of this process."""
    began, own = time.perf_counter(), time.process_time()
    with kts_source.scan(options).to_reader(threads=1) as reader:
        assert sum(batch.num_rows for batch in reader) == records
    return time.perf_counter() - began, time.process_time() - own


def _ten(options: Mapping[str, str]) -> float:
    began = time.perf_counter()
    assert kts_source.scan(options).limit(10).to_table().num_rows == 10
    return time.perf_counter() - began
