"""Tests range reads of Google Cloud Storage: requests of obstore, and cases in which gcsfs reads
instead.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from kts_source.errors import (
    AccessDeniedError,
    ObjectChangedError,
    StoreUnavailableError,
    TruncatedObjectError,
)
from kts_source.secret import Secret
from kts_source.store.fsspec_store import FsspecStore
from kts_source.store.obstore_stores import GcsSettings, GcsStore
from kts_source.store.open_store import open_store
from tests.kts_source.store.fake_cloud import DATA, QUICK
from tests.kts_source.store.one_object import OneObject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gcsfs") is None, reason="gcsfs is not installed"
)

GENERATION = "1795555436959178"


@pytest.fixture
def service(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[OneObject]:
    from gcsfs.core import GCSFileSystem

    # gcsfs's default class asks another service over gRPC for the bucket type.
    fsspec.register_implementation("gs", GCSFileSystem, clobber=True)
    for name in list(os.environ):
        if name.startswith(("GOOGLE_", "STORAGE_EMULATOR")):
            monkeypatch.delenv(name)
    bucket = OneObject()
    bucket.headers = {"x-goog-generation": GENERATION}
    with bucket.serving() as server, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "GCS project not set")
        yield server


def opened(service: OneObject, path: str = "gs://orders/a b", **more: object) -> GcsStore:
    arguments = {"token": "anon", "endpoint_url": service.url, **more}
    store = open_store(path, Secret({"storageOptions": json.dumps(arguments)}), retry_policy=QUICK)
    assert isinstance(store, GcsStore)
    return store


@pytest.fixture
def by_gcsfs(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Replaces the reads of gcsfs. Returns a list to which each read appends the object version."""
    versions: list[str | None] = []

    def read(_store: Any, _key: str, start: int, stop: int, version: str | None) -> bytes:  # noqa: ANN401
        versions.append(version)
        return DATA[start:stop]

    monkeypatch.setattr(FsspecStore, "_read", read)
    return versions


def use(store: GcsStore, settings: GcsSettings) -> None:
    """Replaces the settings that the store derived from its options."""
    store._ranges._settings, store._ranges._opened = settings, settings.open()
    store._ranges._reason = ""


# -- requests


def test_anonymous_requests_are_unsigned(
    service: OneObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {
        "GOOGLE_BEARER_TOKEN": "of-somebody-else",
        "GOOGLE_BASE_URL": "http://127.0.0.1:1",
        "GOOGLE_BUCKET": "another",
        "GOOGLE_APPLICATION_CREDENTIALS": "/nowhere.json",
    }.items():
        monkeypatch.setenv(name, text)
    store = opened(service)
    assert store.get_range("x y", 3, 9, version=GENERATION) == DATA[3:9]
    ((path, headers),) = service.seen
    assert path == f"/orders/a%20b%2Fx%20y?generation={GENERATION}"
    assert headers["range"] == "bytes=3-8"
    assert "authorization" not in headers
    assert store.remarks == ()
    assert store.counters.requests == 1
    store.close()


def credentials(token: str, **more: object) -> Any:  # noqa: ANN401  # Google's
    from google.oauth2.credentials import Credentials

    return Credentials(token, **more)  # type: ignore[no-untyped-call]


class Login:
    """Replaces `GoogleCredentials` of gcsfs. Each token expires after a millisecond."""

    def __init__(self) -> None:
        self.number = 0
        self.credentials = credentials("none")

    def maybe_refresh(self) -> None:
        self.number += 1
        soon = datetime.now(UTC).replace(tzinfo=None) + timedelta(milliseconds=1)
        self.credentials = credentials(f"token-{self.number}", expiry=soon)


def test_expired_tokens_are_renewed(service: OneObject) -> None:
    store = opened(service)
    assert store.remarks == ()
    settings = store._ranges._settings
    assert isinstance(settings, GcsSettings)
    use(store, replace(settings, login=Login()))
    for _ in range(3):
        assert store.get_range("x", 0, 4) == DATA[:4]
    assert [headers["authorization"] for _, headers in service.seen] == [
        "Bearer token-1",
        "Bearer token-2",
        "Bearer token-3",
    ]
    assert "token-" not in repr(store) + repr(vars(store._ranges))
    store.close()


class RenewableLogin(Login):
    """Login that renews its token only if the token is not valid. The renewal fails if `gives` is
    false.
    """

    def __init__(self, *, gives: bool) -> None:
        super().__init__()
        self._gives = gives
        self.asked = 0
        self.expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)
        self.credentials = credentials("token-0", expiry=self.expiry)

    def maybe_refresh(self) -> None:
        if self.credentials.valid:
            return
        self.asked += 1
        if not self._gives:
            raise OSError("no token")
        self.number += 1
        self.credentials = credentials(f"token-{self.number}", expiry=self.expiry)


