"""Switches optimizations on or off that depend on undocumented behavior of other software.

`KTS_TUNING=off` in the environment disables all of them, in this process and its children.
`docs/tuning.md` lists them.
"""

from __future__ import annotations

import os


def is_on() -> bool:
    """Returns whether the optimizations are enabled."""
    return os.environ.get("KTS_TUNING", "").strip().lower() != "off"
