"""An HTTP proxy that injects faults into a server's responses, one per request."""

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
    # Number of body bytes after which the connection is reset; None sends all of them.
    cut_at: int | None = None
    # True: after `cut_at` bytes, send nothing more instead of resetting.
    silent: bool = False
    # True: reset the connection without a response.
    dropped: bool = False

    def error(self, status: int, code: str) -> Self:
        """Turns this response into an S3 error document."""
        self.status = status
        self.body = f"<Error><Code>{code}</Code><Message>by the proxy</Message></Error>".encode()
        self.headers = {"Content-Type": "application/xml"}
        return self


def status(number: int, code: str) -> Callable[[Answer], object]:
    """Replaces the response by an S3 error."""
    return lambda answer: answer.error(number, code)


def drop(answer: Answer) -> None:
    """Resets the connection instead of responding."""
    answer.dropped = True


def cut(at: int) -> Callable[[Answer], None]:
    """Resets the connection after `at` bytes of the body."""

    def fault(answer: Answer) -> None:
        answer.cut_at = at

    return fault


def hang(at: int) -> Callable[[Answer], None]:
    """Sends `at` bytes of the body, then nothing more."""

    def fault(answer: Answer) -> None:
        answer.cut_at, answer.silent = at, True

    return fault


def change(**headers: str | None) -> Callable[[Answer], None]:
    """Sets headers (underscores become dashes); None removes a header."""

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
    """Returns the entire object with status 200, like servers without support for ranges."""


class Stall:
    """Sends no response until the proxy ends or the client disconnects."""


Fault = Callable[[Answer], object] | IgnoreRange | Stall


@dataclass
class FaultyProxy:
    """A running proxy. Each request takes one entry of `faults`; None forwards it unchanged.

    Requests after the last entry are forwarded unchanged, too.

    Attributes:
        choose: Chooses the fault by method and path, instead of `faults`.
        silence_seconds: Duration of a stall, unless the client disconnects.
        remembered: Cached responses by request, for servers with constant objects; None disables
            the cache.
    """

    endpoint: str
    choose: Callable[[str, str], Fault | None] | None = None
    silence_seconds: float = 30.0
    remembered: dict[tuple[str, ...], Answer] | None = None
    faults: deque[Fault | None] = field(default_factory=deque)
    # Method and path of every request.
    seen: list[tuple[str, str]] = field(default_factory=list)


class _Server(http.server.ThreadingHTTPServer):
    """The HTTP server of a proxy.

    Attributes:
        target: Host and port of the upstream server.
        proxy: Settings of the proxy and the requests that it received.
        ended: Set when the proxy closes, to end stalls.
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
        # HTTP clients retry automatically if a pooled connection breaks; the tests count requests.
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
        # SO_LINGER with zero seconds makes close() send a reset.
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
