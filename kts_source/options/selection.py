"""The selection of topics and partitions, and the bounds of a read. A bound is an end of the log,
offsets or timestamps.

The texts of options have the formats of Spark's Kafka source (`KafkaOffsetRangeLimit`,
`JsonUtils`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from kts_source.errors import InvalidOptionError
from kts_source.options.parsing import (
    parse_json_object,
    parse_names,
    parse_partition_number,
    parse_text,
)
from kts_source.predicate.model import MAX_INT64, MIN_INT64
from segment_format.errors import InvalidManifestError
from segment_format.kafka_uuid import uuid_from_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_INTERNAL: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
)
"""Kafka's own topics (`Topic.INTERNAL_TOPICS`), which brokers' disks have, too."""


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A selection of all partitions of some topics (option `subscribe`)."""

    topics: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(self.topics)

    def wanted(self, available: Iterable[str]) -> tuple[str, ...]:
        """Returns the names of the selected topics, sorted. Does not use `available`."""
        return tuple(sorted(self.topics))


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """A selection of all partitions of the topics whose name matches a pattern (option
    `subscribePattern`), except Kafka's internal topics.
    """

    pattern: str

    def __str__(self) -> str:
        return f"topics that match {self.pattern!r}"

    def wanted(self, available: Iterable[str]) -> tuple[str, ...]:
        """Returns the topics among `available` that match, sorted."""
        search = re.compile(self.pattern).search
        return tuple(sorted(name for name in available if search(name) and name not in _INTERNAL))


@dataclass(frozen=True, slots=True)
class Assign:
    """A selection of some partitions of some topics (option `assign`)."""

    partitions: Mapping[str, tuple[int, ...]]

    def __str__(self) -> str:
        pairs = ((topic, number) for topic in self.partitions for number in self.partitions[topic])
        return ", ".join(f"{topic}-{number}" for topic, number in pairs)

    def wanted(self, available: Iterable[str]) -> tuple[str, ...]:
        """Returns the names of the selected topics, sorted. Does not use `available`."""
        return tuple(sorted(self.partitions))


Selection: TypeAlias = Subscribe | SubscribePattern | Assign


def parse_subscribe(name: str, text: str) -> Subscribe:
    """Parses topic names separated by commas."""
    return Subscribe(tuple(dict.fromkeys(parse_names(name, text))))


def parse_pattern(name: str, text: str) -> SubscribePattern:
    """Parses a regular expression. Keeps blanks around it, like Spark's Kafka source."""
    parse_text(name, text)
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidOptionError(
            f"option {name!r} is not a regular expression: {text!r}: {error}"
        ) from error
    return SubscribePattern(text)


def parse_assign(name: str, text: str) -> Assign:
    """Parses a JSON object with a list of partition numbers for each topic. Drops topics with an
    empty list, like Spark's Kafka source.
    """
    example = '{"topicA":[0,1],"topicB":[2]}'
    partitions: dict[str, tuple[int, ...]] = {}
    for topic, numbers in parse_json_object(name, text, example=example).items():
        if not isinstance(numbers, list) or any(isinstance(number, str) for number in numbers):
            raise InvalidOptionError(f"option {name!r} must be JSON like {example}, not {text!r}")
        partitions[topic] = tuple(sorted({parse_partition_number(name, n) for n in numbers}))
    partitions = {topic: numbers for topic, numbers in partitions.items() if numbers}
    if not partitions:
        raise InvalidOptionError(f"option {name!r} must name at least one partition, not {text!r}")
    return Assign(partitions)


def parse_topic_ids(name: str, text: str) -> Mapping[str, str]:
    """Parses a JSON object of topic ids by topic name, or a single topic id. Returns a single id
    under the empty name.
    """
    by_topic: Mapping[str, object] = {"": text.strip()}
    if text.strip().startswith("{"):
        by_topic = parse_json_object(name, text, example='{"topicA":"lZ6vvmajTWKDBUTV6SQAtQ"}')
    ids = {topic: str(topic_id) for topic, topic_id in by_topic.items()}
    for topic_id in ids.values():
        try:
            uuid_from_text(topic_id)
        except InvalidManifestError as error:
            raise InvalidOptionError(f"option {name!r}: {error.message}") from error
    return ids


EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1

PartitionValues: TypeAlias = Mapping[str, Mapping[int, int]]
"""Maps a topic to a mapping from partition to offset or timestamp."""


@dataclass(frozen=True, slots=True)
class EarliestBound:
    """The log start (`earliest`)."""


@dataclass(frozen=True, slots=True)
class LatestBound:
    """The end of the log (`latest`), or its last stable offset for `read_committed`."""


@dataclass(frozen=True, slots=True)
class OffsetsBound:
    """Offsets by topic and partition; −2 means `earliest`, −1 means `latest`."""

    offsets: PartitionValues


@dataclass(frozen=True, slots=True)
class TimestampBound:
    """The first offset with a timestamp at or after `timestamp_ms`, in every partition."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class TimestampsBound:
    """In each partition, the first offset with a timestamp at or after the partition's own
    timestamp in ms.
    """

    timestamps_ms: PartitionValues


Bound: TypeAlias = EarliestBound | LatestBound | OffsetsBound | TimestampBound | TimestampsBound

NAMED_OFFSETS: Final = {"earliest": EARLIEST_OFFSET, "latest": LATEST_OFFSET}
_NAMED_BOUNDS: Final[Mapping[str, Bound]] = {"earliest": EarliestBound(), "latest": LatestBound()}


def mentions(bound: Bound, end: str) -> bool:
    """Returns whether a bound is `end` (`earliest` or `latest`) for at least one partition. In
    JSON, −2 means `earliest` and −1 means `latest`.
    """
    if isinstance(bound, OffsetsBound):
        return any(NAMED_OFFSETS[end] in offsets.values() for offsets in bound.offsets.values())
    return bound == _NAMED_BOUNDS[end]


def parse_offsets(name: str, text: str) -> Bound:
    """Parses `earliest`, `latest`, or offsets in JSON."""
    if bound := _NAMED_BOUNDS.get(text.strip().lower()):
        return bound

    def parse(value: object) -> int:
        if type(value) is not int or not MIN_INT64 <= value <= MAX_INT64:
            raise InvalidOptionError(f"option {name!r} has {value!r} instead of a whole number")
        return value

    example = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
    if not text.lstrip().startswith("{"):
        raise InvalidOptionError(
            f"option {name!r} must be earliest, latest or JSON like {example}, not {text!r}"
        )
    offsets = partition_values(name, text, example, parse)
    for topic, partitions in offsets.items():
        for partition, offset in partitions.items():
            if offset < EARLIEST_OFFSET:
                raise InvalidOptionError(
                    f"option {name!r}: offset {offset} of {topic}-{partition} is invalid; use an"
                    " offset from 0 on, -2 for earliest or -1 for latest"
                )
    return OffsetsBound(offsets)


_Value = TypeVar("_Value")


def partition_values(
    name: str, text: str, example: str, parse: Callable[[object], _Value]
) -> dict[str, dict[int, _Value]]:
    """Parses a JSON object of values by topic and partition. Calls `parse` for each value. Errors
    contain the option's name, and `example`, a valid text.
    """
    values: dict[str, dict[int, _Value]] = {}
    for topic, partitions in parse_json_object(name, text, example=example).items():
        if not isinstance(partitions, dict):
            raise InvalidOptionError(f"option {name!r} must be JSON like {example}, not {text!r}")
        numbers = values[topic] = {}
        for partition_text, value in partitions.items():
            partition = parse_partition_number(name, partition_text)
            if partition in numbers:
                raise InvalidOptionError(f"option {name!r} names {topic}-{partition} twice")
            numbers[partition] = parse(value)
    return values