def refused(service: OneObject, login: RenewableLogin, *, token: str) -> GcsStore:
    """Opens a store whose server refuses all requests with `token`."""
    store = opened(service)
    assert not store.remarks
    settings = store._ranges._settings
    assert isinstance(settings, GcsSettings)
    use(store, replace(settings, login=login))
    service.refuses = lambda headers: headers["authorization"] == f"Bearer {token}"
    return store


def test_refused_token_is_renewed_only_once(service: OneObject) -> None:
    """A server may refuse a token before it expires, for example after it was revoked."""
    login = RenewableLogin(gives=True)
    store = refused(service, login, token="token-0")
    with ThreadPoolExecutor(8) as pool:
        contents = list(
            pool.map(lambda position: store.get_range("x", position, position + 4), range(16))
        )
    assert contents == [DATA[position : position + 4] for position in range(16)]
    assert login.asked == 1, "one of the threads"
    assert store.counters.requests == len(service.seen)
    assert store.remarks == ()
    store.close()


@pytest.mark.parametrize("gives", [True, False])
def test_refused_token_raises_access_denied_error_if_renewal_does_not_help(
    service: OneObject, gives: bool
) -> None:
    login = RenewableLogin(gives=gives)
    store = refused(service, login, token="token-0")
    service.refuses = lambda _headers: True
    with pytest.raises(AccessDeniedError, match="401"):
        store.get_range("x", 0, 4)
    assert login.asked == 1
    assert store.counters.requests == len(service.seen) == 1 + gives
    assert login.credentials.expiry == login.expiry
    store.close()


class UnavailableLogin(Login):
    """Fails as if the metadata server did not respond."""

    def maybe_refresh(self) -> None:
        raise OSError("no token")


def test_gcsfs_reads_if_obstore_cannot_get_a_token(
    service: OneObject, by_gcsfs: list[str | None]
) -> None:
    """gcsfs repeats the request for a token and reports why it failed, whereas obstore would report
    "permission denied" for every failure.
    """
    store = opened(service)
    assert not store.remarks
    settings = store._ranges._settings
    assert isinstance(settings, GcsSettings)
    use(store, replace(settings, login=UnavailableLogin()))
    assert store.get_range("x", 0, 4, version=GENERATION) == DATA[:4]
    assert (by_gcsfs, service.seen) == ([GENERATION], [])
    assert store.counters.requests == 1, "obstore sent no request"
    assert "the same request by gcsfs succeeded" in store.remarks[0]
    store.close()


# -- reads by gcsfs


