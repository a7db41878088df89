"""Measures reads from a slow store, and decryption with AES. The figures show whether reads hide
the latency, send few requests, read no byte twice, and use limited memory.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import kts_source.tier
from benchmarks.fetch_limit import limit_rows
from benchmarks.fetch_s3 import s3_rows
from benchmarks.report import Row, at_least, at_most, best_seconds
from benchmarks.tiers import Tier, TierShape, make_tier
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import ENOUGH_REQUEST_BYTES, SegmentSource
from kts_source.read.task_metrics import TaskMeter, TaskPlace
from kts_source.store.local_store import LocalStore
from kts_source.store.request_policy import pause
from segment_format.manifest.chunk_index import Chunk
from segment_format.manifest.transform import restore_chunk
from tests.segment_format.manifest.writers import encrypt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.store.object_store import Data, ObjectStore

FIRST_BYTE_SECONDS: Final = 0.06
BYTES_PER_SECOND: Final = 90e6
_MORE_CONNECTIONS: Final = {"maxConcurrentRequests": "48", "prefetchBytes": "384m"}
_LIMIT_BATCHES: Final = 2  # Spark reads this many batches from a slow source before it closes it


class DistantStore(LocalStore):
    """Local files that readers treat as a remote store: they send large requests and read ahead."""

    is_near = False
    lists_in_pages = False


class PacedStore(DistantStore):
    """Local files that are read with the latency and bandwidth of one connection to an object
    store.
    """

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> Data:
        """Returns a range of the local file after the time that one connection to an object store
        would need for it.
        """
        began = time.monotonic()
        data = super().get_range(key, start, stop, version=version)
        takes = FIRST_BYTE_SECONDS + (stop - start) / BYTES_PER_SECOND
        pause(max(0.0, takes - (time.monotonic() - began)))
        return data


def run(*, quick: bool) -> list[Row]:
    """Returns all rows. A quick run reads 256 MiB instead of 1 GiB."""
    log_bytes = (256 << 20) if quick else (1 << 30)
    tier = make_tier(TierShape(100, log_bytes, partitions=1))
    return [
        *_latency(tier, repeats=2 if quick else 4),
        # Large enough that the wait for the first response is a small part.
        *_from_s3(tier if quick else make_tier(replace(tier.shape, log_bytes=3 << 30)), repeats=3),
        *_economy(tier),
        _limit(tier),
        *_memory(log_bytes),
        _aes(),
        *limit_rows((FIRST_BYTE_SECONDS, BYTES_PER_SECOND)),
    ]


def _plan(tier: Tier) -> ScanPlan:
    options = parse_options({**tier.options, "targetPartitionBytes": "4g"})
    return plan_scan(options)


def _read(
    plan: ScanPlan,
    store: ObjectStore,
    tier: Tier,
    *,
    batches: int | None = None,
    slow_start: bool = True,
    more: Mapping[str, str] | None = None,
) -> int:
    """Reads a plan and returns the number of rows. `batches` is the maximum number of batches per
    task; `more` contains additional options.
    """
    options = parse_options({**tier.options, **(more or {})})
    settings = ReadSettings.of(options)
    ahead = replace(settings.read_ahead, slow_start=slow_start)
    settings = replace(settings, read_ahead=ahead)
    rows = 0
    for task in plan.tasks:
        opened = kts_source.tier.Tier(store)
        meter = TaskMeter(task, opened, TaskPlace())
        reader = SegmentSource(opened, options.key_ring)
        task_batches = read_task(task, reader, settings, meter=meter)
        for number, batch in enumerate(task_batches, 1):
            rows += batch.num_rows
            if number == batches:
                break
        task_batches.close()  # type: ignore[attr-defined]  # a generator
    return rows


def _latency(tier: Tier, repeats: int) -> list[Row]:
    plan = _plan(tier)
    local, paced = LocalStore(tier.path), PacedStore(tier.path)
    contestants: dict[str, tuple[ObjectStore, dict[str, str]]] = {
        "local": (local, {}),
        "paced": (paced, {}),
        "more": (paced, _MORE_CONNECTIONS),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(repeats + 1):
        for name, (store, more) in contestants.items():
            began = time.perf_counter()
            # As in every task of a scan except the first.
            rows = _read(plan, store, tier, slow_start=False, more=more)
            assert rows == tier.records
            if number:  # the first round is a warm-up
                seconds[name].append(time.perf_counter() - began)
    share = {
        name: statistics.median(
            near / far for near, far in zip(seconds["local"], seconds[name], strict=True)
        )
        for name in seconds
    }
    speed = {
        name: tier.stored_bytes / statistics.median(times) / 1e6 for name, times in seconds.items()
    }
    requests = parse_options(tier.options).max_concurrent_requests
    bound = _max_bytes_per_second(requests) / 1e6
    many = _MORE_CONNECTIONS["maxConcurrentRequests"]
    return [
        Row("fetch, local files", speed["local"], "MB/s").noted("one thread, 100 B, decoded"),
        Row("fetch, 60 ms first byte, 90 MB/s a connection", speed["paced"], "MB/s"),
        Row(
            "fetch, share of what its connections can give at this pace",
            speed["paced"] / bound,
            "×",
        ).noted(f"{requests} requests of 8 MiB under way are at most {bound:.0f} MB/s"),
        at_least("fetch, share of the speed of local files", share["paced"], "×", 0.85).noted(
            f"{bound / speed['local']:.2f} is what {requests} connections leave possible; Spark"
            f" takes less than they give"
        ),
        Row(
            f"fetch, share of the speed of local files, maxConcurrentRequests={many}",
            share["more"],
            "×",
        ),
    ]


def _max_bytes_per_second(requests: int) -> float:
    """Returns the maximum throughput of `requests` connections that each read one 8 MiB response
    after another.
    """
    takes = FIRST_BYTE_SECONDS + ENOUGH_REQUEST_BYTES / BYTES_PER_SECOND
    return requests * ENOUGH_REQUEST_BYTES / takes


def _from_s3(tier: Tier, repeats: int) -> list[Row]:
    def read(plan: ScanPlan, store: ObjectStore) -> None:
        assert _read(plan, store, tier, slow_start=False) == tier.records

    return s3_rows(tier, read, repeats=repeats, pace=(FIRST_BYTE_SECONDS, BYTES_PER_SECOND))


def _economy(tier: Tier) -> list[Row]:
    plan = _plan(tier)
    store = DistantStore(tier.path)
    _read(plan, store, tier)
    segments = sum(len(task.slices) for task in plan.tasks)
    allowed = tier.stored_bytes / ENOUGH_REQUEST_BYTES + 3 * segments
    work = store.counters
    return [
        at_most("full scan, requests", work.requests, f"of {allowed:.0f}", allowed),
        at_most("full scan, bytes fetched", work.bytes / tier.stored_bytes, "× stored", 1.01),
    ]


def _limit(tier: Tier) -> Row:
    store = PacedStore(tier.path)
    plan = _plan(tier)
    _read(plan, store, tier, batches=_LIMIT_BATCHES)
    return at_most("limit(10), bytes touched", store.counters.bytes / (1 << 20), "MiB", 16)


def _memory(log_bytes: int) -> list[Row]:
    """Returns the row of the peak memory, measured in a new process, because other benchmarks would
    change the peak.
    """
    grown = subprocess.run(
        [sys.executable, "-m", "benchmarks.fetch", str(log_bytes)],
        check=True,
        capture_output=True,
        text=True,
        timeout=900,
    )
    memory = json.loads(grown.stdout.splitlines()[-1])
    name = f"peak memory above a small read, one segment of {log_bytes >> 20} MiB"
    return [at_most(name, memory["growth"] / (1 << 20), "MiB", 256)]


def _peak() -> int:
    """Returns the peak memory of this process in bytes, from `VmHWM`, which unlike `ru_maxrss` can
    be reset.
    """
    with Path("/proc/self/status").open(encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


def _measure_memory(log_bytes: int) -> None:
    shape = TierShape(1000, log_bytes, partitions=1, segment_bytes=log_bytes)
    if os.fork() == 0:  # writes in a child, so that its memory does not count
        make_tier(shape)
        os._exit(0)
    os.wait()
    tier = make_tier(shape)
    plan = _plan(tier)
    _read(plan, LocalStore(tier.path), tier, batches=1)
    before = _peak()
    rows = _read(plan, PacedStore(tier.path), tier)
    assert rows == tier.records
    print(json.dumps({"growth": _peak() - before}))


def _aes() -> Row:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    size = 4 << 20
    key, aad = os.urandom(32), os.urandom(32)
    message = encrypt(os.urandom(size), data_key=key, aad=aad)
    chunk = Chunk(0, 0, size, 0, len(message))
    cipher = AESGCM(key)

    def alone() -> None:
        cipher.decrypt(message[:12], message[12:], aad)

    def ours() -> None:
        restore_chunk(message, chunk, compression=False, data_key=key, aad=aad)

    library, product = best_seconds(alone, ours, repeats=40)
    return at_least("AES-GCM of a chunk, share of the library alone", library / product, "×", 0.9)


if __name__ == "__main__":
    _measure_memory(int(sys.argv[1]))
