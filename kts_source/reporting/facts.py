"""Computes the facts of a report. The HTML page only displays them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kts_source.planning.estimate import DEFAULT_CLASS, estimate, monthly_cost
from kts_source.planning.lineage import BELOW_LOG_START, COVERED, DEAD_BRANCH, last_epoch
from kts_source.store.joined_store import is_in_additional_store
from kts_source.texts import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from kts_source.auditing.report import AuditReport
    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.planning.describe import DescribedPlan, LockedPartition, PartitionWatermark
    from kts_source.planning.partition_plan import PartitionPlan

SERVED: Final = 0
ON_DISK: Final = 1
STATES: Final = (
    "served",
    "served from a broker's disk",
    COVERED,
    BELOW_LOG_START,
    DEAD_BRANCH,
    "not read for another reason",
)
"""States of a segment; the code of a state is its index."""

COMPRESSED: Final = 1
ENCRYPTED: Final = 2
COPY_TIME_KNOWN: Final = 4

UNKNOWN_TIME: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class SegmentColumns:
    """The segments of a report as columns, with one row per segment. The rows are sorted by
    partition and start offset; at equal start offsets, served segments come first.

    Attributes:
        partition: Index of the partition in the report.
        start: First offset of the segment, inclusive.
        stop: End of the segment's offsets, exclusive.
        stored: Size of the log object in bytes.
        original: Size of the log in bytes before compression and encryption.
        newest_s: Largest record timestamp, in seconds since 1970; −1 if unknown.
        copied_s: Time at which the copy to the tier began, in seconds since 1970. Valid only if
            `flags` contains `COPY_TIME_KNOWN`.
        state: Index of the segment's state in `STATES`.
        epoch: Newest leader epoch in the segment; −1 if unknown.
        flags: Sum of the flags that apply to the segment: `COMPRESSED`, `ENCRYPTED`,
            `COPY_TIME_KNOWN`.
        storage_class: Index of the log object's storage class in `classes`.
        side_bytes: Size in bytes of the segment's objects other than the log object.
        classes: Names of the storage classes.
    """

    partition: npt.NDArray[np.int64]
    start: npt.NDArray[np.int64]
    stop: npt.NDArray[np.int64]
    stored: npt.NDArray[np.int64]
    original: npt.NDArray[np.int64]
    newest_s: npt.NDArray[np.int64]
    copied_s: npt.NDArray[np.int64]
    state: npt.NDArray[np.int64]
    epoch: npt.NDArray[np.int64]
    flags: npt.NDArray[np.int64]
    storage_class: npt.NDArray[np.int64]
    side_bytes: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_served(self) -> npt.NDArray[np.bool_]:
        """Mask of the served segments, from which a scan reads offsets."""
        return np.equal(self.state, SERVED)

    @property
    def is_tiered(self) -> npt.NDArray[np.bool_]:
        """Mask of all segments in the tier, whether served or not. Excludes segments on brokers'
        disks.
        """
        return np.not_equal(self.state, ON_DISK)

    def bytes_by_class(self, rows: npt.NDArray[np.bool_]) -> dict[str, int]:
        """Returns the bytes of the log objects in the masked rows, by storage class."""
        return {
            name: int(self.stored[rows & (self.storage_class == number)].sum())
            for number, name in enumerate(self.classes)
            if np.any(rows & (self.storage_class == number))
        }


def segment_columns(partitions: Sequence[PartitionPlan]) -> SegmentColumns:
    """Returns the segments of the planned partitions as columns."""
    classes: dict[str, int] = {}
    rows: list[tuple[int, ...]] = []
    ids: list[str] = []
    for number, partition in enumerate(partitions):
        for start, stop, state, segment in _rows(partition):
            objects = segment.objects
            copied_ms = segment.event_timestamp_ms
            flags = COMPRESSED * objects.compression
            flags += ENCRYPTED * (objects.encryption is not None)
            flags += COPY_TIME_KNOWN * (copied_ms is not None)
            name = objects.log.storage_class or DEFAULT_CLASS
            rows.append(
                (
                    number,
                    start,
                    stop,
                    objects.log.size,
                    objects.size_in_bytes,
                    _seconds(segment.max_timestamp_ms),
                    0 if copied_ms is None else _seconds(copied_ms),
                    state,
                    last_epoch(segment),
                    flags,
                    classes.setdefault(name, len(classes)),
                    _side_bytes(segment),
                )
            )
            ids.append(segment.segment_id)
    names = [field.name for field in fields(SegmentColumns)][:-2]
    table = np.array(rows, np.int64).reshape(len(rows), len(names))
    columns: dict[str, Any] = {name: table[:, n].copy() for n, name in enumerate(names)}
    return SegmentColumns(**columns, classes=tuple(classes), ids=tuple(ids))


def _seconds(ms: int) -> int:
    return UNKNOWN_TIME if ms < 0 else ms // 1000


def _rows(partition: PartitionPlan) -> Iterator[tuple[int, int, int, RemoteSegment]]:
    log = partition.surviving
    used = {id(span.segment) for span in log.ranges}
    rows = [
        (
            span.start,
            span.stop,
            ON_DISK if is_in_additional_store(span.segment.objects.log.key) else SERVED,
            n,
        )
        for n, span in enumerate(log.ranges)
    ]
    segments = [span.segment for span in log.ranges]
    for skipped in log.skipped:
        segment = skipped.segment
        if id(segment) in used:  # only its offsets below the log start
            continue
        reason = skipped.reason
        state = STATES.index(reason) if reason in STATES else len(STATES) - 1
        rows.append((segment.start_offset, segment.stop_offset, state, len(segments)))
        segments.append(segment)
    for start, stop, state, n in sorted(rows, key=lambda row: (row[0], row[2], row[3])):
        yield start, stop, state, segments[n]


def _side_bytes(segment: RemoteSegment) -> int:
    sources = {
        index.source.key: index.source.size
        for index in segment.objects.indexes.values()
        if index.content is None
    }
    return sum(sources.values())


DAY_S: Final = 86_400
RATE_DAYS: Final = 30
RETENTIONS: Final = (7, 30, 90, 365, 730, 2555)
"""Retentions to compare, in days."""


@dataclass(frozen=True, slots=True)
class Day:
    """The served segments whose largest timestamp is on one day (UTC).

    Attributes:
        day: Number of days since 1970-01-01.
        stored_bytes: Total size of their log objects.
        original_bytes: Total size of their logs before compression and encryption.
    """

    day: int
    segments: int
    stored_bytes: int
    original_bytes: int


@dataclass(frozen=True, slots=True)
class Growth:
    """The served segments, grouped by the day of their largest timestamp.

    Attributes:
        days: Days that have segments, ascending.
        undated_bytes: Stored bytes of segments without a timestamp.
        future_bytes: Stored bytes of segments whose largest timestamp is more than a day after the
            report.
        rate_days: Number of days over which `rate` is computed, at most `RATE_DAYS`. They end with
            the newest day that has segments.
        rate: Average stored bytes per day over the last `rate_days` days; 0 without days.
    """

    days: tuple[Day, ...]
    undated_bytes: int
    future_bytes: int
    rate_days: int
    rate: float


@dataclass(frozen=True, slots=True)
class Retention:
    """The effect that a retention time would have on the tier.

    Attributes:
        older_segments: Number of served segments whose largest timestamp is older than the
            retention time.
        older_bytes: Stored bytes of the older segments.
        older_cost: Cost of the older segments in US dollars per month.
        steady_bytes: Stored bytes in the long run: current growth per day times the retention time.
        steady_cost: Cost of `steady_bytes` in US dollars per month, at the average price of the
            currently stored bytes.
    """

    retention_days: int
    older_segments: int
    older_bytes: int
    older_cost: float
    steady_bytes: int
    steady_cost: float


def growth(columns: SegmentColumns, now_ms: int) -> Growth:
    """Groups the served segments by the day of their largest timestamp, and computes the average
    growth per day.
    """
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
    # Do not use `bincount`, because its sums of floats are not exact.
    sums = np.zeros(count, np.int64)
    np.add.at(sums, groups, values)
    return sums.tolist()


def retentions(columns: SegmentColumns, rate: float, now_ms: int) -> tuple[Retention, ...]:
    """Returns the effect of each retention time in `RETENTIONS`: the bytes that it would delete
    now, and the bytes that it would keep in the long run. `rate` is the growth in bytes per day.
    """
    served = columns.is_served
    stored = columns.bytes_by_class(served)
    total = sum(stored.values())
    by_byte = monthly_cost(stored) / total if total else 0.0
    retained = []
    for days in RETENTIONS:
        limit_s = now_ms // 1000 - days * DAY_S
        older = served & (columns.newest_s >= 0) & (columns.newest_s < limit_s)
        gone = columns.bytes_by_class(older)
        steady = round(rate * days)
        retained.append(
            Retention(
                days,
                int(older.sum()),
                sum(gone.values()),
                monthly_cost(gone),
                steady,
                steady * by_byte,
            )
        )
    return tuple(retained)


MAX_TEXTS: Final = 200
"""Maximum number of skipped segments, orphans, holes, epochs and transactions of a partition on the
page.
"""
MAX_FINDINGS: Final = 2000
"""Maximum number of an audit's findings on the page. The worst findings come first."""


