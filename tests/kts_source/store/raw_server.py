"""A server that does with each connection what a test says, below HTTP, and who asks it."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from kts_source.store.http_client import HttpClient, HttpSettings

if TYPE_CHECKING:
    import http.client
    from collections.abc import Callable, Iterator

BODY = bytes(range(256)) * 4096
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY)

OTHER = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"


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


def silent(server: Server, sock: socket.socket) -> None:
    server.request(sock)
    sock.recv(1)


def dripping(server: Server, sock: socket.socket) -> None:
    """A byte at a time, so that no wait is ever long."""
    server.request(sock)
    for byte in ANSWER + BODY:
        sock.sendall(bytes([byte]))
        time.sleep(0.01)
