"""A report from its options to its page."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kts_source.errors import InvalidOptionError
from kts_source.options import ScanOptions, parse_options
from kts_source.planning.describe import described_plan
from kts_source.planning.gc_pause import paused_collector
from kts_source.planning.locked import (
    LockedPartition,
    locked_partition,
    only,
    partitions_with_keys,
    unless_locked,
)
from kts_source.quiet import errors_only
from kts_source.reporting.facts import TierFacts, tier_facts
from kts_source.reporting.page import page
from kts_source.store.open_store import local_file
from kts_source.texts import printable
from kts_source.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kts_source.auditing.report import AuditReport
    from kts_source.planning.describe import DescribedPlan
    from kts_source.planning.segment_catalog import ListedPartition
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
            InvalidOptionError: The path is the URL of a store, or nearly one.
            OSError: The file cannot be written.
        """
        local_file(path).write_text(self.to_html(), encoding="utf-8", newline="\n")


def report(
    source: Mapping[str, str] | ScanOptions,
    *,
    audit: AuditReport | None = None,
    store: ObjectStore | None = None,
    now_ms: int | None = None,
) -> TierReport:
    """Draws the selected topics of a tier: their segments over time and offsets, and what they
    hold, cost and lack.

    It reads what `describe` reads, and its numbers are those of `describe`. Partitions that cannot
    be described for want of a private key are named, with what their manifests tell.

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
    options = source if isinstance(source, ScanOptions) else parse_options(source)
    described, locked = _described(options, None if store is None else Tier(store))
    if audit is not None and audit.path != described.uri:
        told, found = printable(audit.path), printable(described.uri)
        raise InvalidOptionError(f"the audit is of {told}, the report of {found}")
    with paused_collector():
        return TierReport(tier_facts(described, made_ms, audit, locked))


def _described(
    options: ScanOptions, tier: Tier | None
) -> tuple[DescribedPlan, tuple[LockedPartition, ...]]:
    """What can be described, and what cannot for want of a key."""
    if options.by_metadata_topic:  # what follows lists
        return described_plan(options, tier), ()
    made = unless_locked(lambda: described_plan(options, tier))
    if made is not None:
        return made, ()
    with errors_only("kts_source"):  # the first attempt has said what there is to say
        found = partitions_with_keys(replace(options, fail_on_data_loss=False), tier)

        def is_locked(part: ListedPartition) -> bool:
            one = only(options, [part])
            return unless_locked(lambda: described_plan(one, tier)) is None

        # Old segments may be encrypted where nothing that describing needs is.
        locked = [(part, keys) for part, keys in found if keys and is_locked(part)]
        shut = {id(part) for part, _ in locked}
        open_ones = [part for part, _ in found if id(part) not in shut]
        # Where all are locked, the error says so.
        whole = described_plan(only(options, open_ones) if open_ones else options, tier)
    return whole, tuple(locked_partition(part, keys) for part, keys in locked)
