"""Micro-batches: which offsets each holds, as text in a checkpoint and as a plan; no Spark."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kts_source.streaming.checkpoint import end_offsets

__all__ = ["end_offsets"]


def __getattr__(name: str) -> object:
    # Lazy: most who import a module of this package do not look into checkpoints.
    if name in __all__:
        return getattr(importlib.import_module("kts_source.streaming.checkpoint"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
