"""Chooses and plans the micro-batches of streams, and converts their positions to the text in
checkpoints. Does not import Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kts_source.streaming.offsets import end_offsets

__all__ = ["end_offsets"]


def __getattr__(name: str) -> object:
    # Imported on demand, because most importers of this package do not read checkpoints.
    if name in __all__:
        return getattr(importlib.import_module("kts_source.streaming.offsets"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
