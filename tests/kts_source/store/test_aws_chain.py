"""Tests every source of the AWS credential chain against loopback services, and the renewal of keys
that expire.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import http.server
import json
import re
import threading
import types
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import botocore.credentials
import botocore.utils
import pytest

from kts_source.errors import AccessDeniedError, StoreError
from kts_source.store.open_store import open_store
from kts_source.store.request_policy import RetryPolicy
from kts_source.store.storage_options import storage_options_from
from tests.kts_source.store.fake_cloud import DATA, ETAG, FakeCloud, Reply

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kts_source.store.object_store import ObjectStore

pytestmark = pytest.mark.slow

POLICY = RetryPolicy(max_attempts=2, first_pause_seconds=0.001, read_timeout_seconds=20.0)
ROLE = "arn:aws:iam::123456789012:role/reader"
_KEY = re.compile(r"Credential=([^/]+)/")


@dataclass
class Issuer:
    """Serves the APIs of IMDSv2, containers, STS and SSO. Every response contains new AWS keys.

    Attributes:
        seconds: Lifetime of the keys in seconds.
        issued: Issued access keys, in order.
        requests: Method, path and body of every request.
        refuses: True to deny every request.
    """

    seconds: float = 3600.0
    issued: list[str] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    refuses: bool = False
    url: str = ""

    def keys(self) -> tuple[str, datetime.datetime]:
        self.issued.append(f"AKISSUED{len(self.issued)}")
        ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=self.seconds)
        return self.issued[-1], ends

    def answer(self, method: str, path: str, body: str) -> tuple[int, str]:
        if self.refuses:
            return 403, "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>"
        if path == "/latest/api/token":
            return 200, "token-of-imds"
        if path == "/latest/meta-data/iam/security-credentials/":
            return 200, "reader"
        if "Action=AssumeRole" in body:
            return 200, self._sts(re.findall(r"Action=(\w+)", body)[0])
        key, ends = self.keys()
        if path.startswith("/federation/credentials"):
            return 200, json.dumps(
                {
                    "roleCredentials": {
                        "accessKeyId": key,
                        "secretAccessKey": "s" * 20,
                        "sessionToken": "session",
                        "expiration": int(ends.timestamp() * 1000),
                    }
                }
            )
        return 200, json.dumps(
            {
                "Code": "Success",
                "AccessKeyId": key,
                "SecretAccessKey": "s" * 20,
                "Token": "session",
                "Expiration": f"{ends:%Y-%m-%dT%H:%M:%SZ}",
            }
        )

    def _sts(self, action: str) -> str:
        key, ends = self.keys()
        return (
            f'<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result>'
            f"<Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>{'s' * 20}"
            "</SecretAccessKey><SessionToken>session</SessionToken>"
            f"<Expiration>{ends:%Y-%m-%dT%H:%M:%SZ}</Expiration></Credentials>"
            f"<AssumedRoleUser><Arn>{ROLE}</Arn><AssumedRoleId>id</AssumedRoleId></AssumedRoleUser>"
            f"</{action}Result></{action}Response>"
        )

    @contextmanager
    def serving(self) -> Iterator[Issuer]:
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_arguments: object) -> None:
                pass

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                issuer.requests.append((f"{self.command} {self.path}", body))
                status, text = issuer.answer(self.command, self.path, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            do_PUT = do_POST = do_GET  # noqa: N815  # names of the library

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            self.url = f"http://127.0.0.1:{server.server_port}"
            thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
            thread.start()
            yield self
            server.shutdown()
            thread.join(10)


@pytest.fixture
def issuer(clean_environment: None) -> Iterator[Issuer]:
    with Issuer().serving() as running:
        yield running


@pytest.fixture
def server(clean_environment: None) -> Iterator[FakeCloud]:
    with FakeCloud().serving() as cloud:
        yield cloud


@contextmanager
def opened(server: FakeCloud, **options: str) -> Iterator[ObjectStore]:
    arguments = {"s3.endpoint": server.url, "s3.region": "us-east-1", **options}
    store = open_store("s3://bucket/t", storage_options_from(arguments), retry_policy=POLICY)
    try:
        yield store
    finally:
        store.close()


def read_all(store: ObjectStore) -> None:
    assert store.get_range("x", 3, 900, version=ETAG) == DATA[3:900]
    assert store.head("x").size == len(DATA)
    assert [info.key for info in store.list_objects("")] == ["kNone"]


def keys_of(server: FakeCloud) -> list[str]:
    """Returns the access keys that signed the requests."""
    return [_KEY.search(headers["authorization"])[1] for _, _, headers in server.seen]  # type: ignore[index]


def _config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


def prepare(name: str, issuer: Issuer, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Sets up the environment so that the AWS chain uses the source of credentials `name`."""
    token = folder / "token"
    token.write_text("web-identity-token")
    if name == "imds":
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", issuer.url)
    elif name == "container":
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{issuer.url}/container")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "Basic abc")
    elif name == "web identity":
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
        monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", issuer.url)
    elif name == "assume role":
        _config(
            monkeypatch,
            folder,
            f"[default]\nrole_arn = {ROLE}\nsource_profile = base\nregion = us-east-1\n"
            "[profile base]\naws_access_key_id = AKBASE\naws_secret_access_key = base-secret-01\n",
        )
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", issuer.url)
    elif name == "sso":
        start = "https://start.example/start"
        _config(
            monkeypatch,
            folder,
            f"[default]\nsso_start_url = {start}\nsso_region = us-east-1\n"
            "sso_account_id = 123456789012\nsso_role_name = reader\nregion = us-east-1\n",
        )
        monkeypatch.setenv("AWS_ENDPOINT_URL_SSO", issuer.url)
        cache = folder / "sso"
        cache.mkdir()
        # botocore finds the home folder when it is imported.
        monkeypatch.setattr(botocore.credentials.SSOProvider, "_SSO_TOKEN_CACHE_DIR", str(cache))
        ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        (cache / f"{hashlib.sha1(start.encode()).hexdigest()}.json").write_text(  # AWS does
            json.dumps({"accessToken": "sso-token", "expiresAt": f"{ends:%Y-%m-%dT%H:%M:%SZ}"})
        )


