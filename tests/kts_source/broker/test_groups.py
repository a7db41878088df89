"""Tests that the offsets of consumer groups are read from their coordinators."""

from __future__ import annotations

from contextlib import closing

import pytest

from kts_source.broker.cluster import Cluster
from kts_source.broker.groups import GroupOffset, group_offsets
from kts_source.errors import BrokerAccessError, BrokerUnavailableError
from segment_format.testing import LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import FakeLog, fake_log
from tests.kts_source.broker.fake_node import GROUP_OFFSETS, Fault


def log_with(records: int) -> FakeLog:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"x")] * records)
    return fake_log(builder.build())


def test_group_lag_is_high_watermark_minus_committed_offset() -> None:
    with FakeCluster(2) as brokers, closing(Cluster(brokers.settings())) as cluster:
        brokers.create("orders", [FakePartition(log_with(7)), FakePartition(log_with(4), leader=1)])
        brokers.groups = {
            "b": (0, {("orders", 1): 4, ("orders", 0): 2, ("gone", 0): 9}),
            "a": (1, {("orders", 0): 7}),
        }
        found = group_offsets(cluster)
        assert found == [
            GroupOffset("a", "Empty", "orders", 0, 7, "", 7),
            GroupOffset("b", "Empty", "gone", 0, 9, "", None),
            GroupOffset("b", "Empty", "orders", 0, 2, "", 7),
            GroupOffset("b", "Empty", "orders", 1, 4, "", 4),
        ]
        assert [offset.lag for offset in found] == [0, None, 5, 0]
        assert {each.topic for each in group_offsets(cluster, ["orders"])} == {"orders"}


@pytest.mark.parametrize(("code", "error"), [(30, BrokerAccessError), (16, BrokerUnavailableError)])
def test_refused_group_request_raises_error_that_names_the_group(
    code: int, error: type[Exception]
) -> None:
    with FakeCluster() as brokers, closing(Cluster(brokers.settings())) as cluster:
        brokers.groups = {"secret": (0, {})}
        brokers.fail(GROUP_OFFSETS, Fault(code))
        with pytest.raises(error, match="group 'secret'"):
            group_offsets(cluster)