def _set(name: str, text: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setenv(name, text)


LEFT: dict[str, tuple[dict[str, object], str, Callable[[pytest.MonkeyPatch], None] | None]] = {
    "name requester_pays": ({"requester_pays": True}, "gs://orders", None),
    "name session_kwargs": ({"session_kwargs": {}}, "gs://orders", None),
    "bucket's name": ({}, "gs://Orders", None),
    "KTS_TUNING": ({}, "gs://orders", _set("KTS_TUNING", "off")),
    "a proxy": ({}, "gs://orders", _set("HTTPS_PROXY", "http://proxy")),
    "GOOGLE_PROXY_URL": ({}, "gs://orders", _set("GOOGLE_PROXY_URL", "http://proxy")),
    "a bundle": (
        {"endpoint_url": "https://localhost:1"},
        "gs://orders",
        _set("REQUESTS_CA_BUNDLE", "/x.pem"),
    ),
    "cannot be opened": ({"access": "nonsense"}, "gs://orders", None),
}


@pytest.mark.parametrize("reason", LEFT)
def test_gcsfs_reads_if_obstore_does_not_support_the_options(
    service: OneObject,
    by_gcsfs: list[str | None],
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
) -> None:
    more, path, prepare = LEFT[reason]
    if prepare is not None:
        prepare(monkeypatch)
    store = opened(service, path, **more)
    (remark,) = store.remarks
    assert remark.startswith(f"gcsfs reads the bucket {path.partition('://')[2]}: ")
    assert reason in remark
    assert store.get_range("x", 0, 4, version=GENERATION) == DATA[:4]
    assert (by_gcsfs, service.seen) == ([GENERATION], [])
    store.close()


@pytest.mark.parametrize(
    ("endpoint", "project", "reason"),
    [
        ("http://", None, "encrypted"),
        ("https://", "who-pays", "billing project"),
        ("https://", None, ""),
    ],
)
def test_gcsfs_reads_with_plain_http_and_with_quota_projects(
    service: OneObject, endpoint: str, project: str | None, reason: str
) -> None:
    store = opened(service, endpoint_url=f"{endpoint}localhost:1")
    login = store._client.filesystem.credentials
    login.credentials = credentials("token", quota_project_id=project)
    assert reason in store._ranges.reason
    assert bool(reason) == bool(store._ranges.reason)


@pytest.mark.parametrize("name", ["GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_SERVICE_ACCOUNT"])
def test_gcsfs_reads_if_obstore_rejects_a_credentials_file(
    service: OneObject, by_gcsfs: list[str | None], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "{}")
    store = opened(service)
    assert store.get_range("x", 0, 4, version=GENERATION) == DATA[:4]
    assert (by_gcsfs, service.seen) == ([GENERATION], [])
    assert "cannot open the store" in store.remarks[0]
    store.close()


def test_workload_identity_tokens_are_used(
    service: OneObject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """obstore cannot read a file for workload identity, so gcsfs obtains the tokens."""
    file = tmp_path / "identity.json"
    file.write_text(json.dumps({"type": "external_account", "audience": "x"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    store = opened(service)
    assert "cannot open the store" in store.remarks[0], "obstore cannot read the file"
    settings = store._ranges._settings
    assert isinstance(settings, GcsSettings)
    use(store, replace(settings, login=Login()))
    assert store.get_range("x", 0, 4, version=GENERATION) == DATA[:4]
    ((_, headers),) = service.seen
    assert headers["authorization"] == "Bearer token-1"
    store.close()


# -- responses


@pytest.mark.parametrize(("status", "code"), [(404, "NoSuchKey"), (400, "InvalidArgument")])
def test_gcsfs_repeats_reads_that_fail_with_404_or_400_in_obstore(
    service: OneObject, by_gcsfs: list[str | None], status: int, code: str
) -> None:
    """gcsfs uses another API and may find an object for which obstore receives these errors."""
    service.error = status, code
    store = opened(service)
    for _ in range(2):
        assert store.get_range("x", 0, 4, version=GENERATION) == DATA[:4]
    assert by_gcsfs == [GENERATION] * 2
    assert len(service.seen) == 1, "obstore sends no second request"
    assert "the same request by gcsfs succeeded" in store.remarks[0]
    store.close()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (401, "AuthenticationRequired", AccessDeniedError),
        (403, "AccessDenied", AccessDeniedError),
        (416, "InvalidRange", TruncatedObjectError),
        (429, "SlowDown", StoreUnavailableError),
        (503, "ServiceUnavailable", StoreUnavailableError),
    ],
)
def test_error_class_depends_on_status(
    service: OneObject, status: int, code: str, kind: type[Exception]
) -> None:
    service.error = status, code
    store = opened(service)
    with pytest.raises(kind):
        store.get_range("x", 0, 4, version=GENERATION)
    is_patient = kind is StoreUnavailableError
    assert len(service.seen) == (QUICK.max_attempts if is_patient else 1)
    store.close()


def test_read_of_another_generation_raises_object_changed_error(service: OneObject) -> None:
    service.headers = {"x-goog-generation": "7"}
    store = opened(service)
    with pytest.raises(ObjectChangedError, match="7"):
        store.get_range("x", 0, 4, version=GENERATION)
    service.headers = {}
    with pytest.raises(StoreUnavailableError, match="no version"):
        store.get_range("x", 0, 4, version=GENERATION)
    store.close()


def test_pickled_store_can_read(service: OneObject) -> None:
    store = opened(service)
    assert store.get_range("x", 0, 4) == DATA[:4]
    copy = pickle.loads(pickle.dumps(store))
    assert copy.get_range("x", 4, 8) == DATA[4:8]
    assert len(service.seen) == 2
    store.close()
    copy.close()
