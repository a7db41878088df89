"""An HTTP proxy that spoils answers of a server on demand, one fault per request."""

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
    """An HTTP answer on its way back."""

    status: int
    headers: dict[str, str]
    body: bytes
    # Bytes of the body after which the connection is reset; None sends all.
    cut_at: int | None = None
    # True makes the connection fall silent there instead.
    silent: bool = False
    # True resets the connection without an answer.
    dropped: bool = False

    def error(self, status: int, code: str) -> Self:
        """Makes this an S3 error document."""
        self.status = status
        self.body = f"<Error><Code>{code}</Code><Message>by the proxy</Message></Error>".encode()
        self.headers = {"Content-Type": "application/xml"}
        return self


def status(number: int, code: str) -> Callable[[Answer], object]:
    """An S3 error instead of the answer."""
    return lambda answer: answer.error(number, code)


def drop(answer: Answer) -> None:
    """A reset instead of the answer."""
    answer.dropped = True


def cut(at: int) -> Callable[[Answer], None]:
    """Resets the connection after a number of bytes of the body."""

    def fault(answer: Answer) -> None:
        answer.cut_at = at

    return fault


def hang(at: int) -> Callable[[Answer], None]:
    """Falls silent after a number of bytes of the body."""

    def fault(answer: Answer) -> None:
        answer.cut_at, answer.silent = at, True

    return fault


def change(**headers: str | None) -> Callable[[Answer], None]:
    """Other headers (underscores become dashes; None takes one away)."""

    def fault(answer: Answer) -> None:
        for name, value in headers.items():
            wire_name = name.replace("_", "-")
            for there in [one for one in answer.headers if one.lower() == wire_name.lower()]:
                del answer.headers[there]
            if value is not None:
                answer.headers[wire_name] = value

    return fault


class IgnoreRange:
    """The whole object with status 200, as servers do that know no ranges."""


class Stall:
    """No answer until the proxy ends or the client goes."""


Fault = Callable[[Answer], object] | IgnoreRange | Stall


@dataclass
class FaultyProxy:
    """A running proxy. Append to `faults`; None lets a request pass; later requests pass, too.

    Attributes:
        choose: Decides instead of `faults`, by method and path.
        silence_seconds: Duration of a stall, unless the client disconnects.
        remembered: Cached answers by request, for servers with constant objects; None disables
            the cache.
    """

    endpoint: str
    choose: Callable[[str, str], Fault | None] | None = None
    silence_seconds: float = 30.0
    remembered: dict[tuple[str, ...], Answer] | None = None
    faults: deque[Fault | None] = field(default_factory=deque)
    # Method and path of every request that came.
    seen: list[tuple[str, str]] = field(default_factory=list)


class _Server(http.server.ThreadingHTTPServer):
    """A proxy's server.

    Attributes:
        target: Host and port of the upstream server.
        proxy: What it does, and what came.
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
        given = {name.lower(): value for name, value in headers.items()}  # obstore's are lower
        asked = (self.command, self.path, *map(str, map(given.get, ("range", "if-match"))))
        if proxy.remembered is None:
            return self.asked_of_server(headers, body)
        if asked not in proxy.remembered:
            proxy.remembered[asked] = self.asked_of_server(headers, body)
        known = proxy.remembered[asked]
        return dataclasses.replace(known, headers=dict(known.headers))

    def asked_of_server(self, headers: dict[str, str], body: bytes) -> Answer:
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
        # HTTP clients repeat requests by themselves when a connection they kept breaks.
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
        # Lingering zero seconds makes the close a reset.
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
