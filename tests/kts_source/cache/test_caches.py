"""Tests that reads of the same bytes of the same object version are served from the cache, and that
all other reads go to the store.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.synchronize
import stat
import time
from typing import TYPE_CHECKING

import pytest

from kts_source.cache.caches import Caches, CacheSettings, default_folders
from kts_source.cache.disk_cache import CacheLimits
from kts_source.errors import ObjectChangedError, ObjectNotFoundError
from kts_source.layout.remote_segment import ObjectRef
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.store.local_store import LocalStore
from kts_source.store.object_store import Data, ObjectInfo, ObjectStore, StoreCounters
from kts_source.tier import Tier
from tests.golden_data import TIER, expected_table, tier_options
from tests.kts_source.planning.scanning import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

KEEP = CacheLimits(None, None)


class SlowStore:
    """A store with one object, which delays each read by `seconds`. Each request of any process
    appends a line to the file `requests`.
    """

    def __init__(self, requests: Path, data: bytes = bytes(range(256)), seconds: float = 0) -> None:
        self._requests = requests
        self._data = data
        self._seconds = seconds

    pinning = "as the test does"
    remarks = ()
    is_near = False
    lists_in_pages = False

    @property
    def counters(self) -> StoreCounters:
        return StoreCounters(requests=len(self.requested))

    @property
    def requested(self) -> list[str]:
        return self._requests.read_text().split() if self._requests.exists() else []

    def uri(self, key: str) -> str:
        return f"slow://{key}"

    def list_folders(self, prefix: str) -> list[str]:
        self._note("folders")
        return []

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        self._note("objects")
        return iter(())

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> Data:
        self._note(f"{key}:{start}-{stop}")
        time.sleep(self._seconds)
        if version == "gone":
            raise ObjectNotFoundError("no such object", uri=self.uri(key))
        return self._data[start:stop]

    def head(self, key: str) -> ObjectInfo:
        self._note(f"head:{key}")
        return ObjectInfo(key, len(self._data), "1")

    def close(self) -> None:
        pass

    def _note(self, line: str) -> None:
        with self._requests.open("a") as file:
            file.write(line + "\n")


class Cached:
    """Reads ranges of objects of `store` through the caches of a tier, as readers of side files
    do.
    """

    def __init__(self, store: ObjectStore, settings: CacheSettings, scope: str = "") -> None:
        self._store = store
        self.caches = Caches(settings, scope=scope)

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> Data:
        return self.caches.side_file(self._store, ObjectRef(key, 0, version), start, stop)


def cached(tmp_path: Path, seconds: float = 0, *, patience: float = 30) -> Cached:
    settings = CacheSettings(
        index=KEEP, chunks=KEEP, folder=str(tmp_path / "cache"), patience_seconds=patience
    )
    return Cached(SlowStore(tmp_path / "requests", seconds=seconds), settings)


def requested(tmp_path: Path) -> list[str]:
    return SlowStore(tmp_path / "requests").requested


def test_second_read_of_same_object_version_comes_from_the_cache(tmp_path: Path) -> None:
    for _ in range(2):
        store = cached(tmp_path)
        assert store.get_range("a", 3, 9, version="1") == bytes(range(3, 9))
    assert requested(tmp_path) == ["a:3-9"]
    assert (store.caches.counters.hits, store.caches.counters.misses) == (1, 0)


def test_read_is_a_cache_miss_if_version_range_object_or_server_differs(tmp_path: Path) -> None:
    store = cached(tmp_path)
    store.get_range("a", 3, 9, version="1")
    store.get_range("a", 3, 9, version="2")
    store.get_range("a", 3, 8, version="1")
    store.get_range("b", 3, 9, version="1")
    settings = CacheSettings(index=KEEP, folder=str(tmp_path / "cache"))
    other_store = SlowStore(tmp_path / "requests")
    Cached(other_store, settings, "other").get_range("a", 3, 9, version="1")
    assert len(requested(tmp_path)) == 5


def test_objects_without_version_are_not_cached(tmp_path: Path) -> None:
    store = cached(tmp_path)
    for _ in range(2):
        store.get_range("a", 3, 9)
    assert requested(tmp_path) == ["a:3-9"] * 2


def test_cache_does_not_store_errors(tmp_path: Path) -> None:
    store = cached(tmp_path)
    for _ in range(2):
        with pytest.raises(ObjectNotFoundError):
            store.get_range("a", 0, 1, version="gone")
    assert len(requested(tmp_path)) == 2


def test_damaged_cache_entry_is_read_from_the_store_again(tmp_path: Path) -> None:
    store = cached(tmp_path)
    store.get_range("a", 3, 9, version="1")
    (path,) = (tmp_path / "cache").glob("*/index/*.entry")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert store.get_range("a", 3, 9, version="1") == bytes(range(3, 9))
    assert len(requested(tmp_path)) == 2


def test_cache_folders_are_private(tmp_path: Path) -> None:
    cached(tmp_path).get_range("a", 3, 9, version="1")
    top = tmp_path / "cache"
    for folder in [top, *(path for path in top.rglob("*") if path.is_dir())]:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_unusable_folder_disables_the_cache(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"a file")
    store = cached(tmp_path)
    for _ in range(2):
        assert store.get_range("a", 3, 9, version="1") == bytes(range(3, 9))
    assert len(requested(tmp_path)) == 2


# -- one fetch per machine


def _read(tmp_path: Path, ready: multiprocessing.synchronize.Barrier, patience: float) -> None:
    store = cached(tmp_path, seconds=1.0, patience=patience)
    ready.wait(60)
    assert store.get_range("a", 3, 9, version="1") == bytes(range(3, 9))


def read_in_two_processes(tmp_path: Path, patience: float) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(2)
    readers = [context.Process(target=_read, args=(tmp_path, ready, patience)) for _ in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(100)
        assert reader.exitcode == 0


def test_two_processes_read_a_range_only_once(tmp_path: Path) -> None:
    read_in_two_processes(tmp_path, patience=60)
    assert requested(tmp_path) == ["a:3-9"]


def test_process_that_waits_for_the_cache_fetches_after_the_timeout(tmp_path: Path) -> None:
    read_in_two_processes(tmp_path, patience=0.01)
    assert requested(tmp_path) == ["a:3-9"] * 2


def _read_and_hang(tmp_path: Path) -> None:
    cached(tmp_path, seconds=600).get_range("a", 3, 9, version="1")


def test_cache_does_not_wait_for_a_killed_process(tmp_path: Path) -> None:
    hanging = multiprocessing.get_context("spawn").Process(target=_read_and_hang, args=(tmp_path,))
    hanging.start()
    deadline = time.monotonic() + 60
    while not requested(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    hanging.kill()
    hanging.join()
    assert cached(tmp_path, patience=1e9).get_range("a", 3, 9, version="1") == bytes(range(3, 9))
    assert requested(tmp_path) == ["a:3-9"] * 2


# -- real tiers


class CountingStore(LocalStore):
    """Counts the range reads of `.log` objects."""

    log_reads = 0

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> Data:
        self.log_reads += key.endswith(".log")
        return super().get_range(key, start, stop, version=version)


def golden(tmp_path: Path, *, chunks: bool = True, plaintext: bool = False) -> Tier:
    settings = CacheSettings(
        index=KEEP,
        chunks=KEEP if chunks else None,
        folder=str(tmp_path / "cache"),
        plaintext=plaintext,
    )
    return Tier(CountingStore(TIER), Caches(settings))


def log_reads(tier: Tier) -> int:
    assert isinstance(tier.store, CountingStore)
    return tier.store.log_reads


def rows(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in ("topic", "partition", "offset")])


@pytest.mark.parametrize("topic", ["codecs", "encrypted", "epochs", "txn"])
def test_cached_chunks_serve_a_second_scan(topic: str, tmp_path: Path) -> None:
    options = tier_options(topic, includeHeaders="true", targetPartitionBytes="100k")
    expected = rows(expected_table(topic, "read_committed"))
    for number in range(2):
        tier = golden(tmp_path)
        plan = plan_scan(parse_options(options), tier)
        planned = tier.store.counters.requests
        table = run(plan, options, tier)
        assert rows(table).equals(expected.cast(table.schema))
        if number:
            assert planned == 0
            assert tier.store.counters.requests == 0
    # A scan with other task boundaries uses the same cached chunks.
    recut = tier_options(topic, includeHeaders="true", targetPartitionBytes="30k")
    tier = golden(tmp_path)
    plan = plan_scan(parse_options(recut), tier)
    assert rows(run(plan, recut, tier)).equals(expected.cast(table.schema))
    assert log_reads(tier) == 0


def test_second_scan_without_chunk_cache_reads_only_log_objects(tmp_path: Path) -> None:
    options = tier_options("codecs", includeHeaders="true")
    for number in range(2):
        tier = golden(tmp_path, chunks=False)
        run(plan_scan(parse_options(options), tier), options, tier)
        assert log_reads(tier) > 0
        assert (tier.store.counters.requests > log_reads(tier)) == (number == 0)
    assert not list((tmp_path / "cache").glob("*/chunks/*"))


def encrypted_values(table: pa.Table) -> list[bytes]:
    """Returns all values in a table that have more than 20 bytes. The cache must not contain these
    values of encrypted segments.
    """
    values = [value for value in table["value"].to_pylist() if value and len(value) > 20]
    assert values
    return values


def test_cache_stores_encrypted_chunks_without_decrypting_them(tmp_path: Path) -> None:
    options = tier_options("encrypted", includeHeaders="true")
    tier = golden(tmp_path)
    table = run(plan_scan(parse_options(options), tier), options, tier)
    kept = [path.read_bytes() for path in (tmp_path / "cache").glob("*/chunks/*.entry")]
    stored = b"".join(path.read_bytes() for path in sorted(TIER.rglob("encrypted-*/*/*.log")))
    assert kept
    for entry in kept:
        assert entry[-64:] in stored
    everything = b"".join(
        path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()
    )
    assert not any(value in everything for value in encrypted_values(table))


@pytest.mark.parametrize("topic", ["codecs", "encrypted"])
def test_cache_stores_plaintext_if_enabled(
    topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = tier_options(topic, includeHeaders="true", targetPartitionBytes="100k")
    expected = rows(expected_table(topic, "read_committed"))
    plan = plan_scan(parse_options(options))
    tier = golden(tmp_path, plaintext=True)
    table = run(plan, options, tier)
    assert rows(table).equals(expected.cast(table.schema))
    entries = list((tmp_path / "cache").glob("*/chunks/*.entry"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in entries} == {0o600}
    if topic == "encrypted":
        kept = b"".join(path.read_bytes() for path in entries)
        assert any(value in kept for value in encrypted_values(table))

    recut = tier_options(topic, includeHeaders="true", targetPartitionBytes="30k")
    plan_of_recut = plan_scan(parse_options(recut))  # searches for markers after the last row

    def refused(*_arguments: object, **_named: object) -> bytes:
        raise AssertionError("a chunk was restored a second time")

    monkeypatch.setattr("kts_source.read.segment_source.restore_chunk", refused)
    again = golden(tmp_path, plaintext=True)
    assert rows(run(plan, options, again)).equals(expected.cast(table.schema))
    assert log_reads(again) == 0
    assert again.store.counters.bytes == 0
    # The slices differ, and the read asks for the stored bytes, which the cache does not have.
    third = golden(tmp_path, plaintext=True)
    assert rows(run(plan_of_recut, recut, third)).equals(expected.cast(table.schema))
    assert log_reads(third) == 0
    monkeypatch.undo()
    fourth = golden(tmp_path)
    assert rows(run(plan, options, fourth)).equals(expected.cast(table.schema))
    assert log_reads(fourth) > 0


def test_damaged_plaintext_cache_entry_is_read_from_the_store_again(tmp_path: Path) -> None:
    options = tier_options("encrypted", includeHeaders="true")
    plan = plan_scan(parse_options(options))
    expected = run(plan, options, golden(tmp_path, plaintext=True))
    for path in (tmp_path / "cache").glob("*/chunks/*.entry"):
        data = path.read_bytes()
        path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    tier = golden(tmp_path, plaintext=True)
    assert run(plan, options, tier).equals(expected)
    assert log_reads(tier) > 0


def test_read_of_a_replaced_object_is_a_cache_miss(tmp_path: Path) -> None:
    folder = tmp_path / "tier"
    folder.mkdir()
    (folder / "a").write_bytes(b"first")
    settings = CacheSettings(index=KEEP, folder=str(tmp_path / "cache"))
    local = LocalStore(folder)
    store = Cached(local, settings)
    first = local.head("a")
    assert store.get_range("a", 0, 5, version=first.version) == b"first"
    (folder / "a").write_bytes(b"other")
    second = local.head("a")
    assert store.get_range("a", 0, 5, version=second.version) == b"other"
    # The cache still has the old version, which the store can no longer return.
    assert store.get_range("a", 0, 5, version=first.version) == b"first"
    with pytest.raises(ObjectChangedError):
        store.get_range("a", 0, 4, version=first.version)


# -- default folder of the cache


def test_default_cache_folders_depend_on_environment_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    folders = list(default_folders())
    assert folders[:2] == [tmp_path / "xdg/tiered-kafka", tmp_path / ".cache/tiered-kafka"]
    assert folders[2].parent == tmp_path / "tmp"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", "/nonexistent")
    assert list(default_folders()) == [folders[2]]
