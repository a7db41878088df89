"""Runs the tests of all stores with adlfs on Azurite, an emulator of Azure Blob Storage."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.cloud_servers import AzureService, Container, azurite
from tests.golden_data import TIER, assert_same_rows, expected_table, tier_options
from tests.kts_source.planning.scanning import scan
from tests.kts_source.store.object_store_suite import ObjectStoreSuite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureService]:
    with azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


class TestAzurite(ObjectStoreSuite):
    knows_missing_root = False

    @pytest.fixture(scope="class")
    @classmethod
    def make_root(cls, service: AzureService) -> Callable[[], Container]:
        numbers = itertools.count()
        return lambda: service.make_root(f"place-{next(numbers)}")

    @pytest.fixture
    def missing_root(self, service: AzureService) -> Container:
        return Container(service, "no-such-container")


@pytest.mark.parametrize("topic", ["codecs", "encrypted", "txn"])
def test_golden_topics_are_read(service: AzureService, topic: str) -> None:
    container = service.make_root(f"tier-{topic}")
    for file in TIER.rglob("*"):
        if file.is_file():
            container.put(file.relative_to(TIER).as_posix(), file.read_bytes())
    source_options = {**tier_options(topic), **service.options, "path": container.path}
    assert_same_rows(scan(source_options), expected_table(topic, "read_committed"))
