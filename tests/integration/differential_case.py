"""What a case of the differential test is, and how options are made from the facts of the tier."""

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
    """How the two sources compare."""

    SAME_ROWS = "same rows"
    NO_ROWS = "no rows of the tier from either"
    BOTH_REFUSE = "both refuse"
    ONLY_SPARK_REFUSES = "only Spark's source refuses"
    ONLY_OURS_REFUSES = "only ours refuses"


@dataclass(frozen=True)
class Case:
    """One combination of options, without the isolation level.

    Attributes:
        options: From facts to options.
        verdict: What is expected of the two.
        reason: Why they differ, where they do.
    """

    options: Callable[[TierFacts], Options]
    verdict: Verdict = Verdict.SAME_ROWS
    reason: str = ""


def offsets(facts: TierFacts, topics: str, share: float, **special: int) -> str:
    """JSON with the offset at a share of every partition's tier.

    Args:
        facts: Where the tier of each partition begins and ends.
        topics: Names, separated by commas.
        share: 0 is the log start, 1 the end that a read_committed read of the tier has.
        special: `topic_partition` to an offset that stands instead.
    """
    named: PartitionNumbers = {}
    for topic in topics.split(","):
        for number in range(TOPICS[topic]):
            start, stop = facts.starts[topic, number], facts.tier_stable[topic, number]
            at = start + round((stop - start) * share) if stop > start else start
            chosen = special.get(f"{topic.replace('-', '_')}_{number}", at)
            named.setdefault(topic, {})[str(number)] = chosen
    return json.dumps(named)


def stamps(topics: str, *seconds: int) -> str:
    """JSON with a create time for each partition: the first takes the first time, and so on."""
    every = itertools.cycle(seconds)
    return json.dumps(
        {
            topic: {str(n): time_of(next(every)) for n in range(TOPICS[topic])}
            for topic in sorted(topics.split(","))
        }
    )


def time_of(second: float) -> int:
    """Create time of the record of that number, unless it is a late one."""
    return BASE_MS + round(second * STEP_MS)


def fixed(**options: str) -> Callable[[TierFacts], Options]:
    """Options that do not depend on the tier; `_` in a name stands for `.`."""
    return lambda _facts: {name.replace("_", "."): value for name, value in options.items()}


def timed(**seconds: float) -> Callable[[TierFacts], Options]:
    """`startingTimestamp` and the like, by record numbers."""
    return fixed(subscribe=TIMED, **{name: str(time_of(at)) for name, at in seconds.items()})
