"""HTTP/1.1 GETs of one server by the standard library, whose bytes go where the caller wants them.

A thread waits in its own request, and the kernel copies an answer straight into the caller's
memory: there is no event loop, no queue, and no piece to be put together. Connections are kept and
lent to whoever asks next. The caller's deadline, and its current `Cancellation`, end a request at
any point.
"""

from __future__ import annotations

import base64
import functools
import http.client
import ssl
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kts_source.secret import Secret
from kts_source.store.cancel import CancelledFetchError, cancelled_by
from kts_source.store.channel import Channel, Tls, TlsChannel
from kts_source.store.deadline import no_answer, within_deadline
from kts_source.store.retry import TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

_MAX_IDLE: Final = 32
_IDLE_SECONDS: Final = 20.0
"""Servers and what is between close silent connections; some without a word."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How a server is reached.

    Attributes:
        url: `http://host[:port]` or `https://host[:port]`, without a path.
        connect_seconds: How long a connection may take, for each of the host's addresses.
        read_seconds: How long an answer may be silent.
        proxy: URL of an `http://` proxy, with user and password if it wants them; a secret `None`
            for none.
        ca_file: Whose certificates count where connections are encrypted.
    """

    url: str
    connect_seconds: float
    read_seconds: float
    proxy: Secret[str | None] = field(default_factory=lambda: Secret(None))
    ca_file: str | None = None

    @property
    def host(self) -> str:
        """The header `Host`: without a port that goes without saying."""
        parts = urllib.parse.urlsplit(self.url)
        usual = {"http": 80, "https": 443}[parts.scheme]
        host = parts.netloc
        return host.removesuffix(f":{usual}") if parts.port == usual else host


class HttpClient:
    """Connections to one server. Safe for any number of threads; not to be used after a fork.

    Args:
        settings: How it is reached. Nothing is asked of it yet.

    Raises:
        OSError: The certificates cannot be read.
        ValueError: A URL is none.
    """

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        parts = urllib.parse.urlsplit(settings.url)
        is_encrypted = parts.scheme == "https"
        self._tls = Tls(_tls_context(settings.ca_file)) if is_encrypted else None
        self._host, self._port = parts.hostname or "", parts.port or (443 if is_encrypted else 80)
        self._proxy: _Proxy | None = None
        if (proxy := settings.proxy.reveal()) is not None:
            self._proxy = _Proxy.of(proxy)
        self._lock = threading.Lock()
        self._idle: list[tuple[float, _Connection]] = []

    @property
    def secrets(self) -> tuple[str, ...]:
        """What only the proxy is told, to be hidden where it repeats it."""
        return () if self._proxy is None else self._proxy.secrets

    def get(
        self,
        target: str,
        headers: Mapping[str, str],
        read: Callable[[http.client.HTTPResponse], T],
        *,
        seconds: float,
    ) -> T:
        """Asks once, and gives what `read` makes of the answer, whatever its status.

        Args:
            target: Path and query, percent-encoded.
            headers: All that are sent, but `Accept-Encoding: identity`.
            read: Reads the answer's bytes, or not; then its connection is closed.
            seconds: By when `read` must be done.

        Raises:
            TransientError: The time is up.
            CancelledFetchError: The caller's scope was cancelled.
            OSError: The connection failed, or was silent for too long.
            http.client.HTTPException: The answer is none, or not whole.
        """
        attempt = _Attempt(time.monotonic() + seconds)
        try:
            with cancelled_by(attempt.abort):
                connection = self._free(attempt) or within_deadline(
                    seconds, functools.partial(self._connected, attempt)
                )
                connection.request("GET", *self._asked(target, headers))
                answer = connection.getresponse()
                found = read(answer)
                if answer.isclosed() and connection.sock is not None:
                    self._keep(attempt, connection)
            return found
        except Exception as error:
            if attempt.is_aborted:
                raise CancelledFetchError from None
            if attempt.is_late and isinstance(error, OSError | http.client.HTTPException):
                raise TransientError(f"time-out: {no_answer(seconds)}") from None
            raise
        finally:
            attempt.end()

    def _free(self, attempt: _Attempt) -> _Connection | None:
        """A connection of before that still stands."""
        while True:
            if attempt.is_aborted:
                raise CancelledFetchError
            with self._lock:
                if not self._idle:
                    return None
                since, connection = self._idle.pop()
            channel = connection.channel
            if time.monotonic() - since < _IDLE_SECONDS and channel.is_quiet:
                if attempt.takes(channel):
                    return connection
                self._give_back(connection)
                raise CancelledFetchError
            channel.end()

    def _asked(self, target: str, headers: Mapping[str, str]) -> tuple[str, None, dict[str, str]]:
        """Target, body and headers of a request."""
        if self._proxy is None or self._tls is not None:
            return target, None, dict(headers)
        return self._settings.url + target, None, {**headers, **self._proxy.headers}

    def _keep(self, attempt: _Attempt, connection: _Connection) -> None:
        if attempt.gives_back():  # not if it was aborted meanwhile
            self._give_back(connection)

    def _give_back(self, connection: _Connection) -> None:
        with self._lock:
            self._idle.append((time.monotonic(), connection))
            surplus = [one for _, one in self._idle[:-_MAX_IDLE]]
            del self._idle[:-_MAX_IDLE]
        for one in surplus:
            one.channel.end()

    def _connected(self, attempt: _Attempt) -> _Connection:
        """A new connection; of nobody, and closed, if the attempt is over by then."""
        proxy, seconds = self._proxy, self._settings.connect_seconds
        if proxy is None:
            connection = _Connection(self._host, self._port, timeout=seconds)
        else:
            connection = _Connection(proxy.host, proxy.port, timeout=seconds)
            if self._tls is not None:
                host = f"[{self._host}]" if ":" in self._host else self._host
                connection.set_tunnel(host, self._port, headers=proxy.headers)
        try:
            connection.connect()
            sock, ends = connection.sock, time.monotonic() + seconds
            if self._tls is None:
                channel = Channel(sock, self._settings.read_seconds, ends)
            else:
                channel = TlsChannel(
                    sock, self._settings.read_seconds, ends, tls=self._tls, host=self._host
                )
        except BaseException:
            connection.close()
            raise
        connection.channel = connection.sock = channel
        if not attempt.takes(channel):
            channel.end()
            raise CancelledFetchError
        return connection


