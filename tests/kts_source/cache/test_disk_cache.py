"""Tests the entries of a disk cache: integrity, size and age limits, file permissions, locks."""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import multiprocessing.synchronize
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from kts_source.cache.disk_cache import CacheLimits, DiskCache, locked, make_private_folder
from kts_source.store.request_policy import Cancellation, CancelledFetchError

UNBOUNDED = CacheLimits(None, None)


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.entry"))


def aged(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_entries_are_readable_by_another_cache_instance(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "c", UNBOUNDED)
    assert cache.get("a") is None
    for name, data in {"a": b"data", "ä/b": b"", "big": bytes(3 << 20)}.items():
        cache.put(name, memoryview(data))
        assert DiskCache(tmp_path / "c", UNBOUNDED).get(name) == data
    cache.put("a", b"newer")
    assert cache.get("a") == b"newer"
    counters = cache.counters
    assert (counters.hits, counters.misses, counters.bytes_served) == (1, 1, 5)


def test_truncated_or_damaged_cache_entry_is_a_miss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kts_source")
    cache = DiskCache(tmp_path, UNBOUNDED)
    cache.put("name", b"0123456789")
    (path,) = entries(tmp_path)
    content = path.read_bytes()
    damaged = [content[:size] for size in range(len(content))] + [content + b"x"]
    damaged += [
        content[:position] + bytes([content[position] ^ bit]) + content[position + 1 :]
        for position in range(len(content))
        for bit in (1, 128)
    ]
    for data in damaged:
        path.write_bytes(data)
        assert cache.get("name") is None
        assert not path.exists()
    path.write_bytes(content)
    assert cache.get("name") == b"0123456789"
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_cache_entry_with_bytes_of_another_entry_is_a_miss(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, UNBOUNDED)
    cache.put("one", b"1")
    (path,) = entries(tmp_path)
    cache.put("two", b"2")
    other = next(entry for entry in entries(tmp_path) if entry != path)
    other.write_bytes(path.read_bytes())
    assert cache.get("two") is None


def test_cache_entries_expire_after_their_last_access(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, CacheLimits(None, 60))
    cache.put("a", b"a")
    (path,) = entries(tmp_path)
    for _ in range(3):
        aged(path, 50)
        assert cache.get("a") == b"a"  # resets the age
        assert time.time() - path.stat().st_mtime < 10
    aged(path, 61)
    assert cache.get("a") is None
    assert entries(tmp_path) == []


def test_cache_entries_without_time_to_live_do_not_expire(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, UNBOUNDED)
    cache.put("a", b"a")
    aged(entries(tmp_path)[0], 1e9)
    cache.sweep()
    assert cache.get("a") == b"a"


def test_cache_write_deletes_expired_entries(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, CacheLimits(1 << 20, 60))
    cache.put("old", b"o" * 100)
    aged(entries(tmp_path)[0], 61)
    DiskCache(tmp_path, CacheLimits(1 << 20, 60)).put("new", bytes(1 << 16))
    assert len(entries(tmp_path)) == 1
    assert cache.get("new") is not None


def test_cache_drops_the_least_recently_used_entries_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, CacheLimits(64 << 10, None))
    for number in range(100):
        cache.put(f"{number}", bytes(1 << 10))
        if number:
            assert cache.get("0") is not None, number
        for age, path in enumerate(sorted(entries(tmp_path), key=lambda p: p.stat().st_mtime_ns)):
            aged(path, 1000 - age)  # keeps the order, one second between entries
        assert sum(path.stat().st_size for path in entries(tmp_path)) <= 64 << 10
    assert cache.get("99") is not None
    assert cache.get("1") is None
    assert len(entries(tmp_path)) <= 64
    cache.put("too large for all", bytes(65 << 10))
    assert cache.get("too large for all") is None


def pass_time(folder: Path, seconds: int = 5) -> None:
    """Moves the modification times of all files in the cache into the past."""
    for path in entries(folder):
        then = path.stat().st_mtime_ns - seconds * 1_000_000_000
        os.utime(path, ns=(then, then))


def test_cache_keeps_reused_entries_while_many_new_entries_are_added(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, CacheLimits(64 << 10, None))
    often = [f"often {number}" for number in range(16)]
    for name in often:
        cache.put(name, bytes(1 << 10))
    pass_time(tmp_path)
    assert all(cache.get(name) is not None for name in often)
    for number in range(500):
        pass_time(tmp_path)
        cache.put(f"once {number}", bytes(1 << 10))
    assert sum(path.stat().st_size for path in entries(tmp_path)) <= 64 << 10
    assert all(cache.peek(name) is not None for name in often)
    assert cache.peek("once 499") is not None
    assert cache.peek("once 400") is None


def test_cache_drops_the_oldest_of_many_reused_entries(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, CacheLimits(64 << 10, None))
    for number in range(200):
        cache.put(f"{number}", bytes(1 << 10))
        pass_time(tmp_path)
        assert cache.get(f"{number}") is not None
    cache.put("new", bytes(1 << 10))
    assert cache.peek("0") is None
    assert cache.peek("199") is not None
    # Reused entries may fill at most three quarters of the cache; the rest is for new entries.
    for number in range(14):
        pass_time(tmp_path)
        cache.put(f"new {number}", bytes(1 << 10))
    assert all(cache.peek(f"new {number}") is not None for number in range(3, 14))


