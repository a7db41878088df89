"""Whether shortcuts are taken that lean on what other software promises nobody.

`KTS_TUNING=off` in the environment switches all of them off, in this process and those it starts.
They are listed in `docs/tuning.md`.
"""

from __future__ import annotations

import os


def is_on() -> bool:
    """Whether to take them."""
    return os.environ.get("KTS_TUNING", "").strip().lower() != "off"
