"""Fixtures that integration tests share: what takes a broker and minutes is made once."""

from __future__ import annotations

import pytest

from tests.integration.differential_world import World, compared


@pytest.fixture(scope="session")
def differential(tmp_path_factory: pytest.TempPathFactory) -> World:
    """What Spark's Kafka source and ours read of the same broker."""
    return compared(tmp_path_factory.mktemp("differential"))
