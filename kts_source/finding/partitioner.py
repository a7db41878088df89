"""Which partitions Kafka's default partitioner writes a key to: the others need not be searched.

    partition = (murmur2(key) & 0x7fffffff) mod number of partitions

It holds for producers that choose no partition themselves and have no partitioner of their own, and
for as long as the topic has had so many partitions. Source: `BuiltInPartitioner.partitionForKey`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kts_source.errors import InvalidOptionError
from kts_source.options.selection import Assign
from segment_format.metadata.partitioner import murmur2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import ScanPlan
    from segment_format.key_set import KeySet


def partitions_of(keys: KeySet, count: int) -> frozenset[int]:
    """The partitions, of `count`, that the keys belong to."""
    found: set[int] = set()
    for key in keys:
        found.add((murmur2(key) & 0x7FFF_FFFF) % count)
        if len(found) == count:
            break
    return frozenset(found)


def partition_counts(
    options: ScanOptions, plan: ScanPlan, num_partitions: int | None
) -> dict[str, int]:
    """How many partitions each topic of a plan has: what the user says, else one more than the
    largest number in the tier.

    Raises:
        InvalidOptionError: Partitions were chosen by number, so that nothing tells how many there
            are, or the tier has more than the user says.
    """
    if num_partitions is None and isinstance(options.selection, Assign):
        raise InvalidOptionError(
            "partitionerPruning with option assign needs the number of partitions"
        )
    counts: dict[str, int] = {}
    for part in plan.partitions:
        counts[part.topic] = max(counts.get(part.topic, 0), part.partition + 1)
    for topic, numbers in plan.made_with.get("partitions", {}).items():
        counts[topic] = max(counts.get(topic, 0), *(number + 1 for number in numbers), 0)
    for topic, count in counts.items():
        if num_partitions is not None and count > num_partitions:
            raise InvalidOptionError(
                f"topic {topic} has {count} partitions in the tier, more than {num_partitions}"
            )
    return {topic: num_partitions or count for topic, count in counts.items()}


def assumption(counts: Mapping[str, int]) -> str:
    """What pruning takes for granted, in words."""
    numbers = ", ".join(f"{topic} {count}" for topic, count in sorted(counts.items()))
    return (
        "partitionerPruning: every record with a key was written by Kafka's default partitioner"
        " (murmur2), and its topic had as many partitions as now, at all times: " + numbers
    )
