"""Tests `HttpClient`: reuse of connections, deadlines, cancellation, TLS and proxies."""

from __future__ import annotations

import base64
import gc
import http.client
import socket
import ssl
import subprocess
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from urllib3.connection import HTTPConnection
from urllib3.util import wait_for_read

from kts_source.secret import Secret
from kts_source.store import http_client
from kts_source.store.http_client import HttpClient, HttpSettings
from kts_source.store.request_policy import (
    Cancellation,
    CancelledFetchError,
    TransientError,
    hedged,
)
from tests.integration.certificates import make_certificates
from tests.kts_source.store.raw_server import (
    ANSWER,
    BODY,
    OTHER,
    Server,
    answers,
    ask,
    client_of,
    dripping,
    encrypt,
    read_body,
    serving,
    serving_encrypted,
    silent,
    tls_context,
)
from tests.needs import needs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# -- connections


def test_connection_is_reused() -> None:
    with serving(answers) as server:
        client = client_of(server)
        for _ in range(5):
            assert ask(client) == BODY
        assert server.connections == 1
        assert len(server.requests) == 5


def test_threads_use_one_connection_each() -> None:
    with serving(answers) as server:
        client = client_of(server)
        with ThreadPoolExecutor(12) as pool:
            assert set(pool.map(lambda _: ask(client), range(120))) == {BODY}
        assert server.connections <= 12
        assert len(server.requests) == 120


def test_connection_closed_by_the_server_is_replaced() -> None:
    def serve_once(server: Server, sock: socket.socket) -> None:
        server.request(sock)
        sock.sendall(ANSWER + BODY)

    with serving(serve_once) as server:
        client = client_of(server)
        for number in range(4):
            assert ask(client) == BODY
            time.sleep(0.05)  # the FIN arrives
            assert server.connections == number + 1


def test_connection_is_closed_if_the_response_requests_it() -> None:
    last = ANSWER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + BODY
    with serving(lambda server, sock: answers(server, sock, last)) as server:
        client = client_of(server)
        assert ask(client) == BODY == ask(client)
        assert server.connections == 2


def test_connection_with_an_unread_response_is_closed() -> None:
    with serving(answers) as server:
        client = client_of(server)
        for number in range(3):
            assert client.get("/x", {"Host": "x"}, lambda a: a.status, seconds=20) == 200
            assert server.connections == number + 1


def test_idle_connection_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "_IDLE_SECONDS", 0.05)
    with serving(answers) as server:
        client = client_of(server)
        assert ask(client) == BODY
        time.sleep(0.1)
        assert ask(client) == BODY
        assert server.connections == 2


@pytest.mark.parametrize("is_as_long", [False, True])
@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("size", [4, 100_000, len(BODY)])
def test_connection_with_unsolicited_bytes_is_closed(
    tmp_path: Path, size: int, is_encrypted: bool, is_as_long: bool
) -> None:
    """The bytes after a response may be buffered by the socket, the TLS library or the response
    object.
    """
    context, authority = tls_context(tmp_path)
    answer = ANSWER.replace(b"%d" % len(BODY), b"%d" % size) + BODY[:size]
    following = answer if is_as_long else OTHER

    def serve(server: Server, sock: socket.socket) -> None:
        with encrypt(server, sock, context) if is_encrypted else sock as connection:
            answers(server, connection, answer + following)

    def read_slowly(answer: http.client.HTTPResponse) -> bytes:
        time.sleep(0.05)  # all bytes arrive together
        return read_body(answer)

    with serving(serve) as server:
        url = server.url.replace("http:", "https:") if is_encrypted else server.url
        client = HttpClient(HttpSettings(url, 2.0, 5.0, ca_file=authority))
        for number in range(3):
            assert client.get("/x", {"Host": "x"}, read_slowly, seconds=20) == BODY[:size]
            time.sleep(0.05)
            assert server.connections == number + 1


# -- malformed responses


