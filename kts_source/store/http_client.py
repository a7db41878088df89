"""Sends HTTP GETs through urllib3 and reads the responses directly into the caller's memory.

urllib3 pools connections, checks certificates and uses proxies. A request fails at its deadline, or
when the caller's `Cancellation` is cancelled, even while the server is still sending.
"""

from __future__ import annotations

import base64
import http.client
import io
import socket
import ssl
import threading
import time
import urllib.parse
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util import SKIP_HEADER, wait_for_read

from kts_source.secret import Secret
from kts_source.store.request_policy import (
    CancelledFetchError,
    TransientError,
    cancelled_by,
    deadline_error,
    within_deadline,
)
from kts_source.store.storage_options import MAX_POOL_CONNECTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

# More concurrent decryptions take more CPU: each thread waits for the GIL after every record.
_MAX_DECRYPTING: Final = 2
_MAX_DECRYPTED_BYTES: Final = 1 << 20
# A thread that wakes up for every packet takes more CPU than one that waits for a MiB.
_WAKE_BYTES: Final = 1 << 20
_WAKE_SECONDS: Final = 0.2
# OpenSSL may hold the beginning of a TLS record, which the kernel no longer counts.
_MAX_RECORD_BYTES: Final = 17 << 10
_FAILURES: Final = (OSError, http.client.HTTPException, TransientError)
# Servers and gateways close idle connections, some without notice.
_IDLE_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Address of a server and settings for connections to it.

    Attributes:
        url: `http://host[:port]` or `https://host[:port]`, without a path.
        connect_seconds: Timeout for connecting to one address. A host may have several addresses.
        read_seconds: Maximum time without receiving a byte.
        proxy: URL of an `http://` proxy, with user and password if the proxy needs them; `None`
            connects without a proxy.
        ca_file: File with the certificates of trusted authorities; `None` uses the system's
            certificates.
    """

    url: str
    connect_seconds: float
    read_seconds: float
    proxy: Secret[str | None] = field(default_factory=lambda: Secret(None))
    ca_file: str | None = None

    @property
    def host(self) -> str:
        """Value of the header `Host`, without the port if it is the default port of the scheme."""
        url_parts = urllib.parse.urlsplit(self.url)
        default_port = {"http": 80, "https": 443}[url_parts.scheme]
        host = url_parts.netloc
        return host.removesuffix(f":{default_port}") if url_parts.port == default_port else host


class HttpClient:
    """Pool of connections to one server. Any number of threads of one process may use it.

    Args:
        settings: Address of the server. The constructor sends no request.

    Raises:
        OSError: The file with the certificates cannot be read.
        ValueError: The URL of the proxy is invalid.
    """

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        is_encrypted = settings.url.startswith("https:")
        arguments: dict[str, Any] = {"num_pools": 1, "maxsize": MAX_POOL_CONNECTIONS}
        if is_encrypted:
            arguments["ssl_context"] = _tls_context(settings.ca_file)
        self.secrets: tuple[str, ...] = ()
        if (proxy := settings.proxy.reveal()) is None:
            self._manager = urllib3.PoolManager(**arguments)
        else:
            url, headers, self.secrets = _parse_proxy(proxy)
            self._manager = urllib3.ProxyManager(url, proxy_headers=headers, **arguments)
        self._manager.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
        self._pool = self._manager.connection_from_url(settings.url)
        # A proxy for plain HTTP expects the whole URL in the request line.
        self._before_target = settings.url if proxy is not None and not is_encrypted else ""
        self._timeout = urllib3.Timeout(settings.connect_seconds, settings.read_seconds)
        self._decrypting = threading.BoundedSemaphore(_MAX_DECRYPTING)

    def get(
        self,
        target: str,
        headers: Mapping[str, str],
        read: Callable[[http.client.HTTPResponse], T],
        *,
        seconds: float,
    ) -> T:
        """Sends one GET request and returns the result of `read`, even for an error status. Follows
        no redirects.

        Args:
            target: Path and query, percent-encoded.
            headers: Headers of the request. `Accept-Encoding: identity` is added to them.
            read: Reads the response. If `read` does not read the whole body, the connection is
                closed.
            seconds: Maximum time for the request and `read` together.

        Raises:
            TransientError: The deadline passed.
            CancelledFetchError: The caller's scope was cancelled.
            OSError: The connection failed, or no byte arrived before the read timeout.
            http.client.HTTPException: The response is malformed or truncated.
            ValueError: A header cannot be sent.
        """
        ends = time.monotonic() + seconds
        attempt = _Attempt(ends, self._settings.read_seconds, self._decrypting)
        token = _current.set(attempt)
        answer: Any = None  # its attribute with the response of `http.client` is not public
        try:
            with cancelled_by(attempt.abort):
                attempt.require()
                answer = self._pool.urlopen(
                    "GET",
                    self._before_target + target,
                    headers={**headers, "User-Agent": SKIP_HEADER},
                    timeout=self._timeout,
                    retries=False,
                    redirect=False,
                    assert_same_host=False,
                    preload_content=False,
                )
                result = read(answer._original_response)  # noqa: SLF001  # urllib3's own `readinto` copies
                if answer._original_response.isclosed() and attempt.release():  # noqa: SLF001
                    answer.release_conn()
                    answer = None
            attempt.require()  # the end of a cancelled response may be missing
            return result
        except Exception as error:  # noqa: BLE001  # also urllib3's, which have a cause
            cause = _cause(error)
            if attempt.is_aborted:
                raise CancelledFetchError from None
            if attempt.seconds_left <= 0 and isinstance(cause, _FAILURES):
                raise deadline_error(seconds) from None
            raise cause from None
        finally:
            attempt.end()
            _current.reset(token)
            if answer is not None:
                answer.close()


def _parse_proxy(url: str) -> tuple[str, dict[str, str], tuple[str, ...]]:
    """Splits the URL of a proxy. Returns the URL without user and password, the headers that
    authenticate the user, and the secret texts in these headers.
    """
    url_parts = urllib.parse.urlsplit(url)
    if url_parts.scheme != "http" or not url_parts.hostname:
        raise ValueError("the proxy's URL does not have the form http://host:port")
    headers, secrets = {}, list[str]()
    if url_parts.username is not None:
        user, password = (
            urllib.parse.unquote(word or "") for word in (url_parts.username, url_parts.password)
        )
        basic = base64.b64encode(f"{user}:{password}".encode()).decode()
        headers["Proxy-Authorization"] = f"Basic {basic}"
        secrets += [basic, password, url_parts.password or ""]
    return f"http://{url_parts.netloc.rpartition('@')[2]}", headers, tuple(secrets)


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca_file is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(ca_file)
    return context


def _cause(error: Exception) -> Exception:
    """Returns the standard library's error that an error of urllib3 wraps; an `HTTPException` if it
    wraps none.
    """
    while isinstance(error, urllib3.exceptions.HTTPError):
        inner = [each for each in (error.__cause__, *error.args) if isinstance(each, Exception)]
        if not inner:
            return http.client.HTTPException(f"{type(error).__name__}: {error}")
        error = inner[0]
    return error


class _Attempt:
    """State of one request: its deadline, and the socket that is shut down if the request is
    cancelled.

    Args:
        ends: Deadline in seconds of `time.monotonic`.
        read_seconds: Maximum time without receiving a byte.
        decrypting: Semaphore that limits how many threads decrypt concurrently.
    """

    def __init__(
        self, ends: float, read_seconds: float, decrypting: threading.BoundedSemaphore
    ) -> None:
        self.decrypting = decrypting
        self._ends = ends
        self._read_seconds = read_seconds
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._is_over = False
        self.is_aborted = False

    @property
    def seconds_left(self) -> float:
        return self._ends - time.monotonic()

    def next_timeout(self) -> float:
        """Returns the timeout in seconds for reading the next bytes. Raises `TimeoutError` if the
        deadline has passed.
        """
        left = self.seconds_left
        if left <= 0:
            raise TimeoutError("the deadline passed")
        return min(self._read_seconds, left)

    def require(self) -> None:
        if self.is_aborted:
            raise CancelledFetchError

    def use(self, sock: socket.socket) -> None:
        """Registers the socket that `end` shuts down. Raises `CancelledFetchError` if the request
        has already ended.
        """
        with self._lock:
            if self._is_over:
                raise CancelledFetchError
            self._sock = sock

    def release(self) -> bool:
        """Keeps the socket open for the next request. Returns False if this request was
        cancelled.
        """
        with self._lock:
            if not self.is_aborted:
                self._sock = None
            return not self.is_aborted

    def abort(self) -> None:
        with self._lock:
            if not self._is_over:
                self.is_aborted = True
        self.end()

    def end(self) -> None:
        """Shuts down the registered socket, unless `release` was called."""
        with self._lock:
            self._is_over = True
            if self._sock is not None:
                with suppress(OSError):  # not connected
                    # Not `SSLSocket.shutdown`: a thread that is reading would return ciphertext.
                    socket.socket.shutdown(self._sock, socket.SHUT_RDWR)


_current: ContextVar[_Attempt] = ContextVar("attempt")


class _Connection(HTTPConnection):
    """A connection that observes the deadline and the cancellation of the current `_Attempt`."""

    debuglevel = 0  # `http.client` would print headers
    has_surplus = False
    used_at = 0.0
    _duplicate: socket.socket | None = None

    @property
    def is_connected(self) -> bool:
        """False if the connection is closed, was idle for too long, or has received unsolicited
        bytes.
        """
        if self.has_surplus or time.monotonic() - self.used_at > _IDLE_SECONDS:
            return False
        if isinstance(self.sock, ssl.SSLSocket) and self.sock.pending():
            return False
        return super().is_connected

    def connect(self) -> None:
        """Connects in a thread, because name resolution and TLS do not support a deadline."""
        attempt = self._attempt = _current.get()
        self.has_surplus = False

        def run() -> None:
            try:
                super(_Connection, self).connect()
                attempt.use(self.sock)
            except BaseException:
                self.close()
                raise
            finally:
                if self._duplicate is not None:
                    self._duplicate.close()

        try:
            within_deadline(attempt.seconds_left, run)
        except BaseException:
            attempt.end()  # makes the thread close its connection
            raise

    def _new_conn(self) -> socket.socket:
        sock = super()._new_conn()
        # TLS replaces the socket object, so keep a duplicate: its shutdown ends the handshake.
        attempt = self._attempt
        try:
            self._duplicate = sock.dup()
            attempt.use(self._duplicate)
        except BaseException:
            sock.close()
            raise
        return sock

    def request(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401
        if self.sock is not None:
            _current.get().use(self.sock)
        super().request(*arguments, **named)

    def response_class(  # type: ignore[override]  # a class in `http.client`
        self,
        sock: socket.socket,
        *arguments: Any,  # noqa: ANN401
        **named: Any,  # noqa: ANN401
    ) -> http.client.HTTPResponse:
        source: Any = _RawStream(self, sock, _current.get(self._attempt))
        return http.client.HTTPResponse(source, *arguments, **named)


class _HttpsConnection(_Connection, HTTPSConnection):
    pass


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


class _Stream(io.BufferedReader):
    """Reads the bytes of a response through a buffer. Detects unsolicited bytes after the end of
    the response.
    """

    raw: _RawStream

    def close(self) -> None:
        if not self.closed:
            self.raw.has_ended = True
            self.raw.connection.used_at = time.monotonic()
            if self.peek():
                self.raw.connection.has_surplus = True
        super().close()


class _RawStream(io.RawIOBase):
    """Reads the bytes of a response. A read fails at the deadline of the request. `http.client`
    uses this object in place of the socket.
    """

    def __init__(self, connection: _Connection, sock: socket.socket, attempt: _Attempt) -> None:
        self.connection = connection
        self.has_ended = False
        self._sock = sock
        self._attempt = attempt
        # Keeps the socket open if `http.client` closes it before the response is read.
        self._reference = sock.makefile("rb", buffering=0)
        self._timeout = sock.gettimeout()
        self._wake_bytes = 1
        self._is_fast = True
        sock.setblocking(False)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return _Stream(self)

    def readable(self) -> bool:
        return True

    def readinto(self, view: Any) -> int:  # noqa: ANN401  # any buffer
        if self.has_ended:
            return 0
        read = self._decrypt if isinstance(self._sock, ssl.SSLSocket) else self._sock.recv_into
        while True:
            seconds = self._attempt.next_timeout()
            with suppress(BlockingIOError, ssl.SSLWantReadError):
                return read(view)
            # `len(view)` bytes follow if the response is complete: `_Stream` reads no further.
            self._wake_at(len(view) - _MAX_RECORD_BYTES if self._is_fast else 1)
            if self._wake_bytes > 1:
                self._is_fast = wait_for_read(self._sock, min(seconds, _WAKE_SECONDS))
            elif not wait_for_read(self._sock, seconds):
                raise TimeoutError(f"the server was silent for {seconds:.3g} s")

    def _wake_at(self, size: int) -> None:
        """Sets how many bytes the kernel must have received before a wait for them ends. The end of
        the connection ends it, too.
        """
        size = max(min(size, _WAKE_BYTES), 1)
        if size != self._wake_bytes:
            self._wake_bytes = size
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def _decrypt(self, view: Any) -> int:  # noqa: ANN401
        """Decrypts all complete TLS records that have arrived, writes the bytes to `view`, and
        returns their number. Raises `SSLWantReadError` if no complete record has arrived.
        """
        sock: Any = self._sock
        size, target = 0, memoryview(view)[:_MAX_DECRYPTED_BYTES]
        with self._attempt.decrypting, suppress(ssl.SSLWantReadError):
            while size < len(target):
                count = sock.read(len(target) - size, target[size:])
                if not count:
                    return size
                size += count
        if not size:
            raise ssl.SSLWantReadError
        return size

    def close(self) -> None:
        if not self.closed:
            with suppress(OSError):  # the socket is closed
                self._wake_at(1)
            self._sock.settimeout(self._timeout)
            self._reference.close()
        super().close()
