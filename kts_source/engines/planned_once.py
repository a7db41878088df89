"""The plan that a scan and all that are derived from it share."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kts_source.planning.planner import plan_scan

if TYPE_CHECKING:
    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import ScanPlan


class PlannedOnce:
    """A plan that is made once, whoever asks first.

    Args:
        options: What is planned.
        made: The plan, where there is one.
    """

    def __init__(self, options: ScanOptions, made: ScanPlan | None = None) -> None:
        self.made = made
        self._options = options
        self._lock = threading.Lock()

    def plan(self) -> ScanPlan:
        """The plan."""
        with self._lock:
            if self.made is None:
                self.made = plan_scan(self._options)
            return self.made