@pytest.mark.parametrize(
    "answer",
    [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200],
    ids=["empty", "nonsense", "too many headers"],
)
def test_malformed_response_raises_error(answer: bytes) -> None:
    def serve(server: Server, sock: socket.socket) -> None:
        server.request(sock)
        sock.sendall(answer)

    with serving(serve) as server:
        client = client_of(server)
        for number in range(2):
            with pytest.raises((OSError, http.client.HTTPException)):
                ask(client)
            assert server.connections == number + 1


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_truncated_response_returns_only_the_received_bytes(
    tmp_path: Path, is_encrypted: bool
) -> None:
    def serve(server: Server, sock: socket.socket) -> None:
        server.request(sock)
        sock.sendall(ANSWER + BODY[:99_999])
        sock.shutdown(socket.SHUT_RDWR)

    if is_encrypted:
        with serving_encrypted(tmp_path, serve) as (_, settings):
            assert ask(HttpClient(settings)) == BODY[:99_999]
    else:
        with serving(serve) as server:
            assert ask(client_of(server)) == BODY[:99_999]


def _in_pieces(size: int, seconds: float) -> Callable[[Server, socket.socket], object]:
    """Returns a function that sends the body in pieces of `size` bytes, with pauses."""

    def serve(server: Server, sock: socket.socket) -> None:
        while server.request(sock):
            sock.sendall(ANSWER)
            for start in range(0, len(BODY), size):
                sock.sendall(BODY[start : start + size])
                time.sleep(seconds)

    return serve


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_body_from_a_fast_server_is_read_with_few_wakeups(
    tmp_path: Path, is_encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = []

    def count(sock: socket.socket, timeout: float) -> bool:
        waits.append(timeout)
        return wait_for_read(sock, timeout)

    monkeypatch.setattr(http_client, "wait_for_read", count)
    monkeypatch.setattr(http_client, "_WAKE_SECONDS", 5.0)
    serve = _in_pieces(8192, 0.001)  # 128 pieces
    if is_encrypted:
        with serving_encrypted(tmp_path, serve) as (_, settings):
            assert ask(HttpClient(settings)) == BODY
    else:
        with serving(serve) as server:
            assert ask(client_of(server)) == BODY
    assert 1 <= len(waits) <= 12


def test_late_unsolicited_bytes_after_a_body_close_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last wait for the body was for many bytes, so a check for a few must reset that."""
    monkeypatch.setattr(http_client, "_MAX_RECORD_BYTES", 0)
    monkeypatch.setattr(http_client, "_WAKE_SECONDS", 5.0)

    def serve(server: Server, sock: socket.socket) -> None:
        while server.request(sock):
            sock.sendall(ANSWER + BODY[:500_000])
            time.sleep(0.1)
            sock.sendall(BODY[500_000:])
            time.sleep(0.1)
            sock.sendall(OTHER)

    with serving(serve) as server:
        client = client_of(server)
        for number in range(2):
            assert ask(client) == BODY
            assert server.connections == number + 1
            time.sleep(0.3)


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("size", [30_000, 300_000])
def test_body_from_a_slow_server_is_read(tmp_path: Path, size: int, is_encrypted: bool) -> None:
    """The read timeout applies to the time without any byte, not to the time per MiB."""
    serve = _in_pieces(size, 0.02 if size == 30_000 else 0.4)
    if is_encrypted:
        with serving_encrypted(tmp_path, serve) as (_, settings):
            client = HttpClient(replace(settings, read_seconds=0.6))
            assert [ask(client), ask(client)] == [BODY, BODY]
    else:
        with serving(serve) as server:
            client = client_of(server, read_seconds=0.6)
            assert [ask(client), ask(client)] == [BODY, BODY]
            assert server.connections == 1


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_body_that_stops_raises_timeout_error(tmp_path: Path, is_encrypted: bool) -> None:
    def serve(server: Server, sock: socket.socket) -> None:
        server.request(sock)
        sock.sendall(ANSWER + BODY[:400_000])
        sock.recv(1)

    if is_encrypted:
        with serving_encrypted(tmp_path, serve) as (_, settings):
            client = HttpClient(replace(settings, read_seconds=0.3))
            with pytest.raises(TimeoutError, match="silent for"):
                ask(client)
    else:
        with serving(serve) as server, pytest.raises(TimeoutError, match="silent for"):
            ask(client_of(server, read_seconds=0.3))


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("ending", ["deadline", "cancellation", "end of the connection"])
def test_wait_for_many_bytes_ends_early(tmp_path: Path, ending: str, is_encrypted: bool) -> None:
    """With TLS, the connection ends without `close_notify`."""

    def serve(server: Server, sock: socket.socket) -> None:
        server.request(sock)
        sock.sendall(ANSWER + BODY[:400_000])
        if ending != "end of the connection":
            sock.recv(1)

    cancellation = Cancellation()

    def check(settings: HttpSettings) -> None:
        client, start = HttpClient(settings), time.monotonic()
        with cancellation.scope():
            if ending == "deadline":
                with pytest.raises(TransientError, match="deadline"):
                    ask(client, seconds=0.5)
            elif ending == "cancellation":
                timer = threading.Timer(0.1, cancellation.cancel)
                timer.start()
                with pytest.raises(CancelledFetchError):
                    ask(client)
                timer.join()
            else:
                assert ask(client) == BODY[:400_000]
        assert time.monotonic() - start < 4

    if is_encrypted:
        with serving_encrypted(tmp_path, serve) as (_, settings):
            check(settings)
    else:
        with serving(serve) as server:
            check(HttpSettings(server.url, 2.0, 5.0))


def test_connection_refused_is_reported() -> None:
    with serving(answers) as server:
        pass
    with pytest.raises(ConnectionRefusedError):
        ask(client_of(server))


# -- deadlines and cancellation


def test_silent_server_raises_timeout_error() -> None:
    with serving(silent) as server:
        start = time.monotonic()
        with pytest.raises(TimeoutError, match="silent for"):
            ask(client_of(server, read_seconds=0.2))
        assert 0.15 < time.monotonic() - start < 5


@pytest.mark.parametrize("serve", [silent, dripping])
def test_deadline_ends_the_request(serve: Callable[[Server, socket.socket], object]) -> None:
    with serving(serve) as server:
        start = time.monotonic()
        with pytest.raises(TransientError, match=r"deadline 0.3 s \(option fetchDeadlineMs\)"):
            ask(client_of(server), seconds=0.3)
        assert 0.25 < time.monotonic() - start < 5


@pytest.mark.parametrize("serve", [silent, dripping])
def test_deadline_ends_an_encrypted_request(
    tmp_path: Path, serve: Callable[[Server, socket.socket], object]
) -> None:
    with (
        serving_encrypted(tmp_path, serve) as (_, settings),
        pytest.raises(TransientError, match="deadline"),
    ):
        ask(HttpClient(settings), seconds=0.3)


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("serve", [silent, dripping])
def test_cancellation_ends_the_request(
    tmp_path: Path, serve: Callable[[Server, socket.socket], object], is_encrypted: bool
) -> None:
    cancellation = Cancellation()

    def read(client: HttpClient) -> bytes:
        with cancellation.scope():
            return ask(client)

    def cancel(server: Server, settings: HttpSettings) -> None:
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read, HttpClient(settings))
            while not server.requests:
                time.sleep(0.001)
            time.sleep(0.05)
            cancellation.cancel()
            with pytest.raises(CancelledFetchError):
                reading.result(2)

    if is_encrypted:
        with serving_encrypted(tmp_path, serve) as (server, settings):
            cancel(server, settings)
    else:
        with serving(serve) as server:
            cancel(server, HttpSettings(server.url, 2.0, 5.0))


def test_truncated_response_of_a_cancelled_request_is_not_a_failure() -> None:
    """If it counted as a failure, the caller would retry the cancelled request or raise an
    error.
    """
    cancellation = Cancellation()

    def read(answer: http.client.HTTPResponse) -> bytes:
        cancellation.cancel()
        if read_body(answer) != BODY:
            raise TransientError("it is truncated")
        return BODY

    def serve(server: Server, sock: socket.socket) -> None:
        server.request(sock)
        sock.sendall(ANSWER + BODY[:1000])
        sock.recv(1)

    with serving(serve) as server, cancellation.scope(), pytest.raises(CancelledFetchError):
        client_of(server).get("/x", {"Host": "x"}, read, seconds=20)


def test_request_cancelled_before_it_starts_takes_no_connection() -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    with serving(answers) as server:
        client = client_of(server)
        assert ask(client) == BODY
        with cancellation.scope(), pytest.raises(CancelledFetchError):
            ask(client)
        assert ask(client) == BODY
        assert server.connections == 1
        assert len(server.requests) == 2


def test_cancellation_while_connecting_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Connecting may take long, for example because of a slow DNS lookup."""
    started, resume, closed = threading.Event(), threading.Event(), threading.Event()
    create_connection = HTTPConnection._new_conn

    def connect_slowly(connection: HTTPConnection) -> socket.socket:
        started.set()
        assert resume.wait(10)
        return create_connection(connection)

    monkeypatch.setattr(HTTPConnection, "_new_conn", connect_slowly)
    cancellation = Cancellation()

    def serve(_server: Server, sock: socket.socket) -> None:
        if not sock.recv(1):
            closed.set()

    def read(client: HttpClient) -> bytes:
        with cancellation.scope():
            return ask(client)

    with serving(serve) as server, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, client_of(server))
        assert started.wait(10)
        cancellation.cancel()
        with pytest.raises(CancelledFetchError):
            reading.result(2)
        resume.set()
        assert closed.wait(10)


