"""A tier for each thread that reads: a store and its counters are one thread's."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kts_source.tier import open_tier

if TYPE_CHECKING:
    from kts_source.options import ScanOptions
    from kts_source.tier import Tier


class ThreadTiers:
    """Opens the tier once in each thread that asks. Close it when all threads have ended.

    Args:
        options: How, and from where.
    """

    def __init__(self, options: ScanOptions) -> None:
        self._options = options
        self._tiers: dict[int, Tier] = {}

    def mine(self) -> Tier:
        """That of the thread that calls."""
        thread = threading.get_ident()
        tier = self._tiers.get(thread)
        if tier is None:
            tier = self._tiers[thread] = open_tier(self._options)
        return tier

    def close(self) -> None:
        """Lets the connections go."""
        tiers, self._tiers = self._tiers, {}
        for tier in tiers.values():
            tier.close()
