"""Kinds of slots of a column, for the kernel and its callers."""

from __future__ import annotations

from typing import Final

NOTHING: Final = 0
"""A column of nulls, without buffers."""
FIXED: Final = 1
"""Values of a fixed size."""
BYTES: Final = 2
"""Variable-size values: ends and bytes."""
ITEMS: Final = 3
"""Lists and maps: ends of the items. The items have their own level."""
STRUCT: Final = 4
"""Structs: only a validity buffer."""
