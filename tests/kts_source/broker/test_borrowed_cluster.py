"""Tests that later tasks reuse broker connections, and that tasks never share a connection."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import zip_longest
from typing import TYPE_CHECKING

import kts_source
from kts_source.broker import cluster as module
from kts_source.broker.cluster import borrowed_cluster
from kts_source.broker.settings import BrokerSettings, Security
from kts_source.secret import Secret
from segment_format.testing import LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log
from tests.kts_source.broker.fake_node import FETCH

if TYPE_CHECKING:
    import pytest

    from kts_source.engines.scan import Scan

_ROWS = 400


def _scan(cluster: FakeCluster, **changes: str) -> Scan:
    builder = LogBuilder()
    for number in range(_ROWS // 4):
        builder.append([SimpleRecord(b"%d" % number)] * 4)
    cluster.create("t", [FakePartition(fake_log(builder.build()))])
    options = {"subscribe": "t", "kafka.bootstrap.servers": cluster.bootstrap, **changes}
    scan = kts_source.scan(options)
    assert scan.plan.tasks
    return scan


def _settings(port: int) -> BrokerSettings:
    return BrokerSettings((("127.0.0.1", port),), Secret(Security()))


def test_connections_of_ended_threads_are_reused() -> None:
    # Each read starts its own threads. Without reuse, the connections of ended threads would stay
    # open until the process ends, each with a buffer for a response.
    with FakeCluster() as cluster:
        scan = _scan(cluster, minPartitions="6")
        planning = cluster.opened
        for _ in range(5):
            assert scan.to_table(threads=3).num_rows == _ROWS
        assert cluster.opened <= planning + 3


def test_interleaved_reads_in_one_thread_use_separate_connections() -> None:
    # If both reads shared a connection, each would discard the other's responses and fetch again.
    with FakeCluster() as cluster:
        small_fetches = {"kafka.max.partition.fetch.bytes": "800"}
        scan = _scan(cluster, **small_fetches)
        asked = cluster.of_kind(FETCH)
        assert len(list(scan.batches())) >= 1
        alone = cluster.of_kind(FETCH) - asked
        planning = cluster.opened
        tasks = scan.tasks * 2
        reads = [scan.read_task(task) for task in tasks]
        offsets: list[list[int]] = [[] for _ in reads]
        for batches in zip_longest(*reads):
            for rows, batch in zip(offsets, batches, strict=True):
                rows += [] if batch is None else batch["offset"].to_pylist()
        assert offsets == [list(range(_ROWS))] * 2
        assert cluster.opened <= planning + 1
        assert cluster.of_kind(FETCH) - asked == 3 * alone


def test_number_of_idle_cluster_clients_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_idle", [])
    for port in range(1, 40):
        with borrowed_cluster(_settings(port)):
            pass
    assert len(module._idle) == module._MAX_IDLE
    with borrowed_cluster(_settings(39)) as first, borrowed_cluster(_settings(39)) as second:
        assert first is not second
    assert first in module._idle


def test_forked_child_opens_its_own_connections() -> None:
    script = """
import os, sys
from tests.kts_source.broker.test_borrowed_cluster import _settings, borrowed_cluster
with borrowed_cluster(_settings(1)) as cluster:
    pass
child = os.fork()
with borrowed_cluster(_settings(1)) as mine:
    if not child:
        os._exit(mine is cluster)
assert mine is cluster
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, env=dict(os.environ))
