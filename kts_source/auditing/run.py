"""An audit from its options to its report."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kts_source.auditing.kinds import BYTES, LEVELS, METADATA
from kts_source.auditing.listed import other_incarnation
from kts_source.auditing.partition import PartitionAudit
from kts_source.auditing.place import PartitionObjects
from kts_source.auditing.report import AuditReport, in_order
from kts_source.auditing.state import NO_STATE, AuditState
from kts_source.errors import InvalidOptionError
from kts_source.layout.find_layout import find_layout
from kts_source.options import ScanOptions, parse_options
from kts_source.planning.discover import discover_topic, incarnations
from kts_source.planning.segment_catalog import PLANNING_THREADS, SegmentCatalog
from kts_source.tier import Tier, open_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kts_source.auditing.report import Finding, PartitionStatement
    from kts_source.planning.segment_catalog import ListedPartition
    from kts_source.store.object_store import ObjectStore

DEFAULT_GRACE_MS: Final = 3_600_000
"""Objects of a copy are younger than this while it is under way."""
_NOT_OF_A_TIER: Final = (
    "planFile",
    "tailPath",
    "catalog",
    "where",
    "timestampRange",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
)
"""Options that would make an audit look at less than the tier, or at something else."""


def audit(
    source: Mapping[str, str] | ScanOptions,
    *,
    level: str = METADATA,
    grace_ms: int = DEFAULT_GRACE_MS,
    store: ObjectStore | None = None,
    now_ms: int | None = None,
    on_read: Callable[[int], object] | None = None,
    state: str | None = None,
) -> AuditReport:
    """Proves the selected topics of a tier whole, or names every fault.

    What is wrong with the tier is in the report, never raised.

    Args:
        source: Options as for the data source.
        level: `listing`, `metadata`, `indexes` or `bytes`: each looks at more than the one before.
        grace_ms: Objects of an unfinished copy that are younger count as a copy under way.
        store: The tier; opened from the options when not given.
        now_ms: The time in ms since 1970 that ages are counted from; the clock's unless given.
        on_read: Called with the bytes of each segment once it was read, at level `bytes`.
        state: File that keeps what was proven, of mode 0600, and is made if need be: only what is
            new, changed or at fault is read. An audit that was killed goes on with it.

    Raises:
        InvalidOptionError: A level that there is not, an option that an audit cannot honour, or a
            state of another tier, of something else, or in use.
        TopicNotFoundError: A topic that the tier does not have.
        StoreError: The store does not answer.
    """
    if level not in LEVELS:
        raise InvalidOptionError(f"an audit's level is one of {', '.join(LEVELS)}, not {level!r}")
    options = source if isinstance(source, ScanOptions) else parse_options(source)
    _check(options)
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    opening = closing(open_tier(options)) if store is None else nullcontext(Tier(store))
    layout = find_layout(options.layout)
    with (
        opening as tier,
        ThreadPoolExecutor(PLANNING_THREADS, "kts-describe") as describing,
        ThreadPoolExecutor(PLANNING_THREADS, "kts-audit") as pool,
    ):
        run = PartitionAudit(options, level, grace_ms, now, tier, layout, describing, on_read)
        tolerant = replace(options, fail_on_data_loss=False)
        catalog = SegmentCatalog(tier, layout, describing, fail_on_data_loss=False)
        findings: list[Finding] = []
        parts: list[ListedPartition] = []
        for topic, folders in sorted(incarnations(options, catalog).items()):
            found = discover_topic(tolerant, topic, folders, catalog, pool)
            here = [part for part in found.others if part.topic_id == found.topic_id]
            parts += [*found.partitions, *(part for part in here if part.orphans)]
            for part in found.others:
                if part.topic_id != found.topic_id:
                    findings += other_incarnation(PartitionObjects.of(part), found.topic_id)
        objects = [PartitionObjects.of(part) for part in parts]
        statements = []
        with _state(state, tier, options) as kept:

            def one(part: PartitionObjects) -> tuple[PartitionStatement, list[Finding]]:
                return run.audit(part, NO_STATE if kept is None else kept.of(part.place))

            # The bytes of one partition after the other: reading ahead keeps the store busy.
            results = map(one, objects) if level == BYTES else pool.map(one, objects)
            for statement, more in results:
                statements.append(statement)
                findings += more
            if kept is not None:
                kept.finish({part.place: _names(part) for part in objects})
    statements.sort(key=lambda one: (one.topic, one.partition))
    return AuditReport(
        level, now, tier.store.uri(options.key_prefix), in_order(findings), tuple(statements)
    )


def _state(
    path: str | None, tier: Tier, options: ScanOptions
) -> contextlib.AbstractContextManager[AuditState | None]:
    if path is None:
        return nullcontext(None)
    root = tier.store.uri(options.key_prefix)
    return AuditState(path, tier.caches.entry_name(options.layout, root).strip())


def _names(part: PartitionObjects) -> list[str]:
    return [entry.segment_id for entry in part.entries]


def _check(options: ScanOptions) -> None:
    named = sorted(options.given & set(_NOT_OF_A_TIER))
    if options.brokers is not None:
        named.append("kafka.bootstrap.servers")
    if options.layout == "kafka-logs":
        named.append("layout=kafka-logs")
    if named:
        raise InvalidOptionError(f"an audit is of a whole tier: leave out {', '.join(named)}")
