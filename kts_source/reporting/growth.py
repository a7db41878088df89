"""How a tier has grown, and what it would hold and cost under a retention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kts_source.planning.estimate import monthly_cost

if TYPE_CHECKING:
    import numpy.typing as npt

    from kts_source.reporting.segments import SegmentColumns

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
