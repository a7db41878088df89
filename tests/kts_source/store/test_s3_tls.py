"""Tests S3 over TLS and through proxies, with settings of the options and the environment."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.errors import StoreError
from kts_source.store.open_store import open_store
from kts_source.store.request_policy import DEFAULT_RETRY_POLICY, RetryPolicy
from kts_source.store.storage_options import storage_options_from
from tests.integration.certificates import Certificates, make_certificates
from tests.kts_source.store.fake_cloud import DATA, ETAG, FakeCloud

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from kts_source.store.object_store import ObjectStore

pytestmark = pytest.mark.slow

POLICY = RetryPolicy(
    max_attempts=2,
    first_pause_seconds=0.001,
    connect_timeout_seconds=10.0,
    read_timeout_seconds=20.0,
)


@dataclasses.dataclass
class TlsCloud:
    """A `FakeCloud` with TLS.

    Attributes:
        cloud: Computes the responses.
        url: URL with the host name in the server's certificate.
        handshakes: One entry per connection: true if it resumed a TLS session.
        record_bytes: Size of the TLS records; `None` for the library's default.
        closes: True to close the connection after each response.
        pause_seconds: Time before each handshake.
    """

    cloud: FakeCloud
    url: str
    handshakes: list[bool | None]
    record_bytes: int | None = None
    closes: bool = False
    pause_seconds: float = 0.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def server(
    clean_environment: None, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TlsCloud]:
    context = certificates.server_context()
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates.authority))
    cloud = FakeCloud("0.0.0.0")
    tls_cloud = TlsCloud(cloud, cloud.url.replace("http://127.0.0.1", "https://localhost"), [])
    handler: Any = cloud.server.RequestHandlerClass

    class Handler(handler):  # type: ignore[misc]  # made at run time
        request: Any
        close_connection: bool

        def setup(self) -> None:
            time.sleep(tls_cloud.pause_seconds)
            self.request = context.wrap_socket(self.request, server_side=True)
            tls_cloud.handshakes.append(self.request.session_reused)
            super().setup()

        def finish(self) -> None:
            try:
                super().finish()
            finally:
                self.request.close()

        def do_GET(self) -> None:  # noqa: N802  # a name of the library
            super().do_GET()
            self.close_connection = self.close_connection or tls_cloud.closes

        do_HEAD = do_GET  # noqa: N815  # a name of the library

        def end_headers(self) -> None:
            super().end_headers()
            if tls_cloud.record_bytes is not None:
                self.wfile = _Records(self.request, tls_cloud.record_bytes)

    cloud.server.RequestHandlerClass = Handler
    with cloud.serving():
        yield tls_cloud


class _Records:
    """Sends data in TLS records of `size` bytes."""

    def __init__(self, connection: ssl.SSLSocket, size: int) -> None:
        self._connection, self._size = connection, size
        self.closed = False

    def write(self, data: bytes) -> None:
        for start in range(0, len(data), self._size):
            self._connection.sendall(data[start : start + self._size])

    def flush(self) -> None:
        """Does nothing, because `write` buffers nothing."""

    def close(self) -> None:
        """Marks the stream as closed without closing the connection, which the server closes."""
        self.closed = True


@contextlib.contextmanager
def opened(
    url: str, bucket: str = "bucket", policy: RetryPolicy = POLICY, /, **options: str
) -> Iterator[ObjectStore]:
    arguments = {
        "s3.endpoint": url,
        "s3.access-key-id": "AK",
        "s3.secret-access-key": "secret-0123456789",
        "s3.region": "us-east-1",
        "s3.path-style-access": "true",
        **{name.replace("_", "."): text for name, text in options.items()},
    }
    store = open_store(f"s3://{bucket}/t", storage_options_from(arguments), retry_policy=policy)
    try:
        yield store
    finally:
        store.close()


def read_all(store: ObjectStore) -> None:
    assert store.get_range("x", 3, 900, version=ETAG) == DATA[3:900]
    assert store.head("x").size == len(DATA)
    assert [info.key for info in store.list_objects("")] == ["kNone"]


def test_certificate_authority_named_in_the_options_is_trusted(
    server: TlsCloud, reader: dict[str, str]
) -> None:
    with opened(server.url, **reader) as store:
        read_all(store)


def test_default_timeouts_permit_slow_handshakes(server: TlsCloud, reader: dict[str, str]) -> None:
    # On two cores with a load of 20, the handshakes of 16 threads took more than a second.
    server.pause_seconds = 3
    policy = dataclasses.replace(DEFAULT_RETRY_POLICY, max_attempts=1)
    with opened(server.url, "bucket", policy, **reader) as store, ThreadPoolExecutor(16) as pool:
        reads = [pool.submit(store.get_range, "x", 0, 9, version=ETAG) for _ in range(16)]
        assert {bytes(read.result()) for read in reads} == {DATA[:9]}


@pytest.mark.parametrize("bundle", ["other authority", "none"])
def test_certificate_of_unknown_authority_is_refused(
    server: TlsCloud,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    reader: dict[str, str],
    bundle: str,
) -> None:
    if bundle == "none":
        monkeypatch.delenv("AWS_CA_BUNDLE")
    else:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates.other_authority))
    with opened(server.url, **reader) as store:
        for read in (
            lambda: store.get_range("x", 0, 9, version=ETAG),
            lambda: store.head("x"),
            lambda: list(store.list_objects("")),
        ):
            with pytest.raises(StoreError, match=r"(?i)certificate"):
                read()
        assert store.counters.retries == 0
    assert server.cloud.seen == []


def test_certificate_of_another_host_is_refused(server: TlsCloud, reader: dict[str, str]) -> None:
    with opened(server.url.replace("localhost", "127.0.0.2"), **reader) as store:
        with pytest.raises(StoreError, match=r"(?i)certificate"):
            store.get_range("x", 0, 9)
        with pytest.raises(StoreError, match=r"(?i)certificate"):
            list(store.list_objects(""))
    assert server.cloud.seen == []


def test_bucket_name_with_dots_is_read(server: TlsCloud, reader: dict[str, str]) -> None:
    """No wildcard certificate matches a host with this bucket name, so the client must put the name
    into the path.
    """
    with opened(server.url, "tier.eu.example", **reader) as store:
        read_all(store)
    paths = [path for _, path, _ in server.cloud.seen]
    assert all(path.startswith("/tier.eu.example") for path in paths)


def test_tls_records_of_one_byte_are_read(server: TlsCloud, reader: dict[str, str]) -> None:
    server.record_bytes = 1
    with opened(server.url, **reader) as store:
        read_all(store)


def test_responses_of_servers_that_close_connections_are_read(
    server: TlsCloud, reader: dict[str, str]
) -> None:
    """A new connection may, but need not, resume the TLS session of an earlier connection."""
    server.closes = True
    with opened(server.url, **reader) as store, ThreadPoolExecutor(4) as pool:
        reads = pool.map(
            lambda position: bytes(store.get_range("x", position, position + 50)),
            range(0, 1000, 50),
        )
        assert b"".join(reads) == DATA[:1000]
    assert len(server.handshakes) >= 20


def test_connections_are_reused(server: TlsCloud, reader: dict[str, str]) -> None:
    with opened(server.url, **reader) as store:
        for _ in range(10):
            store.get_range("x", 0, 50)
    assert len(server.handshakes) <= 2


_forked: list[ObjectStore] = []


def _read_in_child(start: int) -> bytes:
    return bytes(_forked[0].get_range("x", start, start + 100))


# Newer Python versions warn if a process with threads forks, as Spark's daemon does.
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_forked_processes_can_read_after_their_parent(
    server: TlsCloud, reader: dict[str, str]
) -> None:
    with opened(server.url, **reader) as store:
        read_all(store)
        _forked[:] = [store]
        with multiprocessing.get_context("fork").Pool(2) as pool:
            result = pool.map_async(_read_in_child, [0, 100, 200, 300])
            assert store.get_range("x", 0, 50) == DATA[:50]
            assert b"".join(result.get(60)) == DATA[:400]
        read_all(store)


# -- proxies


class ConnectProxy:
    """A proxy that supports CONNECT and forwards to any port of this machine.

    Attributes:
        targets: Requested `host:port` of tunnels, or URLs.
        refusal: The response to send instead of opening a tunnel; `None` opens tunnels.
    """

    def __init__(self) -> None:
        self.targets: list[str] = []
        self.headers: list[str] = []
        self.refusal: bytes | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                head += client.recv(65536)
            method, target, _ = head.split(b" ", 2)
            self.targets.append(target.decode())
            self.headers.append(head.decode("latin-1"))
            if self.refusal is not None or method != b"CONNECT":
                client.sendall(self.refusal or b"HTTP/1.1 405 no\r\nContent-Length: 0\r\n\r\n")
                return
            port = int(target.rpartition(b":")[2])
            with socket.create_connection(("127.0.0.1", port)) as upstream:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                self._pipe(client, upstream)

    @staticmethod
    def _pipe(client: socket.socket, other: socket.socket) -> None:
        while True:
            for ready in select.select([client, other], [], [])[0]:
                if not (data := ready.recv(65536)):
                    return
                (other if ready is client else client).sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def proxy() -> Iterator[ConnectProxy]:
    connect_proxy = ConnectProxy()
    yield connect_proxy
    connect_proxy.close()


def test_every_request_uses_a_tunnel_of_the_proxy_in_the_options(
    server: TlsCloud, proxy: ConnectProxy, reader: dict[str, str]
) -> None:
    url = proxy.url.replace("//", "//user:pass@")
    with opened(server.url, **reader, **{"s3.proxy-uri": url}) as store:
        read_all(store)
    assert set(proxy.targets) == {server.url.removeprefix("https://")}
    assert all("Proxy-Authorization: Basic" in head for head in proxy.headers)
    assert not any("proxy-authorization" in headers for _, _, headers in server.cloud.seen)


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy"])
def test_every_request_uses_a_tunnel_of_the_proxy_in_the_environment(
    server: TlsCloud,
    proxy: ConnectProxy,
    monkeypatch: pytest.MonkeyPatch,
    reader: dict[str, str],
    name: str,
) -> None:
    monkeypatch.setenv(name, proxy.url)
    with opened(server.url, **reader) as store:
        read_all(store)
    assert set(proxy.targets) == {server.url.removeprefix("https://")}
    assert len(server.handshakes) == len(proxy.targets)


@pytest.mark.parametrize("excluded", ["localhost", "example.com,localhost", "*"])
def test_environment_variable_no_proxy_is_respected(
    server: TlsCloud,
    proxy: ConnectProxy,
    monkeypatch: pytest.MonkeyPatch,
    reader: dict[str, str],
    excluded: str,
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    monkeypatch.setenv("NO_PROXY", excluded)
    with opened(server.url, **reader) as store:
        read_all(store)
    assert proxy.targets == []


@pytest.mark.parametrize("status", [b"403 Forbidden", b"407 Proxy Authentication Required"])
def test_refusal_by_a_proxy_raises_error(
    server: TlsCloud, proxy: ConnectProxy, reader: dict[str, str], status: bytes
) -> None:
    proxy.refusal = b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % status
    with opened(server.url, **reader, **{"s3.proxy-uri": proxy.url}) as store:
        with pytest.raises(StoreError):
            store.get_range("x", 0, 9)
        with pytest.raises(StoreError):
            list(store.list_objects(""))
    assert server.cloud.seen == []


def test_proxy_certificate_of_another_host_is_refused(
    server: TlsCloud, proxy: ConnectProxy, reader: dict[str, str]
) -> None:
    """The tunnel leads to the right port, but the server's certificate is for another host than the
    endpoint.
    """
    url = server.url.replace("localhost", "s3.example")
    with (
        opened(url, **reader, **{"s3.proxy-uri": proxy.url}) as store,
        pytest.raises(StoreError, match=r"(?i)certificate"),
    ):
        store.get_range("x", 0, 9)
    assert server.cloud.seen == []
