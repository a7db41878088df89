"""One request by the standard library: who ends it, what its connection is good for afterwards."""

from __future__ import annotations

import base64
import functools
import gc
import http.client
import socket
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from kts_source.secret import Secret
from kts_source.store.cancel import Cancellation, CancelledFetchError
from kts_source.store.hedge import hedged_call
from kts_source.store.http_client import HttpClient, HttpSettings
from kts_source.store.retry import TransientError
from tests.kts_source.store.raw_server import (
    ANSWER,
    BODY,
    Server,
    answers,
    ask,
    client_of,
    dripping,
    serving,
    silent,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Callable

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


# -- how a server is reached


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
