"""Runs a TCP server that calls a function of the test for each connection, and provides a
client.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from kts_source.store.http_client import HttpClient, HttpSettings
from tests.integration.certificates import make_certificates

if TYPE_CHECKING:
    import http.client
    from collections.abc import Callable, Iterator
    from pathlib import Path

BODY = bytes(range(256)) * 4096
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY)

OTHER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"


class Server:
    """Accepts connections and calls `serve` for each connection."""

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
            thread = threading.Thread(target=self._serve_connection, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve_connection(self, sock: socket.socket) -> None:
        with sock, suppress(OSError):
            self._serve(self, sock)

    def request(self, sock: socket.socket) -> bytes:
        """Reads and returns one request. Returns b"" if the client closed the connection."""
        data = b""
        while not data.endswith(b"\r\n\r\n"):
            received = sock.recv(65536)
            if not received:
                return b""
            data += received
        self.requests.append(data)
        return data

    def close(self) -> None:
        """Closes the listener and all connections, and waits for the threads."""
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


def read_body(answer: http.client.HTTPResponse) -> bytes:
    data = bytearray(len(BODY))
    size = answer.readinto(data)
    return bytes(data[:size])


def ask(client: HttpClient, *, seconds: float = 20.0) -> bytes:
    return client.get("/x", {"Host": "x"}, read_body, seconds=seconds)


def silent(server: Server, sock: socket.socket) -> None:
    server.request(sock)
    sock.recv(1)


def dripping(server: Server, sock: socket.socket) -> None:
    """Sends a response byte by byte, so that the client never waits long for the next byte."""
    server.request(sock)
    for byte in ANSWER + BODY:
        sock.sendall(bytes([byte]))
        time.sleep(0.01)


# -- TLS


def tls_context(folder: Path) -> tuple[ssl.SSLContext, str]:
    """Returns a TLS context for a server, and the path of the certificate authority for clients."""
    certificates = make_certificates(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.broker)
    return context, str(certificates.authority)


def encrypt(server: Server, sock: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    wrapped = context.wrap_socket(sock, server_side=True)
    server.sockets.append(wrapped)  # replaces the plain socket
    return wrapped


@contextmanager
def serving_encrypted(
    folder: Path,
    serve: Callable[[Server, socket.socket], object],
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
) -> Iterator[tuple[Server, HttpSettings]]:
    """Runs a server that calls `serve` for each connection after the TLS handshake. Yields the
    server, and settings for its clients.
    """
    context, authority = tls_context(folder)
    context.minimum_version = context.maximum_version = version

    def serve_encrypted(server: Server, sock: socket.socket) -> None:
        with encrypt(server, sock, context) as wrapped:
            serve(server, wrapped)

    with serving(serve_encrypted) as server:
        url = server.url.replace("http:", "https:")
        yield server, HttpSettings(url, 2.0, 5.0, ca_file=authority)
