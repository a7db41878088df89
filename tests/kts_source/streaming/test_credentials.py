"""Tests that a running stream automatically replaces temporary credentials that expire."""

from __future__ import annotations

import http.client
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.golden_data import TIER, expected_table, tier_options
from tests.kts_source.streaming.running import Checkpointed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.s3 import S3Server

EXPIRES_SECONDS = 60
"""Lifetime in each token's response, in seconds; short enough that clients request new tokens
early.
"""
PATH = "/credentials"
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>"


class CredentialProxy(ThreadingHTTPServer):
    """HTTP server that issues short-lived credentials and forwards S3 requests.

    A request for `PATH` returns new credentials, like the endpoint of a container role. Other
    requests are forwarded to an S3 server if their token is valid. If it is not valid, the response
    is 403 with `ExpiredToken`.

    Attributes:
        issued: Number of issued tokens.
        used: Tokens of accepted requests.
        refused: Number of requests with an expired token.
    """

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), CredentialProxyHandler)
        self.store = urlsplit(endpoint).netloc
        self.issued = self.refused = 0
        self.used: set[str] = set()
        self.alive: set[str] = set()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """Returns the URL of this proxy."""
        return f"http://127.0.0.1:{self.server_port}"

    def issue_token(self) -> str:
        """Issues a new token."""
        with self.lock:
            self.issued += 1
            name = f"token-{self.issued}"
            self.alive.add(name)
            return name

    def expire_all(self) -> None:
        """Expires all issued tokens."""
        with self.lock:
            self.alive.clear()

    def accepts(self, token: str) -> bool:
        """Returns true if a token is valid. If not, counts the request as refused."""
        with self.lock:
            if token not in self.alive:
                self.refused += 1
                return False
            self.used.add(token)
            return True


class CredentialProxyHandler(BaseHTTPRequestHandler):
    """Handles requests for credentials and proxied requests."""

    protocol_version = "HTTP/1.1"
    server: CredentialProxy

    def do_GET(self) -> None:
        if self.path == PATH:
            expiration = time.strftime(
                "%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + EXPIRES_SECONDS)
            )
            answer = {
                "AccessKeyId": "key",
                "SecretAccessKey": "secret",
                "Token": self.server.issue_token(),
                "Expiration": expiration,
            }
            self._answer(200, {"Content-Type": "application/json"}, json.dumps(answer).encode())
        elif not self.server.accepts(self.headers.get("x-amz-security-token", "")):
            self._answer(403, {"Content-Type": "application/xml"}, EXPIRED)
        else:
            store = http.client.HTTPConnection(self.server.store, timeout=30)
            store.request(self.command, self.path, headers=dict(self.headers))
            answer_of_store = store.getresponse()
            data = answer_of_store.read()
            self._answer(answer_of_store.status, dict(answer_of_store.getheaders()), data)
            store.close()

    do_HEAD = do_GET  # noqa: N815  # http.server calls this name

    def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response(status)
        for name, text in headers.items():
            if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                self.send_header(name, text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@pytest.fixture
def proxy(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[CredentialProxy]:
    opened = CredentialProxy(s3_server.endpoint)
    thread = threading.Thread(target=opened.serve_forever)
    thread.start()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", opened.url + PATH)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield opened
    opened.shutdown()
    thread.join()
    opened.server_close()


@pytest.mark.slow
@pytest.mark.s3
def test_expired_tokens_are_replaced_while_a_stream_runs(
    proxy: CredentialProxy, s3_server: S3Server
) -> None:
    bucket = s3_server.upload(TIER / "tiered", prefix="tiered/")
    options = {
        **tier_options("txn", maxSegmentsPerTrigger="3", minListingIntervalMs="0"),
        "path": f"s3://{bucket}",
        "s3.endpoint": proxy.url,
        "s3.region": s3_server.region,
        "s3.path-style-access": "true",
    }
    stream = Checkpointed(options)
    while stream.batch():
        proxy.expire_all()
    stream.close()
    rows = sum(table.num_rows for table in stream.batches.values())
    assert rows == expected_table("txn", "read_committed").num_rows
    assert len(stream.batches) > 4
    assert len(proxy.used) > len(stream.batches)
    assert proxy.refused == 0
    assert "token" not in "".join(stream.offset_log)
