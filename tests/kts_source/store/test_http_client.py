"""One request by the standard library: who ends it, what its connection is good for afterwards."""

from __future__ import annotations

import base64
import functools
import gc
import http.client
import socket
import ssl
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from kts_source.secret import Secret
from kts_source.store.cancel import Cancellation, CancelledFetchError
from kts_source.store.channel import TlsChannel
from kts_source.store.hedge import hedged_call
from kts_source.store.http_client import HttpClient, HttpSettings
from kts_source.store.retry import TransientError
from tests.integration.certificates import make_certificates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

BODY = bytes(range(256)) * 4096
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY)


class Server:
    """Takes connections, and does with each what the test says."""

    def __init__(self, serve: Callable[[Server, socket.socket], object]) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._serve = serve
        self.sockets: list[socket.socket] = []
        self._listener = socket.create_server(("0.0.0.0", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self.sockets.append(sock)
            thread = threading.Thread(target=self._one, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _one(self, sock: socket.socket) -> None:
        with sock, suppress(OSError):
            self._serve(self, sock)

    def request(self, sock: socket.socket) -> bytes:
        """Reads one; empty when the client has ended."""
        data = b""
        while not data.endswith(b"\r\n\r\n"):
            part = sock.recv(65536)
            if not part:
                return b""
            data += part
        self.requests.append(data)
        return data

    def close(self) -> None:
        """Ends every connection."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self.sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()


@contextmanager
def serving(serve: Callable[[Server, socket.socket], object]) -> Iterator[Server]:
    server = Server(serve)
    try:
        yield server
    finally:
        server.close()


def answers(server: Server, sock: socket.socket, answer: bytes = ANSWER + BODY) -> None:
    while server.request(sock):
        sock.sendall(answer)


def client_of(server: Server, *, read_seconds: float = 5.0) -> HttpClient:
    return HttpClient(HttpSettings(server.url, 2.0, read_seconds))


def whole(answer: http.client.HTTPResponse) -> bytes:
    data = bytearray(len(BODY))
    size = answer.readinto(data)
    return bytes(data[:size])


def ask(client: HttpClient, *, seconds: float = 20.0) -> bytes:
    return client.get("/x", {"Host": "x"}, whole, seconds=seconds)


# -- connections


def test_connections_are_used_again() -> None:
    with serving(answers) as server:
        client = client_of(server)
        for _ in range(5):
            assert ask(client) == BODY
        assert server.connections == 1
        assert len(server.requests) == 5


def test_many_threads_have_each_their_own() -> None:
    with serving(answers) as server:
        client = client_of(server)
        with ThreadPoolExecutor(12) as pool:
            assert set(pool.map(lambda _: ask(client), range(120))) == {BODY}
        assert server.connections <= 12
        assert len(server.requests) == 120


def test_what_the_server_has_closed_is_not_used() -> None:
    def once(server: Server, sock: socket.socket) -> None:
        server.request(sock)
        sock.sendall(ANSWER + BODY)

    with serving(once) as server:
        client = client_of(server)
        for number in range(4):
            assert ask(client) == BODY
            while client._idle and client._idle[0][1].channel.is_quiet:
                time.sleep(0.001)  # its end is on its way
            assert server.connections == number + 1


def test_what_the_server_will_close_is_not_kept() -> None:
    last = ANSWER.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + BODY

    with serving(lambda server, sock: answers(server, sock, last)) as server:
        client = client_of(server)
        assert ask(client) == BODY
        assert client._idle == []


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("size", [4, 100_000, len(BODY)])
def test_what_was_not_asked_for_is_no_answer_to_the_next(
    tmp_path: Path, size: int, is_encrypted: bool
) -> None:
    """Bytes behind an answer, such as a second one, wherever they have come to by then."""
    context, authority = _tls_of(tmp_path)
    answer = ANSWER.replace(b"%d" % len(BODY), b"%d" % size) + BODY[:size]

    def serve(server: Server, sock: socket.socket) -> None:
        with encrypted(server, sock, context) if is_encrypted else sock as one:
            answers(server, one, answer * 2)

    def slowly(answer: http.client.HTTPResponse) -> bytes:
        time.sleep(0.05)  # all of it comes together
        return whole(answer)

    with serving(serve) as server:
        url = server.url.replace("http:", "https:") if is_encrypted else server.url
        client = HttpClient(HttpSettings(url, 2.0, 5.0, ca_file=authority))
        for number in range(3):
            assert client.get("/x", {"Host": "x"}, slowly, seconds=20) == BODY[:size]
            while client._idle and client._idle[0][1].channel.is_quiet:
                time.sleep(0.001)
            assert server.connections == number + 1


def test_an_answer_that_is_not_read_to_its_end() -> None:
    with serving(answers) as server:
        client = client_of(server)
        for number in range(3):
            assert client.get("/x", {"Host": "x"}, lambda a: a.status, seconds=20) == 200
            assert server.connections == number + 1
        assert client._idle == []


# -- answers that are none


@pytest.mark.parametrize(
    "answer",
    [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200],
    ids=["none", "nonsense", "endless headers"],
)
def test_no_answer(answer: bytes) -> None:
    def serve(server: Server, sock: socket.socket) -> None:
        server.request(sock)
        sock.sendall(answer)

    with serving(serve) as server:
        client = client_of(server)
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(client)
        assert client._idle == []


def test_half_an_answer_says_how_much_it_was() -> None:
    def serve(server: Server, sock: socket.socket) -> None:
        server.request(sock)
        sock.sendall(ANSWER + BODY[:1000])

    with serving(serve) as server:
        client = client_of(server)
        assert ask(client) == BODY[:1000]
        assert client._idle == []


def test_nobody_listens() -> None:
    with serving(answers) as server:
        pass
    with pytest.raises(ConnectionRefusedError):
        ask(client_of(server))


# -- who ends it


def silent(server: Server, sock: socket.socket) -> None:
    server.request(sock)
    sock.recv(1)


def dripping(server: Server, sock: socket.socket) -> None:
    """A byte at a time, so that no wait is ever long."""
    server.request(sock)
    for byte in ANSWER + BODY:
        sock.sendall(bytes([byte]))
        time.sleep(0.01)


def test_silence_is_bounded() -> None:
    with serving(silent) as server:
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="silent for"):
            ask(client_of(server, read_seconds=0.2))
        assert 0.15 < time.monotonic() - began < 5


@pytest.mark.parametrize("serve", [silent, dripping])
def test_the_deadline_holds(serve: Callable[[Server, socket.socket], object]) -> None:
    with serving(serve) as server:
        began = time.monotonic()
        with pytest.raises(TransientError, match=r"deadline 0.3 s \(option fetchDeadlineMs\)"):
            ask(client_of(server), seconds=0.3)
        assert 0.25 < time.monotonic() - began < 5


@pytest.mark.parametrize("serve", [silent, dripping])
def test_a_cancelled_request_ends_at_once(
    serve: Callable[[Server, socket.socket], object],
) -> None:
    scope = Cancellation()

    def read(client: HttpClient) -> bytes:
        with scope.scope():
            return ask(client)

    with serving(serve) as server, ThreadPoolExecutor(1) as pool:
        client = client_of(server)
        reading = pool.submit(read, client)
        while not server.requests:
            time.sleep(0.001)
        scope.cancel()
        with pytest.raises(CancelledFetchError):
            reading.result(2)
        assert client._idle == []


def test_half_an_answer_to_a_cancelled_request_is_no_failure() -> None:
    """It would be counted as a retry, or end the caller's last attempt."""
    scope = Cancellation()

    def read(answer: http.client.HTTPResponse) -> bytes:
        scope.cancel()
        if whole(answer) != BODY:
            raise TransientError("it is not whole")
        return BODY

    def serve(server: Server, sock: socket.socket) -> None:
        server.request(sock)
        sock.sendall(ANSWER + BODY[:1000])
        sock.recv(1)

    with serving(serve) as server, scope.scope(), pytest.raises(CancelledFetchError):
        client_of(server).get("/x", {"Host": "x"}, read, seconds=20)


def test_a_request_that_was_cancelled_before_takes_no_connection() -> None:
    scope = Cancellation()
    scope.cancel()
    with serving(answers) as server:
        client = client_of(server)
        assert ask(client) == BODY
        with scope.scope(), pytest.raises(CancelledFetchError):
            ask(client)
        assert ask(client) == BODY
        assert server.connections == 1
        assert len(server.requests) == 2


def test_cancelled_while_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that takes its time to be looked up; what comes of it is closed by then."""
    asked, go_on, closed = threading.Event(), threading.Event(), threading.Event()
    connect = socket.create_connection

    def slow(*arguments: object, **named: object) -> socket.socket:
        asked.set()
        assert go_on.wait(10)
        sock: socket.socket = connect(*arguments, **named)  # type: ignore[arg-type]
        return sock

    monkeypatch.setattr(socket, "create_connection", slow)
    scope = Cancellation()

    def serve(_server: Server, sock: socket.socket) -> None:
        if not sock.recv(1):
            closed.set()

    def read(client: HttpClient) -> bytes:
        with scope.scope():
            return ask(client)

    with serving(serve) as server, ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, client_of(server))
        assert asked.wait(10)
        scope.cancel()
        with pytest.raises(CancelledFetchError):
            reading.result(2)
        go_on.set()
        assert closed.wait(10)


def test_cancelling_too_late_harms_nobody() -> None:
    """Whoever cancels at the very end may do so when the connection is another's already."""
    with serving(answers) as server:
        client = client_of(server)
        with ThreadPoolExecutor(4) as pool:
            for _ in range(300):
                scope = Cancellation()

                def read(scope: Cancellation = scope) -> bytes | None:
                    with scope.scope():
                        try:
                            return ask(client)
                        except CancelledFetchError:
                            return None

                reading = pool.submit(read)
                other = pool.submit(ask, client)
                scope.cancel()
                assert reading.result() in (BODY, None)
                assert other.result() == BODY


def test_the_second_request_may_win() -> None:
    def serve(server: Server, sock: socket.socket) -> None:
        if server.connections == 1:
            silent(server, sock)
        else:
            answers(server, sock)

    with serving(serve) as server:
        client, seconds = client_of(server), list[int]()
        began = time.monotonic()
        found = hedged_call(
            lambda: ask(client), after_seconds=0.1, on_second=lambda: seconds.append(1)
        )
        assert found == BODY
        assert seconds == [1]
        assert time.monotonic() - began < 4, "the first was waited for"


def test_of_two_that_end_at_once_the_answer_counts() -> None:
    for _ in range(20):
        calls, both = list[int](), threading.Barrier(2)

        def call(calls: list[int] = calls, both: threading.Barrier = both) -> bytes:
            calls.append(1)
            is_first = len(calls) == 1
            both.wait(10)
            if is_first:
                raise OSError("late")
            return BODY

        slow = functools.partial(time.sleep, 0.02)
        assert hedged_call(call, after_seconds=0.001, on_second=slow) == BODY


def test_an_early_failure_is_not_asked_for_twice() -> None:
    with serving(lambda server, sock: server.request(sock)) as server:
        with pytest.raises((OSError, http.client.HTTPException)):
            hedged_call(lambda: ask(client_of(server)), after_seconds=5, on_second=pytest.fail)
        assert len(server.requests) == 1


# -- proxies and encryption


def test_the_librarys_debugging_prints_no_headers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(http.client.HTTPConnection, "debuglevel", 1)
    with serving(answers) as server:
        client_of(server).get("/x", {"Host": "x", "Token": "it"}, whole, seconds=9)
    assert capsys.readouterr().out == ""


def test_a_proxy_of_plain_requests() -> None:
    with serving(answers) as proxy:
        settings = HttpSettings(
            "http://store.invalid:9000",
            2.0,
            5.0,
            Secret(f"http://us%40er:pass%3Aword@127.0.0.1:{proxy.port}"),
        )
        assert HttpClient(settings).get("/x", {"Host": "h"}, whole, seconds=9) == BODY
    lines = proxy.requests[0].decode().split("\r\n")
    assert lines[0] == "GET http://store.invalid:9000/x HTTP/1.1"
    assert "Host: h" in lines
    given = base64.b64encode(b"us@er:pass:word").decode()
    assert f"Proxy-Authorization: Basic {given}" in lines
    assert "pass" not in repr(settings)


def encrypted(server: Server, sock: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    wrapped = context.wrap_socket(sock, server_side=True)
    server.sockets.append(wrapped)  # it takes the place of the other
    return wrapped


def _tls_of(folder: Path) -> tuple[ssl.SSLContext, str]:
    certificates = make_certificates(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.broker)
    return context, str(certificates.authority)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_encrypted(tmp_path: Path, version: ssl.TLSVersion) -> None:
    context, authority = _tls_of(tmp_path)
    context.minimum_version = context.maximum_version = version

    def serve(server: Server, sock: socket.socket) -> None:
        with encrypted(server, sock, context) as wrapped:
            answers(server, wrapped)

    with serving(serve) as server:
        url = server.url.replace("http:", "https:")
        client = HttpClient(HttpSettings(url, 2.0, 5.0, ca_file=authority))
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(lambda _: ask(client), range(40))) == {BODY}
        assert server.connections <= 8
        other = url.replace("127.0.0.1", "127.0.0.2")
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(HttpClient(HttpSettings(other, 2.0, 5.0, ca_file=authority)))


def test_encrypted_through_a_proxy(tmp_path: Path) -> None:
    context, authority = _tls_of(tmp_path)

    def serve(server: Server, sock: socket.socket) -> None:
        server.request(sock)
        sock.sendall(b"HTTP/1.1 200 go on\r\n\r\n")
        with encrypted(server, sock, context) as wrapped:
            answers(server, wrapped)

    with serving(serve) as proxy:
        settings = HttpSettings(
            "https://127.0.0.1:443",
            2.0,
            5.0,
            Secret(f"http://u:p@127.0.0.1:{proxy.port}"),
            authority,
        )
        assert settings.host == "127.0.0.1"
        client = HttpClient(settings)
        assert ask(client) == BODY == ask(client)
    connect, *asked = (request.decode() for request in proxy.requests)
    assert connect.startswith("CONNECT 127.0.0.1:443 ")
    assert "Proxy-Authorization: Basic" in connect
    assert [request.partition("\r\n")[0] for request in asked] == ["GET /x HTTP/1.1"] * 2
    assert "Proxy-Authorization" not in "".join(asked)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 407 No\r\n\r\n", b"nonsense\r\n\r\n", b""])
def test_a_proxy_that_does_not_connect(answer: bytes) -> None:
    """What is open then is closed, not left to whoever collects garbage."""

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
        assert [str(one.message) for one in warned] == []
    assert proxy.requests[0].startswith(b"CONNECT [::1]:443 ")


def test_encrypted_answers_that_are_cut(tmp_path: Path) -> None:
    """An end without the protocol's own word may be anybody's."""
    context, authority = _tls_of(tmp_path)

    def serve(server: Server, sock: socket.socket) -> None:
        with encrypted(server, sock, context) as wrapped:
            server.request(wrapped)
            wrapped.sendall(ANSWER + BODY[:99_999])
            wrapped.shutdown(socket.SHUT_RDWR)

    with serving(serve) as server:
        url = server.url.replace("http:", "https:")
        client = HttpClient(HttpSettings(url, 2.0, 5.0, ca_file=authority))
        with pytest.raises(ssl.SSLError):
            ask(client)
        assert client._idle == []


@pytest.mark.parametrize("serve", [silent, dripping])
def test_the_deadline_holds_where_it_is_encrypted(
    tmp_path: Path, serve: Callable[[Server, socket.socket], object]
) -> None:
    context, authority = _tls_of(tmp_path)

    def serve_encrypted(server: Server, sock: socket.socket) -> None:
        with encrypted(server, sock, context) as wrapped:
            serve(server, wrapped)

    with serving(serve_encrypted) as server:
        url = server.url.replace("http:", "https:")
        client = HttpClient(HttpSettings(url, 2.0, 5.0, ca_file=authority))
        with pytest.raises(TransientError, match="deadline"):
            ask(client, seconds=0.3)


def _encrypted_channel(folder: Path) -> tuple[HttpClient, TlsChannel]:
    """The channel of a request that was answered."""
    context, authority = _tls_of(folder)

    def serve(server: Server, sock: socket.socket) -> None:
        with encrypted(server, sock, context) as wrapped:
            answers(server, wrapped)

    with serving(serve) as server:
        url = server.url.replace("http:", "https:")
        client = HttpClient(HttpSettings(url, 2.0, 5.0, ca_file=authority))
        assert ask(client) == BODY
        (_, connection), *_ = client._idle
        assert isinstance(connection.channel, TlsChannel)
        return client, connection.channel


def test_the_deadline_holds_while_others_decrypt(tmp_path: Path) -> None:
    client, channel = _encrypted_channel(tmp_path)
    while not client._turns.free.empty():
        client._turns.free.get()
    channel.ends = time.monotonic() + 0.2
    with pytest.raises(TimeoutError):
        channel.receive_into(memoryview(bytearray(10)))


def test_the_deadline_holds_for_pieces_without_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as new keys, as fast as they can be read."""
    _, channel = _encrypted_channel(tmp_path)

    class NoData:
        def pending(self) -> int:
            return 0

        def read(self, *_arguments: object) -> int:
            raise ssl.SSLWantReadError

        def recv_into(self, _piece: memoryview) -> int:
            if time.monotonic() > channel.ends + 5:
                raise AssertionError("it goes on for ever")
            return 100

    monkeypatch.setattr(channel, "_tls", NoData())
    monkeypatch.setattr(channel, "_sock", NoData())
    channel.ends = time.monotonic() + 0.2
    with pytest.raises(TimeoutError):
        channel.receive_into(memoryview(bytearray(10)))


def test_a_handshake_that_never_comes_is_bounded() -> None:
    with serving(
        lambda _server, sock: sock.recv(1) and sock.recv(65536) and sock.recv(1)
    ) as server:
        url = server.url.replace("http:", "https:")
        client = HttpClient(HttpSettings(url, 0.3, 5.0))
        with pytest.raises(TimeoutError):
            ask(client)


@pytest.mark.parametrize("proxy", ["https://proxy:1", "proxy:3128", "socks5://proxy"])
def test_other_proxies_are_refused(proxy: str) -> None:
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
def test_host_headers(url: str, host: str) -> None:
    assert HttpSettings(url, 1.0, 1.0).host == host
