"""Planning makes millions of objects that all live to its end; looking through them for garbage
again and again takes longer than making them.
"""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

from segment_format.tuning import is_on

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """Collects no cycles during the block; there are hardly any to collect.

    With `KTS_TUNING=off` (`docs/tuning.md`) the collector is left alone.
    """
    if not (is_on() and gc.isenabled()):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            # All that was made counts as old: else the next step looks through it at once.
            gc.freeze()
            gc.unfreeze()
        gc.enable()
