"""Tests exports into Azure and Google without a server: credentials for delta-rs and from catalogs,
and copies that are not complete.
"""

from __future__ import annotations

import json
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kts_source.errors import UnsupportedTargetError
from kts_source.export.settings import export_settings
from kts_source.export.tables.target_store import AzureTarget, open_target
from kts_source.secret import Secret

if TYPE_CHECKING:
    from pathlib import Path

AZURE = "abfss://lake@shop.dfs.core.windows.net/orders"
HOST = "https://shop.blob.core.windows.net"


def storage(**arguments: object) -> dict[str, str]:
    return {"storageOptions": json.dumps(arguments)}


def delta_options(target: str, **arguments: object) -> dict[str, str]:
    settings = export_settings(target, target_options=storage(**arguments))
    with closing(open_target(settings.target, settings.storage)) as opened:
        options = opened.delta_options()
    assert options is not None
    return options


@pytest.fixture(autouse=True)
def no_azure_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCOUNT_NAME", "ACCOUNT_KEY", "SAS_TOKEN", "CONNECTION_STRING"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"account_key": "a2V5"}, {"azure_storage_account_key": "a2V5"}),
        ({"sas_token": "sv=1&sig=x"}, {"azure_storage_sas_key": "sv=1&sig=x"}),
        ({"anon": True}, {"azure_skip_signature": "true"}),
    ],
)
def test_delta_options_contain_azure_credentials_of_reads(
    arguments: dict[str, Any], expected: dict[str, str]
) -> None:
    account = {
        "azure_storage_account_name": "shop",
        "azure_endpoint": HOST,
        "allow_http": "false",
    }
    assert delta_options(AZURE, **arguments) == {**account, **expected}


def test_delta_options_contain_google_credentials_of_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gcsfs.credentials.GoogleCredentials.connect", connect)
    target = "gs://lake/orders"
    assert delta_options(target, token="anon") == {"google_skip_signature": "true"}
    assert delta_options(target, token="google_default") == {}
    account = json.dumps({"type": "service_account", "private_key": "secret"})
    (tmp_path / "account.json").write_text(account)
    (tmp_path / "user.json").write_text('{"type": "authorized_user"}')
    for token in (str(tmp_path / "account.json"), json.loads(account)):
        assert delta_options(target, token=token) == {"google_service_account_key": account}
    user = str(tmp_path / "user.json")
    assert delta_options(target, token=user) == {"google_application_credentials": user}
    with pytest.raises(UnsupportedTargetError, match="service account") as caught:
        delta_options(target, token="ya29.secret")
    assert "ya29" not in str(caught.value)


def connect(self: Any, method: Any = None) -> None:  # noqa: ANN401
    """Replaces the login of gcsfs, which would need a private key."""
    del method
    self.credentials = None if self.token == "anon" else object()


def test_storage_options_contain_azure_and_google_credentials_of_the_catalog() -> None:
    catalog = {"type": "sql", "adls.account-name": "shop", "adls.account-key": "a2V5"}
    settings = export_settings("lake.orders", table_format="iceberg", catalog=catalog)
    assert settings.storage.reveal() == storage(account_name="shop", account_key="a2V5")
    catalog = {"type": "sql", "gcs.oauth2.token": "anon", "gcs.service.host": "http://gcs"}
    settings = export_settings("lake.orders", table_format="iceberg", catalog=catalog)
    assert settings.storage.reveal() == storage(token="anon", endpoint_url="http://gcs")


@pytest.mark.parametrize(
    ("target", "is_kept"), [("az://lake/orders", True), ("gs://lake/orders", False)]
)
def test_storage_options_of_the_source_apply_only_to_the_same_service(
    target: str, is_kept: bool
) -> None:
    source = {"path": AZURE, **storage(account_key="a2V5")}
    settings = export_settings(target, source=source)
    assert ("storageOptions" in settings.storage.reveal()) == is_kept


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["success"], (5, "a b")),
        (["pending", "success"], (5, "a b")),
        (["failed"], None),
        (["aborted"], None),
    ],
)
def test_copy_in_azure_counts_only_when_complete(
    monkeypatch: pytest.MonkeyPatch, states: list[str], expected: tuple[int, str] | None
) -> None:
    target = AzureTarget(AZURE, Secret(storage(account_key="a2V5")))
    left = iter(states)

    def look_up(_call: object) -> Any:  # noqa: ANN401
        copy = SimpleNamespace(status=next(left))
        return SimpleNamespace(copy=copy, size=5, metadata={"Kts_origin": "a%20b"})

    monkeypatch.setattr(target._client, "run", look_up)
    assert target._find_copy("done") == expected
    assert next(left, None) is None
