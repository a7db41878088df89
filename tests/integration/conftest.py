"""Defines fixtures of the integration tests.

They have session scope, because starting and filling brokers takes minutes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.cluster import BUSY, Cluster, ClusterSpec
from tests.integration.differential_world import DifferentialResults, run_comparison
from tests.needs import needs

if TYPE_CHECKING:
    from collections.abc import Iterator


HERE = Path(__file__).parent
LONGEST = (
    "test_restore",
    "test_named_delta",
    "test_named_iceberg",
    "differential",
    "test_hand_over",
    "test_stream_live",
    "test_lake_readers",
    "test_tail",
    "test_hybrid_branches",
    "test_hybrid_jobs",
    "test_dump_log_segments",
    "test_typed_lake_readers",
    "test_disks",
    "test_disk_replicas",
)
"""Groups that run first, longest first, so that no worker is left with one of them at the end."""


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in this hook, too
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Assigns tests that share a broker to one xdist worker.

    All tests that use the fixture `differential` form one group. The other tests form one group
    per file.
    """
    ranks: dict[pytest.Item, int] = {}
    for item in items:
        if item.path.is_relative_to(HERE):
            is_differential = "differential" in getattr(item, "fixturenames", ())
            group = "differential" if is_differential else item.path.stem
            item.add_marker(pytest.mark.xdist_group(group))
            ranks[item] = LONGEST.index(group) if group in LONGEST else len(LONGEST)
    items.sort(key=lambda item: ranks.get(item, len(LONGEST)))


@pytest.fixture(scope="session")
def differential(tmp_path_factory: pytest.TempPathFactory) -> DifferentialResults:
    """Returns the results of all differential cases, after reading one broker with Spark's Kafka
    source and with this product.
    """
    return run_comparison(tmp_path_factory.mktemp("differential"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Runs a cluster of one node that all tests share; each test creates its own topics."""
    needs("java", "mvn")
    with Cluster(
        tmp_path_factory.mktemp("one-node") / "cluster", ClusterSpec(settings=BUSY)
    ) as cluster:
        yield cluster
