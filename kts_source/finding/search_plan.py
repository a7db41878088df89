"""What a search reads, planned so that what cannot be planned costs no more than itself."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kts_source.errors import InvalidOptionError, TieredKafkaError
from kts_source.finding.partitioner import partition_counts, partitions_of
from kts_source.options.selection import Assign
from kts_source.planning.planner import plan_scan
from kts_source.texts import one_line
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kts_source.finding.query import Query
    from kts_source.options import ScanOptions
    from kts_source.planning.scan_plan import ScanPlan


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """A plan, and what it lacks.

    Attributes:
        plan: What is read.
        faults: What had to be overlooked to make it, in words.
        uri: Root of the tier.
        listed_ms: When the tier was listed, in ms since 1970: what came later is not searched.
        counts: With `partitionerPruning`, topic -> how many partitions it has.
        wanted: Likewise, topic -> the partitions that may hold a key; `None` = any may.
    """

    plan: ScanPlan
    faults: tuple[str, ...]
    uri: str
    listed_ms: int
    counts: Mapping[str, int]
    wanted: Mapping[str, frozenset[int]] | None

    @classmethod
    def of(cls, options: ScanOptions, query: Query) -> SearchPlan:
        """Plans a search.

        A plan that nothing is wrong with is tried first: what a lenient one leaves out, it only
        logs.

        Raises:
            TieredKafkaError: Nothing tells what the tier holds, or options contradict it.
        """
        listed_ms = time.time_ns() // 1_000_000
        faults: list[str] = []
        with closing(open_tier(options)) as tier:
            uri = tier.store.uri(options.key_prefix)
            refused: list[TieredKafkaError] = []
            try:
                plan = plan_scan(options, tier, apart=refused.append)
            except InvalidOptionError:
                raise
            except TieredKafkaError as error:
                refused = [error]
            if refused:
                faults += map(_said, refused)
                lenient = replace(options, fail_on_data_loss=False)
                refused = []
                plan = plan_scan(lenient, tier, apart=refused.append)
                faults += (f"a partition was not searched: {_said(error)}" for error in refused)
        faults += _without_segments(options, plan)
        counts: Mapping[str, int] = {}
        wanted = None
        if query.partitioner_pruning:
            counts = partition_counts(options, plan, query.num_partitions)
            assert query.keys is not None, "checked by the query"
            of_count = {count: partitions_of(query.keys, count) for count in set(counts.values())}
            wanted = {topic: of_count[count] for topic, count in counts.items()}
        return cls(plan, tuple(faults), uri, listed_ms, counts, wanted)

    def holds(self, topic: str, partition: int) -> bool:
        """Whether a partition may hold one of the keys."""
        return self.wanted is None or partition in self.wanted[topic]


def _without_segments(options: ScanOptions, plan: ScanPlan) -> Iterator[str]:
    """Partitions that the user names and the tier does not have: perhaps another was meant."""
    if isinstance(options.selection, Assign):
        there = {(part.topic, part.partition) for part in plan.partitions}
        for topic, numbers in options.selection.partitions.items():
            for number in numbers:
                if (topic, number) not in there:
                    yield f"{topic}-{number} was asked for, and the tier has no segment of it"


def _said(error: TieredKafkaError) -> str:
    return one_line(str(error))