class _Connection(http.client.HTTPConnection):
    """The library's, over a `Channel` in place of its socket."""

    channel: Channel
    sock: Any
    auto_open = 0
    debuglevel = 0  # whatever the library's own is: it would print headers


@dataclass(frozen=True, slots=True)
class _Proxy:
    """Where a proxy is, and what it is told."""

    host: str
    port: int
    headers: dict[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def of(cls, url: str) -> _Proxy:
        """The proxy at a URL."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError("the proxy's URL is not of the kind http://host:port")
        headers, secrets = {}, list[str]()
        if parts.username is not None:
            user, password = (
                urllib.parse.unquote(word or "") for word in (parts.username, parts.password)
            )
            given = base64.b64encode(f"{user}:{password}".encode()).decode()
            headers["Proxy-Authorization"] = f"Basic {given}"
            secrets += [given, password, parts.password or ""]
        return cls(parts.hostname, parts.port or 80, headers, tuple(secrets))


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca_file is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(ca_file)
    return context


class _Attempt:
    """One request, and whether somebody, or its deadline, ended it.

    Args:
        ends: When it must be done, by `time.monotonic`.
    """

    def __init__(self, ends: float) -> None:
        self._ends = ends
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._is_over = False
        self.is_aborted = False

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self._ends

    def takes(self, channel: Channel) -> bool:
        """Uses a channel from now on; not if the attempt is over."""
        with self._lock:
            if self._is_over:
                return False
            self._channel = channel
            channel.ends = self._ends
            return True

    def gives_back(self) -> bool:
        """Leaves the channel as it is for another attempt; not if it was aborted."""
        with self._lock:
            if not self.is_aborted:
                self._channel = None
            return not self.is_aborted

    def abort(self) -> None:
        """Wakes who waits for the channel. From any thread, at any time."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = self.is_aborted = True
            if self._channel is not None:
                self._channel.interrupt()

    def end(self) -> None:
        """Closes the channel, unless it was given back."""
        with self._lock:
            self._is_over = True
            if self._channel is not None:
                self._channel.end()
