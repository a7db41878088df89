"""Tests responses that S3 never sends, but that a proxy or gateway may send."""

from __future__ import annotations

import traceback
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import AccessDeniedError, StoreError, StoreUnavailableError
from kts_source.store.request_policy import RetryPolicy
from kts_source.store.s3_store import S3Store
from kts_source.store.storage_options import storage_options_from
from tests.kts_source.store.fake_cloud import DATA, ETAG
from tests.kts_source.store.one_object import KEYS
from tests.kts_source.store.raw_server import answers, serving

if TYPE_CHECKING:
    import socket

    from tests.kts_source.store.raw_server import Server

ONCE = RetryPolicy(max_attempts=1)
RANGE = b"HTTP/1.1 206 Partial Content\r\nETag: %s\r\nContent-Range: bytes 0-99/2048\r\n"
HEAD = RANGE % ETAG.encode()
LENGTH = b"Content-Length: 100\r\n"
CHUNKS = b"\r\n64\r\n" + DATA[:100] + b"\r\n0\r\n\r\n"
PARTS = b"--x\r\nContent-Range: bytes 0-9/2048\r\n\r\n".ljust(100, b"-")
TOKEN = "token-of-the-chain/+=0123456789"


def _store(server: Server, **options: str) -> S3Store:
    return S3Store("s3://bucket", storage_options_from({"s3.endpoint": server.url} | options), ONCE)


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + LENGTH + b"Transfer-Encoding: gzip, chunked\r\n" + CHUNKS,
        HEAD + LENGTH + b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n" + CHUNKS,
        HEAD + b"Transfer-Encoding: chunked\r\n" + CHUNKS,
        HEAD + LENGTH + b"Content-Length: 200\r\n\r\n" + DATA[:200],
        HEAD.partition(b"Content-Range")[0] + LENGTH + b"\r\n" + PARTS,
    ],
    ids=["encoded chunks", "chunks said twice", "chunks", "two lengths", "several ranges"],
)
def test_ambiguous_responses_are_refused(clean_environment: None, answer: bytes) -> None:
    with serving(lambda server, sock: answers(server, sock, answer)) as server:
        store = _store(server, **KEYS)
        with pytest.raises(StoreUnavailableError, match=r"no valid Content-|multiple unmatching"):
            store.get_range("x", 0, 100, version=ETAG)
        assert store.counters.bytes == 0
        store.close()


def test_s3fs_reads_after_an_interim_response(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(S3Store, "_read_by_s3fs", lambda *_arguments: DATA[:100])
    early = b"HTTP/1.1 103 Early Hints\r\n\r\n"
    with serving(lambda server, sock: answers(server, sock, early)) as server:
        store = _store(server, **KEYS)
        assert store.get_range("x", 0, 100) == DATA[:100]
        store.close()


# -- errors


def _chain(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-0123456789")
    monkeypatch.setenv("AWS_SESSION_TOKEN", token)


def _shown(error: BaseException) -> str:
    return str(error) + "".join(traceback.format_exception(error))


def test_error_shows_code_and_message_without_the_token(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3's error response contains the signed request if its signature is wrong, and the token if
    it has expired.
    """
    _chain(monkeypatch, TOKEN)
    spelt = TOKEN.encode().hex(" ")
    body = (
        f"<Error><Code>SignatureDoesNotMatch</Code><Message>It is &quot;{TOKEN}&quot;</Message>"
        f"<CanonicalRequest>x-amz-security-token:{TOKEN}</CanonicalRequest>"
        f"<CanonicalRequestBytes>{spelt}</CanonicalRequestBytes><Token-0>{TOKEN}</Token-0></Error>"
    ).encode()
    answer = b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with serving(lambda server, sock: answers(server, sock, answer)) as server:
        store = _store(server)
        with pytest.raises(AccessDeniedError) as caught:
            store.get_range("x", 0, 100)
        store.close()
    assert '403 Forbidden SignatureDoesNotMatch It is "***"' in str(caught.value)
    assert TOKEN not in _shown(caught.value)
    assert spelt not in _shown(caught.value)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_credentials_echoed_by_a_proxy_are_masked(clean_environment: None, scheme: str) -> None:
    answer = b"HTTP/1.1 407 us:pass-word dXM6cGFzcy13b3Jk\r\nContent-Length: 0\r\n\r\n"
    with serving(lambda server, sock: answers(server, sock, answer)) as proxy:
        through = proxy.url.replace("//", "//us:pass-word@")
        options = {"s3.endpoint": f"{scheme}://store.invalid", "s3.proxy-uri": through}
        store = _store(proxy, **KEYS, **options)
        with pytest.raises(StoreError, match=r"407 us:\*\*\* \*\*\*"):
            store.get_range("x", 0, 100)
        store.close()


def test_token_with_a_newline_is_not_shown(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token read from a file may end with a newline, with which s3fs cannot send it."""
    _chain(monkeypatch, f"{TOKEN}\n")
    with serving(answers) as server:
        store = _store(server)
        with pytest.raises(StoreError, match=r"(?i)control character|newline") as caught:
            store.get_range("x", 0, 100)
        assert TOKEN not in _shown(caught.value)
        store.close()


@pytest.mark.parametrize("length", [b"-1", b"-5", b"7fffffff"])
def test_memory_for_the_body_of_an_error_is_bounded(clean_environment: None, length: bytes) -> None:
    size = 32 << 20
    head = b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n%s\r\n"

    def serve(server: Server, sock: socket.socket) -> None:
        server.request(sock)
        sock.sendall(head % length)
        for _ in range(size >> 20):
            sock.sendall(page)

    page = b"<Code>SlowDown</Code>".ljust(1 << 20)
    with serving(serve) as server:
        store = _store(server, **KEYS)
        tracemalloc.start()
        try:
            with pytest.raises(StoreUnavailableError):
                store.get_range("x", 0, 100)
            assert tracemalloc.get_traced_memory()[1] < size // 4
        finally:
            tracemalloc.stop()
        store.close()


@pytest.mark.parametrize("options", [{}, {"storageOptions": '{"use_ssl": false}'}])
def test_broken_connection_raises_store_unavailable_error(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """The keys are from the AWS chain. A broken connection must not count as a refusal of these
    keys.
    """
    _chain(monkeypatch, TOKEN)
    with serving(lambda server, sock: server.request(sock)) as server:
        store = _store(server, **options)
        for ask in (lambda: store.get_range("x", 0, 100), lambda: list(store.list_objects(""))):
            with pytest.raises(StoreUnavailableError):
                ask()
        store.close()
