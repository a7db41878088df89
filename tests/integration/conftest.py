"""Fixtures of the integration tests, with session scope because brokers take minutes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.cluster import BUSY, Cluster, ClusterSpec
from tests.integration.differential_world import World, run_comparison
from tests.needs import needs

if TYPE_CHECKING:
    from collections.abc import Iterator


HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in this hook, too
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs tests that share a broker in one worker: those of a file, or those of `differential`."""
    for item in items:
        if item.path.is_relative_to(HERE):
            is_differential = "differential" in getattr(item, "fixturenames", ())
            group = "differential" if is_differential else item.path.stem
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def differential(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Reads the same broker with Spark's Kafka source and with this one."""
    return run_comparison(tmp_path_factory.mktemp("differential"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Runs a cluster of one node; each test creates its own topics."""
    needs("java", "mvn")
    with Cluster(
        tmp_path_factory.mktemp("one-node") / "cluster", ClusterSpec(settings=BUSY)
    ) as cluster:
        yield cluster
