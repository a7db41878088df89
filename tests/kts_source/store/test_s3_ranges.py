"""Tests range reads of S3: requests, responses, and cases in which s3fs reads instead."""

from __future__ import annotations

import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import botocore.session
import pytest
from botocore.credentials import RefreshableCredentials

from kts_source.errors import (
    AccessDeniedError,
    ArchivedObjectError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreNotFoundError,
    StoreUnavailableError,
    TruncatedObjectError,
)
from kts_source.store.http_client import HttpClient
from kts_source.store.s3_store import S3Store
from tests.integration.certificates import make_certificates
from tests.kts_source.store.fake_cloud import DATA, ETAG, QUICK
from tests.kts_source.store.one_object import BY_S3FS, KEYS, OneObject

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def bucket(clean_environment: None) -> Iterator[OneObject]:
    with OneObject().serving() as server:
        yield server


# -- requests


ODD_KEYS = {
    "/x": "/bucket//x",
    "x/": "/bucket/x/",
    "x//y": "/bucket/x//y",
    "x\ty": "/bucket/x%09y",
    "x\x7fy": "/bucket/x%7Fy",
    "x\u200by": "/bucket/x%E2%80%8By",
    "a b+c&d=e?f#g": "/bucket/a%20b%2Bc%26d%3De%3Ff%23g",
    "a%20b": "/bucket/a%2520b",
    "~tilde": "/bucket/~tilde",
}


@pytest.mark.parametrize("key", ODD_KEYS)
def test_keys_are_percent_encoded_as_in_s3fs(bucket: OneObject, key: str) -> None:
    """s3fs signs and sends the same path for this key."""
    for options in ({}, BY_S3FS):
        store = bucket.store(**KEYS, **options)
        assert store.get_range(key, 3, 9, version=ETAG) == DATA[3:9]
        assert bucket.seen[-1][0] == ODD_KEYS[key]
        assert bool(store._ranges.reason) == bool(options)
        store.close()


def test_options_take_precedence_over_environment(
    bucket: OneObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "AWS_SESSION_TOKEN": "of-somebody-else",
        "AWS_TOKEN": "of-somebody-else",
        "AWS_ACCESS_KEY_ID": "of-somebody-else",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_REQUEST_PAYER": "true",
        "AWS_ENDPOINT": "http://127.0.0.1:1",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
    }.items():
        monkeypatch.setenv(name, text)
    store = bucket.store(**KEYS, **{"s3.region": "eu-west-3"})
    assert store.get_range("a/b c", 3, 9, version=ETAG) == DATA[3:9]
    ((path, headers),) = bucket.seen
    assert path == "/bucket/a/b%20c"
    assert "Credential=AKGIVEN/" in headers["authorization"]
    assert "/eu-west-3/s3/" in headers["authorization"]
    assert headers["if-match"] == ETAG
    assert not headers.keys() & {"x-amz-security-token", "x-amz-request-payer"}
    assert store._ranges.reason == ""
    store.close()


def test_proxy_of_the_options_is_used(bucket: OneObject) -> None:
    """The endpoint does not exist; the test server is the proxy."""
    server_address = "http://store.invalid:9000"
    store = bucket.store(**KEYS, **{"s3.endpoint": server_address, "s3.proxy-uri": bucket.url})
    assert store.get_range("x", 3, 9, version=ETAG) == DATA[3:9]
    assert [path for path, _ in bucket.seen] == [f"{server_address}/bucket/x"]
    assert store._ranges.reason == ""
    store.close()


class Chain:
    """Replaces botocore's session. Its credentials expire after a second, and each renewal returns
    new keys.
    """

    def __init__(self) -> None:
        self.number = 0

    def get_credentials(self) -> RefreshableCredentials:
        def renewed() -> dict[str, str]:
            self.number += 1
            soon = datetime.now(UTC) + timedelta(seconds=1)
            word = f"AK{self.number}"
            return {
                "access_key": word,
                "secret_key": f"secret-of-{word}",
                "token": f"token-of-{word}",
                "expiry_time": soon.isoformat(),
            }

        return RefreshableCredentials.create_from_metadata(renewed(), renewed, "test")


