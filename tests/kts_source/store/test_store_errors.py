"""Tests that failed logins, missing libraries and unreachable stores give one short error."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.errors import AccessDeniedError, MissingExtraError, StoreUnavailableError
from kts_source.secret import Secret
from kts_source.store.open_store import open_store
from tests.kts_source.store.fake_cloud import QUICK
from tests.kts_source.store.one_object import KEYS

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.store.object_store import ObjectStore


def failure(store: ObjectStore, error_class: type[Exception]) -> str:
    """Returns the text of the error that listing a store raises, without its location."""
    with pytest.raises(error_class) as caught:
        store.list_folders("")
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 500
    return text


def opened(path: str, **options: str) -> ObjectStore:
    storage: dict[str, Any] = {name.replace("__", "."): text for name, text in options.items()}
    return open_store(path, Secret(storage), retry_policy=QUICK)


@pytest.mark.skipif(find_spec("adlfs") is None, reason="adlfs is not installed")
def test_failed_azure_login_ends_at_once_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from azure.core.exceptions import ClientAuthenticationError
    from azure.identity.aio import DefaultAzureCredential

    calls = []

    async def refuse(_self: object, *_scopes: str, **_named: object) -> None:
        text = "DefaultAzureCredential failed to retrieve a token.\nAttempted credentials:\n\tx"
        calls.append(text)
        logger = logging.getLogger("azure.identity.aio")
        logger.warning(text)
        assert logger.hasHandlers()  # otherwise Python prints the text
        raise ClientAuthenticationError(text)

    monkeypatch.setattr(DefaultAzureCredential, "get_token", refuse)
    monkeypatch.setattr(DefaultAzureCredential, "get_token_info", refuse)
    store = opened("abfss://orders@shop.dfs.core.windows.net/tier")
    text = failure(store, AccessDeniedError)
    assert text.startswith("no Azure credentials work. Give account_key, sas_token")
    assert len(calls) == 1
    assert "Attempted" not in text + capfd.readouterr().err
    store.close()


def test_missing_aws_profile_is_a_denied_login(clean_environment: None) -> None:
    store = opened("s3://bucket", **{"s3.profile-name": "missing"})
    text = failure(store, AccessDeniedError)
    assert text.startswith("the login to AWS failed: ProfileNotFound: The config profile (missing)")


def test_expired_sso_login_is_a_denied_login(
    clean_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text(
        "[profile shop]\nsso_start_url = https://shop.awsapps.com/start\nsso_region = eu-west-1\n"
        "sso_account_id = 123456789012\nsso_role_name = reader\nregion = eu-west-1\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("HOME", str(tmp_path))
    store = opened("s3://bucket", **{"s3.profile-name": "shop"})
    text = failure(store, AccessDeniedError)
    assert text.startswith("the login to AWS failed:")
    assert "log in again" in text


def test_unreachable_store_is_described_once(clean_environment: None) -> None:
    endpoint = {"s3.endpoint": "http://127.0.0.1:1", "s3.region": "us-east-1"}
    text = failure(opened("s3://bucket", **KEYS, **endpoint), StoreUnavailableError)
    assert text.startswith(f"all {QUICK.max_attempts} attempts failed within")
    assert text.count("Could not connect") == 1


def test_missing_hadoop_library_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    def fail(*_arguments: object, **_named: object) -> None:
        raise OSError("Unable to load libjvm\ndlopen(/usr/lib/jvm/libjvm.so) failed" + "\nx" * 5000)

    monkeypatch.setattr(fsspec, "filesystem", fail)
    text = failure(opened("hdfs://namenode/tier"), MissingExtraError)
    assert "needs Java and the native library of Hadoop (libhdfs)" in text
    assert "CLASSPATH" in text


def test_long_error_of_a_library_is_one_short_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    def fail(*_arguments: object, **_named: object) -> None:
        raise OSError("line\n" * 5000)

    monkeypatch.setattr(fsspec, "filesystem", fail)
    assert failure(opened("memory://tier"), Exception).startswith("the store failed: OSError: line")
