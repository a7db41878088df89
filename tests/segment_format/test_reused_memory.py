"""Memory is used again when nobody looks at it, and never before."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from segment_format import reused_memory
from segment_format.reused_memory import LEAST_BYTES, give_back, writable_bytes

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reused_memory, "_kept", reused_memory._Kept())


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


@pytest.mark.parametrize("size", [0, 1, LEAST_BYTES - 1, LEAST_BYTES, (3 << 20) + 1])
def test_as_many_bytes_as_asked_for(size: int) -> None:
    view = writable_bytes(size)
    assert (view.nbytes, view.format, view.readonly) == (size, "B", False)


def test_memory_nobody_looks_at_is_used_again() -> None:
    view = writable_bytes(4 << 20)
    address = _address(view)
    del view
    assert _address(writable_bytes(4 << 20)) == address
    assert _address(writable_bytes(2 << 20)) == address


def _looks(view: memoryview) -> dict[str, object]:
    return {
        "slice": view[5:7],
        "read-only": view.toreadonly(),
        "array": np.frombuffer(view, np.uint8)[9:],
    }


@pytest.mark.parametrize("look", ["slice", "read-only", "array"])
def test_memory_is_left_alone_while_somebody_looks_at_it(look: str) -> None:
    view = writable_bytes(1 << 20)
    view[:] = b"a" * len(view)
    kept = _looks(view)[look]
    del view
    for _ in range(8):
        writable_bytes(1 << 20)[:] = b"b" * (1 << 20)
    assert set(bytes(np.asarray(kept))) == {ord("a")}


def test_the_smallest_that_fits_is_taken_so_that_a_large_piece_finds_a_large_one() -> None:
    large, small = writable_bytes(4 << 20), writable_bytes(2 << 20)
    addresses = _address(large), _address(small)
    del large, small
    small = writable_bytes(2 << 20)
    large = writable_bytes(4 << 20)
    assert (_address(large), _address(small)) == addresses


def test_of_equal_ones_the_one_used_last_is_taken() -> None:
    first, second = writable_bytes(4 << 20), writable_bytes(4 << 20)
    address = _address(second)
    del first, second
    for _ in range(3):
        assert _address(writable_bytes(4 << 20)) == address


def test_a_small_piece_does_not_hold_on_to_a_large_one() -> None:
    large = writable_bytes(16 << 20)
    address = _address(large)
    del large
    assert _address(writable_bytes(1 << 20)) != address


def test_what_is_kept_is_bounded() -> None:
    views = [writable_bytes(8 << 20) for _ in range(30)]
    assert len({_address(view) for view in views}) == 30
    kept = reused_memory._kept.arrays
    assert sum(array.size for array in kept) <= 160 << 20
    views = [writable_bytes(1 << 20) for _ in range(30)]
    assert len(reused_memory._kept.arrays) <= 24
    huge = writable_bytes(300 << 20)
    assert [array.size for array in reused_memory._kept.arrays] == [huge.nbytes]


def test_little_is_kept_between_reads() -> None:
    held = writable_bytes(8 << 20)
    views = [writable_bytes(8 << 20) for _ in range(15)]
    last = _address(views[-1])
    give_back()
    assert sum(array.size for array in reused_memory._kept.arrays) == 32 << 20
    del views
    assert _address(writable_bytes(8 << 20)) == last
    held[:] = b"a" * len(held)
    for _ in range(20):
        writable_bytes(8 << 20)[:1] = b"b"
    assert bytes(held[:1]) == b"a"


def test_threads_never_get_the_same_memory() -> None:
    def fill(number: int) -> bool:
        mark = bytes([number])
        for _ in range(200):
            view = writable_bytes(LEAST_BYTES)
            view[:] = mark * LEAST_BYTES
            if bytes(view) != mark * LEAST_BYTES:
                return False
        return True

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(fill, range(8)))


def test_a_child_of_a_fork_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    view = writable_bytes(1 << 20)
    address = _address(view)
    del view
    parent = reused_memory._kept
    assert parent.lock.acquire(blocking=False)  # by a thread that the child does not have
    monkeypatch.setattr(os, "getpid", lambda: parent.process + 1)
    assert _address(writable_bytes(1 << 20)) != address
    parent.lock.release()


def _is_used_again() -> bool:
    view = writable_bytes(4 << 20)
    address = _address(view)
    view[:1] = b"x"  # so that the system does not hand out the same untouched pages by chance
    del view
    kept = bool(reused_memory._kept.arrays)
    return kept and _address(writable_bytes(4 << 20)) == address


def test_memory_is_fresh_where_tuning_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _is_used_again()
    monkeypatch.setattr(reused_memory, "_kept", reused_memory._Kept())
    monkeypatch.setenv("KTS_TUNING", "off")
    assert not _is_used_again()


@pytest.mark.parametrize(
    "counting",
    [
        lambda _arrays, _number: 2,  # views do not count
        lambda _arrays, _number: 2**32 - 1,  # as an immortal object's
        lambda arrays, number: sys.getrefcount(arrays[number]) + 7,
    ],
)
def test_counts_that_do_not_tell_are_noticed(
    monkeypatch: pytest.MonkeyPatch, counting: Callable[[list[object], int], int]
) -> None:
    assert reused_memory._REFCOUNTS_TELL
    monkeypatch.setattr(reused_memory, "_refcount", counting)
    monkeypatch.setattr(reused_memory, "_IDLE_REFCOUNT", 2)
    assert not reused_memory._refcounts_tell()


def test_memory_is_fresh_where_counts_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reused_memory, "_REFCOUNTS_TELL", False)
    assert not _is_used_again()


_MANY_THREADS = """
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from segment_format.reused_memory import give_back, writable_bytes

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
        found = list(pool.map(piece, range(16)))
        del found
    give_back()
    print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells what is resident")
def test_what_many_threads_no_longer_need_goes_back_to_the_system() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _MANY_THREADS], capture_output=True, text=True, check=True
    )
    assert int(run.stdout) < 48 << 20  # what is kept, of the 128 MiB that were in use
