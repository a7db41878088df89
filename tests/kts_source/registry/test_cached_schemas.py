"""Tests the disk cache of registry schemas. Its keys contain the registry and the user."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from kts_source.cache.caches import NO_CACHE, CacheSettings
from kts_source.cache.disk_cache import CacheLimits
from kts_source.registry.client import RegistryAccess, RegistryPlace
from kts_source.registry.schema_registry import ById, RegisteredSchema, find_schema
from kts_source.secret import Secret
from tests.schema_registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA = RegisteredSchema("AVRO", (("schema 1", b'"int"'),))


@pytest.fixture
def server() -> Iterator[Registry]:
    registry = Registry({"/schemas/ids/1": {"schema": '"int"'}})
    registry.authorization = None
    with registry.serving():
        yield registry


def kept_in(folder: Path | None) -> CacheSettings:
    return CacheSettings(
        folder=None if folder is None else str(folder), schemas=CacheLimits(1 << 20, None)
    )


def test_schema_id_is_requested_only_once_per_machine(server: Registry, tmp_path: Path) -> None:
    registry = RegistryPlace(server.url, cache=kept_in(tmp_path))
    for _ in range(3):
        assert find_schema(registry, 1) == SCHEMA
    assert len(server.asked) == 1
    files = list(tmp_path.rglob("*.entry"))
    assert [path.stat().st_mode & 0o777 for path in files] == [0o600]
    files[0].write_bytes(files[0].read_bytes()[:-1])  # a truncated entry is requested again
    assert find_schema(registry, 1) == SCHEMA
    assert len(server.asked) == 2


def test_registry_users_do_not_share_cached_schemas(server: Registry, tmp_path: Path) -> None:
    def asked_by(access: RegistryAccess) -> int:
        before = len(server.asked)
        registry = RegistryPlace(server.url, Secret(access), kept_in(tmp_path))
        assert find_schema(registry, 1) == SCHEMA
        return len(server.asked) - before

    assert asked_by(RegistryAccess("one", "word")) == 1
    assert asked_by(RegistryAccess("one", "new-word")) == 0
    assert asked_by(RegistryAccess("two", "word")) == 1
    cluster = (("target-sr-cluster", "a"),)
    assert asked_by(RegistryAccess(token="token-1", headers=cluster)) == 1
    assert asked_by(RegistryAccess(token="token-2", headers=cluster)) == 0
    # Without a cluster, a token alone identifies the user. It must leave no trace on disk.
    assert [asked_by(RegistryAccess(token="token-1")) for _ in range(2)] == [1, 1]
    for path in tmp_path.rglob("*.entry"):
        assert b"word" not in path.read_bytes()
        assert b"token" not in path.read_bytes()


def test_equal_ids_of_different_kinds_do_not_share_a_cached_schema(
    server: Registry, tmp_path: Path
) -> None:
    for kind in ("globalId", "contentId"):
        server.documents[f"/ids/{kind}s/1?dereference=true"] = {"type": kind}
    registries = [
        RegistryPlace(server.url, cache=kept_in(tmp_path)),
        RegistryPlace(server.url, cache=kept_in(tmp_path), ids="globalId"),
        RegistryPlace(server.url, cache=kept_in(tmp_path), ids="contentId"),
    ]
    first = [find_schema(registry, 1).parts[-1][1] for registry in registries]
    assert first == [b'"int"', b'{"type": "globalId"}', b'{"type": "contentId"}']
    assert [find_schema(registry, 1).parts[-1][1] for registry in registries] == first
    assert len(server.asked) == 3


def test_schemas_without_cache_folder_are_not_cached(
    server: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for cache in (NO_CACHE, kept_in(None)):  # the second one: a registry on this machine
        for _ in range(2):
            assert find_schema(RegistryPlace(server.url, cache=cache), 1) == SCHEMA
    assert len(server.asked) == 4
    assert list(tmp_path.iterdir()) == []


def test_unknown_ids_are_not_cached(server: Registry, tmp_path: Path) -> None:
    registry = RegistryPlace(server.url, cache=kept_in(tmp_path))
    with pytest.raises(LookupError):
        find_schema(registry, 2)
    server.documents["/schemas/ids/2"] = {"schema": '"long"'}
    assert find_schema(registry, 2).parts[-1][1] == b'"long"'


def test_concurrent_lookups_of_one_schema_id_send_one_request(server: Registry) -> None:
    schemas: ById[int, RegisteredSchema] = ById(
        lambda number: find_schema(RegistryPlace(server.url), number)
    )
    results: list[object] = []

    def look() -> None:
        try:
            results.append(schemas.get(1))
            schemas.get(2)
        except LookupError as error:
            results.append(str(error))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count(SCHEMA) == 8
    assert len(results) == 16
    assert sorted(server.asked) == ["/schemas/ids/1", "/schemas/ids/2"]
