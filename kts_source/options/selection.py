"""Which topics and partitions a read covers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from kts_source.errors import InvalidOptionError
from kts_source.options.parsing import (
    parse_json_object,
    parse_names,
    parse_partition_number,
    parse_text,
)
from segment_format.errors import InvalidManifestError
from segment_format.kafka_uuid import uuid_from_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_INTERNAL: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
)
"""Kafka's own topics, which stand on brokers' disks as others do (`Topic.INTERNAL_TOPICS`)."""


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics."""

    topics: tuple[str, ...]

    def wanted(self, available: Iterable[str]) -> tuple[str, ...]:
        """The topics to read, sorted: exactly those named."""
        return tuple(sorted(self.topics))


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics whose name the pattern is found in, as in Spark's source; of
    Kafka's internal ones none.
    """

    pattern: str

    def wanted(self, available: Iterable[str]) -> tuple[str, ...]:
        """The topics among `available` that match, sorted."""
        compiled = re.compile(self.pattern)
        return tuple(
            sorted(one for one in available if compiled.search(one) and one not in _INTERNAL)
        )


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions of these topics."""

    partitions: Mapping[str, tuple[int, ...]]

    def wanted(self, available: Iterable[str]) -> tuple[str, ...]:
        """The topics to read, sorted: exactly those named."""
        return tuple(sorted(self.partitions))


Selection: TypeAlias = Subscribe | SubscribePattern | Assign


def parse_subscribe(name: str, text: str) -> Subscribe:
    """Topic names separated by commas."""
    return Subscribe(tuple(dict.fromkeys(parse_names(name, text))))


def parse_pattern(name: str, text: str) -> SubscribePattern:
    """A regular expression."""
    parse_text(name, text)  # refuses blanks, which else stay, as in Spark's source
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidOptionError(
            f"option {name!r} is not a regular expression: {text!r}: {error}"
        ) from error
    return SubscribePattern(text)


def parse_assign(name: str, text: str) -> Assign:
    """JSON: topic to a list of partition numbers."""
    example = '{"topicA":[0,1],"topicB":[2]}'
    partitions: dict[str, tuple[int, ...]] = {}
    for topic, numbers in parse_json_object(name, text, example=example).items():
        if not isinstance(numbers, list) or any(isinstance(number, str) for number in numbers):
            raise InvalidOptionError(f"option {name!r} must be JSON like {example}, not {text!r}")
        known = {parse_partition_number(name, number) for number in numbers}
        partitions[topic] = tuple(sorted(known))
    if not any(partitions.values()):
        raise InvalidOptionError(f"option {name!r} names no partition: {text!r}")
    return Assign(partitions)


def parse_topic_ids(name: str, text: str) -> Mapping[str, str]:
    """One topic id, or JSON topic to id; a lone id is filed under the empty name."""
    given: Mapping[str, object] = {"": text.strip()}
    if text.strip().startswith("{"):
        given = parse_json_object(name, text, example='{"topicA":"lZ6vvmajTWKDBUTV6SQAtQ"}')
    ids = {topic: str(topic_id) for topic, topic_id in given.items()}
    for topic_id in ids.values():
        try:
            uuid_from_text(topic_id)
        except InvalidManifestError as error:
            raise InvalidOptionError(f"option {name!r}: {error.message}") from error
    return ids
