"""Defines fuzz targets that fail on purpose. Tests use them to check that each failure is
detected.
"""

from __future__ import annotations

import ctypes
import time
from typing import Final

from tests.fuzz.compiled import GuardedMemory
from tests.fuzz.targets import VALUE, Target, located

_leaked: list[bytearray] = []


def _other_error(data: bytes) -> str:
    """Raises `KeyError` if the first byte is 0x17. No seed starts with that byte."""
    if data[:1] == b"\x17":
        raise KeyError("not a format error")
    return VALUE


def _read_outside(data: bytes) -> str:
    memory = GuardedMemory(1 << 16)
    memory.at_end(data)
    ctypes.string_at(memory.stop_address - len(data), len(data) + (len(data) > 20))
    return VALUE


def _allocate_too_much(data: bytes) -> str:
    if len(data) > 20:
        _leaked.append(bytearray(b"x" * (300 << 20)))
    return VALUE


def _hang(data: bytes) -> str:
    if len(data) > 20:
        time.sleep(600)
    return VALUE


def _use_too_much_cpu(data: bytes) -> str:
    if len(data) > 20:
        stop = time.thread_time() + 6
        while time.thread_time() < stop:
            pass
    return VALUE


def _report_position_outside(data: bytes, _mode: int) -> None:
    from segment_format.errors import CorruptIndexError

    if len(data) > 20:
        raise CorruptIndexError("beyond", position=len(data) + 1)


BROKEN: Final = (
    Target("broken-error", _other_error),
    Target("broken-crash", _read_outside),
    Target("broken-memory", _allocate_too_much),
    Target("broken-hang", _hang),
    Target("broken-slow", _use_too_much_cpu),
    Target("broken-position", located(_report_position_outside)),
)
