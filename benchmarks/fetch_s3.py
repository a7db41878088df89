"""Measures scans from an S3 server through a proxy: without delay, and with 60 ms latency and 90
MB/s.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.processes import processor_time
from benchmarks.report import Row, at_least
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.tiers import Tier
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.store.object_store import ObjectStore

BUCKET: Final = "bench"
_CHUNK_BYTES: Final = 4 << 20  # chunk size of `AivenTierWriter`
_KEY: Final = "benchmark-key"
_SECRET: Final = "benchmark-secret-0123456789"
_BUILT: Final = Path(__file__).resolve().parents[1] / "build" / "go" / "versitygw"


def s3_rows(
    tier: Tier,
    read: Callable[[ScanPlan, ObjectStore], object],
    *,
    repeats: int,
    pace: tuple[float, float],
) -> list[Row]:
    """Measures a full scan from versitygw, a real S3 server. Returns no rows if versitygw is not
    installed.

    Args:
        tier: The tier to read.
        read: Function that reads all slices of a plan from a store.
        repeats: Number of measured rounds, after one warm-up round.
        pace: Seconds to the first byte, and bytes per second of one connection.
    """
    program = server_program()
    if program is None:
        return []
    runs = _timed_scans(program, tier, read, repeats=repeats, pace=pace)
    ratio = statistics.median(a[0] / b[0] for a, b in zip(runs["near"], runs["far"], strict=True))
    client, server = (statistics.median(run[index] for run in runs["far"]) for index in (1, 2))
    gigabytes = tier.stored_bytes / 1e9
    # Decoding starts only after the first chunk.
    start = pace[0] + _CHUNK_BYTES / pace[1]
    return [
        at_least(
            "fetch from S3 with 60 ms and 90 MB/s, share of the same server with neither",
            ratio,
            "×",
            0.95,
        ).noted(
            f"versitygw; both through the same proxy; of {_wall(runs['far']):.2f} s, the first"
            f" chunk's answer alone takes {start:.2f}"
        ),
        Row("fetch from S3, speed", tier.stored_bytes / _wall(runs["far"]) / 1e6, "MB/s"),
        Row("fetch from S3, processor time of the client", client / gigabytes, "s/GB").noted(
            "decoding included"
        ),
        Row("fetch from S3, processor time of the server", server / gigabytes, "s/GB"),
    ]


def _timed_scans(
    program: str,
    tier: Tier,
    read: Callable[[ScanPlan, ObjectStore], object],
    *,
    repeats: int,
    pace: tuple[float, float],
) -> dict[str, list[tuple[float, float, float]]]:
    """Scans without delay (`near`) and with the delay `pace` (`far`). Returns seconds, processor
    time of the client, and processor time of the server for each scan.
    """
    runs: dict[str, list[tuple[float, float, float]]] = {"near": [], "far": []}
    with (
        tempfile.TemporaryDirectory() as root,
        gateway(program, Path(root)) as (port, pid),
        paced(port, (0.0, 0.0)) as near,
        paced(port, pace) as far,
    ):
        upload(port, tier)
        ports = {"near": near, "far": far}
        for number in range(repeats + 1):
            for name in runs:
                options = parse_options(s3_options(tier, ports[name]))
                opened = open_tier(options)
                plan = plan_scan(options, opened)
                server = processor_time(pid).total
                began, own = time.perf_counter(), time.process_time()
                read(plan, opened.store)
                figures = (
                    time.perf_counter() - began,
                    time.process_time() - own,
                    processor_time(pid).total - server,
                )
                opened.close()
                if number:
                    runs[name].append(figures)
    return runs


def _wall(runs: list[tuple[float, float, float]]) -> float:
    return statistics.median(run[0] for run in runs)


def server_program() -> str | None:
    """Returns the path of versitygw on PATH, else of the program that the tests build, or `None` if
    neither exists.
    """
    return shutil.which("versitygw") or (str(_BUILT) if _BUILT.exists() else None)


def s3_options(tier: Tier, port: int) -> dict[str, str]:
    """Returns the options that read the tier from the bucket."""
    return {
        **tier.options,
        "path": f"s3://{BUCKET}",
        "cache": "false",
        "targetPartitionBytes": "4g",
        "s3.endpoint": f"http://127.0.0.1:{port}",
        "s3.access-key-id": _KEY,
        "s3.secret-access-key": _SECRET,
        "s3.region": "us-east-1",
        "s3.path-style-access": "true",
    }


@contextlib.contextmanager
def gateway(program: str, root: Path) -> Iterator[tuple[int, int]]:
    """Yields the port and the process id of a server for a folder."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    (root / BUCKET).mkdir(exist_ok=True)
    process = subprocess.Popen(
        [program, "--quiet", "--port", f"127.0.0.1:{port}", "posix", str(root)],
        env={**os.environ, "ROOT_ACCESS_KEY": _KEY, "ROOT_SECRET_KEY": _SECRET},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(30)


def upload(port: int, tier: Tier) -> None:
    """Puts all objects of the tier into the bucket."""
    import botocore.config
    import botocore.session

    client = botocore.session.get_session().create_client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id=_KEY,
        aws_secret_access_key=_SECRET,
        region_name="us-east-1",
        config=botocore.config.Config(s3={"addressing_style": "path"}),
    )
    for path in tier.path.glob("*/*/*"):
        with path.open("rb") as body:
            key = path.relative_to(tier.path).as_posix()
            client.put_object(Bucket=BUCKET, Key=key, Body=body)
    client.close()


@contextlib.contextmanager
def paced(port: int, pace: tuple[float, float]) -> Iterator[int]:
    """Yields the port of a proxy that forwards to `port` with delay `pace`; see `paced_proxy`."""
    numbers = [f"{number:g}" for number in pace]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.paced_proxy", "127.0.0.1", str(port), *numbers],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
