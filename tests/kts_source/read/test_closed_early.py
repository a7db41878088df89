"""Checks that a task closed early leaves no threads and no open sockets."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read.read_task import run_task
from tests.golden_data import TIER, tier_options

if TYPE_CHECKING:
    from tests.s3 import S3Server


def sockets(endpoint: str) -> set[str]:
    """Returns the open sockets of this process, without those that are connected to another address
    than `endpoint`. Other tests in the process have such sockets, for example to a JVM.
    """
    inodes = set()
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208  # names that vanish while listed
        try:
            target = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
        except FileNotFoundError:
            continue
        if target.startswith("socket:"):
            inodes.add(target)
    port = int(endpoint.rpartition(":")[2])
    connections = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return inodes - {f"socket:[{each[9]}]" for each in connections if int(each[2][-4:], 16) != port}


def fetch_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("kts-")]


@pytest.mark.s3
@pytest.mark.skipif(not Path("/proc/net/tcp").is_file(), reason="no /proc on this system")
@pytest.mark.parametrize(
    "batches", [0, *(pytest.param(few, marks=pytest.mark.slow) for few in (1, 3, None))]
)
def test_task_closed_early_leaves_no_threads_or_sockets(
    s3_server: S3Server, batches: int | None
) -> None:
    bucket = s3_server.upload(TIER / "tiered", prefix="tiered/")
    s3_server.close()
    options = parse_options(
        {**tier_options("codecs"), **s3_server.options, "path": f"s3://{bucket}"}
    )
    plan = plan_scan(options)
    gc.collect()
    before = sockets(s3_server.endpoint)
    rows = run_task(plan.tasks[0], options)
    for number, _ in enumerate(rows):
        if number == batches:
            break
    rows.close()
    del rows
    gc.collect()
    until = time.monotonic() + 5  # a connection attempt in progress runs to its end
    while fetch_threads():
        assert time.monotonic() < until
        time.sleep(0.001)
    assert sockets(s3_server.endpoint) - before == set()
