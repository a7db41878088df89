"""What a report says of a tier, as values; the page draws them and computes none of its own.

How a tier has grown, and what it would hold and cost under a retention.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kts_source.planning.estimate import DEFAULT_CLASS, estimate, monthly_cost
from kts_source.reporting.segments import STATES, SegmentColumns, segment_columns
from kts_source.store.joined_store import is_beside
from kts_source.texts import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from kts_source.auditing.report import AuditReport
    from kts_source.planning.describe import DescribedPlan, LockedPartition, PartitionWatermark
    from kts_source.planning.partition_plan import PartitionPlan


DAY_S: Final = 86_400
RATE_DAYS: Final = 30
RETENTIONS: Final = (7, 30, 90, 365, 730, 2555)
"""Days: a week to seven years."""


@dataclass(frozen=True, slots=True)
class Day:
    """The served segments whose largest timestamp is of one day, in UTC.

    Attributes:
        day: Days since 1970.
    """

    day: int
    segments: int
    stored_bytes: int
    original_bytes: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Served segments by the day of their largest timestamp.

    Attributes:
        days: Ascending; days without segments are left out.
        undated_bytes: Stored bytes of served segments without a timestamp.
        future_bytes: The same of those that are dated more than a day after the report.
        rate_days: Over how many days, up to the newest in `days`, the rate is taken.
        rate: Stored bytes a day over these days; 0 where nothing is dated.
    """

    days: tuple[Day, ...]
    undated_bytes: int
    future_bytes: int
    rate_days: int
    rate: float


@dataclass(frozen=True, slots=True)
class Retention:
    """What a retention of so many days would leave.

    Attributes:
        older_segments: Served segments whose largest timestamp is older now.
        older_bytes: Their stored bytes.
        older_cost: US dollars a month for these.
        steady_bytes: Stored bytes of so many days at the present rate.
        steady_cost: US dollars a month for these, by the storage classes of what is served.
    """

    retention_days: int
    older_segments: int
    older_bytes: int
    older_cost: float
    steady_bytes: int
    steady_cost: float