def test_cache_sweep_deletes_old_temporary_and_lock_files(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, UNBOUNDED)
    young, old = tmp_path / "1.new", tmp_path / "2.new"
    lock, foreign = tmp_path / "3.lock", tmp_path / "keep.txt"
    for path in (young, old, lock, foreign):
        path.write_bytes(b"half")
    for path in (old, lock, foreign):
        aged(path, 4000)
    cache.sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.new", "keep.txt", "sweep"]


def test_cache_files_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    previous = os.umask(0)
    try:
        DiskCache(folder, UNBOUNDED).put("a", b"a")
    finally:
        os.umask(previous)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    folder.chmod(0o755)
    DiskCache(folder, UNBOUNDED)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_cache_folder_that_is_a_link_or_has_another_owner_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(NotADirectoryError):
        make_private_folder(tmp_path / "link")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError):
        make_private_folder(tmp_path / "real")


def test_disk_error_of_the_cache_is_a_miss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = DiskCache(tmp_path / "c", UNBOUNDED)
    (tmp_path / "c").rmdir()
    (tmp_path / "c").write_bytes(b"no folder")
    cache.put("a", b"a")
    cache.put("b", b"b")
    assert cache.get("a") is None
    with cache.flight(["a"], patience_seconds=0):
        pass
    assert len(caplog.records) == 1


# -- locks: only one process fetches an object


def test_only_one_thread_at_a_time_holds_the_cache_lock(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, UNBOUNDED)
    inside: list[int] = []
    counts: list[int] = []

    def enter(number: int) -> None:
        with cache.flight(["x", f"{number}"], patience_seconds=30):
            inside.append(number)
            counts.append(len(inside))
            time.sleep(0.002)
            inside.remove(number)

    threads = [threading.Thread(target=enter, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [1] * 12
    assert list(tmp_path.glob("*.lock")) == []


def test_lock_is_not_acquired_if_the_timeout_expires(tmp_path: Path) -> None:
    with locked([f"{tmp_path}/a.lock"], 1) as first:
        assert first
        with locked([f"{tmp_path}/a.lock"], 0.01) as second:
            assert not second
        with locked([f"{tmp_path}/b.lock"], 0) as other:
            assert other
    with locked([f"{tmp_path}/a.lock"], 0) as again:
        assert again


def test_lock_wait_ends_when_cancelled(tmp_path: Path) -> None:
    cancellation = Cancellation()
    with locked([f"{tmp_path}/a.lock"], 1):
        timer = threading.Timer(0.05, cancellation.cancel)
        timer.start()
        with (
            cancellation.scope(),
            pytest.raises(CancelledFetchError),
            locked([f"{tmp_path}/a.lock"], 60),
        ):
            raise AssertionError("held twice")
        timer.join()


def _hold_for_ever(path: str, locked_event: multiprocessing.synchronize.Event) -> None:
    with locked([path], 10):
        locked_event.set()
        time.sleep(600)


def test_lock_of_a_killed_holder_is_released(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    locked_event = context.Event()
    holder = context.Process(target=_hold_for_ever, args=(f"{tmp_path}/a.lock", locked_event))
    holder.start()
    assert locked_event.wait(60)
    with locked([f"{tmp_path}/a.lock"], 0.01) as early:
        assert not early
    holder.kill()
    holder.join()
    assert (tmp_path / "a.lock").exists()
    with locked([f"{tmp_path}/a.lock"], 30) as is_locked:
        assert is_locked
    assert not (tmp_path / "a.lock").exists()


# -- cache folders that another user replaces


@pytest.mark.parametrize("how", ["link", "folder"])
def test_cache_does_not_use_a_replaced_folder(tmp_path: Path, how: str) -> None:
    """If the cache used the new folder, it could return entries that another user wrote, with valid
    checksums.
    """
    cache = DiskCache(tmp_path / "c", UNBOUNDED)
    cache.put("own", b"own")
    planted = DiskCache(tmp_path / "planted", UNBOUNDED)
    planted.put("a", b"planted")
    before = entries(tmp_path / "planted")
    (tmp_path / "c").rename(tmp_path / "moved")
    if how == "link":
        (tmp_path / "c").symlink_to(tmp_path / "planted")
    else:
        (tmp_path / "planted").rename(tmp_path / "c")
    assert cache.get("a") is None
    assert cache.get("own") == b"own"
    cache.put("b", b"b")
    with cache.flight(["b"], patience_seconds=0) as is_locked:
        assert is_locked
        assert list((tmp_path / "moved").glob("*.lock"))
    cache.sweep()
    assert [path.name for path in entries(tmp_path / "c")] == [path.name for path in before]
    assert len(entries(tmp_path / "moved")) == 2


def test_cache_closes_its_folder_descriptor(tmp_path: Path) -> None:
    def open_descriptors() -> int:
        count = 0
        for path in Path("/dev/fd").iterdir():
            with contextlib.suppress(OSError):
                count += os.path.samestat(os.fstat(int(path.name)), tmp_path.stat())
        return count

    caches = [DiskCache(tmp_path, UNBOUNDED) for _ in range(5)]
    assert open_descriptors() == 5
    caches.clear()
    gc.collect()
    assert open_descriptors() == 0
