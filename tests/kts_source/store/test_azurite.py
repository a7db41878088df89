"""Runs the tests of all stores with adlfs on Azurite, an emulator of Azure Blob Storage."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.store.storage_options import storage_options_from
from tests.golden_data import TIER, assert_same_rows, expected_table, tier_options
from tests.kts_source.planning.scanning import scan
from tests.kts_source.store.object_store_suite import ObjectStoreSuite
from tests.servers import free_port, npm_script, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kts_source.secret import Secret

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# The fixed account and key of every Azurite, from its manual.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    command = npm_script("azurite@3.37.0", "dist/src/blob/main.js")
    port = free_port()
    folder = tmp_path_factory.mktemp("azurite")
    arguments = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    quiet = ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    with running([*command, *arguments, *quiet], port):
        server = Service(f"http://127.0.0.1:{port}/{ACCOUNT}")
        yield server
        server.client.close()


class Service:
    """The running emulator, and a separate client that uploads test objects."""

    def __init__(self, url: str) -> None:
        from azure.storage.blob import BlobServiceClient

        parts = ["DefaultEndpointsProtocol=http", f"AccountName={ACCOUNT}", f"AccountKey={KEY}"]
        self.connection = ";".join([*parts, f"BlobEndpoint={url}", ""])
        self.client: Any = BlobServiceClient.from_connection_string(self.connection)
        self.options = {"storageOptions": json.dumps({"connection_string": self.connection})}


@dataclass
class Container:
    """A container of the emulator."""

    service: Service
    name: str

    @property
    def path(self) -> str:
        return f"az://{self.name}"

    @property
    def storage(self) -> Secret[Mapping[str, str]]:
        return storage_options_from(self.service.options)

    def put(self, key: str, data: bytes) -> None:
        self.service.client.get_blob_client(self.name, key).upload_blob(data, overwrite=True)

    def delete(self, key: str) -> None:
        self.service.client.get_blob_client(self.name, key).delete_blob()


class TestAzurite(ObjectStoreSuite):
    knows_missing_root = False

    @pytest.fixture(scope="class")
    @classmethod
    def make_root(cls, service: Service) -> Callable[[], Container]:
        numbers = itertools.count()

        def make() -> Container:
            name = f"place-{next(numbers)}"
            service.client.create_container(name)
            return Container(service, name)

        return make

    @pytest.fixture
    def missing_root(self, service: Service) -> Container:
        return Container(service, "no-such-container")


@pytest.mark.parametrize("topic", ["codecs", "encrypted", "txn"])
def test_golden_topics_are_read(service: Service, topic: str) -> None:
    service.client.create_container(f"tier-{topic}")
    container = Container(service, f"tier-{topic}")
    for file in TIER.rglob("*"):
        if file.is_file():
            container.put(file.relative_to(TIER).as_posix(), file.read_bytes())
    source_options = {**tier_options(topic), **service.options, "path": container.path}
    assert_same_rows(scan(source_options), expected_table(topic, "read_committed"))
