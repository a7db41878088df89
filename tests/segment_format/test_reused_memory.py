"""Checks that a buffer is reused only after its last view is deleted."""

from __future__ import annotations

import concurrent.futures
import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from segment_format import reused_memory
from segment_format.reused_memory import MIN_BYTES, release_idle, writable_bytes


@pytest.fixture(autouse=True)
def empty_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reused_memory, "_pool", reused_memory._Pool())


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


@pytest.mark.parametrize("size", [0, 1, MIN_BYTES - 1, MIN_BYTES, (3 << 20) + 1])
def test_view_has_the_requested_size_and_is_writable(size: int) -> None:
    view = writable_bytes(size)
    assert (view.nbytes, view.format, view.readonly) == (size, "B", False)


def test_memory_is_reused_after_its_last_view() -> None:
    view = writable_bytes(4 << 20)
    address = _address(view)
    del view
    assert _address(writable_bytes(4 << 20)) == address
    assert _address(writable_bytes(2 << 20)) == address


def _derived(view: memoryview) -> dict[str, object]:
    return {
        "slice": view[5:7],
        "read-only": view.toreadonly(),
        "array": np.frombuffer(view, np.uint8)[9:],
        "array of the exporter": np.asarray(view.obj)[9:][1:],
        "cast": view.cast("b")[3:],
        "Arrow buffer": pa.py_buffer(view).slice(3, 8),
        "Arrow array": pa.Array.from_buffers(pa.uint8(), 16, [None, pa.py_buffer(view)])[3:9],
    }


@pytest.mark.parametrize("kind", list(_derived(memoryview(bytearray(16)))))
def test_memory_is_not_reused_while_a_view_is_alive(kind: str) -> None:
    view = writable_bytes(1 << 20)
    view[:] = b"a" * len(view)
    derived = _derived(view)[kind]
    address = _address(view)
    del view
    for _ in range(8):
        other = writable_bytes(1 << 20)
        assert _address(other) != address
        other[:] = b"b" * (1 << 20)
    content = derived.to_numpy() if isinstance(derived, pa.Array) else np.asarray(derived)
    assert set(content.tobytes()) == {ord("a")}
    del derived, content, other
    assert address in {_address(lease) for lease in [writable_bytes(1 << 20) for _ in range(2)]}


def test_memory_in_a_reference_cycle_is_reused_after_collection() -> None:
    view = writable_bytes(4 << 20)
    address = _address(view)
    cycle: list[object] = [view]
    cycle.append(cycle)
    del view, cycle
    assert _address(writable_bytes(4 << 20)) != address
    gc.collect()
    assert _address(writable_bytes(4 << 20)) == address


def test_view_can_be_deleted_while_its_thread_holds_the_pool_lock() -> None:
    view = writable_bytes(4 << 20)
    address = _address(view)
    with reused_memory._pool.lock:
        del view
    assert _address(writable_bytes(4 << 20)) == address


def test_smallest_fitting_block_is_reused() -> None:
    large, small = writable_bytes(4 << 20), writable_bytes(2 << 20)
    addresses = _address(large), _address(small)
    del large, small
    small = writable_bytes(2 << 20)
    large = writable_bytes(4 << 20)
    assert (_address(large), _address(small)) == addresses


def test_most_recently_used_block_of_equal_size_is_reused() -> None:
    first, second = writable_bytes(4 << 20), writable_bytes(4 << 20)
    address = _address(second)
    del first, second
    for _ in range(3):
        assert _address(writable_bytes(4 << 20)) == address


def test_small_request_does_not_reuse_a_large_block() -> None:
    large = writable_bytes(16 << 20)
    address = _address(large)
    del large
    assert _address(writable_bytes(1 << 20)) != address


def _idle_sizes() -> list[int]:
    return [len(mapping) for mapping in reused_memory._pool.idle]


def test_amount_of_idle_memory_is_limited() -> None:
    views = [writable_bytes(8 << 20) for _ in range(30)]
    assert len({_address(view) for view in views}) == 30
    del views
    assert 150 << 20 < sum(_idle_sizes()) <= 160 << 20
    views = [writable_bytes(1 << 20) for _ in range(60)]
    del views
    assert len(_idle_sizes()) == 24
    huge = writable_bytes(300 << 20)
    del huge
    assert _idle_sizes() == []


def test_release_idle_returns_most_memory_to_the_system() -> None:
    busy = writable_bytes(8 << 20)
    views = [writable_bytes(8 << 20) for _ in range(15)]
    del views
    last = reused_memory._pool.idle[-1]
    release_idle()
    assert _idle_sizes() == [8 << 20] * 4
    assert _address(writable_bytes(8 << 20)) == np.frombuffer(last, np.uint8).ctypes.data
    busy[:] = b"a" * len(busy)
    for _ in range(20):
        writable_bytes(8 << 20)[:1] = b"b"
    assert bytes(busy[:1]) == b"a"


def test_threads_never_share_memory() -> None:
    def fill(number: int) -> bool:
        mark = bytes([number])
        for _ in range(200):
            view = writable_bytes(MIN_BYTES)
            view[:] = mark * MIN_BYTES
            if bytes(view) != mark * MIN_BYTES:
                return False
        return True

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(fill, range(8)))


def test_forked_process_starts_with_an_empty_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    view = writable_bytes(1 << 20)
    address = _address(view)
    del view
    parent = reused_memory._pool
    assert parent.lock.acquire(
        blocking=False
    )  # acquired by a thread that does not exist in the child
    monkeypatch.setattr(os, "getpid", lambda: parent.process + 1)
    assert _address(writable_bytes(1 << 20)) != address
    parent.lock.release()


def _is_used_again() -> bool:
    view = writable_bytes(4 << 20)
    address = _address(view)
    view[:1] = b"x"  # so that the system does not return the same untouched pages by chance
    del view
    is_idle = bool(reused_memory._pool.idle)
    return is_idle and _address(writable_bytes(4 << 20)) == address


def test_memory_is_not_reused_if_tuning_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _is_used_again()
    monkeypatch.setattr(reused_memory, "_pool", reused_memory._Pool())
    monkeypatch.setenv("KTS_TUNING", "off")
    assert not _is_used_again()


_MANY_THREADS = """
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from segment_format.reused_memory import release_idle, writable_bytes

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def piece(_number):
    view = writable_bytes(8 << 20)
    np.frombuffer(view, np.uint8)[::4096] = 1
    return view

with ThreadPoolExecutor(16) as pool:
    before = resident()
    for _ in range(6):
        pieces = list(pool.map(piece, range(16)))
        del pieces
    release_idle()
    print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_memory_of_many_threads_returns_to_the_system() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _MANY_THREADS], capture_output=True, text=True, check=True
    )
    assert int(run.stdout) < 48 << 20  # of the 128 MiB that were in use
