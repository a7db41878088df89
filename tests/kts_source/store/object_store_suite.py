"""Defines tests that every store must pass. A subclass for each store overrides `make_root`."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import pickle
from typing import TYPE_CHECKING, Protocol

import pytest

from kts_source.errors import (
    InvalidKeyError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    StoreNotFoundError,
    TruncatedObjectError,
)
from kts_source.store.object_store import ObjectInfo, ObjectStore, StoreCounters
from kts_source.store.open_store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kts_source.secret import Secret

DATA = bytes(range(256)) * 5
TREE = {
    "tier/orders-1/0/a.log": DATA,
    "tier/orders-1/0/a.manifest": b"{}",
    "tier/orders-1/1/b.log": b"",
    "tier/orders-eu-2/0/c.log": b"c",
    "tier/orders.old": b"not a folder",
    "tiered": b"beside",
}
ODD_KEYS = ["a b", "a+b", "a%20b", "ü/ß", "q?x=1&y=2", "h#1", "=", "quote'\"", "t~-_.!*()", "c:d@e"]


class StoreRoot(Protocol):
    """A root of a store. Tests add and delete its objects without the store under test."""

    path: str
    storage: Secret[Mapping[str, str]]

    def put(self, key: str, data: bytes) -> None: ...

    def delete(self, key: str) -> None: ...


def _first_bytes(store: ObjectStore, key: str) -> bytes:
    return bytes(store.get_range(key, 0, 4))


class ObjectStoreSuite:
    """Tests that every `ObjectStore` must pass."""

    # Number of requests that a read of a given object version sends.
    requests_per_pinned_read = 1
    knows_missing_root = True

    @pytest.fixture(scope="class")
    @classmethod
    def make_root(cls) -> Callable[[], StoreRoot]:
        """Returns a function that creates a new, empty root at each call."""
        raise NotImplementedError

    @pytest.fixture
    def missing_root(self) -> StoreRoot:
        """Returns a root that does not exist."""
        raise NotImplementedError

    @pytest.fixture
    def root(self, make_root: Callable[[], StoreRoot]) -> StoreRoot:
        return make_root()

    @pytest.fixture
    def store(self, root: StoreRoot) -> Iterator[ObjectStore]:
        """Opens a store with its own empty root."""
        store = open_store(root.path, root.storage)
        yield store
        store.close()

    @pytest.fixture(scope="class")
    @classmethod
    def tree(cls, make_root: Callable[[], StoreRoot]) -> Iterator[ObjectStore]:
        """Opens a store with objects that all tests share and that no test changes."""
        root = make_root()
        for key, data in TREE.items():
            root.put(key, data)
        store = open_store(root.path, root.storage)
        yield store
        store.close()

    # -- listing

    @pytest.mark.parametrize(
        ("prefix", "folders"),
        [
            ("", ["tier/"]),
            ("tier/", ["tier/orders-1/", "tier/orders-eu-2/"]),
            ("tier/orders-", ["tier/orders-1/", "tier/orders-eu-2/"]),
            ("tier/orders-e", ["tier/orders-eu-2/"]),
            ("tier/orders-1", ["tier/orders-1/"]),
            ("tier/orders-1/", ["tier/orders-1/0/", "tier/orders-1/1/"]),
            ("tier/orders-1/0/", []),
            ("tier/orders.old", []),
            ("tier/orders.old/", []),
            ("nothing/here", []),
            ("o", []),
        ],
    )
    def test_list_folders_returns_one_level_below_a_literal_prefix(
        self, tree: ObjectStore, prefix: str, folders: list[str]
    ) -> None:
        assert tree.list_folders(prefix) == folders

    @pytest.mark.parametrize(
        "prefix",
        ["", "tier", "tier/", "tier/orders-1", "tier/orders-1/0/", "tier/orders-1/0/a.l", "none/x"],
    )
    def test_list_objects_returns_all_keys_below_a_literal_prefix_in_order(
        self, tree: ObjectStore, prefix: str
    ) -> None:
        listed = list(tree.list_objects(prefix))
        assert [info.key for info in listed] == sorted(
            key for key in TREE if key.startswith(prefix)
        )
        assert [info.size for info in listed] == [len(TREE[info.key]) for info in listed]

    @pytest.mark.parametrize("prefix", ["", "tier/orders-1/"])
    def test_listing_contains_only_keys_after_a_given_key(
        self, tree: ObjectStore, prefix: str
    ) -> None:
        keys = [info.key for info in tree.list_objects(prefix)]
        assert len(keys) > 1
        for number, key in enumerate(keys, 1):
            later = [info.key for info in tree.list_objects(prefix, after=key)]
            assert later == keys[number:]
        missing = f"{keys[0]}\U0001f5c4"  # after the first key, wherever other keys are
        assert [info.key for info in tree.list_objects(prefix, after=missing)] == [
            key for key in keys if key.encode() > missing.encode()
        ]

    def test_listing_is_never_cached(self, root: StoreRoot, store: ObjectStore) -> None:
        root.put("old/object", b"x")
        assert [info.key for info in store.list_objects("")] == ["old/object"]
        assert store.list_folders("") == ["old/"]
        root.put("new/object", b"x")
        assert [info.key for info in store.list_objects("")] == ["new/object", "old/object"]
        assert store.list_folders("") == ["new/", "old/"]
        root.delete("new/object")
        assert [info.key for info in store.list_objects("")] == ["old/object"]

    def test_look_up_returns_same_key_size_and_version_as_listing(self, tree: ObjectStore) -> None:
        for listed in tree.list_objects(""):
            looked_up = tree.head(listed.key)
            assert (looked_up.key, looked_up.size, looked_up.version) == (
                listed.key,
                listed.size,
                listed.version,
            )
            assert listed.version is not None
            assert listed.last_modified_ms is not None
            assert listed.last_modified_ms > 1_600_000_000_000

    def test_missing_root_is_reported(self, missing_root: StoreRoot) -> None:
        store = open_store(missing_root.path, missing_root.storage)
        if not self.knows_missing_root:
            assert store.list_folders("") == []
            assert list(store.list_objects("")) == []
            return
        with pytest.raises(StoreNotFoundError, match="does not exist"):
            store.list_folders("")
        with pytest.raises(StoreNotFoundError, match="does not exist"):
            next(store.list_objects(""))
        with pytest.raises(StoreNotFoundError, match="does not exist"):
            store.get_range("a", 0, 1)
        store.close()

    # -- reading

    @pytest.mark.parametrize(
        ("start", "stop"), [(0, 1), (0, 1280), (1279, 1280), (255, 257), (7, 1000)]
    )
    def test_get_range_returns_exactly_the_range(
        self, tree: ObjectStore, start: int, stop: int
    ) -> None:
        key = "tier/orders-1/0/a.log"
        assert tree.get_range(key, start, stop) == DATA[start:stop]
        version = tree.head(key).version
        assert tree.get_range(key, start, stop, version=version) == DATA[start:stop]

    def test_empty_range_sends_no_request(self, tree: ObjectStore) -> None:
        before = tree.counters
        assert tree.get_range("tier/orders-1/0/a.log", 5, 5) == b""
        assert tree.counters == before

    @pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2)])
    def test_invalid_range_raises(self, tree: ObjectStore, start: int, stop: int) -> None:
        with pytest.raises(ValueError, match="not a byte range"):
            tree.get_range("tier/orders-1/0/a.log", start, stop)

    @pytest.mark.parametrize(
        ("start", "stop"), [(0, 1281), (1279, 1281), (1280, 1281), (5000, 6000)]
    )
    @pytest.mark.parametrize("pinned", [False, True])
    def test_range_beyond_the_end_raises_truncated_object_error(
        self, tree: ObjectStore, start: int, stop: int, pinned: bool
    ) -> None:
        key = "tier/orders-1/0/a.log"
        version = tree.head(key).version if pinned else None
        with pytest.raises(TruncatedObjectError) as caught:
            tree.get_range(key, start, stop, version=version)
        assert caught.value.uri == tree.uri(key)
        assert not caught.value.retriable
        assert tree.counters.retries == 0

    def test_range_of_an_empty_object_raises_truncated_object_error(
        self, tree: ObjectStore
    ) -> None:
        with pytest.raises(TruncatedObjectError):
            tree.get_range("tier/orders-1/1/b.log", 0, 1)

    def test_full_objects_are_read(self, tree: ObjectStore) -> None:
        for key, data in TREE.items():
            version = tree.head(key).version
            assert tree.get_range(key, 0, len(data), version=version) == data

    @pytest.mark.parametrize("key", ["tier/orders-1/0/z.log", "tier/orders-1/0", "tier", "none/x"])
    def test_missing_object_raises_object_not_found_error(
        self, tree: ObjectStore, key: str
    ) -> None:
        with pytest.raises(ObjectNotFoundError) as ranged:
            tree.get_range(key, 0, 1)
        with pytest.raises(ObjectNotFoundError):
            tree.get_range(key, 0, 1, version="some")
        with pytest.raises(ObjectNotFoundError):
            tree.head(key)
        assert isinstance(ranged.value, FileNotFoundError)
        assert ranged.value.uri == tree.uri(key)
        assert tree.counters.retries == 0

    @pytest.mark.parametrize("later", [b"another", DATA[::-1], DATA + b"more"])
    def test_changed_object_raises_object_changed_error(
        self, root: StoreRoot, store: ObjectStore, later: bytes
    ) -> None:
        key = "0/a.log"
        root.put(key, DATA)
        version = store.head(key).version
        root.put(key, later)
        with pytest.raises(ObjectChangedError) as caught:
            store.get_range(key, 0, 4, version=version)
        with pytest.raises(ObjectChangedError):
            store.get_range(key, 0, len(later), version=version)
        assert caught.value.uri == store.uri(key)
        assert store.get_range(key, 0, 4) == later[:4]
        assert store.get_range(key, 0, 4, version=store.head(key).version) == later[:4]
        assert store.counters.retries == 0

    def test_keys_with_special_characters_are_literal(
        self, root: StoreRoot, store: ObjectStore
    ) -> None:
        for key in ODD_KEYS:
            root.put(f"odd/{key}", key.encode())
        listed = [info.key for info in store.list_objects("odd/")]
        assert listed == sorted((f"odd/{key}" for key in ODD_KEYS), key=str.encode)
        for key in ODD_KEYS:
            assert store.get_range(f"odd/{key}", 0, len(key.encode())) == key.encode()
            assert store.get_range(f"odd/{key}", 0, 1) == key.encode()[:1]
            assert [info.key for info in store.list_objects(f"odd/{key}")] == [f"odd/{key}"]

    @pytest.mark.parametrize(
        "key", ["../secret", "..", "tier/../../secret", "tier/..", "./tiered", "tier/./x", "a\0b"]
    )
    def test_keys_outside_the_root_are_refused(self, tree: ObjectStore, key: str) -> None:
        before = tree.counters
        for attempt in (
            lambda: tree.get_range(key, 0, 1),
            lambda: tree.get_range(key, 0, 0),
            lambda: tree.head(key),
            lambda: tree.list_folders(key),
            lambda: list(tree.list_objects(key)),
        ):
            with pytest.raises(InvalidKeyError):
                attempt()
        assert tree.counters.bytes == before.bytes

    # -- closing, pickling and forking

    def test_store_implements_the_object_store_protocol(self, store: ObjectStore) -> None:
        assert isinstance(store, ObjectStore)

    def test_counters_count_requests_and_bytes(self, root: StoreRoot, store: ObjectStore) -> None:
        root.put("x", DATA)
        assert store.counters == StoreCounters()
        info = store.head("x")
        assert store.counters == StoreCounters(requests=1)
        before = store.counters
        store.get_range("x", 0, 100)
        assert store.counters - before == StoreCounters(requests=1, bytes=100)
        before = store.counters
        store.get_range("x", 0, 100, version=info.version)
        assert store.counters - before == StoreCounters(
            requests=self.requests_per_pinned_read, bytes=100
        )
        before = store.counters
        store.list_folders("")
        assert store.counters - before == StoreCounters(list_requests=1)

    def test_pickled_store_can_read(self, tree: ObjectStore) -> None:
        tree.get_range("tiered", 0, 1)
        copy = pickle.loads(pickle.dumps(tree))
        assert copy.get_range("tiered", 0, 6) == b"beside"
        assert copy.counters == StoreCounters(requests=1, bytes=6)
        assert copy.uri("tiered") == tree.uri("tiered")
        copy.close()

    def test_closed_store_can_read_again(self, root: StoreRoot, store: ObjectStore) -> None:
        root.put("x", b"again")
        store.get_range("x", 0, 1)
        store.close()
        store.close()
        assert store.get_range("x", 0, 5) == b"again"

    def test_threads_can_share_a_store(self, tree: ObjectStore) -> None:
        key = "tier/orders-1/0/a.log"
        version = tree.head(key).version

        def read(start: int) -> bytes:
            return bytes(tree.get_range(key, start, start + 10, version=version))

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            before = tree.counters
            contents = list(pool.map(read, range(0, 1280, 10)))
        assert b"".join(contents) == DATA
        assert (tree.counters - before).bytes == 1280

    # Newer Python versions warn if a process with threads forks, as Spark's daemon does.
    @pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
    def test_forked_child_reads_with_its_own_connections(self, tree: ObjectStore) -> None:
        assert _first_bytes(tree, "tiered") == b"besi"
        context = multiprocessing.get_context("fork")
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            assert pool.submit(_ForkedRead(tree), "tiered").result(60) == b"besi"
        assert _first_bytes(tree, "tiered") == b"besi"

    def test_uris_of_keys_are_distinct_and_below_the_root(self, store: ObjectStore) -> None:
        assert store.uri("a/b").startswith(store.uri(""))
        assert store.uri("a/b").endswith("/a/b")
        assert store.uri("a/b") != store.uri("a/c")

    def test_errors_and_reprs_mask_secrets(self, root: StoreRoot, store: ObjectStore) -> None:
        shown = [repr(store), str(store), store.uri("k")]
        with pytest.raises(StoreError) as caught:
            store.get_range("missing", 0, 1)
        shown += [str(caught.value), repr(caught.value)]
        for value in root.storage.reveal().values():
            if len(value) > 8 and not value.startswith("http"):
                assert not any(value in text for text in shown)

    def test_object_infos_compare_by_value(self) -> None:
        assert ObjectInfo("k", 1) == ObjectInfo("k", 1, None, None, None)


class _ForkedRead:
    """Passes a store to a forked child process without pickling it."""

    stores: dict[int, ObjectStore] = {}  # noqa: RUF012  # shared through the fork on purpose

    def __init__(self, store: ObjectStore) -> None:
        self.number = id(store)
        self.stores[self.number] = store

    def __call__(self, key: str) -> bytes:
        return _first_bytes(self.stores[self.number], key)
