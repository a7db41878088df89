"""Runs the suite of all stores on versitygw, a real S3 gateway over a folder, built from source."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.golden_data import TIER, assert_same_rows, expected_table, tier_options
from tests.kts_source.planning.scanning import scan
from tests.kts_source.store.object_store_suite import ObjectStoreSuite
from tests.kts_source.store.test_s3_store import Bucket
from tests.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from tests.servers import VERSITYGW, free_port, go_program, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[S3Server, Path]]:
    program = go_program(VERSITYGW)
    root = tmp_path_factory.mktemp("versitygw")
    port = free_port()
    keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    command: list[str | Path] = [program, "--quiet", "--port", f"127.0.0.1:{port}", "posix", root]
    with running(command, port, environment=keys):
        server = S3Server(f"http://127.0.0.1:{port}")
        yield server, root
        server.close()


class TestVersitygw(ObjectStoreSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def make_root(cls, gateway: tuple[S3Server, Path]) -> Callable[[], Bucket]:
        server, root = gateway
        numbers = itertools.count()

        def make() -> Bucket:
            name = f"place-{next(numbers)}"
            (root / name).mkdir()
            return Bucket(server, name)

        return make

    @pytest.fixture
    def missing_root(self, gateway: tuple[S3Server, Path]) -> Bucket:
        return Bucket(gateway[0], "no-such-bucket")


@pytest.mark.parametrize("topic", ["codecs", "encrypted", "txn"])
def test_golden_topics_are_read(gateway: tuple[S3Server, Path], topic: str) -> None:
    server, root = gateway
    bucket = f"tier-{topic}"
    (root / bucket).mkdir()
    server.upload(TIER, bucket)
    source_options = {**tier_options(topic), **server.options, "path": f"s3://{bucket}"}
    assert_same_rows(scan(source_options), expected_table(topic, "read_committed"))
