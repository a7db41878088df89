from __future__ import annotations

import pickle
import shutil
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import (
    AccessDeniedError,
    InvalidOptionError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    StoreNotFoundError,
    StoreUnavailableError,
)
from kts_source.options import parse_options
from kts_source.store.joined_store import FallbackStore
from kts_source.store.local_store import LocalStore
from kts_source.store.object_store import Data, ObjectStore
from tests.golden_data import TIER, assert_same_rows, expected_table, tier_options
from tests.kts_source.planning.scanning import scan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kts_source.store.object_store import ObjectInfo


class FailingStore(LocalStore):
    """A local folder whose requests raise `failure` if it is set."""

    failure: Exception | None = None
    asked = 0

    def _fail(self) -> None:
        self.asked += 1
        if self.failure is not None:
            raise self.failure

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> Data:
        self._fail()
        return super().get_range(key, start, stop, version=version)

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        self._fail()
        return super().list_objects(prefix, after=after)

    def head(self, key: str) -> ObjectInfo:
        self._fail()
        return super().head(key)


@pytest.fixture
def stores(tmp_path: Path) -> tuple[FailingStore, FailingStore]:
    for name in ("first", "mirror"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_bytes(b"0123456789")
    return FailingStore(tmp_path / "first"), FailingStore(tmp_path / "mirror")


@pytest.fixture
def store(stores: tuple[FailingStore, FailingStore]) -> FallbackStore:
    return FallbackStore(*stores)


FAILURES = [
    StoreUnavailableError("throttled", uri="u"),
    AccessDeniedError("expired", uri="u"),
]


def test_mirror_is_not_used_while_the_first_store_works(
    store: FallbackStore, stores: tuple[FailingStore, FailingStore]
) -> None:
    (info,) = store.list_objects("")
    stores[1].asked = 0  # a listing asks for objects that the first store has lost
    assert store.get_range("x", 2, 5, version=info.version) == b"234"
    assert store.head("x") == info
    assert stores[1].asked == 0
    assert store.counters.mirrored == 0
    assert isinstance(store, ObjectStore)


@pytest.mark.parametrize("failure", FAILURES)
def test_mirror_is_used_if_the_first_store_fails(
    store: FallbackStore,
    stores: tuple[FailingStore, FailingStore],
    failure: StoreError,
    caplog: pytest.LogCaptureFixture,
) -> None:
    version = store.head("x").version
    stores[0].failure = failure
    assert store.get_range("x", 2, 5, version=version) == b"234"
    assert "the first store fails" in caplog.text
    assert store.counters.mirrored == 1
    before = stores[0].asked
    assert store.get_range("x", 0, 1, version=version) == b"0"
    assert stores[0].asked == before, "a failed store is skipped for a while"


def test_object_missing_in_the_first_store_is_read_from_the_mirror(
    store: FallbackStore, tmp_path: Path
) -> None:
    version = store.head("x").version
    (tmp_path / "first/x").unlink()
    assert store.get_range("x", 2, 5, version=version) == b"234"
    (tmp_path / "mirror/x").unlink()
    with pytest.raises(ObjectNotFoundError) as caught:
        store.get_range("x", 2, 5, version=version)
    assert caught.value.uri == store.uri("x")


def test_missing_mirror_folder_error_names_the_option_of_the_mirror(
    store: FallbackStore, tmp_path: Path
) -> None:
    (tmp_path / "first/x").unlink()
    shutil.rmtree(tmp_path / "mirror")
    with pytest.raises(StoreNotFoundError, match="Set option 'fallbackPath'") as caught:
        store.head("x")
    assert caught.value.uri == f"{(tmp_path / 'mirror').as_uri()}/"


def test_listing_has_lost_objects_but_none_that_retention_deleted(
    store: FallbackStore,
    stores: tuple[FailingStore, FailingStore],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = ["t/1.log", "t/1.manifest", "t/2.log", "t/3.log", "t/3.manifest", "t/4.log", "u/1.log"]
    for name in names:
        path = tmp_path / "mirror" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mirror")
    (tmp_path / "first/t").mkdir()
    # Retention left 0.log, which the mirror never had, and 1.manifest.
    present = ["t/0.log", "t/1.manifest", "t/2.log", "t/3.manifest"]
    for name in present:
        (tmp_path / "first" / name).write_bytes(b"first")
    listed = {info.key: info for info in store.list_objects("t/")}
    assert list(listed) == sorted([*present, "t/3.log", "t/4.log"])
    assert store.get_range("t/3.manifest", 0, 5, version=listed["t/3.manifest"].version) == b"first"
    assert store.get_range("t/3.log", 0, 6, version=listed["t/3.log"].version) == b"mirror"
    assert caplog.text.count("t/3.log is read from the mirror (fallbackPath)") == 1
    stores[1].failure = FAILURES[1]
    assert [info.key for info in store.list_objects("t/")] == present


def test_mirrored_object_of_another_size_is_refused(
    store: FallbackStore, stores: tuple[FailingStore, FailingStore], tmp_path: Path
) -> None:
    version = store.head("x").version
    (tmp_path / "mirror/x").write_bytes(b"0123456789+")
    stores[0].failure = FAILURES[0]
    with pytest.raises(ObjectChangedError, match="11 bytes, but 10 were planned"):
        store.get_range("x", 2, 5, version=version)


def test_mirrored_object_changed_between_reads_is_refused(
    store: FallbackStore, stores: tuple[FailingStore, FailingStore], tmp_path: Path
) -> None:
    version = store.head("x").version
    stores[0].failure = FAILURES[0]
    assert store.get_range("x", 2, 5, version=version) == b"234"
    (tmp_path / "mirror/x").write_bytes(b"9876543210")
    with pytest.raises(ObjectChangedError):
        store.get_range("x", 5, 7, version=version)


def test_object_changed_in_the_first_store_raises_object_changed_error(
    store: FallbackStore, tmp_path: Path
) -> None:
    version = store.head("x").version
    (tmp_path / "first/x").write_bytes(b"9876543210")
    with pytest.raises(ObjectChangedError):
        store.get_range("x", 2, 5, version=version)


def test_version_listed_by_the_mirror_is_read_from_the_mirror(
    store: FallbackStore, stores: tuple[FailingStore, FailingStore]
) -> None:
    stores[0].failure = FAILURES[0]
    (info,) = store.list_objects("")
    stores[0].failure = None
    fresh = pickle.loads(pickle.dumps(FallbackStore(*stores)))
    assert fresh.get_range("x", 2, 5, version=info.version) == b"234"
    assert fresh.counters.mirrored == 1
    # If the mirror fails, a version that the mirror listed is read from the first store.
    assert isinstance(fresh, FallbackStore)
    mirror_down = FallbackStore(*stores)
    stores[1].failure = FAILURES[0]
    assert mirror_down.get_range("x", 2, 5, version=info.version) == b"234"


def test_error_names_the_failures_of_both_stores(
    store: FallbackStore, stores: tuple[FailingStore, FailingStore]
) -> None:
    stores[0].failure = StoreUnavailableError("throttled", uri="u", attempts=("a",))
    stores[1].failure = AccessDeniedError("expired", uri="m")
    with pytest.raises(StoreUnavailableError) as caught:
        store.get_range("x", 0, 1)
    assert "throttled" in str(caught.value)
    assert "expired" in str(caught.value)


def test_pinning_text_names_size_check_of_mirror(store: FallbackStore) -> None:
    assert "mirror by size" in store.pinning


def test_scan_reads_the_mirror_if_the_path_does_not_exist(tmp_path: Path) -> None:
    options = {**tier_options("epochs"), "path": str(tmp_path / "nowhere")}
    source_options = {**options, "fallbackPath": TIER.as_uri()}
    assert_same_rows(scan(source_options), expected_table("epochs", "read_committed"))


def test_mirror_options_without_fallback_path_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match="fallbackPath"):
        parse_options({**tier_options("epochs"), "fallback.s3.region": "x"})


def test_mirror_can_have_its_own_credentials() -> None:
    source_options = {
        **tier_options("epochs"),
        "fallbackPath": "s3://mirror",
        "s3.access-key-id": "one",
        "s3.secret-access-key": "secret-one",
        "s3.region": "here",
        "fallback.s3.access-key-id": "two",
        "fallback.s3.secret-access-key": "secret-two",
    }
    fetch = parse_options(source_options).fetch
    assert fetch.fallback_storage.reveal() == {
        "s3.access-key-id": "two",
        "s3.secret-access-key": "secret-two",
        "s3.region": "here",
    }
    assert "secret-two" not in repr(fetch)


def test_remote_fetch_timeouts_can_be_set_by_kafka_names() -> None:
    source_options = {
        **tier_options("epochs"),
        "fetch.remote.connect.timeout.ms": "1500",
        "fetch.remote.read.timeout.ms": "2500",
        "hedgeAfterMs": "300",
        "maxAttempts": "2",
    }
    policy = parse_options(source_options).fetch.retry_policy
    assert policy.connect_timeout_seconds == 1.5
    assert policy.read_timeout_seconds == 2.5
    assert policy.hedge_after_seconds == 0.3
    assert policy.max_attempts == 2
    with pytest.raises(InvalidOptionError, match="disagree"):
        parse_options({**source_options, "fetchConnectTimeoutMs": "1"})
