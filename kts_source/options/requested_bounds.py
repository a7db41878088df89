"""Where a read begins and ends, as users may say it: ends of the log, offsets, or timestamps.

The forms are those of Spark's Kafka source (`KafkaOffsetRangeLimit` and its JSON).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from kts_source.errors import InvalidOptionError
from kts_source.options.parsing import parse_int, parse_json_object, parse_partition_number

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1

PartitionValues: TypeAlias = Mapping[str, Mapping[int, int]]
"""Topic to partition to an offset or a timestamp."""


@dataclass(frozen=True, slots=True)
class EarliestBound:
    """The log start."""


@dataclass(frozen=True, slots=True)
class LatestBound:
    """The tier's end, or its last stable offset for `read_committed`."""


@dataclass(frozen=True, slots=True)
class OffsetsBound:
    """Offsets by topic and partition; −2 stands for earliest, −1 for latest."""

    offsets: PartitionValues

    @property
    def mentions_latest(self) -> bool:
        """Whether any partition asks for latest."""
        return self._mentions(LATEST_OFFSET)

    @property
    def mentions_earliest(self) -> bool:
        """Whether any partition asks for earliest."""
        return self._mentions(EARLIEST_OFFSET)

    def _mentions(self, offset: int) -> bool:
        return any(offset in partitions.values() for partitions in self.offsets.values())


@dataclass(frozen=True, slots=True)
class TimestampBound:
    """The first offset whose timestamp is at or after `timestamp_ms`, in every partition."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class TimestampsBound:
    """The same with a timestamp (ms) of its own for every partition."""

    timestamps_ms: PartitionValues


Bound: TypeAlias = EarliestBound | LatestBound | OffsetsBound | TimestampBound | TimestampsBound

_OFFSETS_EXAMPLE = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'


def parse_offsets(name: str, text: str) -> Bound:
    """`earliest`, `latest`, or offsets in JSON.

    Raises:
        InvalidOptionError: Anything else.
    """
    word = text.strip().lower()
    if word == "earliest":
        return EarliestBound()
    if word == "latest":
        return LatestBound()
    offsets = _partition_values(name, text, example=_OFFSETS_EXAMPLE)
    for topic, partitions in offsets.items():
        for partition, offset in partitions.items():
            if offset < EARLIEST_OFFSET:
                raise InvalidOptionError(
                    f"option {name!r}: {offset} is not an offset ({topic}-{partition});"
                    " −2 stands for earliest, −1 for latest"
                )
    return OffsetsBound(offsets)


def parse_timestamp(name: str, text: str) -> Bound:
    """Milliseconds since the epoch, 0 or more.

    Raises:
        InvalidOptionError: Anything else.
    """
    timestamp_ms = parse_int(name, text)
    if timestamp_ms < 0:
        raise InvalidOptionError(f"option {name!r} must not be negative: {text!r}")
    return TimestampBound(timestamp_ms)


def parse_partition_timestamps(name: str, text: str) -> Bound:
    """Timestamps by topic and partition, in JSON.

    Raises:
        InvalidOptionError: Anything else.
    """
    timestamps = _partition_values(name, text, example='{"topicA":{"0":1700000000000}}')
    for partitions in timestamps.values():
        if any(timestamp_ms < 0 for timestamp_ms in partitions.values()):
            raise InvalidOptionError(f"option {name!r} has a negative timestamp: {text!r}")
    return TimestampsBound(timestamps)


def _partition_values(name: str, text: str, *, example: str) -> PartitionValues:
    values: dict[str, dict[int, int]] = {}
    for topic, partitions in parse_json_object(name, text, example=example).items():
        if not isinstance(partitions, dict):
            raise InvalidOptionError(f"option {name!r} must be JSON like {example}, not {text!r}")
        numbers: dict[int, int] = {}
        for partition_text, value in partitions.items():
            partition = parse_partition_number(name, partition_text)
            if (
                isinstance(value, bool)
                or not isinstance(value, int)
                or not -(1 << 63) <= value < 1 << 63
            ):
                raise InvalidOptionError(
                    f"option {name!r} has {value!r} where a whole number belongs"
                )
            if partition in numbers:
                raise InvalidOptionError(f"option {name!r} names {topic}-{partition} twice")
            numbers[partition] = value
        values[topic] = numbers
    return values


@dataclass(frozen=True, slots=True)
class TimestampRange:
    """Rows dated in [start_ms, stop_ms); `None` leaves a side open."""

    start_ms: int | None
    stop_ms: int | None


def parse_timestamp_range(name: str, text: str) -> TimestampRange:
    """`start,stop` in milliseconds since the epoch, of which one may be empty.

    Raises:
        InvalidOptionError: Anything else, or a range that ends before it begins.
    """
    start_text, comma, stop_text = (part.strip() for part in text.partition(","))
    if not comma or not (start_text or stop_text):
        raise InvalidOptionError(f"option {name!r} must be like 1700000000000,1700003600000")
    start = parse_int(name, start_text) if start_text else None
    stop = parse_int(name, stop_text) if stop_text else None
    if start is not None and stop is not None and start > stop:
        raise InvalidOptionError(f"option {name!r} ends before it begins: {text!r}")
    return TimestampRange(start, stop)
