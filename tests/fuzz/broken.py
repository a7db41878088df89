"""Targets that fail on purpose: what the fuzzer is for is seen to be found."""

from __future__ import annotations

import ctypes
import time
from typing import Final

from tests.fuzz.compiled import GuardedMemory
from tests.fuzz.targets import VALUE, Target, located

_kept: list[bytearray] = []


def _other_error(data: bytes) -> str:
    """Fails once the byte 0x17 comes first; only chance or coverage finds it."""
    if data[:1] == b"\x17":
        raise KeyError("not a format error")
    return VALUE


def _outside(data: bytes) -> str:
    memory = GuardedMemory(1 << 16)
    memory.at_end(data)
    ctypes.string_at(memory.stop_address - len(data), len(data) + (len(data) > 20))
    return VALUE


def _greedy(data: bytes) -> str:
    if len(data) > 20:
        _kept.append(bytearray(b"x" * (300 << 20)))
    return VALUE


def _asleep(data: bytes) -> str:
    if len(data) > 20:
        time.sleep(600)
    return VALUE


def _slow(data: bytes) -> str:
    if len(data) > 20:
        stop = time.thread_time() + 6
        while time.thread_time() < stop:
            pass
    return VALUE


def _unplaced(data: bytes, _mode: int) -> None:
    from segment_format.errors import CorruptIndexError

    if len(data) > 20:
        raise CorruptIndexError("beyond", position=len(data) + 1)


BROKEN: Final = (
    Target("broken-error", _other_error),
    Target("broken-crash", _outside),
    Target("broken-memory", _greedy),
    Target("broken-hang", _asleep),
    Target("broken-slow", _slow),
    Target("broken-position", located(_unplaced)),
)
