"""Ranges through obstore: what it is told, what its errors mean, and when s3fs reads instead."""

from __future__ import annotations

import json
import logging
import os
import pickle
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from botocore.credentials import RefreshableCredentials

from kts_source.errors import (
    AccessDeniedError,
    ArchivedObjectError,
    ObjectChangedError,
    StoreNotFoundError,
    StoreUnavailableError,
    TruncatedObjectError,
)
from kts_source.store.s3_range_settings import LeftToS3fsError, range_settings
from kts_source.store.s3_ranges import read_error
from kts_source.store.s3_store import S3Store
from kts_source.store.storage_options import s3_arguments, storage_options_from
from tests.integration.certificates import make_certificates
from tests.kts_source.store.one_object import DATA, ETAG, QUICK, OneObject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEYS = {"s3.access-key-id": "AKGIVEN", "s3.secret-access-key": "secret-0123456789"}


@pytest.fixture
def bucket(clean_environment: None) -> Iterator[OneObject]:
    with OneObject().serving() as server:
        yield server


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(("AWS_", "FSSPEC_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


# -- what it is told


@pytest.mark.parametrize(
    ("options", "endpoint", "config"),
    [
        ({"s3.region": "eu-west-3"}, "https://s3.eu-west-3.amazonaws.com", {}),
        (
            {"s3.region": "us-gov-west-1", "s3.force-virtual-addressing": "true"},
            "https://bucket.s3.us-gov-west-1.amazonaws.com",
            {"virtual_hosted_style_request": True},
        ),
        ({"s3.endpoint": "http://minio:9000/"}, "http://minio:9000", {}),
        (
            {"s3.endpoint": "https://minio", "storageOptions": '{"requester_pays": true}'},
            "https://minio",
            {"request_payer": True},
        ),
    ],
)
def test_settings(
    clean_environment: None, options: dict[str, str], endpoint: str, config: dict[str, object]
) -> None:
    storage = storage_options_from({**KEYS, **options}).reveal()
    settings = range_settings("bucket", s3_arguments(storage), QUICK)
    assert settings.endpoint == endpoint
    assert settings.config == {
        "bucket": "bucket",
        "region": options.get("s3.region", "us-east-1"),
        "virtual_hosted_style_request": False,
        "request_payer": False,
        **config,
    }
    assert settings.credentials().reveal() == ("AKGIVEN", "secret-0123456789", None)
    assert "secret" not in repr(settings)


def _profile(text: str) -> Callable[[pytest.MonkeyPatch], None]:
    def write(_monkeypatch: pytest.MonkeyPatch) -> None:
        Path(os.environ["AWS_CONFIG_FILE"]).write_text(f"[default]\n{text}\n")

    return write


def _environment(name: str, text: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setenv(name, text)


LEFT: dict[str, tuple[dict[str, str], Callable[[pytest.MonkeyPatch], None] | None]] = {
    "the region": ({}, None),
    "endpoints of its own": ({"s3.region": "cn-north-1"}, None),
    "virtual addresses": (
        {"s3.endpoint": "http://minio", "s3.force-virtual-addressing": "true"},
        None,
    ),
    "name verify": (
        {"s3.region": "eu-west-3", "storageOptions": '{"client_kwargs": {"verify": false}}'},
        None,
    ),
    "name default_block_size": (
        {"s3.region": "eu-west-3", "storageOptions": '{"default_block_size": 1}'},
        None,
    ),
    "name signature_version": (
        {
            "s3.region": "eu-west-3",
            "storageOptions": '{"config_kwargs": {"signature_version": "s3"}}',
        },
        None,
    ),
    "KTS_TUNING": ({"s3.region": "eu-west-3"}, _environment("KTS_TUNING", "off")),
    "AWS_ENDPOINT_URL": ({}, _environment("AWS_ENDPOINT_URL", "http://minio")),
    "AWS_PROXY_URL": ({}, _environment("AWS_PROXY_URL", "http://proxy")),
    "a proxy": ({"s3.region": "eu-west-3"}, _environment("HTTPS_PROXY", "http://proxy")),
    "a bundle": ({"s3.region": "eu-west-3"}, _environment("AWS_CA_BUNDLE", "/x.pem")),
    "has endpoint_url": ({}, _profile("endpoint_url = http://minio")),
    "has s3": ({}, _profile("s3 =\n  addressing_style = virtual")),
    "has use_fips_endpoint": ({}, _profile("use_fips_endpoint = true")),
    "profile cannot be read": ({"s3.profile-name": "nobody"}, None),
}


@pytest.mark.parametrize("reason", LEFT)
def test_what_only_s3fs_knows_is_left_to_it(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    options, prepare = LEFT[reason]
    if prepare is not None:
        prepare(monkeypatch)
    keys = {} if "s3.profile-name" in options else KEYS
    storage = storage_options_from({**keys, **options})
    with pytest.raises(LeftToS3fsError, match=reason):
        range_settings("bucket", s3_arguments(storage.reveal()), QUICK)
    store = S3Store("s3://bucket", storage)
    assert store._ranges.why_not
    assert not store._ranges.can_read("x")


@pytest.mark.parametrize("name", ["arn:aws:s3:::x", "Upper", "x--x-s3", "a"])
def test_odd_buckets_are_left_to_s3fs(clean_environment: None, name: str) -> None:
    arguments = s3_arguments({**KEYS, "s3.region": "eu-west-3"})
    with pytest.raises(LeftToS3fsError, match="ordinary"):
        range_settings(name, arguments, QUICK)


# Each of them is another object than obstore would ask for, or none that it can.
@pytest.mark.parametrize("key", ["/x", "x/", "x//y", "x\ty", "x\x7fy", "x\u200by"])
def test_keys_that_obstore_changes_are_left_to_s3fs(bucket: OneObject, key: str) -> None:
    store = bucket.store(**KEYS)
    assert store._ranges.can_read("x/y")
    assert not store._ranges.can_read(key)
    store.close()


def test_the_environment_has_no_say(bucket: OneObject, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert store._ranges.why_not == ""
    store.close()


class Chain:
    """Stands for botocore's session: each call has newer credentials, as they expire at once."""

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


def test_credentials_are_renewed(bucket: OneObject, monkeypatch: pytest.MonkeyPatch) -> None:
    import botocore.session

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


# -- what it answers


def test_more_than_was_asked_for_is_not_taken(bucket: OneObject) -> None:
    bucket.body = lambda body: body + bytes(1 << 16)
    store = bucket.store(**KEYS)
    with pytest.raises(StoreUnavailableError, match="more than"):
        store.get_range("x", 0, 100, version=ETAG)
    assert store.counters.bytes == 0
    store.close()


def test_an_answer_without_a_length_is_not_taken(bucket: OneObject) -> None:
    bucket.headers = {"Content-Length": None, "Connection": "close"}
    store = bucket.store(**KEYS)
    with pytest.raises(StoreUnavailableError, match="Content-Length"):
        store.get_range("x", 0, 100)
    store.close()


def test_the_end_of_an_object(bucket: OneObject) -> None:
    store = bucket.store(**KEYS)
    size = len(DATA)
    assert store.get_range("x", size - 4, size, version=ETAG) == DATA[-4:]
    for start in (size - 4, size):
        with pytest.raises(TruncatedObjectError):
            store.get_range("x", start, size + 4)
    assert store._ranges.why_not == ""
    store.close()


def test_another_version_that_the_condition_let_pass(bucket: OneObject) -> None:
    bucket.headers = {"ETag": '"v2"'}
    store = bucket.store(**KEYS)
    with pytest.raises(ObjectChangedError, match="v2"):
        store.get_range("x", 0, 4, version=ETAG)
    store.close()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "NoSuchBucket", StoreNotFoundError),
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
def test_errors_are_named_by_status_and_code(
    bucket: OneObject, status: int, code: str, kind: type[Exception]
) -> None:
    bucket.error = status, code
    store = bucket.store(**KEYS)
    with pytest.raises(kind):
        store.get_range("x", 0, 4, version=ETAG)
    is_patient = kind is StoreUnavailableError
    assert len(bucket.seen) == (QUICK.max_attempts if is_patient else 1)
    store.close()


def test_a_wrong_region_is_left_to_s3fs(
    bucket: OneObject, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.error = 400, "AuthorizationHeaderMalformed"
    store = bucket.store(**KEYS)
    monkeypatch.setattr(S3Store, "_read_by_s3fs", lambda *_arguments: DATA[:4])
    with caplog.at_level(logging.INFO, "kts_source.store.s3_ranges"):
        assert store.get_range("x", 0, 4) == DATA[:4]
        assert store.get_range("x", 0, 4) == DATA[:4]
    assert len(bucket.seen) == 1, "obstore is not asked again"
    assert store.counters.requests == 3
    assert [record.levelname for record in caplog.records] == ["INFO"]
    store.close()


def test_a_certificate_that_only_s3fs_trusts(
    clean_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = OneObject()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(make_certificates(tmp_path).broker)
    bucket.server.socket = context.wrap_socket(bucket.server.socket, server_side=True)
    bucket.endpoint = bucket.endpoint.replace("http:", "https:")
    monkeypatch.setattr(S3Store, "_read_by_s3fs", lambda *_arguments: DATA[:4])
    with bucket.serving():
        store = bucket.store(**KEYS)
        assert store.get_range("x", 0, 4) == DATA[:4]
        assert store._ranges.why_not
        store.close()


def test_a_pickle_holds_the_options_and_nothing_else(bucket: OneObject) -> None:
    store = bucket.store(**KEYS)
    assert store.get_range("x", 0, 4) == DATA[:4]
    copy = pickle.loads(pickle.dumps(store))
    assert copy.get_range("x", 4, 8) == DATA[4:8]
    assert "secret-0123456789" not in repr(store) + repr(vars(store)) + repr(vars(store._ranges))
    store.close()
    copy.close()


# -- what obstore 0.12 tells

TOLD = [
    (
        "GenericError",
        "Generic S3 error: Error performing GET http://h/b/k in 4.5ms - Server returned non-2xx"
        " status code: 400 Bad Request: <Error><Code>RequestTimeout</Code></Error>"
        "\n\nDebug source:\nx",
        (400, "RequestTimeout"),
    ),
    (
        # A key may look like an answer.
        "FileNotFoundError",
        "Object at location a status code: 503 x not found: Error performing GET http://h/b/k in"
        " 43ms - Server returned non-2xx status code: 404 Not Found: ",
        (404, ""),
    ),
    (
        "GenericError",
        "Generic S3 error: Wanted range starting at 9, but object was only 3 bytes long",
        (416, ""),
    ),
    ("GenericError", "Generic S3 error: HTTP error: request or response body error", (0, "")),
    ("NotModifiedError", "Object at location k not modified: x", (304, "")),
]


@pytest.mark.parametrize(("name", "text", "expected"), TOLD)
def test_errors_are_read(name: str, text: str, expected: tuple[int, str]) -> None:
    failure = read_error(name, text)
    assert (failure.status, failure.code) == expected
    assert "Debug" not in failure.text


def test_the_options_of_a_store_are_json_alone() -> None:
    """What only obstore has can be asked for by no option: a plan means the same everywhere."""
    options = storage_options_from({**KEYS, "storageOptions": json.dumps({"client_options": {}})})
    with pytest.raises(LeftToS3fsError, match="client_options"):
        range_settings("bucket", s3_arguments(options.reveal()), QUICK)
