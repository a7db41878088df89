"""Checks that an export from brokers continues a table only if the log still matches the last
commit.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import DataLossError
from kts_source.export.ranges import PartitionKey
from kts_source.options import parse_options
from kts_source.planning.cluster_view import ClusterView
from segment_format.testing import LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log, with_log_start
from tests.kts_source.export.exporting import Lake

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from segment_format.testing import BuiltLog


@pytest.fixture
def brokers() -> Iterator[FakeCluster]:
    with FakeCluster() as cluster:
        yield cluster


def log_of(*spans: tuple[int, bytes, int]) -> BuiltLog:
    """Returns a log that consists of `spans`. Each span is (leader epoch, value of all records of
    the span, number of records).
    """
    builder = LogBuilder(leader_epoch=spans[0][0])
    last = spans[0][0]
    for epoch, value, count in spans:
        if epoch != last:
            builder.set_leader_epoch(epoch)
        last = epoch
        builder.append([SimpleRecord(value, b"k")] * count)
    return builder.build()


def options(brokers: FakeCluster) -> dict[str, str]:
    return {"subscribe": "t", "kafka.bootstrap.servers": brokers.bootstrap}


def test_export_from_brokers_after_unclean_election_raises(
    brokers: FakeCluster, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, "parquet")
    partition = FakePartition(fake_log(log_of((3, b"a", 10), (250, b"dead", 5))), epoch=250)
    brokers.create("t", [partition])
    lake.export(options(brokers))
    key = PartitionKey(topic_id(brokers), 0)
    committed = lake.table().load().committed.get(key)
    assert committed is not None
    assert (committed.stop, committed.epoch) == (15, 250)
    partition.log = fake_log(log_of((3, b"a", 10), (251, b"live", 10)))
    partition.epoch = 251
    with pytest.raises(DataLossError, match=r"leader epoch 250, but belongs to epoch 251 now"):
        lake.export(options(brokers))
    assert lake.export({**options(brokers), "failOnDataLoss": "false"}).rows == 5


def test_export_from_brokers_after_lost_records_raises(
    brokers: FakeCluster, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, "parquet")
    partition = FakePartition(fake_log(log_of((3, b"a", 15))), epoch=3)
    brokers.create("t", [partition])
    lake.export(options(brokers))
    partition.log = fake_log(log_of((3, b"a", 10)))
    with pytest.raises(DataLossError, match=r"ends at offset 10\. If the missing records were"):
        lake.export(options(brokers))


def test_export_continues_if_the_log_starts_at_the_end_of_the_table(
    brokers: FakeCluster, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, "parquet")
    partition = FakePartition(fake_log(log_of((3, b"a", 10))), epoch=3)
    brokers.create("t", [partition])
    lake.export(options(brokers))
    longer = fake_log(log_of((3, b"a", 10), (7, b"b", 5)))
    partition.log, partition.epoch = with_log_start(longer, 10), 7
    assert lake.export(options(brokers)).rows == 5
    assert lake.export(options(brokers)).commits == 0


def test_export_continues_partition_that_had_no_records_before(
    brokers: FakeCluster, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, "parquet")
    full = FakePartition(fake_log(log_of((3, b"a", 10))), epoch=3)
    expired = FakePartition(with_log_start(fake_log(log_of((3, b"a", 10))), 10), epoch=3)
    brokers.create("t", [full, expired])
    assert lake.export(options(brokers)).rows == 10
    expired.log = with_log_start(fake_log(log_of((3, b"a", 10), (3, b"b", 5))), 10)
    assert lake.export(options(brokers)).rows == 5


def test_lineage_of_a_leader_contains_only_epochs_with_records(brokers: FakeCluster) -> None:
    spans = [(epoch, b"v", 2) for epoch in (1, 4, 130, 131, 260)]
    brokers.create("t", [FakePartition(fake_log(log_of(*spans)), epoch=260)])
    with closing(ClusterView(brokers.settings(), parse_options(options(brokers)))) as view:
        (log,) = view.logs.values()
        every = [(entry.epoch, entry.start_offset) for entry in view.lineage(log, 0)]
        assert every == [(1, 0), (4, 2), (130, 4), (131, 6), (260, 8)]
        assert view.lineage(log, 9)[-1].epoch == 260


def topic_id(brokers: FakeCluster) -> str:
    with closing(ClusterView(brokers.settings(), parse_options(options(brokers)))) as view:
        return view.topics["t"].topic_id