def test_expiring_credentials_are_renewed(
    bucket: OneObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = Chain()
    monkeypatch.setattr(
        botocore.session.Session, "get_credentials", lambda _session: chain.get_credentials()
    )
    store = bucket.store()
    for _ in range(3):
        assert store.get_range("x", 0, 9) == DATA[:9]
    tokens = [headers["x-amz-security-token"] for _, headers in bucket.seen]
    keys = [headers["authorization"].partition("Credential=")[2] for _, headers in bucket.seen]
    assert len(set(tokens)) == 3
    for token, key in zip(tokens, keys, strict=True):
        assert token.removeprefix("token-of-") == key.partition("/")[0]
    store.close()


def test_redirect_is_not_followed(bucket: OneObject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A redirect may lead to any host, which would receive the session token. s3fs reads instead,
    because it can look up the region.
    """
    keys_read = list[str]()

    def by_s3fs(_store: S3Store, key: str, *_range: object) -> bytes:
        keys_read.append(key)
        return DATA[:4]

    monkeypatch.setattr(S3Store, "_read_by_s3fs", by_s3fs)
    with OneObject().serving() as elsewhere:
        bucket.error = 307, "TemporaryRedirect"
        bucket.headers = {"Location": f"{elsewhere.url}/bucket/x"}
        store = bucket.store(**KEYS, **{"s3.session-token": "token-0123456789"})
        assert store.get_range("x", 0, 4) == DATA[:4]
        assert keys_read == ["x"]
        assert len(bucket.seen) == 1
        assert bucket.seen[0][1]["x-amz-security-token"] == "token-0123456789"
        assert elsewhere.seen == []
        store.close()


def test_threads_create_the_settings_of_a_store_only_once(
    bucket: OneObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-0123456789")
    sessions = _counted(monkeypatch, botocore.session.Session, "__init__")
    for number in range(5):
        store = bucket.store()
        with ThreadPoolExecutor(16) as pool:
            contents = list(pool.map(lambda n: store.get_range("x", n, n + 9), range(64)))  # noqa: B023
        assert contents == [DATA[n : n + 9] for n in range(64)]
        assert store._ranges.reason == ""
        assert len(sessions) == number + 1, "the settings are made once"
        store.close()


def _counted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[str]:
    """Returns a list that grows by one element with each call of the method `name`."""
    method, calls = getattr(owner, name), list[str]()

    def counted(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401  # whatever it takes and gives
        calls.append(name)
        return method(*arguments, **named)

    monkeypatch.setattr(owner, name, counted)
    return calls


def test_stores_with_equal_settings_share_connections(
    bucket: OneObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker opens a new store for each task; these stores must not open new connections."""
    opened = _counted(monkeypatch, HttpClient, "__init__")
    for other, clients in (
        ({}, 1),
        ({"s3.access-key-id": "AKOTHER"}, 1),
        ({"s3.region": "eu-west-3"}, 1),
        ({"s3.request-timeout": "9"}, 2),
    ):
        for _ in range(2):
            store = bucket.store(**{**KEYS, **other})
            assert store.get_range("x", 3, 9, version=ETAG) == DATA[3:9]
            store.close()
            signed = bucket.seen[-1][1]["authorization"]
            assert f"Credential={other.get('s3.access-key-id', 'AKGIVEN')}/" in signed
        assert len(opened) == clients


# -- responses


def test_response_longer_than_the_range_is_refused(bucket: OneObject) -> None:
    bucket.body = lambda body: body + bytes(1 << 16)
    store = bucket.store(**KEYS)
    with pytest.raises(StoreUnavailableError, match="has 65636 bytes, but"):
        store.get_range("x", 0, 100, version=ETAG)
    assert store.counters.bytes == 0
    store.close()


def test_response_without_a_length_is_refused(bucket: OneObject) -> None:
    bucket.headers = {"Content-Length": None, "Connection": "close"}
    store = bucket.store(**KEYS)
    with pytest.raises(StoreUnavailableError, match="no valid Content-Length"):
        store.get_range("x", 0, 100)
    store.close()


def test_range_after_the_end_raises_truncated_object_error(bucket: OneObject) -> None:
    store = bucket.store(**KEYS)
    size = len(DATA)
    assert store.get_range("x", size - 4, size, version=ETAG) == DATA[-4:]
    for start in (size - 4, size):
        with pytest.raises(TruncatedObjectError):
            store.get_range("x", start, size + 4)
    assert store._ranges.reason == ""
    store.close()


def test_read_of_another_etag_raises_object_changed_error(bucket: OneObject) -> None:
    bucket.headers = {"ETag": '"v2"'}
    store = bucket.store(**KEYS)
    with pytest.raises(ObjectChangedError, match="v2"):
        store.get_range("x", 0, 4, version=ETAG)
    store.close()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "NoSuchBucket", StoreNotFoundError),
        (404, "NoSuchKey", ObjectNotFoundError),
        (404, "", ObjectNotFoundError),
        (404, "XAdminUserNotFound", AccessDeniedError),
        (403, "InvalidObjectState", ArchivedObjectError),
        (403, "AccessDenied", AccessDeniedError),
        (400, "ExpiredToken", AccessDeniedError),
        (401, "Unauthorized", AccessDeniedError),
        (412, "PreconditionFailed", ObjectChangedError),
        (416, "InvalidRange", TruncatedObjectError),
        (409, "OperationAborted", StoreUnavailableError),
        (503, "SlowDown", StoreUnavailableError),
    ],
)
def test_error_class_depends_on_status_and_code(
    bucket: OneObject, status: int, code: str, kind: type[Exception]
) -> None:
    bucket.error = status, code
    store = bucket.store(**KEYS)
    with pytest.raises(kind):
        store.get_range("x", 0, 4, version=ETAG)
    is_patient = kind is StoreUnavailableError
    assert len(bucket.seen) == (QUICK.max_attempts if is_patient else 1)
    store.close()


