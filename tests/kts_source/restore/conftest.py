"""Defines fixtures of a new cluster, before and after a restore."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kts_source.restore.committing import status_restore
from segment_format.testing import LocalTierWriter, LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log
from tests.kts_source.restore.world import NewCluster, new_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from segment_format.testing import BuiltLog


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NewCluster]:
    """Returns a new cluster without topics."""
    with FakeCluster() as brokers:
        yield new_cluster(tmp_path / "new", brokers)


def _log() -> BuiltLog:
    """Returns a log with two leader epochs, and with committed and aborted transactions."""
    builder = LogBuilder(leader_epoch=3, codec="zstd")
    for number in range(6):
        if number == 3:
            builder.set_leader_epoch(5)
        builder.append([SimpleRecord(b"value", b"key %d" % number), SimpleRecord(None, None)])
        builder.send(9, [SimpleRecord(b"in a transaction", b"t", headers=(("h", None),))])
        builder.commit(9) if number % 2 else builder.abort(9)
        builder.roll()
    return builder.build()


@pytest.fixture
def restored(tmp_path: Path, cluster: NewCluster) -> NewCluster:
    """Returns a new cluster with a restored topic, which consumers can read from its brokers."""
    log = _log()
    writer = LocalTierWriter(tmp_path / "tier", topic="orders")
    for files in log.segments:
        if files.log:
            writer.write_segment(files)
    options = {
        "path": str(tmp_path / "tier"),
        "layout": "local-tiered-storage",
        "subscribe": "orders",
    }
    cluster.add_topic("orders")
    assert cluster.plan(options).refusals == ()
    assert status_restore(str(cluster.plan_file))[-1].startswith("next: stop broker 0")
    cluster.write(options)
    topic_id, _ = cluster.brokers.topics["orders"]
    cluster.brokers.create("orders", [FakePartition(fake_log(log), epoch=100)], topic_id)
    return cluster
