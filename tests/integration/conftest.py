"""Fixtures that integration tests share: what takes a broker and minutes is made once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.cluster import BUSY, Cluster, ClusterSpec
from tests.integration.differential_world import World, compared
from tests.needs import needs

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def differential(tmp_path_factory: pytest.TempPathFactory) -> World:
    """What Spark's Kafka source and ours read of the same broker."""
    return compared(tmp_path_factory.mktemp("differential"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one node; each test has topics of its own."""
    needs("java", "mvn")
    with Cluster(
        tmp_path_factory.mktemp("one-node") / "cluster", ClusterSpec(settings=BUSY)
    ) as cluster:
        yield cluster
