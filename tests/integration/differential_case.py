"""Defines the type of a case of the differential test, and functions that build its options.

The differential test compares this product with Spark's Kafka source.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from tests.integration.filler import BASE_MS, STEP_MS
from tests.integration.workload import TOPICS, TierFacts

Options: TypeAlias = Mapping[str, str]
PartitionNumbers: TypeAlias = dict[str, dict[str, int]]

FAR_FUTURE_MS: Final = 4_000_000_000_000
ALL: Final = ",".join(TOPICS)
TIMED: Final = "plain,txn"


class Verdict(Enum):
    """Expected relation between the results of Spark's Kafka source and this product."""

    SAME_ROWS = "same rows"
    NO_ROWS = "no rows of the tier from either"
    BOTH_REFUSE = "both refuse"
    ONLY_SPARK_REFUSES = "only Spark's source refuses"
    ONLY_OURS_REFUSES = "only ours refuses"


@dataclass(frozen=True)
class Case:
    """A combination of options, without the isolation level.

    Attributes:
        options: Function that returns the options, given the offsets of the broker and of the tier.
        verdict: Expected relation between the results of the two sources.
        reason: Why the results differ; empty if they are the same.
    """

    options: Callable[[TierFacts], Options]
    verdict: Verdict = Verdict.SAME_ROWS
    reason: str = ""


def offsets_json(facts: TierFacts, topics: str, share: float, **special: int) -> str:
    """Returns JSON with an offset for each partition, somewhere between start and end of its tier.

    Args:
        facts: Offsets of each partition.
        topics: Topics, separated by commas.
        share: Position of the offset: 0 for the log start, 1 for the last stable offset of the
            tier, 0.5 for the offset in the middle.
        special: Offsets that replace the computed ones. A name consists of topic and partition:
            `plain_sparse_1` is partition 1 of the topic `plain-sparse`.
    """
    named: PartitionNumbers = {}
    for topic in topics.split(","):
        for number in range(TOPICS[topic]):
            start, stop = facts.starts[topic, number], facts.tier_stable[topic, number]
            offset = start + round((stop - start) * share) if stop > start else start
            chosen = special.get(f"{topic.replace('-', '_')}_{number}", offset)
            named.setdefault(topic, {})[str(number)] = chosen
    return json.dumps(named)


def timestamps_json(topics: str, *seconds: int) -> str:
    """Returns JSON with a timestamp for each partition: the create time of a record.

    `seconds` are record numbers (see `time_of`), one for each partition, ordered by topic and
    partition. If they are fewer than the partitions, they repeat.
    """
    every = itertools.cycle(seconds)
    return json.dumps(
        {
            topic: {str(n): time_of(next(every)) for n in range(TOPICS[topic])}
            for topic in sorted(topics.split(","))
        }
    )


def time_of(second: float) -> int:
    """Returns the create time of record number `second`, in milliseconds since 1970. Records that
    `Filler` sends out of order have an earlier time.
    """
    return BASE_MS + round(second * STEP_MS)


def fixed_options(**options: str) -> Callable[[TierFacts], Options]:
    """Returns a function for `Case.options` that ignores its argument and returns `options`.

    In the names of the options, each `_` is replaced by `.`.
    """
    return lambda _facts: {name.replace("_", "."): value for name, value in options.items()}


def timed_options(**seconds: float) -> Callable[[TierFacts], Options]:
    """Returns a function for `Case.options` that returns options such as `startingTimestamp`.
    `seconds` maps each option to a record number; the option's value is the create time of this
    record (see `time_of`).
    """
    return fixed_options(
        subscribe=TIMED, **{name: str(time_of(at)) for name, at in seconds.items()}
    )