@dataclass(frozen=True, slots=True)
class PartitionDetail:
    """Facts about a partition that its `PartitionWatermark` does not contain.

    Attributes:
        undecided: Producer id and first offset of each open transaction. A scan with
            `read_committed` ends before the first of them.
        epochs: Leader epochs and their first offsets, ascending.
        orphan_bytes: Size in bytes of the objects that belong to no complete segment.
        newest_age_ms: Age in ms of the newest record in the tier when the report is made; `None` if
            the record's timestamp is unknown.
        copy_delay_ms: Time in ms from the timestamp of the newest record in the tier to the start
            of the copy of the last segment; `None` if unknown.
    """

    undecided: tuple[tuple[int, int], ...]
    epochs: tuple[tuple[int, int], ...]
    orphan_bytes: int
    newest_age_ms: int | None
    copy_delay_ms: int | None


@dataclass(frozen=True, slots=True)
class TierCost:
    """The cost of storing the tier, and of one read of all its records, at list prices.

    Attributes:
        served_bytes: Bytes of the log objects of served segments, by storage class.
        unserved_bytes: Bytes of the log objects of segments that are not served, by storage class.
        side_file_bytes: Bytes of the objects that contain side files.
        orphan_bytes: Bytes of the objects that belong to no complete segment.
        monthly: US dollars per month for the bytes of the four attributes above. Side files and
            orphans are priced as storage class `STANDARD`.
        read_requests: Number of requests that a read of all records sends.
        read_bytes: Number of bytes that a read of all records receives.
        read_cost: US dollars for a read of all records.
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
    """All facts that a report displays.

    Attributes:
        uri: Root of the tier, without credentials.
        made_ms: Time at which the report was made, in ms since 1970.
        partitions: Watermarks of the partitions, as `describe` returns them.
        details: Further facts, one item for each of `partitions`.
        segments: All segments, served or not.
        growth: Bytes of served segments by day.
        retentions: Effects of possible retention times.
        cost: Cost of storage and of a full read.
        audit: Result of an audit of the same tier; `None` if it was not audited.
        locked: Partitions that cannot be read because a key is missing. The other attributes do not
            include them.
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
        """Returns the facts except `segments` as values that can be written as JSON. All texts are
        printable.

        Long lists are truncated; the result also has their full lengths.
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
            "retentions": [asdict(retention) for retention in self.retentions],
            "cost": asdict(self.cost),
            "states": STATES,
            "classes": self.segments.classes,
            "locked": [
                asdict(partition) | {"orphans": partition.orphans[:MAX_TEXTS]}
                for partition in self.locked
            ],
            "audit": None if self.audit is None else _audit(self.audit),
        }
        shown: dict[str, Any] = _shown(document)
        return shown

    def totals(self) -> dict[str, int]:
        """Returns the totals of all partitions, such as the numbers of segments and holes."""
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
    """Computes the facts of a tier from its description. `TierFacts` describes `made_ms`, `audit`
    and `locked`.
    """
    partitions = described.plan.partitions
    columns = segment_columns(partitions)
    marks = described.description.partitions
    details = tuple(_detail(p, m, made_ms) for p, m in zip(partitions, marks, strict=True))
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


def _detail(partition: PartitionPlan, mark: PartitionWatermark, made_ms: int) -> PartitionDetail:
    newest = mark.tier_end_timestamp_ms
    ranges = reversed(partition.surviving.ranges)
    last = next(
        (s.segment for s in ranges if not is_in_additional_store(s.segment.objects.log.key)), None
    )
    copied = None if last is None else last.event_timestamp_ms
    return PartitionDetail(
        tuple(
            (transaction.producer_id, transaction.first_offset)
            for transaction in partition.undecided
        ),
        tuple((entry.epoch, entry.start_offset) for entry in partition.surviving.lineage),
        sum(sum(orphan.sizes) for orphan in partition.orphans),
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
    """Converts rows to a table: a list of column names, and a list of values for each row. All rows
    must have the same columns.
    """
    names = list(rows[0]) if rows else []
    return {"names": names, "rows": [list(row.values()) for row in rows]}


_LISTS: Final = ("holes", "unverifiable", "skipped", "orphans", "undecided", "epochs")


def _cut(row: dict[str, Any]) -> dict[str, Any]:
    lengths = {f"{name}_count": len(row[name]) for name in _LISTS}
    return row | {name: row[name][:MAX_TEXTS] for name in _LISTS} | lengths


def _audit(report: AuditReport) -> dict[str, Any]:
    document = report.to_dict()
    severities = [finding["severity"] for finding in document["findings"]]
    counts = {name: severities.count(name) for name in ("error", "warning", "info")}
    return document | {"findings": document["findings"][:MAX_FINDINGS], "counts": counts}


_MAX_EXACT: Final = (1 << 53) - 1


def _shown(value: Any) -> Any:  # noqa: ANN401  # JSON's types
    """Makes all texts in a value printable. Converts integers to texts if JavaScript could not
    represent them exactly.
    """
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(name): _shown(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    if isinstance(value, np.integer):
        value = int(value)
    if isinstance(value, int) and abs(value) > _MAX_EXACT:
        return str(value)
    return value