def growth(columns: SegmentColumns, now_ms: int) -> Growth:
    """Served bytes by day."""
    served = columns.is_served
    dated = served & (columns.newest_s >= 0)
    future = dated & (columns.newest_s > now_ms // 1000 + DAY_S)
    kept = dated & ~future
    numbers, inverse = np.unique(columns.newest_s[kept] // DAY_S, return_inverse=True)
    counts = np.bincount(inverse, minlength=len(numbers))
    days = tuple(
        Day(*row)
        for row in zip(
            numbers.tolist(),
            counts.tolist(),
            _sums(columns.stored[kept], inverse, len(numbers)),
            _sums(columns.original[kept], inverse, len(numbers)),
            strict=True,
        )
    )
    rate_days = 0
    rate = 0.0
    if days:
        first = max(days[-1].day - RATE_DAYS + 1, days[0].day)
        rate_days = days[-1].day - first + 1
        rate = sum(day.stored_bytes for day in days if day.day >= first) / rate_days
    return Growth(
        days,
        int(columns.stored[served & ~dated].sum()),
        int(columns.stored[future].sum()),
        rate_days,
        rate,
    )


def _sums(values: npt.NDArray[np.int64], groups: npt.NDArray[np.int64], count: int) -> list[int]:
    # Not by `bincount`, whose weights are floats: sums are exact.
    sums = np.zeros(count, np.int64)
    np.add.at(sums, groups, values)
    return sums.tolist()


def retentions(columns: SegmentColumns, rate: float, now_ms: int) -> tuple[Retention, ...]:
    """What each of `RETENTIONS` would delete now, and hold in the long run."""
    served = columns.is_served
    stored = columns.bytes_by_class(served)
    total = sum(stored.values())
    by_byte = monthly_cost(stored) / total if total else 0.0
    found = []
    for days in RETENTIONS:
        limit_s = now_ms // 1000 - days * DAY_S
        older = served & (columns.newest_s >= 0) & (columns.newest_s < limit_s)
        gone = columns.bytes_by_class(older)
        steady = round(rate * days)
        found.append(
            Retention(
                days,
                int(older.sum()),
                sum(gone.values()),
                monthly_cost(gone),
                steady,
                steady * by_byte,
            )
        )
    return tuple(found)


MAX_TEXTS: Final = 200
"""Of the skipped segments, orphans, holes, epochs and transactions of a partition, on the page."""
MAX_FINDINGS: Final = 2000
"""Findings of an audit on the page, the worst first."""


@dataclass(frozen=True, slots=True)
class PartitionDetail:
    """What the plan knows of a partition beyond its watermark.

    Attributes:
        undecided: Producer id and first offset of each transaction that bounds `read_committed`.
        epochs: Leader epoch and its first offset, ascending.
        orphan_bytes: Listed bytes of the objects that belong to no segment.
        newest_age_ms: Age of the newest record in the tier when the report was made; `None` where
            no timestamp is known.
        copy_delay_ms: How much later than its largest timestamp the copy of the last segment began;
            `None` where the layout does not tell.
    """

    undecided: tuple[tuple[int, int], ...]
    epochs: tuple[tuple[int, int], ...]
    orphan_bytes: int
    newest_age_ms: int | None
    copy_delay_ms: int | None


@dataclass(frozen=True, slots=True)
class TierCost:
    """What is stored and what reading all of it once would ask for, at list prices.

    Attributes:
        served_bytes: Logs of served segments, by storage class.
        unserved_bytes: Logs of segments that are not read, likewise.
        side_file_bytes: Objects that hold side files.
        orphan_bytes: Objects that belong to no segment, as far as listings tell.
        monthly: US dollars a month for all four; side files and orphans as `STANDARD`.
        read_requests: Requests of a full read.
        read_bytes: Bytes of a full read.
        read_cost: US dollars for these.
    """

    served_bytes: dict[str, int]
    unserved_bytes: dict[str, int]
    side_file_bytes: int
    orphan_bytes: int
    monthly: float
    read_requests: int
    read_bytes: int
    read_cost: float


@dataclass(frozen=True, slots=True, eq=False)
class TierFacts:
    """All that a report says.

    Attributes:
        uri: Root of the tier, free of credentials.
        made_ms: When the report was made, in ms since 1970.
        partitions: As `describe` gives them.
        details: One for each of `partitions`.
        segments: All segments, served or not.
        audit: What an audit found, where one was given.
        locked: Partitions that cannot be described for want of a key; nothing else counts them.
    """

    uri: str
    made_ms: int
    partitions: tuple[PartitionWatermark, ...]
    details: tuple[PartitionDetail, ...]
    segments: SegmentColumns
    growth: Growth
    retentions: tuple[Retention, ...]
    cost: TierCost
    audit: AuditReport | None
    locked: tuple[LockedPartition, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The facts as values of JSON, segments left out; lists that may be long are cut, and their
        lengths told. Texts are printable.
        """
        marks = [asdict(mark) for mark in self.partitions]
        details = [asdict(detail) for detail in self.details]
        document: dict[str, Any] = {
            "uri": self.uri,
            "made_ms": self.made_ms,
            "totals": self.totals(),
            "partitions": _table(
                [_cut(mark | detail) for mark, detail in zip(marks, details, strict=True)]
            ),
            "growth": asdict(self.growth),
            "retentions": [asdict(one) for one in self.retentions],
            "cost": asdict(self.cost),
            "states": STATES,
            "classes": self.segments.classes,
            "locked": [asdict(one) | {"orphans": one.orphans[:MAX_TEXTS]} for one in self.locked],
            "audit": None if self.audit is None else _audit(self.audit),
        }
        shown: dict[str, Any] = _shown(document)
        return shown

    def totals(self) -> dict[str, int]:
        """Sums over all partitions."""
        marks = self.partitions
        return {
            "topics": len({mark.topic for mark in marks}),
            "partitions": len(marks),
            "segments": sum(mark.segments for mark in marks),
            "stored_bytes": sum(mark.stored_bytes for mark in marks),
            "original_bytes": sum(mark.original_bytes for mark in marks),
            "holes": sum(len(mark.holes) for mark in marks),
            "missing_offsets": sum(stop - start for mark in marks for start, stop in mark.holes),
            "unverifiable": sum(len(mark.unverifiable) for mark in marks),
            "skipped": sum(len(mark.skipped) for mark in marks),
            "orphans": sum(len(mark.orphans) for mark in marks),
            "undecided": sum(len(detail.undecided) for detail in self.details),
        }


def tier_facts(
    described: DescribedPlan,
    made_ms: int,
    audit: AuditReport | None,
    locked: tuple[LockedPartition, ...] = (),
) -> TierFacts:
    """The facts of a described tier.

    Args:
        described: The tier.
        made_ms: The time in ms since 1970 that ages are counted from.
        audit: What an audit of the same tier found.
        locked: What could not be described.
    """
    parts = described.plan.partitions
    columns = segment_columns(parts)
    marks = described.description.partitions
    details = tuple(_detail(p, m, made_ms) for p, m in zip(parts, marks, strict=True))
    grown = growth(columns, made_ms)
    return TierFacts(
        described.uri,
        made_ms,
        marks,
        details,
        columns,
        grown,
        retentions(columns, grown.rate, made_ms),
        _cost(described, columns, sum(detail.orphan_bytes for detail in details)),
        audit,
        locked,
    )


def _detail(part: PartitionPlan, mark: PartitionWatermark, made_ms: int) -> PartitionDetail:
    newest = mark.tier_end_timestamp_ms
    ranges = reversed(part.surviving.ranges)
    last = next((s.segment for s in ranges if not is_beside(s.segment.objects.log.key)), None)
    copied = None if last is None else last.event_timestamp_ms
    return PartitionDetail(
        tuple((one.producer_id, one.first_offset) for one in part.undecided),
        tuple((entry.epoch, entry.start_offset) for entry in part.surviving.lineage),
        sum(sum(orphan.sizes) for orphan in part.orphans),
        None if newest < 0 else made_ms - newest,
        None if copied is None or newest < 0 else copied - newest,
    )


def _cost(described: DescribedPlan, columns: SegmentColumns, orphan_bytes: int) -> TierCost:
    served = columns.bytes_by_class(columns.is_served)
    unserved = columns.bytes_by_class(columns.is_tiered & ~columns.is_served)
    side_files = int(columns.side_bytes[columns.is_tiered].sum())
    rest = {DEFAULT_CLASS: side_files + orphan_bytes}
    work = estimate(described.plan.tasks)
    return TierCost(
        served,
        unserved,
        side_files,
        orphan_bytes,
        sum(monthly_cost(sizes) for sizes in (served, unserved, rest)),
        work.requests,
        work.bytes,
        work.cost(),
    )


def _table(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rows that all have the same names."""
    names = list(rows[0]) if rows else []
    return {"names": names, "rows": [list(row.values()) for row in rows]}


_LISTS: Final = ("holes", "unverifiable", "skipped", "orphans", "undecided", "epochs")


def _cut(row: dict[str, Any]) -> dict[str, Any]:
    lengths = {f"{name}_count": len(row[name]) for name in _LISTS}
    return row | {name: row[name][:MAX_TEXTS] for name in _LISTS} | lengths


def _audit(report: AuditReport) -> dict[str, Any]:
    whole = report.to_dict()
    severities = [one["severity"] for one in whole["findings"]]
    counts = {name: severities.count(name) for name in ("error", "warning", "info")}
    return whole | {"findings": whole["findings"][:MAX_FINDINGS], "counts": counts}


_EXACT: Final = (1 << 53) - 1


def _shown(value: Any) -> Any:  # noqa: ANN401  # JSON's types
    """The same with printable texts, and with integers that JavaScript would round as text."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(name): _shown(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(one) for one in value]
    if isinstance(value, np.integer):
        value = int(value)
    if isinstance(value, int) and abs(value) > _EXACT:
        return str(value)
    return value
