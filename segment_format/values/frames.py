"""Frames, nodes and rows of tables inside the kernels: int64 numbers one behind the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from segment_format.kernels.compiled import inlined
from segment_format.kernels.memory import load_i64_native, load_word, store_i64

if TYPE_CHECKING:
    from segment_format.kernels.compiled import Address, Value


@inlined
def get(base: Address, index: Value) -> Value:
    """A number, int64."""
    return load_i64_native(base + (np.uint64(index) << np.uint64(3)))


@inlined
def address_in(base: Address, index: Value) -> Value:
    """The same as an address, uint64."""
    return load_word(base + (np.uint64(index) << np.uint64(3)))


@inlined
def put(base: Address, index: Value, value: Value) -> None:
    """Sets a number."""
    store_i64(base + (np.uint64(index) << np.uint64(3)), np.int64(value))
