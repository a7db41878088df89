"""What `mark_repeated` and its caller agree on: one int64 array, the frame."""

from __future__ import annotations

from typing import Final

ENDS: Final = 0  # address of int32: of the maps' entries, behind a leading one
MAPS: Final = 1  # how many maps there are
KEYS: Final = 2  # address of int32: ends of the keys' bytes, behind a leading one
DATA: Final = 3  # address of their bytes
KEPT: Final = 4  # address of a byte per entry, set to 0 for those that are marked
TABLE: Final = 5  # address of int64: a power of 2, not less than twice the entries of any map
SEED: Final = 6  # of hashes, so that nobody can choose keys that have the same
FRAME_SIZE: Final = 7

FEW: Final = 8
"""Entries of a map up to which each key is compared with each."""
