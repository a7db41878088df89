"""Runs an S3 server for tests: moto in a separate process, on a free loopback port."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import botocore.config
import botocore.session
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REGION = "us-east-1"
ACCESS_KEY = "test-access-key"
SECRET_KEY = "test-secret-key-0123456789"

# Ends when its standard input is closed, so it also ends when the test process dies.
_SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(*server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class S3Server:
    """A running server: its endpoint, its credentials, and a client to upload objects."""

    endpoint: str
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY
    region: str = REGION
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False)
    _clients: list[Any] = field(default_factory=list, repr=False)

    @property
    def options(self) -> dict[str, str]:
        """Returns the data source options for this server."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret_key,
            "s3.region": self.region,
            "s3.path-style-access": "true",
        }

    def client(self) -> Any:  # noqa: ANN401  # botocore creates its client classes at run time
        """Returns a botocore client, which shares no code with the stores under test."""
        if not self._clients:
            self._clients.append(
                botocore.session.get_session().create_client(
                    "s3",
                    endpoint_url=self.endpoint,
                    aws_access_key_id=self.access_key,
                    aws_secret_access_key=self.secret_key,
                    region_name=self.region,
                    config=botocore.config.Config(s3={"addressing_style": "path"}),
                )
            )
        return self._clients[0]

    def close(self) -> None:
        while self._clients:
            self._clients.pop().close()

    def make_bucket(self, name: str | None = None) -> str:
        """Creates a bucket, with a new name by default, and returns its name."""
        name = name or f"bucket-{next(self._numbers)}"
        self.client().create_bucket(Bucket=name)
        return name

    def put(self, bucket: str, key: str, data: bytes) -> None:
        self.client().put_object(Bucket=bucket, Key=key, Body=data)

    def upload(self, folder: Path, bucket: str | None = None, prefix: str = "") -> str:
        """Uploads all files below a folder, with relative keys; returns the bucket's name."""
        bucket = bucket or self.make_bucket()
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(bucket, prefix + path.relative_to(folder).as_posix(), path.read_bytes())
        return bucket


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """Runs one server for all tests; every test creates its own buckets."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdin is not None
        address = process.stdout.readline().split()
        if len(address) != 2:
            process.kill()
            pytest.fail("the S3 server did not start")
        try:
            server = S3Server(f"http://{address[0]}:{address[1]}")
            yield server
            server.close()
        finally:
            process.stdin.close()
            process.wait(30)