def test_cancellation_during_the_handshake_closes_the_connection(tmp_path: Path) -> None:
    started, closed = threading.Event(), threading.Event()
    cancellation = Cancellation()

    def serve(_server: Server, sock: socket.socket) -> None:
        assert sock.recv(65536)
        started.set()
        if not sock.recv(1):
            closed.set()

    with serving(serve) as server, ThreadPoolExecutor(1) as pool:
        client = HttpClient(HttpSettings(server.url.replace("http:", "https:"), 30.0, 30.0))

        def read() -> bytes:
            with cancellation.scope():
                return ask(client)

        reading = pool.submit(read)
        assert started.wait(10)
        cancellation.cancel()
        with pytest.raises(CancelledFetchError):
            reading.result(2)
        assert closed.wait(2)


def test_late_cancellation_does_not_affect_next_request() -> None:
    """When the cancellation takes effect, the connection may belong to another request."""
    with serving(answers) as server:
        client = client_of(server)
        with ThreadPoolExecutor(4) as pool:
            for _ in range(300):
                cancellation = Cancellation()

                def read(cancellation: Cancellation = cancellation) -> bytes | None:
                    with cancellation.scope():
                        try:
                            return ask(client)
                        except CancelledFetchError:
                            return None

                reading = pool.submit(read)
                other = pool.submit(ask, client)
                cancellation.cancel()
                assert reading.result() in (BODY, None)
                assert other.result() == BODY


