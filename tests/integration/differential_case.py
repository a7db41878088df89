"""Cases of the differential test, and helpers that build their options for a tier."""

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
    """Expected relation between the results of the two sources."""

    SAME_ROWS = "same rows"
    NO_ROWS = "no rows of the tier from either"
    BOTH_REFUSE = "both refuse"
    ONLY_SPARK_REFUSES = "only Spark's source refuses"
    ONLY_OURS_REFUSES = "only ours refuses"


@dataclass(frozen=True)
class Case:
    """A combination of options, without the isolation level.

    Attributes:
        options: Returns the options for a tier.
        verdict: Expected relation between the two results.
        reason: Why the results differ, if they do.
    """

    options: Callable[[TierFacts], Options]
    verdict: Verdict = Verdict.SAME_ROWS
    reason: str = ""


def offsets_json(facts: TierFacts, topics: str, share: float, **special: int) -> str:
    """Returns JSON with an offset of each partition, at a fraction of its tier.

    Args:
        facts: Start and end of each partition's tier.
        topics: Topics, separated by commas.
        share: 0 is the log start; 1 is the end of a read_committed read of the tier.
        special: Other offsets by `topic_partition`.
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
    """Returns JSON with a create time for each partition; times are used in order and repeat."""
    every = itertools.cycle(seconds)
    return json.dumps(
        {
            topic: {str(n): time_of(next(every)) for n in range(TOPICS[topic])}
            for topic in sorted(topics.split(","))
        }
    )


def time_of(second: float) -> int:
    """Returns the create time of the record with this number, unless it is a late one."""
    return BASE_MS + round(second * STEP_MS)


def fixed_options(**options: str) -> Callable[[TierFacts], Options]:
    """Returns options that do not depend on the tier; `_` in a name means `.`."""
    return lambda _facts: {name.replace("_", "."): value for name, value in options.items()}


def timed_options(**seconds: float) -> Callable[[TierFacts], Options]:
    """Returns time options, such as `startingTimestamp`, given as record numbers."""
    return fixed_options(
        subscribe=TIMED, **{name: str(time_of(at)) for name, at in seconds.items()}
    )