def test_s3fs_reads_after_an_error_about_a_wrong_region(
    bucket: OneObject, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.error = 400, "AuthorizationHeaderMalformed"
    store = bucket.store(**KEYS)
    monkeypatch.setattr(S3Store, "_read_by_s3fs", lambda *_arguments: DATA[:4])
    with caplog.at_level(logging.INFO, "kts_source.store.range_reader"):
        assert store.get_range("x", 0, 4) == DATA[:4]
        assert store.get_range("x", 0, 4) == DATA[:4]
    assert len(bucket.seen) == 1, "the server receives no second request"
    assert store.counters.requests == 3
    assert [record.levelname for record in caplog.records] == ["INFO"]
    store.close()


@contextmanager
def _encrypted(bucket: OneObject, folder: Path) -> Iterator[str]:
    """Makes the server use TLS. Yields the path of the certificate authority that clients must
    trust.
    """
    certificates = make_certificates(folder)
    bucket.encrypt(certificates.server_context())
    with bucket.serving():
        yield str(certificates.authority)


def test_s3fs_reads_after_an_untrusted_certificate(
    clean_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = OneObject()
    monkeypatch.setattr(S3Store, "_read_by_s3fs", lambda *_arguments: DATA[:4])
    with _encrypted(bucket, tmp_path):
        store = bucket.store(**KEYS)
        assert store.get_range("x", 0, 4) == DATA[:4]
        assert store._ranges.reason
        assert bucket.seen == []
        store.close()


@pytest.mark.parametrize("name", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"])
def test_certificate_bundle_is_trusted(
    clean_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    bucket = OneObject()
    with _encrypted(bucket, tmp_path) as authority:
        monkeypatch.setenv(name, authority)
        store = bucket.store(**KEYS)
        for start in range(5):
            content = store.get_range("x", start, start + 999, version=ETAG)
            assert content == DATA[start : start + 999]
        assert store._ranges.reason == ""
        store.close()


def test_pickled_store_reads_and_shows_no_secret(bucket: OneObject) -> None:
    store = bucket.store(**KEYS)
    assert store.get_range("x", 0, 4) == DATA[:4]
    copy = pickle.loads(pickle.dumps(store))
    assert copy.get_range("x", 4, 8) == DATA[4:8]
    assert "secret-0123456789" not in repr(store) + repr(vars(store)) + repr(vars(store._ranges))
    store.close()
    copy.close()
