"""Tests how OAuth tokens are requested (RFC 6749), reused and renewed, and which errors are raised.

The token endpoint is an HTTP server on the loopback interface.
"""

from __future__ import annotations

import base64
import http.server
import json
import ssl
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import pytest

from kts_source.broker import sasl as oauth
from kts_source.broker.sasl import sasl_client
from kts_source.broker.settings import Security, TokenEndpoint
from kts_source.errors import BrokerError, BrokerUnavailableError
from tests.kts_source.broker.certificates import authority, server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = "hunter2+/ ü"


class Endpoint(http.server.ThreadingHTTPServer):
    """A token endpoint that sends the responses in `answers`. Records each request in `asked`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, bytes]] = []
        self.asked: list[tuple[str, dict[str, str], dict[str, list[str]]]] = []

    def url(self, scheme: str = "http") -> str:
        return f"{scheme}://localhost:{self.server_address[1]}/realm/token?x=1"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:  # overrides BaseHTTPRequestHandler
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append((self.path, dict(self.headers), parse_qs(body)))
        status, data = self.server.answers.pop(0)
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve_endpoint(context: ssl.SSLContext | None = None) -> Iterator[Endpoint]:
    with Endpoint() as endpoint:
        if context is not None:
            endpoint.socket = context.wrap_socket(endpoint.socket, server_side=True)
        thread = threading.Thread(target=endpoint.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield endpoint
        finally:
            endpoint.shutdown()
            thread.join()


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setattr(oauth, "_held", {})
    monkeypatch.setattr(oauth, "_PAUSE_SECONDS", 0.0)
    with serve_endpoint() as server_endpoint:
        yield server_endpoint


def token_source(
    endpoint: Endpoint, *, url: str = "", scope: str = "", urlencoded: bool = False
) -> TokenEndpoint:
    return TokenEndpoint(url or endpoint.url(), "alice", SECRET, scope, urlencoded, ())


def token_response(token: str, **more: object) -> tuple[int, bytes]:
    return 200, json.dumps({"access_token": token, **more}).encode()


@pytest.mark.parametrize(
    ("urlencoded", "pair"), [(False, f"alice:{SECRET}"), (True, "alice:hunter2%2B%2F+%C3%BC")]
)
def test_token_request_follows_rfc_6749(endpoint: Endpoint, urlencoded: bool, pair: str) -> None:
    endpoint.answers.append(token_response("t1"))
    assert oauth.token(token_source(endpoint, scope="a b&c", urlencoded=urlencoded)) == "t1"
    ((path, headers, form),) = endpoint.asked
    assert path == "/realm/token?x=1"
    assert form == {"grant_type": ["client_credentials"], "scope": ["a b&c"]}
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode() == pair


def test_token_is_reused_for_most_of_its_lifetime(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    endpoint.answers += [
        token_response("t1", expires_in=100),
        token_response("t2", expires_in=100),
        token_response("t3"),
    ]
    assert oauth.token(token_source(endpoint)) == "t1"
    now[0] += 79
    assert oauth.token(token_source(endpoint)) == "t1"
    assert oauth.token(token_source(endpoint, scope="other")) == "t2"
    now[0] += 2
    assert oauth.token(token_source(endpoint)) == "t3"


@pytest.mark.parametrize(
    "lifetime", [{}, {"expires_in": "x"}, {"expires_in": -1}, {"expires_in": True}]
)
def test_token_of_unknown_lifetime_is_not_reused(
    endpoint: Endpoint, lifetime: dict[str, object]
) -> None:
    endpoint.answers += [token_response("t1", **lifetime), token_response("t2", **lifetime)]
    assert [oauth.token(token_source(endpoint)) for _ in range(2)] == ["t1", "t2"]


def test_token_rejected_by_a_broker_is_dropped(endpoint: Endpoint) -> None:
    endpoint.answers += [
        token_response("t1", expires_in=1000),
        token_response("t2", expires_in=1000),
    ]
    for token in ("t1", "t2", "t2"):
        security = Security("SASL_SSL", None, "OAUTHBEARER", token_source(endpoint))
        client = sasl_client(security, "broker")
        assert client.auth_bytes() == f"n,,\x01auth=Bearer {token}\x01\x01".encode()
        client.receive(b'{"status":"invalid_token"}' if token == "t1" else b"")


@pytest.mark.parametrize("status", [500, 503, 429])
def test_failure_of_token_endpoint_is_retried(endpoint: Endpoint, status: int) -> None:
    endpoint.answers += [(status, b"hunter2"), (status, b""), token_response("t1")]
    assert oauth.token(token_source(endpoint)) == "t1"
    endpoint.answers += [(status, b"hunter2")] * 3
    with pytest.raises(BrokerUnavailableError, match=f"localhost returned HTTP {status}") as caught:
        oauth.token(token_source(endpoint))
    assert caught.value.retriable
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, b'{"error":"invalid_client"}', r"returned HTTP 401 \(invalid_client\): check"),
        (400, b'{"error":"hunter2"}', "returned HTTP 400: check"),
        (400, b'["hunter2"]', "returned HTTP 400: check"),
        (403, b"<html>hunter2", "returned HTTP 403: check"),
        (302, b"", "returned HTTP 302: check"),
        (204, b"", "returned HTTP 204: check"),
        (200, b"hunter2", "returned no access_token"),
        (200, b"[1]", "returned no access_token"),
        (200, b'{"access_token":null}', "returned no access_token"),
        (200, b'{"access_token":"a\\u0001hunter2"}', "returned no access_token"),
        (200, b"[" * 100_000, "returned no access_token"),
        (200, b'{"access_token":"' + b"a" * (1 << 20) + b'"}', "returned no access_token"),
    ],
)
def test_invalid_response_of_token_endpoint_is_an_error(
    endpoint: Endpoint, status: int, body: bytes, message: str
) -> None:
    endpoint.answers.append((status, body))
    with pytest.raises(BrokerError, match=message) as caught:
        oauth.token(token_source(endpoint))
    assert not caught.value.retriable
    assert "hunter2" not in str(caught.value)
    assert len(endpoint.asked) == 1  # a redirect is not followed with the secret


def test_token_endpoint_that_does_not_respond_raises_unavailable_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(oauth, "_held", {})
    monkeypatch.setattr(oauth, "_PAUSE_SECONDS", 0.0)
    with serve_endpoint() as endpoint:
        closed_endpoint = token_source(endpoint)
    with pytest.raises(BrokerUnavailableError, match="does not answer: ConnectionRefusedError"):
        oauth.token(closed_endpoint)


def test_certificate_of_token_endpoint_is_verified(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(oauth, "_held", {})
    pem = tmp_path / "server.pem"
    pem.write_text(server().key_pem() + server().chain_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with serve_endpoint(context) as endpoint:
        endpoint.answers.append(token_response("t1"))
        with pytest.raises(BrokerError, match="endpoint at localhost is not trusted"):
            oauth.token(token_source(endpoint, url=endpoint.url("https")))
        assert endpoint.asked == []
        pem.write_text(authority().chain_pem)
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
        assert oauth.token(token_source(endpoint, url=endpoint.url("https"))) == "t1"
