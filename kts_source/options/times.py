"""Parses times and durations, and resolves times to milliseconds since 1970.

A time is a number of milliseconds since 1970, a date or timestamp in ISO 8601, or a duration before
the current time such as `-1h`. Durations are resolved once, when the options of a scan are parsed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kts_source.errors import InvalidOptionError
from kts_source.options.parsing import parse_int
from kts_source.options.selection import TimestampBound, TimestampsBound, partition_values
from kts_source.predicate.model import MAX_INT64, MIN_INT64, Column, Compare, Op

if TYPE_CHECKING:
    from datetime import tzinfo

# The units are the units of `JavaUtils.timeStringAsMs`, with which Spark's Kafka source parses its
# delay.
_UNIT_MS: Final[Mapping[str, int]] = {
    "": 1,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_DURATION: Final = re.compile(r"([0-9]{1,15})\s*([a-z]*)", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_ISO: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}(:?[0-9]{2})?)?)?"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def parse_duration_ms(name: str, text: str) -> int:
    """Parses milliseconds, plain or with a unit: `900000`, `500ms`, `90s`, `15m`, `1h`, `2d`."""
    match = _DURATION.fullmatch(text.strip())
    unit = _UNIT_MS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise InvalidOptionError(
            f"option {name!r} must be a duration such as 500ms, 90s, 15m or 1h, not {text!r}"
        )
    return int(match[1]) * unit


@dataclass(frozen=True, slots=True)
class Ago:
    """A duration before the current time."""

    milliseconds: int


Time: TypeAlias = int | datetime | Ago
"""Milliseconds since 1970, a timestamp (in the zone of option `timeZone` if it has none), or a
duration before the current time.
"""
_PartitionTimes: TypeAlias = "Mapping[str, Mapping[int, Time]]"
_TimeRange: TypeAlias = "tuple[Time | None, Time | None]"


def parse_time(name: str, text: str) -> Time:
    """Parses a time; see the module."""
    stripped = text.strip()
    try:
        if _NUMBER.fullmatch(stripped):
            return parse_int(name, stripped)
        if stripped.startswith("-"):
            return Ago(parse_duration_ms(name, stripped[1:]))
        if _ISO.fullmatch(stripped):
            return datetime.fromisoformat(stripped)
    except ValueError:  # also errors of options, for example of an unknown unit
        pass
    raise InvalidOptionError(
        f"option {name!r} must be in ms since 1970, a date or timestamp such as 2026-02-25 or"
        f" 2026-02-25T10:00Z, or a duration before now such as -1h or -7d, not {text!r}"
    )


def parse_partition_times(name: str, text: str) -> _PartitionTimes:
    """Parses times by topic and partition, in JSON."""

    def parse(value: object) -> Time:
        if type(value) is int and MIN_INT64 <= value <= MAX_INT64:
            return value
        if isinstance(value, str):
            return parse_time(name, value)
        raise InvalidOptionError(f"option {name!r} has {value!r} instead of a timestamp")

    return partition_values(name, text, '{"topicA":{"0":1700000000000}}', parse)


def parse_time_range(name: str, text: str) -> _TimeRange:
    """Parses `start,stop`. One of the two times may be empty."""
    sides = [side.strip() for side in text.split(",", 1)]
    if len(sides) < 2 or not any(sides):
        raise InvalidOptionError(
            f"option {name!r} must be start,stop, such as 1700000000000,1700003600000 (in ms since"
            " 1970) or 2026-02-25,2026-02-26"
        )
    start, stop = (parse_time(name, side) if side else None for side in sides)
    return start, stop


@dataclass(frozen=True, slots=True)
class Clock:
    """Resolves times.

    Attributes:
        now_ms: The current time in ms since 1970.
        zone: Zone of timestamps that name none; `None` = UTC.
    """

    now_ms: int
    zone: tzinfo | None

    def epoch_ms(self, time: Time) -> int:
        """Returns a time in ms since 1970, rounded up."""
        if isinstance(time, Ago):
            return self.now_ms - time.milliseconds
        if isinstance(time, datetime):
            # A local time that a clock change skips or repeats is read with the offset before the
            # change, as in option `where`.
            zoned = time if time.tzinfo is not None else time.replace(tzinfo=self.zone or UTC)
            return -((_EPOCH - zoned) // _MILLISECOND)
        return time

    def bound(self, name: str, times: Time | _PartitionTimes) -> TimestampBound | TimestampsBound:
        """Returns the bound that an option sets. Raises InvalidOptionError for a time before
        1970.
        """

        def resolve(time: Time) -> int:
            epoch_ms = self.epoch_ms(time)
            if epoch_ms < 0:
                raise InvalidOptionError(
                    f"option {name!r} is {epoch_ms} ms since 1970, but must not be negative"
                )
            return epoch_ms

        if not isinstance(times, Mapping):
            return TimestampBound(resolve(times))
        return TimestampsBound(
            {
                topic: {number: resolve(time) for number, time in numbers.items()}
                for topic, numbers in times.items()
            }
        )

    def conditions(self, name: str, times: _TimeRange) -> tuple[Compare, ...]:
        """Returns the conditions on the timestamp that a range `start,stop` means. Raises
        InvalidOptionError if the stop is before the start.
        """
        start, stop = (None if time is None else self.epoch_ms(time) for time in times)
        if start is not None and stop is not None and start > stop:
            raise InvalidOptionError(
                f"option {name!r} has a stop before its start: it means [{start}, {stop}) in ms"
                " since 1970"
            )
        return tuple(
            # The table stores timestamps as 64-bit microseconds, so limit the bounds to this range.
            Compare(op, Column("timestamp"), min(max(bound * 1000, MIN_INT64), MAX_INT64))
            for op, bound in ((Op.GE, start), (Op.LT, stop))
            if bound is not None
        )


_BOUNDS: Final = (
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
)
TIME_RANGE: Final = "timestampRange"


def resolved_times(values: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
    """Converts the times in parsed options to bounds and conditions, and returns them by name of
    the option. Raises InvalidOptionError; see `Clock.bound` and `Clock.conditions`.
    """
    resolved: dict[str, Any] = {
        name: clock.bound(name, values[name]) for name in _BOUNDS if values[name] is not None
    }
    if values[TIME_RANGE] is not None:
        resolved[TIME_RANGE] = clock.conditions(TIME_RANGE, values[TIME_RANGE])
    return resolved


def options_with_durations(values: Mapping[str, Any]) -> frozenset[str]:
    """Returns the names of the parsed options with a duration before the current time. Such options
    mean another time in every run.
    """
    return frozenset(
        name for name in (*_BOUNDS, TIME_RANGE) if any(map(_is_ago, _times(values[name])))
    )


def _times(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return [time for numbers in value.values() for time in numbers.values()]
    return list(value) if isinstance(value, tuple) else [value]


def _is_ago(time: object) -> bool:
    return isinstance(time, Ago)
