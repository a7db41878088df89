"""Runs the tests of all stores with gcsfs on an emulator of Google Cloud Storage."""

from __future__ import annotations

import itertools
import json
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

import fsspec
import pytest

from kts_source.store.storage_options import storage_options_from
from tests.golden_data import TIER, assert_same_rows, expected_table, tier_options
from tests.kts_source.planning.scanning import scan
from tests.kts_source.store.object_store_suite import ObjectStoreSuite
from tests.servers import free_port, go_program, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kts_source.secret import Secret

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MODULE = "github.com/fsouza/fake-gcs-server@v1.52.2"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    from gcsfs.core import GCSFileSystem

    # gcsfs's default class asks another service over gRPC for the bucket type. The emulator has no
    # such service, so gcsfs would wait for minutes.
    fsspec.register_implementation("gs", GCSFileSystem, clobber=True)
    program = go_program(MODULE)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    address = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-external-url", url]
    # The emulator serves its XML API, which obstore uses, only under this host name.
    public = ["-public-host", f"127.0.0.1:{port}"]
    with running([program, "-backend", "memory", *address, *public], port):
        yield Service(url)


@dataclass(frozen=True)
class Service:
    """The running emulator. Tests add objects through its JSON API."""

    url: str

    @property
    def options(self) -> dict[str, str]:
        """Returns the data source options for the emulator."""
        arguments = {"endpoint_url": self.url, "token": "anon"}
        return {"storageOptions": json.dumps(arguments)}

    def make_bucket(self, name: str) -> Bucket:
        """Creates an empty bucket."""
        self.ask("POST", "/storage/v1/b", json.dumps({"name": name}).encode())
        return Bucket(self, name)

    def ask(self, method: str, path: str, data: bytes | None = None) -> None:
        request = urllib.request.Request(self.url + path, data, method=method)
        with urllib.request.urlopen(request, timeout=30):
            pass


@dataclass
class Bucket:
    """A bucket of the emulator."""

    service: Service
    name: str

    @property
    def path(self) -> str:
        return f"gs://{self.name}"

    @property
    def storage(self) -> Secret[Mapping[str, str]]:
        return storage_options_from(self.service.options)

    def put(self, key: str, data: bytes) -> None:
        name = urllib.parse.quote(key, safe="")
        path = f"/upload/storage/v1/b/{self.name}/o?uploadType=media&name={name}"
        self.service.ask("POST", path, data)

    def delete(self, key: str) -> None:
        name = urllib.parse.quote(key, safe="")
        self.service.ask("DELETE", f"/storage/v1/b/{self.name}/o/{name}")


class TestFakeGcs(ObjectStoreSuite):
    knows_missing_root = False

    @pytest.fixture(scope="class")
    @classmethod
    def make_root(cls, service: Service) -> Callable[[], Bucket]:
        numbers = itertools.count()
        return lambda: service.make_bucket(f"place-{next(numbers)}")

    @pytest.fixture
    def missing_root(self, service: Service) -> Bucket:
        return Bucket(service, "no-such-bucket")


@pytest.mark.parametrize("topic", ["codecs", "encrypted", "txn"])
def test_golden_topics_are_read(service: Service, topic: str) -> None:
    bucket = service.make_bucket(f"tier-{topic}")
    for file in TIER.rglob("*"):
        if file.is_file():
            bucket.put(file.relative_to(TIER).as_posix(), file.read_bytes())
    source_options = {**tier_options(topic), **service.options, "path": bucket.path}
    assert_same_rows(scan(source_options), expected_table(topic, "read_committed"))
