"""Copies inside the decompressors: in steps of 16 bytes, which write up to 15 bytes too many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import helper, inlined
from segment_format.kernels.memory import copy_16, copy_long, load_u8, store_u8

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value

_STEP = np.uint64(16)
_ONE = np.uint64(1)
_LONG = np.uint64(256)


@inlined
def copy_literals(target: Address, source: Address, size: Value, source_stop: Address) -> None:
    """Copy `size` bytes (uint64) that do not overlap; no read at or behind `source_stop`.

    The caller has checked that `size` bytes are there, and room for 16 more at the target.
    """
    if source_stop - source >= size + _STEP and size <= _LONG:
        # Nearly always enough; a loop that mostly runs once would be guessed wrong.
        copy_16(target, source)
        if size > _STEP:
            _copy_steps(target + _STEP, source + _STEP, target + size)
    else:
        copy_long(target, source, size)


@inlined
def copy_match(target: Address, distance: Value, size: Value) -> None:
    """Repeat what stands `distance` bytes before `target`, `size` bytes of it, overlapping or not.

    The caller has checked that `distance` (uint64, not 0) bytes were written, and room for 16 bytes
    behind the copy.
    """
    if distance >= _STEP:
        source = target - distance
        copy_16(target, source)
        if size > _STEP:
            _copy_steps(target + _STEP, source + _STEP, target + size)
    else:
        _copy_pattern(target, distance, size)


@inlined
def _copy_steps(target: Address, source: Address, stop: Address) -> None:
    while target < stop:
        copy_16(target, source)
        target += _STEP
        source += _STEP


@helper
def _copy_pattern(target: Address, distance: Value, size: Value) -> None:
    """A copy that reads what it writes: the pattern is doubled until a step no longer does."""
    to = target
    stop = target + size
    gap = distance
    while gap < _STEP and to < stop:
        limit = min(stop, to + gap)
        while to < limit:
            store_u8(to, np.int64(load_u8(to - gap)))
            to += _ONE
        gap += gap
    if to < stop:
        _copy_steps(to, to - gap, stop)