def two_hours_later() -> types.SimpleNamespace:
    """Returns a module `datetime` for botocore, whose keys have a lifetime of one hour."""

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Later:
            return super().now(tz) + datetime.timedelta(hours=2)

    return types.SimpleNamespace(datetime=Later, timedelta=datetime.timedelta)


ISSUED = ("imds", "container", "web identity", "assume role", "sso")


def test_access_keys_of_environment_are_used(
    server: FakeCloud, reader: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-env-01")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session-of-env")
    with opened(server, **reader) as store:
        read_all(store)
    assert set(keys_of(server)) == {"AKENV"}
    assert {headers["x-amz-security-token"] for _, _, headers in server.seen} == {"session-of-env"}


@pytest.mark.parametrize("how", ["option", "AWS_PROFILE"])
def test_access_keys_of_profile_are_used(
    server: FakeCloud,
    reader: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    how: str,
) -> None:
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = AKDEFAULT\naws_secret_access_key = default-secret-01\n"
        "[team]\naws_access_key_id = AKTEAM\naws_secret_access_key = team-secret-0001\n"
    )
    options = dict(reader)
    if how == "option":
        options["s3.profile-name"] = "team"
    else:
        monkeypatch.setenv("AWS_PROFILE", "team")
    with opened(server, **options) as store:
        read_all(store)
    assert set(keys_of(server)) == {"AKTEAM"}


@pytest.mark.parametrize("source", ISSUED)
def test_temporary_keys_are_used_until_they_expire(
    server: FakeCloud,
    issuer: Issuer,
    reader: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    source: str,
) -> None:
    prepare(source, issuer, monkeypatch, tmp_path)
    with opened(server, **reader) as store:
        for _ in range(3):
            read_all(store)
    assert set(keys_of(server)) <= set(issuer.issued)
    assert len(issuer.issued) <= 2, "once for the ranges, once for the rest"


# `imds` is excluded: botocore continues to use expired keys of an instance role.
@pytest.mark.parametrize("source", [name for name in ISSUED if name != "imds"])
def test_expiring_keys_are_renewed_during_a_scan(
    server: FakeCloud,
    issuer: Issuer,
    reader: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    source: str,
) -> None:
    """The lifetime of the keys is shorter than botocore's renewal margin."""
    prepare(source, issuer, monkeypatch, tmp_path)
    issuer.seconds = 300.0
    with opened(server, **reader) as store:
        for _ in range(3):
            read_all(store)
    assert len(set(keys_of(server))) >= 3
    last = server.seen[-1][2]["authorization"]
    assert issuer.issued[-1] in last or issuer.issued[-2] in last


