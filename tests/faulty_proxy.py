"""Runs an HTTP proxy that injects at most one fault into the response to each request."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import http.server
import socket
import struct
import threading
import urllib.parse
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Answer:
    """A response that the proxy is about to send."""

    status: int
    headers: dict[str, str]
    body: bytes
    # Number of body bytes to send before the connection is reset; None sends the entire body.
    cut_at: int | None = None
    # If true, keep the connection idle after `cut_at` bytes instead of resetting it.
    silent: bool = False
    # If true, reset the connection without sending a response.
    dropped: bool = False

    def error(self, status: int, code: str) -> Self:
        """Replaces the response with an S3 error."""
        self.status = status
        self.body = f"<Error><Code>{code}</Code><Message>by the proxy</Message></Error>".encode()
        self.headers = {"Content-Type": "application/xml"}
        return self


def status(number: int, code: str) -> Callable[[Answer], object]:
    """Returns a fault that responds with HTTP status `number` and the S3 error code `code`."""
    return lambda answer: answer.error(number, code)


def drop(answer: Answer) -> None:
    """Resets the connection instead of responding."""
    answer.dropped = True


def cut(at: int) -> Callable[[Answer], None]:
    """Returns a fault that resets the connection after `at` bytes of the body."""

    def fault(answer: Answer) -> None:
        answer.cut_at = at

    return fault


def hang(at: int) -> Callable[[Answer], None]:
    """Returns a fault that sends `at` bytes of the body and then leaves the connection idle."""

    def fault(answer: Answer) -> None:
        answer.cut_at, answer.silent = at, True

    return fault


def change(**headers: str | None) -> Callable[[Answer], None]:
    """Returns a fault that sets response headers; None removes a header.

    Argument names contain `_` instead of `-`."""

    def fault(answer: Answer) -> None:
        for argument, value in headers.items():
            wire_name = argument.replace("_", "-")
            same_names = [name for name in answer.headers if name.lower() == wire_name.lower()]
            for same_name in same_names:
                del answer.headers[same_name]
            if value is not None:
                answer.headers[wire_name] = value

    return fault


class IgnoreRange:
    """A fault: the proxy returns the entire object with status 200, like a server without support
    for range requests.
    """


class Stall:
    """A fault: the proxy sends no response until it closes or `silence_seconds` are over."""


Fault = Callable[[Answer], object] | IgnoreRange | Stall


@dataclass
class FaultyProxy:
    """A running proxy. For each request, it removes the first entry of `faults` and applies it.

    If this entry is None or `faults` is empty, it forwards the request unchanged.

    Attributes:
        choose: Function that returns the fault for the method and the path of a request. If it is
            set, `faults` is ignored.
        silence_seconds: How long `Stall` and `hang` keep an idle connection open.
        remembered: Cached responses by request. Set it only if the objects of the server do not
            change; None disables the cache.
    """

    endpoint: str
    choose: Callable[[str, str], Fault | None] | None = None
    silence_seconds: float = 30.0
    remembered: dict[tuple[str, ...], Answer] | None = None
    faults: deque[Fault | None] = field(default_factory=deque)
    # Method and path of every request so far.
    seen: list[tuple[str, str]] = field(default_factory=list)


class _Server(http.server.ThreadingHTTPServer):
    """The HTTP server of a proxy.

    Attributes:
        target: Host and port of the upstream server.
        proxy: Settings of the proxy and the requests that it received.
        ended: Event that is set when the proxy closes; it ends all waits of `Stall` and `hang`.
    """

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.proxy = FaultyProxy(f"http://127.0.0.1:{self.server_port}")
        self.ended = threading.Event()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def forwarded(self, headers: dict[str, str], body: bytes) -> Answer:
        proxy = self.server.proxy
        lower = {name.lower(): value for name, value in headers.items()}  # obstore's are lower case
        request = (self.command, self.path, *map(str, map(lower.get, ("range", "if-match"))))
        if proxy.remembered is None:
            return self.request_upstream(headers, body)
        if request not in proxy.remembered:
            proxy.remembered[request] = self.request_upstream(headers, body)
        cached = proxy.remembered[request]
        return dataclasses.replace(cached, headers=dict(cached.headers))

    def request_upstream(self, headers: dict[str, str], body: bytes) -> Answer:
        with contextlib.closing(
            http.client.HTTPConnection(self.server.target, timeout=30)
        ) as connection:
            connection.request(self.command, self.path, body=body or None, headers=headers)
            response = connection.getresponse()
            kept = {
                name: value
                for name, value in response.getheaders()
                if name.lower() not in ("connection", "transfer-encoding", "content-length")
            }
            answer = Answer(response.status, kept, response.read())
            if self.command == "HEAD" and (length := response.getheader("Content-Length")):
                answer.headers["Content-Length"] = length
            return answer

    def handle_one(self) -> None:
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        proxy.seen.append((self.command, self.path))
        if proxy.choose is not None:
            fault = proxy.choose(self.command, self.path)
        else:
            fault = proxy.faults.popleft() if proxy.faults else None
        headers = dict(self.headers.items())
        if isinstance(fault, IgnoreRange):
            headers = {n: value for n, value in headers.items() if n.lower() != "range"}
        if isinstance(fault, Stall):
            self.server.ended.wait(proxy.silence_seconds)
            self.reset()
            return
        answer = self.forwarded(headers, body)
        if fault is not None and not isinstance(fault, IgnoreRange):
            fault(answer)
        if answer.dropped:
            self.reset()
            return
        self.send_response(answer.status)
        answer.headers.setdefault("Content-Length", str(len(answer.body)))
        # Without connection reuse, clients do not repeat requests, so tests can count them.
        answer.headers["Connection"] = "close"
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[: answer.cut_at])
        if answer.cut_at is not None:
            self.wfile.flush()
            if answer.silent:
                self.server.ended.wait(proxy.silence_seconds)
            self.reset()

    def reset(self) -> None:
        # With SO_LINGER of zero seconds, close() sends a TCP reset.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = handle_one  # noqa: N815  # names of the library


@contextlib.contextmanager
def faulty_proxy(upstream: str) -> Iterator[FaultyProxy]:
    """Runs a proxy in front of `upstream` (http://host:port) on a free loopback port."""
    with _Server(urllib.parse.urlsplit(upstream).netloc) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.proxy
        finally:
            server.ended.set()
            server.shutdown()
            thread.join()
