"""Checks the botocore session that the package gives to s3fs.

The session loads descriptions of AWS services faster than botocore's own session, and must support
all services.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import botocore.loaders
import botocore.session
import pytest

from kts_source.store import s3_store
from kts_source.store.s3_store import connect
from kts_source.store.storage_options import s3_arguments

if TYPE_CHECKING:
    from pathlib import Path

KEYS = {"s3.access-key-id": "key", "s3.secret-access-key": "secret", "s3.region": "eu-west-1"}


def loader_of(filesystem: Any) -> Any:  # noqa: ANN401
    return filesystem.session.get_component("data_loader")


@pytest.mark.parametrize("kind", ["service-2", "endpoint-rule-set-1", "paginators-1", "waiters-2"])
def test_own_loader_finds_every_service_that_botocore_finds(kind: str) -> None:
    botocore_loader = botocore.session.get_session().get_component("data_loader")
    names = botocore_loader.list_available_services(kind)
    assert "s3" in names
    assert set(names) <= set(loader_of(connect(s3_arguments(KEYS))).list_available_services(kind))


@pytest.mark.parametrize("service", ["s3", "sts", "sso", "sso-oidc"])
def test_own_loader_returns_the_same_service_descriptions_as_botocore(service: str) -> None:
    botocore_loader = botocore.session.get_session().get_component("data_loader")
    # Creates a new loader, because clients modify the descriptions of the shared loader.
    own_loader = s3_store._loader.__wrapped__(None)
    for kind in ("service-2", "endpoint-rule-set-1"):
        assert own_loader.load_service_model(service, kind) == botocore_loader.load_service_model(
            service, kind
        )


def test_client_uses_the_profile_of_the_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text("[profile far]\nregion = eu-north-1\n", "utf-8")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    filesystem = connect(s3_arguments({"s3.profile-name": "far"}))
    assert filesystem.session.profile == "far"
    assert filesystem.session.get_config_variable("region") == "eu-north-1"


def region_of(filesystem: Any) -> str:  # noqa: ANN401
    """Returns the AWS region of the client that `filesystem` creates."""

    async def region() -> str:
        client = await filesystem.set_session()
        await filesystem._s3creator.__aexit__(None, None, None)
        return str(client.meta.region_name)

    return asyncio.run_coroutine_threadsafe(region(), filesystem.loop).result(30)


def test_s3fs_client_keeps_our_botocore_session() -> None:
    filesystem = connect(s3_arguments(KEYS))
    session = filesystem.session
    assert region_of(filesystem) == "eu-west-1"
    assert filesystem.session is session


def test_service_descriptions_are_parsed_once_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert region_of(connect(s3_arguments(KEYS))) == "eu-west-1"

    def load_file(_self: object, path: str) -> None:
        raise AssertionError(f"{path} is read again")

    monkeypatch.setattr(botocore.loaders.JSONFileLoader, "load_file", load_file)
    other = connect(s3_arguments({**KEYS, "s3.region": "eu-north-1"}))
    assert region_of(other) == "eu-north-1"


def test_session_of_s3fs_is_used_if_tuning_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KTS_TUNING", "off")
    filesystem = connect(s3_arguments(KEYS))
    assert filesystem.session is None
    assert region_of(filesystem) == "eu-west-1"


@pytest.mark.parametrize("missing", ["create_loader", "search_paths"])
def test_session_of_s3fs_is_used_if_botocore_changed(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    original = botocore.loaders.create_loader

    class Other:
        """A loader that stores the service descriptions in a different folder."""

        search_paths = ()

    with monkeypatch.context() as patched:
        if missing == "search_paths":
            patched.setattr(botocore.loaders, "create_loader", lambda _path=None: Other())
        else:
            patched.delattr(botocore.loaders, "create_loader")
        s3_store._loader.cache_clear()
        filesystem = connect(s3_arguments(KEYS))
        assert filesystem.session is None
    s3_store._loader.cache_clear()
    assert botocore.loaders.create_loader is original
    assert region_of(filesystem) == "eu-west-1"
