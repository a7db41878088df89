"""Hashes of fields' names; apart from the kernels, so that a type can be checked without numba."""

from __future__ import annotations

from typing import Final

FACTOR: Final = 0x9E3779B97F4A7C15


def name_hash(name: bytes) -> int:
    """What the kernels find a field's name by: 64 bits."""
    value = len(name) * FACTOR % (1 << 64)
    for start in range(0, len(name), 8):
        word = int.from_bytes(name[start : start + 8], "little")
        value = (value ^ word) * FACTOR % (1 << 64)
        value ^= value >> 32
    return value
