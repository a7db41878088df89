"""What a cluster tells of its topics."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TopicPartition: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a partition.

    Attributes:
        node: Id of the broker; −1 while there is none.
        epoch: Leader epoch.
    """

    node: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ClusterTopic:
    """A topic as the cluster has it.

    Attributes:
        topic_id: Its incarnation, 22 characters.
        leaders: Partition number to its leader, all partitions, ascending.
    """

    topic: str
    topic_id: str
    leaders: Mapping[int, Leader]


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """What a leader knows of an epoch that it was asked for.

    Attributes:
        epoch: The greatest epoch it knows that is not above the one asked; −1 none.
        end_offset: One past that epoch's last offset; −1 none.
    """

    epoch: int
    end_offset: int


def by_topic(places: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Partition numbers by topic, as requests name them."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for topic, number in places:
        numbers[topic].append(number)
    return list(numbers.items())
