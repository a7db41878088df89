"""Measures scans from a real S3 server without Spark: the processor time of the client, and the
time until the first rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import obstore

import kts_source
from benchmarks.bench import SkippedError
from benchmarks.engines_parts import decode
from benchmarks.fetch_s3 import BUCKET, gateway, paced, s3_options, server_program, upload
from benchmarks.report import Row, at_most
from kts_source.read.segment_source import ENOUGH_REQUEST_BYTES, FIRST_REQUEST_BYTES
from kts_source.store.open_store import open_store
from kts_source.store.storage_options import storage_options_from

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from obstore.store import S3Store

    from benchmarks.bench import Bench
    from benchmarks.tiers import Tier

_FAR: Final = (0.06, 90e6)
_CONCURRENT_REQUESTS: Final = 16
"""Number of concurrent 8 MiB requests that the defaults of `prefetchBytes` and
`maxConcurrentRequests` allow.
"""
_SIZE_WITH_GOALS: Final = "1 KB"
"""Label of the record size that has goals. Smaller records have none, because they need more
processor time per gigabyte for reasons other than the store.
"""
# An argument without effect that only s3fs supports.
_BY_S3FS: Final = {"storageOptions": '{"use_ssl": true}'}


def s3_rows(bench: Bench, *, tier: Tier, label: str) -> list[Row]:
    """Measures a scan with each of two S3 clients: processor time, the additional time caused by
    latency, and the time until the first rows.

    Raises:
        SkippedError: versitygw is not installed.
    """
    runs_by_name, soon = _measure(bench, tier)
    costs, speeds = (
        {
            name: statistics.median(run[index] for run in runs) / (tier.stored_bytes / 1e9)
            for name, runs in runs_by_name.items()
        }
        for index in (1, 0)
    )
    seconds = {
        name: statistics.median(run[0] for run in runs) for name, runs in runs_by_name.items()
    }
    start = _FAR[0] + FIRST_REQUEST_BYTES / _FAR[1]
    share = statistics.median(
        near[0] / far[0]
        for near, far in zip(runs_by_name["near"], runs_by_name["far"], strict=True)
    )
    parts = statistics.median(
        (ranges[1] + decode[1] + plan[1]) / own[1]
        for ranges, decode, plan, own in zip(
            *(runs_by_name[name] for name in ("ranges", "decode", "plan", "own")), strict=True
        )
    )
    name = f"S3 on loopback, {label}, processor time of the client, decoding included"
    cost = costs["own"]
    goal = (
        at_most(name, cost, "s/GB", 0.85) if label == _SIZE_WITH_GOALS else Row(name, cost, "s/GB")
    )
    return [
        goal.noted(
            f"one thread, versitygw, {1 / speeds['own']:.2f} GB/s; by s3fs"
            f" {costs['s3fs']:.2f} s/GB, {1 / speeds['s3fs']:.2f} GB/s"
        ),
        Row(f"{name}, of its parts alone", parts, "×").noted(
            f"the same requests alone {costs['ranges']:.2f} s/GB, by obstore"
            f" {costs['obstore']:.2f}; decoding from memory {costs['decode']:.2f}, the plan"
            f" {costs['plan']:.2f}"
        ),
        Row(
            f"scan().to_reader() from S3 with 60 ms and 90 MB/s by the same without, {label}",
            share,
            "×",
        ).noted(
            f"one thread, both through the same proxy, without the plan; of {seconds['far']:.2f} s,"
            f" the first answer alone takes {start:.2f}; parts fetch and loopback_s3 read longer"
        ),
        at_most(
            f"first rows of scan().limit(10), plan included, from S3 with 60 ms, {label}",
            statistics.median(soon),
            "s",
            0.5,
        ),
    ]


def _measure(bench: Bench, tier: Tier) -> tuple[dict[str, list[tuple[float, float]]], list[float]]:
    """Returns the wall and processor seconds of each contestant, and the seconds until the first
    rows.

    Raises:
        SkippedError: versitygw is not installed.
    """
    program = server_program()
    if program is None:
        raise SkippedError("versitygw is missing: install Go, then run `make bench`")
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory())
        port, _ = stack.enter_context(gateway(program, Path(root)))
        upload(port, tier)
        direct, far = (
            s3_options(tier, port),
            s3_options(tier, stack.enter_context(paced(port, _FAR))),
        )
        options = {
            "own": direct,
            "s3fs": {**direct, **_BY_S3FS},
            "near": s3_options(tier, stack.enter_context(paced(port, (0.0, 0.0)))),
            "far": far,
        }
        contestants: dict[str, Callable[[], tuple[float, float]]] = {
            name: partial(_read_all, source_options, tier.records)
            for name, source_options in options.items()
        }
        ranges = _ranges(tier)
        contestants["ranges"] = partial(_read, direct, ranges)
        contestants["obstore"] = partial(_fetch_with_obstore, _bare_store(direct), ranges)
        contestants["decode"] = partial(_decoded, tier)
        contestants["plan"] = partial(_planned, direct)
        runs_by_name: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
        for number in range(bench.repeats + 1):
            for name, run in contestants.items():
                times = run()
                if number:  # the first round is a warm-up
                    runs_by_name[name].append(times)
        soon = [_ten(far) for _ in range(bench.repeats + 1)][1:]
    return runs_by_name, soon


def _read_all(options: Mapping[str, str], records: int) -> tuple[float, float]:
    """Reads all rows. Returns the wall seconds without planning, and the processor seconds of this
    process with planning.
    """
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


def _bare_store(options: Mapping[str, str]) -> S3Store:
    from obstore.store import S3Store

    return S3Store(
        BUCKET,
        endpoint=options["s3.endpoint"],
        access_key_id=options["s3.access-key-id"],
        secret_access_key=options["s3.secret-access-key"],
        region=options["s3.region"],
        virtual_hosted_style_request=False,
        client_options={"allow_http": True, "http1_only": True},
        retry_config={"max_retries": 0},
    )


def _ranges(tier: Tier) -> list[tuple[str, int, int]]:
    """Returns the byte ranges of the requests with which a scan reads the segments."""
    return [
        (path.relative_to(tier.path).as_posix(), start, min(start + ENOUGH_REQUEST_BYTES, size))
        for path in sorted(tier.path.glob("*/*/*.log"))
        for size in (path.stat().st_size,)
        for start in range(0, size, ENOUGH_REQUEST_BYTES)
    ]


def _read(
    options: Mapping[str, str], ranges: Sequence[tuple[str, int, int]]
) -> tuple[float, float]:
    """Sends the same requests as a scan, with the same concurrency, but does not decode the
    responses. Returns wall seconds and processor seconds.
    """
    store = open_store(f"s3://{BUCKET}", storage_options_from(options))

    def size(wanted: tuple[str, int, int]) -> int:
        return len(store.get_range(*wanted))

    began, own = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(_CONCURRENT_REQUESTS) as pool:
        assert sum(pool.map(size, ranges)) == sum(stop - start for _, start, stop in ranges)
    return time.perf_counter() - began, time.process_time() - own


def _fetch_with_obstore(
    store: S3Store, ranges: Sequence[tuple[str, int, int]]
) -> tuple[float, float]:
    """Sends the requests of `_read` with obstore, and counts the bytes of the streamed responses.
    Returns wall seconds and processor seconds.
    """

    async def one(key: str, start: int, stop: int) -> int:
        answer = await obstore.get_async(store, key, options={"range": (start, stop)})
        pieces = answer.stream(min_chunk_size=stop - start)
        return sum([len(piece) async for piece in pieces])

    async def every() -> int:
        waiting = iter(ranges)

        async def in_turn() -> int:
            return sum([await one(*wanted) for wanted in waiting])

        return sum(await asyncio.gather(*(in_turn() for _ in range(_CONCURRENT_REQUESTS))))

    began, own = time.perf_counter(), time.process_time()
    assert asyncio.run(every()) == sum(stop - start for _, start, stop in ranges)
    return time.perf_counter() - began, time.process_time() - own


def _planned(options: Mapping[str, str]) -> tuple[float, float]:
    """Plans a scan. Returns wall seconds and processor seconds."""
    began, own = time.perf_counter(), time.process_time()
    assert kts_source.scan(options).tasks
    return time.perf_counter() - began, time.process_time() - own


def _decoded(tier: Tier) -> tuple[float, float]:
    """Decodes the bytes of the tier from memory. Returns wall seconds and processor seconds."""
    logs = sorted(tier.path.glob("*/*/*.log"))
    log = logs[0].read_bytes()
    began, own = time.perf_counter(), time.process_time()
    decode(log, len(logs))
    return time.perf_counter() - began, time.process_time() - own
