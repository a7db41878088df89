"""The suite of all stores on versitygw, a real S3 gateway over a folder, built from its source."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.golden_data import TIER, assert_same_rows, expected_table, tier_options
from tests.kts_source.remote.range_store_suite import RangeStoreSuite
from tests.kts_source.remote.test_s3_store import Bucket
from tests.kts_source.scan.scanning import scan
from tests.needs import needs
from tests.s3 import ACCESS_KEY, SECRET_KEY, S3Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(900)]

MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
TOOLS = Path(__file__).resolve().parents[3] / "build" / "go"


def binary() -> Path:
    """The gateway, built once a checkout; one on PATH is taken first."""
    found = shutil.which("versitygw")
    if found:
        return Path(found)
    needs("go")
    path = TOOLS / "versitygw"
    if not path.exists():
        environment = {**os.environ, "GOBIN": str(TOOLS)}
        subprocess.run(["go", "install", MODULE], check=True, env=environment, timeout=800)
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[S3Server, Path]]:
    program = binary()
    root = tmp_path_factory.mktemp("versitygw")
    port = free_port()
    environment = {
        **os.environ,
        "ROOT_ACCESS_KEY": ACCESS_KEY,
        "ROOT_SECRET_KEY": SECRET_KEY,
    }
    command = [str(program), "--quiet", "--port", f"127.0.0.1:{port}", "posix", str(root)]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert process.poll() is None, "the gateway ended"
            time.sleep(0.1)
        else:
            pytest.fail("the gateway does not answer")
        server = S3Server(f"http://127.0.0.1:{port}")
        yield server, root
        server.close()
    finally:
        process.terminate()
        process.wait(30)


class TestVersitygw(RangeStoreSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def make_place(cls, gateway: tuple[S3Server, Path]) -> Callable[[], Bucket]:
        server, root = gateway
        numbers = itertools.count()

        def make() -> Bucket:
            name = f"place-{next(numbers)}"
            (root / name).mkdir()
            return Bucket(server, name)

        return make

    @pytest.fixture
    def missing_place(self, gateway: tuple[S3Server, Path]) -> Bucket:
        return Bucket(gateway[0], "no-such-bucket")


@pytest.mark.parametrize("topic", ["codecs", "encrypted", "txn"])
def test_golden_topics_are_read(gateway: tuple[S3Server, Path], topic: str) -> None:
    server, root = gateway
    bucket = f"tier-{topic}"
    (root / bucket).mkdir()
    server.upload(TIER, bucket)
    given = {**tier_options(topic), **server.options, "path": f"s3://{bucket}"}
    assert_same_rows(scan(given), expected_table(topic, "read_committed"))
