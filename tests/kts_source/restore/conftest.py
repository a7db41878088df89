"""Defines the fixture `cluster`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kts_source.broker.fake_broker import FakeCluster
from tests.kts_source.restore.world import NewCluster, new_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[NewCluster]:
    """Returns a new cluster without topics."""
    with FakeCluster() as brokers:
        yield new_cluster(tmp_path / "new", brokers)