def test_response_of_second_request_is_returned_if_the_first_is_silent() -> None:
    def serve(server: Server, sock: socket.socket) -> None:
        if server.connections == 1:
            silent(server, sock)
        else:
            answers(server, sock)

    with serving(serve) as server:
        client, hedges = client_of(server), list[int]()
        start = time.monotonic()
        answer = hedged(lambda: ask(client), after_seconds=0.1, on_second=lambda: hedges.append(1))
        assert answer == BODY
        assert hedges == [1]
        assert time.monotonic() - start < 4, "the client waited for the first request"


def test_request_that_fails_early_causes_no_second_request() -> None:
    with serving(lambda server, sock: server.request(sock)) as server:
        with pytest.raises((OSError, http.client.HTTPException)):
            hedged(lambda: ask(client_of(server)), after_seconds=5, on_second=pytest.fail)
        assert len(server.requests) == 1


# -- TLS


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_responses_over_tls_are_read(tmp_path: Path, version: ssl.TLSVersion) -> None:
    with serving_encrypted(tmp_path, answers, version) as (server, settings):
        client = HttpClient(settings)
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(lambda _: ask(client), range(40))) == {BODY}
        assert server.connections <= 8
        other_host = settings.url.replace("127.0.0.1", "127.0.0.2")
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(HttpClient(replace(settings, url=other_host)))


