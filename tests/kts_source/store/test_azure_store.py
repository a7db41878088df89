"""Tests range reads of Azure blobs: requests of obstore, and cases in which adlfs reads instead."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from kts_source.errors import (
    AccessDeniedError,
    ArchivedObjectError,
    InvalidOptionError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreUnavailableError,
)
from kts_source.options import parse_options
from kts_source.read.task_metrics import open_filesystem
from kts_source.secret import Secret, scrub
from kts_source.store.fsspec_store import FsspecStore
from kts_source.store.obstore_stores import AzureSettings, AzureStore
from kts_source.store.open_store import open_store
from tests.kts_source.store.fake_cloud import DATA, ETAG, QUICK
from tests.kts_source.store.one_object import OneObject

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("adlfs") is None, reason="adlfs is not installed"
)

KEY = "c2VjcmV0LW9mLXRoZS1hY2NvdW50"
SIGNATURE = "sv=2022-11-02&se=2099-01-01T00:00:00Z&sig=a-secret%2Bsignature%3D"


@pytest.fixture
def service(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[OneObject]:
    for name in list(os.environ):
        if name.startswith("AZURE_"):
            monkeypatch.delenv(name)
    with OneObject().serving() as server:
        yield server


def by_connection(service: OneObject, credential: str) -> dict[str, object]:
    return {"connection_string": f"BlobEndpoint={service.url}/shop;{credential};"}


def by_key(service: OneObject) -> dict[str, object]:
    return by_connection(service, f"AccountName=shop;AccountKey={KEY}")


def opened(arguments: dict[str, object], path: str = "abfs://orders/a b") -> AzureStore:
    store = open_store(path, Secret({"storageOptions": json.dumps(arguments)}), retry_policy=QUICK)
    assert isinstance(store, AzureStore)
    return store


def use(store: AzureStore, settings: AzureSettings) -> None:
    """Replaces the settings that the store derived from its options."""
    store._ranges._settings, store._ranges._opened = settings, settings.open()


# -- requests


def test_account_key_signs_requests(service: OneObject, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "AZURE_STORAGE_ACCOUNT_NAME": "somebody",
        "AZURE_STORAGE_SAS_KEY": SIGNATURE,
        "AZURE_STORAGE_TOKEN": "of-somebody-else",
        "AZURE_SKIP_SIGNATURE": "true",
        "AZURE_STORAGE_USE_EMULATOR": "true",
        "AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:1",
        "AZURE_CONTAINER_NAME": "another",
    }.items():
        monkeypatch.setenv(name, text)
    store = opened(by_key(service))
    assert store.get_range("x y", 3, 9, version=ETAG) == DATA[3:9]
    ((path, headers),) = service.seen
    assert path == "/shop/orders/a%20b/x%20y"
    assert headers["authorization"].startswith("SharedKey shop:")
    assert headers["if-match"] == ETAG
    assert headers["range"] == "bytes=3-8"
    assert store.remarks == ()
    assert store.counters.requests == 1
    store.close()


def test_shared_access_signature_is_sent_and_masked(service: OneObject) -> None:
    store = opened({"account_name": "shop", "sas_token": SIGNATURE})
    assert store.remarks == ()
    settings = store._ranges._settings
    assert isinstance(settings, AzureSettings)
    assert settings.endpoint == "https://shop.blob.core.windows.net"
    use(store, replace(settings, endpoint=service.url, client_options={"allow_http": True}))
    assert store.get_range("x", 0, 4, version=ETAG) == DATA[:4]
    service.error = 403, "AuthorizationFailure"
    with pytest.raises(AccessDeniedError) as caught:
        store.get_range("x", 0, 4, version=ETAG)
    assert "a-secret" not in str(caught.value)
    for path, headers in service.seen:
        assert "sig=a-secret%2Bsignature%3D" in path
        assert "authorization" not in headers
    assert "a-secret" not in repr(store) + repr(vars(store)) + repr(vars(store._ranges))
    store.close()


def test_anonymous_requests_are_unsigned(service: OneObject) -> None:
    arguments = {"account_name": "shop", "anon": True}
    store = opened(arguments)
    assert store.remarks == ()
    settings = store._ranges._settings
    assert isinstance(settings, AzureSettings)
    assert settings.endpoint == "https://shop.blob.core.windows.net"
    use(store, replace(settings, endpoint=service.url, client_options={"allow_http": True}))
    assert store.get_range("x", 0, 4) == DATA[:4]
    ((path, headers),) = service.seen
    assert (path, "authorization" in headers) == ("/orders/a%20b/x", False)
    store.close()


# -- the account in the path

LAKE = "abfss://orders@shop.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        (LAKE, "https://shop.blob.core.windows.net"),
        ("abfs://orders@shop.blob.core.windows.net/", "https://shop.blob.core.windows.net"),
        (
            "abfss://orders@shop.dfs.core.chinacloudapi.cn",
            "https://shop.blob.core.chinacloudapi.cn",
        ),
    ],
)
def test_account_is_taken_from_the_host_of_the_path(
    service: OneObject, path: str, endpoint: str
) -> None:
    store = opened({"account_key": KEY}, f"{path.rstrip('/')}/a b")
    assert store.remarks == ()
    settings = store._ranges._settings
    assert isinstance(settings, AzureSettings)
    assert (settings.endpoint, settings.container, settings.account) == (endpoint, "orders", "shop")
    use(store, replace(settings, endpoint=service.url, client_options={"allow_http": True}))
    assert store.get_range("x y", 0, 4) == DATA[:4]
    ((path, headers),) = service.seen
    assert path == "/orders/a%20b/x%20y"
    assert headers["authorization"].startswith("SharedKey shop:")
    store.close()


def test_metrics_are_written_to_the_account_in_the_path(service: OneObject) -> None:
    storage = {"storageOptions": json.dumps({"account_key": KEY})}
    assert open_filesystem(f"{LAKE}/metrics", storage).account_name == "shop"


@pytest.mark.parametrize(
    "arguments",
    [
        {"account_name": "other", "account_key": KEY},
        {"connection_string": f"BlobEndpoint=http://x/other;AccountName=other;AccountKey={KEY}"},
    ],
)
def test_two_different_accounts_are_refused(
    service: OneObject, arguments: dict[str, object]
) -> None:
    store = opened(arguments, LAKE)
    with pytest.raises(InvalidOptionError, match=r"account 'shop', but storageOptions") as caught:
        store.list_folders("")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"path": f"{LAKE}/tier"},
        {"path": "/t", "fallbackPath": f"{LAKE}/mirror"},
        {"path": "/t", "keyPrefix": "", "tailPath": f"{LAKE}/disks"},
        {"path": "/t", "metricsPath": f"{LAKE}/metrics"},
    ],
    ids=["path", "fallbackPath", "tailPath", "metricsPath"],
)
def test_azure_container_before_at_sign_is_not_treated_as_user_name(
    options: dict[str, str],
) -> None:
    parsed = parse_options({"subscribe": "t", **options})
    paths = (parsed.path, parsed.fetch.fallback_path, *parsed.tail_paths)
    for path in paths:
        if path and path.startswith("abfss:"):
            assert open_store(path, Secret({})).uri("x").startswith(f"{LAKE}/")


@pytest.mark.parametrize(
    "path",
    [
        "abfss://user:password@shop.dfs.core.windows.net/x",
        "abfss://user:password@orders@shop.dfs.core.windows.net/x",
        f"{LAKE}/x?{SIGNATURE}",
        f"abfs://orders/x?{SIGNATURE}",
    ],
)
def test_credentials_in_an_azure_path_are_refused(path: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"write abfss://container@account") as caught:
        open_store(path, Secret({}))
    assert "password" not in str(caught.value)
    assert "a-secret" not in str(caught.value)


def test_masked_text_keeps_the_container_of_an_azure_url() -> None:
    assert scrub(f"{LAKE}/x failed") == f"{LAKE}/x failed"
    assert "pass" not in scrub("abfss://user:pass@shop.dfs.core.windows.net/x failed")


# -- tokens


class Token(NamedTuple):
    token: str
    expires_on: int


class ExpiredTokenCredential:
    """Issues tokens that have already expired."""

    def __init__(self) -> None:
        self.scopes: list[str] = []

    async def get_token(self, scope: str) -> Token:
        self.scopes.append(scope)
        return Token(f"token-{len(self.scopes)}", int(time.time()) - 1)


def test_expired_tokens_are_renewed(service: OneObject) -> None:
    store = opened({"account_name": "shop", "anon": False})
    assert store.remarks == ()
    settings, giver = store._ranges._settings, ExpiredTokenCredential()
    assert isinstance(settings, AzureSettings)
    assert hasattr(settings.token, "get_token"), "adlfs has not requested a token yet"
    use(
        store,
        replace(settings, endpoint=service.url, client_options={"allow_http": True}, token=giver),
    )
    for _ in range(3):
        assert store.get_range("x", 0, 4) == DATA[:4]
    assert [headers["authorization"] for _, headers in service.seen] == [
        "Bearer token-1",
        "Bearer token-2",
        "Bearer token-3",
    ]
    assert set(giver.scopes) == {"https://storage.azure.com/.default"}
    store.close()


# -- reads by adlfs


def _set(name: str, text: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setenv(name, text)


LEFT: dict[str, tuple[dict[str, object], str, Callable[[pytest.MonkeyPatch], None] | None]] = {
    "name version_aware": ({"version_aware": True}, "abfs://orders", None),
    "name location_mode": ({"location_mode": "secondary"}, "abfs://orders", None),
    "container's name": ({}, "abfs://Orders_1", None),
    "KTS_TUNING": ({}, "abfs://orders", _set("KTS_TUNING", "off")),
    "a proxy": ({}, "abfs://orders", _set("HTTPS_PROXY", "http://proxy")),
    "AZURE_PROXY_URL": ({}, "abfs://orders", _set("AZURE_PROXY_URL", "http://proxy")),
    "AZURE_ENCRYPTION_KEY": ({}, "abfs://orders", _set("AZURE_ENCRYPTION_KEY", "x")),
    "a bundle": ({}, "abfs://orders", _set("REQUESTS_CA_BUNDLE", "/x.pem")),
    "cannot be opened": ({"connection_string": "nonsense"}, "abfs://orders", None),
}


@pytest.mark.parametrize("reason", LEFT)
def test_adlfs_reads_if_obstore_does_not_support_the_options(
    service: OneObject, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    more, path, prepare = LEFT[reason]
    if prepare is not None:
        prepare(monkeypatch)
    store = opened({"account_name": "shop", "account_key": KEY, **more}, path)
    (remark,) = store.remarks
    assert remark.startswith(f"adlfs reads the container {path.partition('://')[2]}: ")
    assert reason in remark
    monkeypatch.setattr(FsspecStore, "_read", lambda *_arguments: DATA[:4])
    assert store.get_range("x", 0, 4, version=ETAG) == DATA[:4]
    assert service.seen == []
    store.close()


@pytest.mark.parametrize(
    ("endpoint", "is_own"),
    [
        ("https://shop.blob.core.windows.net", True),
        ("https://shop.z12.blob.storage.azure.net/", True),
        ("https://shop.blob.core.usgovcloudapi.net", True),
        ("https://shop.blob.core.windows.net.example.com", False),
        ("https://example.com/shop.blob.core.windows.net", False),
        ("http://shop.blob.core.windows.net", False),
        ("http://127.0.0.1:10000/shop", False),
    ],
)
def test_signatures_are_sent_only_to_azure_hosts(
    service: OneObject, endpoint: str, is_own: bool
) -> None:
    """If a different host redirected the request, obstore would send it the signed URL as
    `Referer`.
    """
    signed = f"BlobEndpoint={endpoint};SharedAccessSignature={SIGNATURE};"
    store = opened({"connection_string": signed})
    assert ("a shared access signature with" in store._ranges.reason) is not is_own
    assert (store.remarks == ()) is is_own
    assert "a-secret" not in str(store.remarks)


def test_tokens_are_sent_only_over_encrypted_connections(
    service: OneObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(by_key(service))
    client = store._client.filesystem.service_client
    monkeypatch.setattr(client, "credential", ExpiredTokenCredential())
    assert "encrypted" in store._ranges.reason
    monkeypatch.setattr(client, "credential", object())
    other = opened(by_key(service))
    monkeypatch.setattr(other._client.filesystem.service_client, "credential", object())
    assert "kind of credentials" in other._ranges.reason


@pytest.mark.parametrize("version", ["0x8DC0FFEE", '""', 'W/"v1"'])
def test_adlfs_reads_objects_with_unquoted_etags(
    service: OneObject, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    versions_read: list[str | None] = []

    def read(_store: Any, _key: str, start: int, stop: int, requested: str | None) -> bytes:  # noqa: ANN401
        versions_read.append(requested)
        return DATA[start:stop]

    monkeypatch.setattr(FsspecStore, "_read", read)
    store = opened(by_key(service))
    assert store.get_range("x", 0, 4, version=version) == DATA[:4]
    assert (versions_read, service.seen) == ([version], [])
    store.close()


# -- responses


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "BlobNotFound", ObjectNotFoundError),
        (403, "AuthenticationFailed", AccessDeniedError),
        (409, "BlobArchived", ArchivedObjectError),
        (412, "ConditionNotMet", ObjectChangedError),
        (500, "OperationTimedOut", StoreUnavailableError),
        (503, "ServerBusy", StoreUnavailableError),
    ],
)
def test_error_class_depends_on_status_and_code(
    service: OneObject, status: int, code: str, kind: type[Exception]
) -> None:
    service.error = status, code
    store = opened(by_key(service))
    with pytest.raises(kind):
        store.get_range("x", 0, 4, version=ETAG)
    is_patient = kind is StoreUnavailableError
    assert len(service.seen) == (QUICK.max_attempts if is_patient else 1)
    store.close()


def test_read_of_another_etag_raises_object_changed_error(service: OneObject) -> None:
    service.headers = {"ETag": '"v2"'}
    store = opened(by_key(service))
    with pytest.raises(ObjectChangedError, match="v2"):
        store.get_range("x", 0, 4, version=ETAG)
    store.close()


def test_pickled_store_can_read(service: OneObject) -> None:
    store = opened(by_key(service))
    assert store.get_range("x", 0, 4) == DATA[:4]
    copy = pickle.loads(pickle.dumps(store))
    assert copy.get_range("x", 4, 8) == DATA[4:8]
    assert len(service.seen) == 2
    store.close()
    copy.close()
