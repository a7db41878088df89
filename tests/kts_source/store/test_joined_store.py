from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import InvalidKeyError, ObjectChangedError, ObjectNotFoundError
from kts_source.store.joined_store import (
    JoinedStore,
    additional_store_prefix,
    is_in_additional_store,
)
from kts_source.store.local_store import LocalStore
from kts_source.store.object_store import ObjectStore

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "first": {"t-0/a.log": b"first"},
    "one": {"t-0/a.log": b"of one", "t-0/b.log": b"b", "mark": b"1"},
    "two": {"t-0/a.log": b"of two"},
}


@pytest.fixture
def store(tmp_path: Path) -> JoinedStore:
    for root, files in FILES.items():
        for key, data in files.items():
            path = tmp_path / root / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    first, second, third = (LocalStore(tmp_path / root) for root in FILES)
    return JoinedStore(first, (second, third))


def test_key_prefix_selects_the_store(store: JoinedStore, tmp_path: Path) -> None:
    assert isinstance(store, ObjectStore)
    for root, before in (
        ("first", ""),
        ("one", additional_store_prefix(0)),
        ("two", additional_store_prefix(1)),
    ):
        key = f"{before}t-0/a.log"
        data = FILES[root]["t-0/a.log"]
        info = store.head(key)
        assert (info.key, info.size) == (key, len(data))
        assert bytes(store.get_range(key, 1, 3, version=info.version)) == data[1:3]
        assert store.uri(key).endswith(str(tmp_path / root / "t-0/a.log"))
        assert is_in_additional_store(key) == bool(before)


def test_listing_with_key_prefix_contains_only_keys_of_that_store(store: JoinedStore) -> None:
    assert store.list_folders("") == ["t-0/"]
    assert store.list_folders(additional_store_prefix(0)) == [f"{additional_store_prefix(0)}t-0/"]
    assert [info.key for info in store.list_objects("")] == ["t-0/a.log"]
    keys = [info.key for info in store.list_objects(f"{additional_store_prefix(0)}t-0/")]
    assert keys == [
        f"{additional_store_prefix(0)}t-0/a.log",
        f"{additional_store_prefix(0)}t-0/b.log",
    ]
    assert [
        i.key for i in store.list_objects(f"{additional_store_prefix(0)}t-0/", after=keys[0])
    ] == keys[1:]


def test_changed_object_of_a_second_store_raises_object_changed_error(
    store: JoinedStore, tmp_path: Path
) -> None:
    key = f"{additional_store_prefix(1)}t-0/a.log"
    planned = store.head(key)
    (tmp_path / "two/t-0/a.log").write_bytes(b"another")
    with pytest.raises(ObjectChangedError):
        store.get_range(key, 0, 2, version=planned.version)


@pytest.mark.parametrize("number", ["2", "x", "-1", "", "²"])
def test_key_with_unknown_store_number_raises_object_not_found_error(
    store: JoinedStore, number: str
) -> None:
    with pytest.raises(ObjectNotFoundError, match="tailPath"):
        store.head(f"tailPath:/{number}/mark")


def test_key_outside_the_root_of_its_store_raises_invalid_key_error(store: JoinedStore) -> None:
    with pytest.raises(InvalidKeyError):
        store.get_range(f"{additional_store_prefix(0)}../first/t-0/a.log", 0, 1)


def test_pickled_store_reads_and_sums_the_counters_of_its_stores(store: JoinedStore) -> None:
    copy = pickle.loads(pickle.dumps(store))
    assert bytes(copy.get_range(f"{additional_store_prefix(0)}mark", 0, 1)) == b"1"
    assert bytes(copy.get_range("t-0/a.log", 0, 1)) == b"f"
    assert copy.counters.requests == 2
    assert copy.is_near
    copy.close()