@pytest.mark.parametrize("source", ["container", "imds"])
@pytest.mark.parametrize("status", [400, 403])
def test_keys_rejected_as_expired_are_renewed(
    server: FakeCloud,
    issuer: Issuer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    status: int,
    source: str,
) -> None:
    """The client considers the keys valid, because its clock is slow or the session was revoked."""
    prepare(source, issuer, monkeypatch, tmp_path)
    refused: list[int] = []

    def read(_start: int, _stop: int) -> Reply | None:
        if refused:
            return None
        refused.append(1)
        body = b"<Error><Code>ExpiredToken</Code><Message>expired</Message></Error>"
        return status, {"Content-Range": None}, body

    server.read = read
    with opened(server) as store:
        assert store.get_range("x", 0, 9, version=ETAG) == DATA[:9]
        assert store.get_range("x", 9, 20, version=ETAG) == DATA[9:20]
    assert len(set(keys_of(server))) == 2


def test_failed_renewal_of_keys_raises_error(
    server: FakeCloud,
    issuer: Issuer,
    reader: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    prepare("container", issuer, monkeypatch, tmp_path)
    monkeypatch.setattr(botocore.utils.ContainerMetadataFetcher, "SLEEP_TIME", 0)
    with opened(server, **reader) as store:
        assert store.get_range("x", 0, 9) == DATA[:9]
        issuer.seconds, issuer.refuses = 86_400.0, True
        monkeypatch.setattr(botocore.credentials, "datetime", two_hours_later())
        with pytest.raises(StoreError) as caught:
            store.get_range("x", 0, 9)
    assert "s" * 20 not in str(caught.value)


def test_missing_credentials_error_names_the_options(
    server: FakeCloud, reader: dict[str, str]
) -> None:
    with opened(server, **reader) as store:
        for read in (lambda: store.get_range("x", 0, 9), lambda: list(store.list_objects(""))):
            with pytest.raises(AccessDeniedError, match=r"s3\.access-key-id"):
                read()
    assert server.seen == []


def test_response_about_wrong_clock_raises_access_denied_error(
    server: FakeCloud, reader: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-env-01")
    body = (
        b"<Error><Code>RequestTimeTooSkewed</Code><Message>The difference between the request time"
        b" and the current time is too large.</Message></Error>"
    )
    server.read = lambda _start, _stop: (403, {"Content-Range": None}, body)
    with opened(server, **reader) as store:
        with pytest.raises(AccessDeniedError, match="RequestTimeTooSkewed"):
            store.get_range("x", 0, 9)
        assert store.counters.retries == 0


def test_objects_encrypted_with_customer_provided_keys_raise_store_error(
    server: FakeCloud, reader: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 returns an object with SSE-C encryption only to clients that send the encryption key."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-env-01")
    body = (
        b"<Error><Code>InvalidRequest</Code><Message>The object was stored using a form of Server"
        b" Side Encryption. The correct parameters must be provided to retrieve the object."
        b"</Message></Error>"
    )
    server.read = lambda _start, _stop: (400, {"Content-Range": None}, body)
    with opened(server, **reader) as store:
        with pytest.raises(StoreError, match="Server Side Encryption") as caught:
            store.get_range("x", 0, 9)
        assert caught.value.uri == store.uri("x")
        assert store.counters.retries == 0


def test_s3fs_sends_customer_provided_encryption_keys(
    server: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-env-01")
    key = "k" * 32
    arguments = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key}
    options = {"storageOptions": json.dumps({"s3_additional_kwargs": arguments})}
    with opened(server, **options) as store:
        read_all(store)
        assert key not in repr(store)
    *objects, listing = [headers for _, _, headers in server.seen]
    name = "x-amz-server-side-encryption-customer-key"
    encoded = base64.b64encode(key.encode()).decode()
    assert [headers.get(name) for headers in objects] == [encoded] * 2
    assert name not in listing