@pytest.mark.parametrize("size", [1, 100, 5_000, 16 << 10])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_records_of_any_size_are_read(
    tmp_path: Path, version: ssl.TLSVersion, size: int
) -> None:
    body = BODY[: 5_000 * size]

    def serve(server: Server, sock: socket.socket) -> None:
        while server.request(sock):
            sock.sendall(ANSWER.replace(b"%d" % len(BODY), b"%d" % len(body)))
            for start in range(0, len(body), size):
                sock.sendall(body[start : start + size])

    with serving_encrypted(tmp_path, serve, version) as (server, settings):
        client = HttpClient(settings)
        assert ask(client) == body == ask(client)
        assert server.connections == 1


@pytest.mark.parametrize(
    ("version", "command", "message"),
    [("-tls1_3", b"K", b"KeyUpdate"), ("-tls1_2", b"r", b"ClientHello")],
)
def test_tls_messages_inside_a_body_are_not_data(
    tmp_path: Path, version: str, command: bytes, message: bytes
) -> None:
    """`K` changes the keys of both sides and `r` renegotiates all parameters."""
    needs("openssl")
    certificates = make_certificates(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    server = subprocess.Popen(
        ["openssl", "s_server", version, "-msg", "-accept", address, "-cert", certificates.broker],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    half, is_half_read = b"x" * (len(BODY) // 2), threading.Event()

    def await_line(text: bytes) -> None:
        assert any(text in line for line in server.stdout or ())

    def send(data: bytes) -> None:
        assert server.stdin is not None
        server.stdin.write(data)
        server.stdin.flush()

    def read(answer: http.client.HTTPResponse) -> bytes:
        first, second = bytearray(len(half)), bytearray(len(half))
        answer.readinto(first)
        is_half_read.set()
        answer.readinto(second)
        return bytes(first + second)

    try:
        await_line(b"ACCEPT")
        settings = HttpSettings(f"https://{address}", 5.0, 20.0)
        client = HttpClient(replace(settings, ca_file=str(certificates.authority)))
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(client.get, "/x", {"Host": "x"}, read, seconds=30)
            await_line(b"GET /x")
            send(ANSWER + half)
            assert is_half_read.wait(20)
            send(command + b"\n")
            await_line(message)
            send(half)
            assert reading.result(30) == half + half
    finally:
        server.kill()
        server.communicate()


def test_silent_tls_handshake_raises_timeout_error() -> None:
    with serving(
        lambda _server, sock: sock.recv(1) and sock.recv(65536) and sock.recv(1)
    ) as server:
        url = server.url.replace("http:", "https:")
        with pytest.raises(TimeoutError):
            ask(HttpClient(HttpSettings(url, 0.3, 5.0)))


# -- proxies and headers


def test_debug_output_of_http_client_shows_no_headers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http.client.HTTPConnection, "debuglevel", 1)
    with serving(answers) as server:
        client_of(server).get("/x", {"Host": "x", "Token": "it"}, read_body, seconds=9)
    assert capsys.readouterr().out == ""


def test_request_contains_only_the_headers_of_the_caller() -> None:
    with serving(answers) as server:
        client_of(server).get("/a//b?c=%2F", {"Host": "x", "Token": "it"}, read_body, seconds=9)
    lines = server.requests[0].decode().split("\r\n")
    assert lines[0] == "GET /a//b?c=%2F HTTP/1.1"
    assert set(lines[1:]) == {"Host: x", "Token: it", "Accept-Encoding: identity", ""}


def test_plain_request_through_a_proxy_has_the_full_url() -> None:
    with serving(answers) as proxy:
        settings = HttpSettings(
            "http://store.invalid:9000",
            2.0,
            5.0,
            Secret(f"http://us%40er:pass%3Aword@127.0.0.1:{proxy.port}"),
        )
        assert HttpClient(settings).get("/x", {"Host": "h"}, read_body, seconds=9) == BODY
    lines = proxy.requests[0].decode().split("\r\n")
    assert lines[0] == "GET http://store.invalid:9000/x HTTP/1.1"
    assert "Host: h" in lines
    basic = base64.b64encode(b"us@er:pass:word").decode()
    assert f"Proxy-Authorization: Basic {basic}" in lines
    assert "pass" not in repr(settings)


def test_tls_request_through_a_proxy_uses_a_tunnel(tmp_path: Path) -> None:
    context, authority = tls_context(tmp_path)

    def serve(server: Server, sock: socket.socket) -> None:
        server.request(sock)
        sock.sendall(b"HTTP/1.1 200 go on\r\n\r\n")
        with encrypt(server, sock, context) as wrapped:
            answers(server, wrapped)

    with serving(serve) as proxy:
        through = Secret[str | None](f"http://u:p@127.0.0.1:{proxy.port}")
        settings = HttpSettings("https://127.0.0.1:443", 2.0, 5.0, through, authority)
        assert settings.host == "127.0.0.1"
        client = HttpClient(settings)
        assert ask(client) == BODY == ask(client)
    connect, *requests = (request.decode() for request in proxy.requests)
    assert connect.startswith("CONNECT 127.0.0.1:443 ")
    assert "Proxy-Authorization: Basic" in connect
    assert [request.partition("\r\n")[0] for request in requests] == ["GET /x HTTP/1.1"] * 2
    assert "Proxy-Authorization" not in "".join(requests)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 407 No\r\n\r\n", b"nonsense\r\n\r\n", b""])
def test_proxy_that_refuses_a_tunnel_leaks_no_socket(answer: bytes) -> None:
    def serve(server: Server, sock: socket.socket) -> None:
        server.request(sock)
        sock.sendall(answer)
        sock.recv(1)

    with serving(serve) as proxy, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        through = Secret[str | None](f"http://127.0.0.1:{proxy.port}")
        client = HttpClient(HttpSettings("https://[::1]:443", 0.2, 0.2, through))
        with suppress(OSError, http.client.HTTPException):
            pytest.fail(str(ask(client)))
        gc.collect()
        assert [str(warning.message) for warning in warned] == []
    assert proxy.requests[0].startswith(b"CONNECT [::1]:443 ")


@pytest.mark.parametrize("proxy", ["https://proxy:1", "proxy:3128", "socks5://proxy"])
def test_proxies_with_other_schemes_than_http_are_refused(proxy: str) -> None:
    with pytest.raises(ValueError, match="proxy"):
        HttpClient(HttpSettings("http://x", 1.0, 1.0, Secret(proxy)))


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://x:80", "x"),
        ("https://x:443", "x"),
        ("http://x:443", "x:443"),
        ("https://x:8443", "x:8443"),
        ("http://[::1]:9000", "[::1]:9000"),
        ("http://[::1]:80", "[::1]"),
    ],
)
def test_host_header_omits_the_default_port(url: str, host: str) -> None:
    assert HttpSettings(url, 1.0, 1.0).host == host
