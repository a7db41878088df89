"""A report from its options to its page."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kts_source.errors import InvalidOptionError
from kts_source.planning.describe import described_plan
from kts_source.planning.gc_pause import paused_collector
from kts_source.reporting.facts import TierFacts, tier_facts
from kts_source.reporting.page import page
from kts_source.texts import printable
from kts_source.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.auditing.report import AuditReport
    from kts_source.options import ScanOptions
    from kts_source.store.object_store import ObjectStore


@dataclass(frozen=True, slots=True, eq=False)
class TierReport:
    """A tier as a page.

    Attributes:
        facts: What the page shows.
    """

    facts: TierFacts

    def to_html(self) -> str:
        """The page: one file that loads nothing from elsewhere."""
        return page(self.facts)

    def save(self, path: str | Path) -> None:
        """Writes the page, as UTF-8.

        Raises:
            OSError: The file cannot be written.
        """
        Path(path).write_text(self.to_html(), encoding="utf-8", newline="\n")


def report(
    source: Mapping[str, str] | ScanOptions,
    *,
    audit: AuditReport | None = None,
    store: ObjectStore | None = None,
    now_ms: int | None = None,
) -> TierReport:
    """Draws the selected topics of a tier: their segments over time and offsets, and what they
    hold, cost and lack.

    It reads what `describe` reads, and its numbers are those of `describe`.

    Args:
        source: Options as for the data source; bounds among them are ignored.
        audit: What `audit` found in the same tier, to be shown beside.
        store: The tier; opened from the options when not given.
        now_ms: The time in ms since 1970 that ages are counted from; the clock's unless given.

    Raises:
        InvalidOptionError: The audit is of another tier.
        TieredKafkaError: As planning does, holes aside.
    """
    made_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    described = described_plan(source, None if store is None else Tier(store))
    if audit is not None and audit.path != described.uri:
        told, found = printable(audit.path), printable(described.uri)
        raise InvalidOptionError(f"the audit is of {told}, the report of {found}")
    with paused_collector():
        return TierReport(tier_facts(described, made_ms, audit))
