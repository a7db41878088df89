"""What a plan asks of brokers, and what of their cluster does not concern it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from kts_source.broker import cluster as cluster_module
from kts_source.errors import BrokerUnavailableError
from kts_source.options import parse_options
from kts_source.planning.cluster_view import ClusterView
from segment_format.testing import LogBuilder, SimpleRecord
from tests.kts_source.broker.fake_broker import FakeCluster, FakePartition
from tests.kts_source.broker.fake_log import fake_log

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCH_ENDS = "OffsetForLeaderEpoch"


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    monkeypatch.setattr(cluster_module, "_PATIENCE_SECONDS", 0.5)
    with FakeCluster() as made:
        yield made


def partition(*, leader: int = 0, epoch: int = 0) -> FakePartition:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"value")] * 3)
    log = fake_log(builder.build(), epochs=[(epoch, 0)])
    return FakePartition(log, leader=leader, epoch=epoch)


def ends(brokers: FakeCluster, **selection: str) -> dict[tuple[str, int], int]:
    options = parse_options({"kafka.bootstrap.servers": brokers.bootstrap, **selection})
    with closing(ClusterView(brokers.settings(), options)) as view:
        return {place: log.end for place, log in view.logs.items()}


def test_a_partition_without_a_leader_matters_to_those_who_read_it(brokers: FakeCluster) -> None:
    brokers.create("orders", [partition(), partition(leader=-1)])
    brokers.create("other", [partition(leader=-1)])
    assert ends(brokers, assign='{"orders":[0]}') == {("orders", 0): 3}
    brokers.create("users", [partition()])
    assert ends(brokers, subscribePattern="^users$") == {("users", 0): 3}
    with pytest.raises(BrokerUnavailableError, match="orders-1: it has no leader"):
        ends(brokers, subscribe="orders")


def test_an_emptied_log_is_not_asked_for_all_its_epochs(brokers: FakeCluster) -> None:
    emptied = partition(epoch=500)
    emptied.log.log_start = emptied.log.end
    emptied.log.epochs = [(500, emptied.log.end)]
    brokers.create("orders", [emptied])
    assert ends(brokers, subscribe="orders") == {("orders", 0): 3}
    assert brokers.of_kind(EPOCH_ENDS) == 0
