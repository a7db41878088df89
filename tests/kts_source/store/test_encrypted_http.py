"""Requests through encrypted connections: as plain ones, and what only they can go wrong in."""

from __future__ import annotations

import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from kts_source.secret import Secret
from kts_source.store.channel import TlsChannel
from kts_source.store.http_client import HttpClient, HttpSettings
from kts_source.store.retry import TransientError
from tests.integration.certificates import make_certificates
from tests.kts_source.store.raw_server import (
    ANSWER,
    BODY,
    OTHER,
    Server,
    answers,
    ask,
    dripping,
    serving,
    silent,
    whole,
)

if TYPE_CHECKING:
    import http.client
    from collections.abc import Callable, Iterator
    from pathlib import Path


def encrypted(server: Server, sock: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    wrapped = context.wrap_socket(sock, server_side=True)
    server.sockets.append(wrapped)  # it takes the place of the other
    return wrapped


def _tls_of(folder: Path) -> tuple[ssl.SSLContext, str]:
    certificates = make_certificates(folder)
    return certificates.server_context(), str(certificates.authority)


@contextmanager
def serving_encrypted(
    folder: Path, serve: Callable[[Server, socket.socket], object]
) -> Iterator[HttpClient]:
    """Who asks a server that does so with each connection, once it is encrypted."""
    context, authority = _tls_of(folder)

    def wrapped(server: Server, sock: socket.socket) -> None:
        with encrypted(server, sock, context) as one:
            serve(server, one)

    with serving(wrapped) as server:
        url = server.url.replace("http:", "https:")
        yield HttpClient(HttpSettings(url, 2.0, 5.0, ca_file=authority))


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


def test_encrypted_answers_that_are_cut(tmp_path: Path) -> None:
    """An end without the protocol's own word may be anybody's."""

    def cut(server: Server, sock: socket.socket) -> None:
        server.request(sock)
        sock.sendall(ANSWER + BODY[:99_999])
        sock.shutdown(socket.SHUT_RDWR)

    with serving_encrypted(tmp_path, cut) as client:
        with pytest.raises(ssl.SSLError):
            ask(client)
        assert client._idle == []


@pytest.mark.parametrize("is_as_long", [False, True])
@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("size", [4, 100_000, len(BODY)])
def test_what_was_not_asked_for_is_no_answer_to_the_next(
    tmp_path: Path, size: int, is_encrypted: bool, is_as_long: bool
) -> None:
    """Bytes behind an answer, such as a second one, wherever they have come to by then."""
    context, authority = _tls_of(tmp_path)
    answer = ANSWER.replace(b"%d" % len(BODY), b"%d" % size) + BODY[:size]
    following = answer if is_as_long else OTHER

    def serve(server: Server, sock: socket.socket) -> None:
        with encrypted(server, sock, context) if is_encrypted else sock as one:
            answers(server, one, answer + following)

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


@pytest.mark.parametrize("serve", [silent, dripping])
def test_the_deadline_holds_where_it_is_encrypted(
    tmp_path: Path, serve: Callable[[Server, socket.socket], object]
) -> None:
    with (
        serving_encrypted(tmp_path, serve) as client,
        pytest.raises(TransientError, match="deadline"),
    ):
        ask(client, seconds=0.3)


def _encrypted_channel(folder: Path) -> tuple[HttpClient, TlsChannel]:
    """The channel of a request that was answered."""
    with serving_encrypted(folder, answers) as client:
        assert ask(client) == BODY
        (_, connection), *_ = client._idle
        assert isinstance(connection.channel, TlsChannel)
        return client, connection.channel


def test_the_deadline_holds_while_others_decrypt(tmp_path: Path) -> None:
    client, channel = _encrypted_channel(tmp_path)
    assert client._tls is not None
    while not client._tls.free.empty():
        client._tls.free.get()
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
