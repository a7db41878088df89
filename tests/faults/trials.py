"""Seeded scans of the golden tier through a store that fails at random, judged one by one.

A trial picks a topic, an isolation level, the size of its tasks and what may go wrong how often; it
plans and reads below Spark. It must end with exactly the rows of the real consumer, or with an
error of ours.

Faults that change bytes without changing their number are made only where Kafka or the plugin has a
checksum: in logs, and there not in the base offset of a batch, which no CRC covers. Side files and
manifests of plain segments have no checksum at all; only TLS and the store's own protect those.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from kts_source.errors import TieredKafkaError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.store.request_policy import RetryPolicy
from kts_source.tier import Tier
from segment_format.record.framing import iter_entries
from tests.golden_data import (
    ISOLATION_LEVELS,
    TIER,
    TOPICS,
    assert_same_rows,
    expected_table,
    tier_options,
)
from tests.kts_source.planning.scanning import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.store.object_store import ObjectStore

QUICK: Final = RetryPolicy(
    max_attempts=4,
    first_pause_seconds=0.001,
    max_pause_seconds=0.01,
    give_up_after_seconds=2,
    request_deadline_seconds=0.1,
    connect_timeout_seconds=0.1,
    read_timeout_seconds=0.05,
)
# No trial may take longer, on a busy machine either: far above what its deadlines add up to.
LONGEST_SECONDS: Final = 60.0
# The newest segment of these tells nothing but the end: a listing that lacks it is an older tier.
LAG_TOPICS: Final = ("appendtime", "codecs", "encrypted", "evolved", "timeline", "txn", "wide")
# These make the tier look older, or younger, than it is.
UNSEEN: Final = ("listing lag", "manifest gone")


@dataclass
class Injector:
    """Decides what goes wrong with each request of a trial.

    Attributes:
        kinds: What may go wrong.
        rate: How often.
        injected: What did go wrong.
    """

    kinds: tuple[str, ...]
    rate: float
    random: random.Random
    injected: Counter[str] = field(default_factory=Counter)

    def draw(self, possible: Iterable[str]) -> str | None:
        """A fault for one request that could suffer these."""
        candidates = [kind for kind in self.kinds if kind in possible]
        if not candidates or self.random.random() >= self.rate:
            return None
        kind = self.random.choice(candidates)
        self.injected[kind] += 1
        return kind


@dataclass
class Tally:
    """What became of the trials."""

    outcomes: Counter[str] = field(default_factory=Counter)
    by_fault: Counter[tuple[str, str]] = field(default_factory=Counter)
    slowest: float = 0.0

    def table(self) -> str:
        """Trials by fault (a trial may have several) and outcome."""
        outcomes = sorted(self.outcomes)
        faults = sorted({fault for fault, _ in self.by_fault})
        lines = [f"{sum(self.outcomes.values())} scans, slowest {self.slowest:.1f} s"]
        for fault in faults:
            ends = (f"{self.by_fault[fault, one]} {one}" for one in outcomes)
            lines.append(f"{fault:<22}" + ", ".join(one for one in ends if one[0] != "0"))
        lines.append(f"{'all':<22}" + ", ".join(f"{self.outcomes[one]} {one}" for one in outcomes))
        return "\n".join(lines)


def seed() -> int:
    """A fresh one, or that of a run to repeat."""
    return int(os.environ.get("KTS_FAULT_SEED") or random.SystemRandom().randrange(1 << 32))


def run_trials(
    count: int,
    seconds: float,
    kinds: tuple[str, ...],
    open_faulty: Callable[[Injector], tuple[str, ObjectStore]],
    first_seed: int,
    *,
    least: int,
) -> Tally:
    """So many trials, or as many as the time allows, but at least some.

    Args:
        count: Trials, each with a seed of its own.
        seconds: When to stop early.
        kinds: Everything that can go wrong.
        open_faulty: Makes the store of a trial; returns its path too.
        first_seed: Of the first trial.
        least: Trials before the time counts.
    """
    tally = Tally()
    began = time.monotonic()
    for number in range(count):
        if number >= least and time.monotonic() - began > seconds:
            break
        _trial(first_seed + number, kinds, open_faulty, tally)
    return tally


def _trial(
    own_seed: int,
    kinds: tuple[str, ...],
    open_faulty: Callable[[Injector], tuple[str, ObjectStore]],
    tally: Tally,
) -> None:
    source = random.Random(own_seed)
    topic = source.choice(TOPICS)
    level = source.choice(ISOLATION_LEVELS)
    possible = [kind for kind in kinds if kind not in UNSEEN or topic in LAG_TOPICS]
    wanted = tuple(source.sample(possible, min(len(possible), source.randint(1, 3))))
    injector = Injector(wanted, source.choice((0.01, 0.05, 0.2, 0.6)), source)
    options = tier_options(
        topic,
        isolationLevel=level,
        targetPartitionBytes=source.choice(("64k", "300k", "128m")),
        includeHeaders="true",
    )
    path, store = open_faulty(injector)
    options["path"] = path
    began = time.monotonic()
    try:
        plan = plan_scan(parse_options(options), Tier(store))
        table = run(plan, options, Tier(store))
    except TieredKafkaError as error:
        outcome = type(error).__name__
    else:
        outcome = "right rows"
        expected = expected_table(topic, level)
        if any(kind in injector.injected for kind in UNSEEN):
            expected = _within(expected, plan)
        try:
            if table.num_rows or expected.num_rows:
                assert_same_rows(table, expected)
        except AssertionError as error:
            raise AssertionError(
                f"wrong rows: seed {own_seed}, topic {topic}, {level}, {dict(injector.injected)}"
            ) from error
    finally:
        store.close()
    took = time.monotonic() - began
    assert took < LONGEST_SECONDS, f"a scan took {took:.1f} s: seed {own_seed}"
    tally.slowest = max(tally.slowest, took)
    tally.outcomes[outcome] += 1
    for fault in injector.injected or ("none",):
        tally.by_fault[fault, outcome] += 1


def _within(expected: pa.Table, plan: ScanPlan) -> pa.Table:
    """The rows of the offsets that the plan found in the listing."""
    parts = [
        expected.filter(
            pc.and_(
                pc.equal(expected["partition"], part.partition),
                pc.and_(
                    pc.greater_equal(expected["offset"], part.start),
                    pc.less(expected["offset"], part.stop),
                ),
            )
        )
        for part in plan.partitions
    ]
    return pa.concat_tables(parts) if parts else expected.slice(0, 0)


@cache
def unprotected(key: str) -> frozenset[int]:
    """Positions where a flipped bit may pass for another offset: the base offsets of batches, which
    no checksum covers, in a log that lacks offsets. Elsewhere the order of the batches tells.
    """
    if "/compacted-" not in f"/{key}":
        return frozenset()
    log = (TIER / key).read_bytes()
    return frozenset(entry.position + byte for entry in iter_entries(log) for byte in range(8))


def flipped(data: bytes, key: str, start: int, source: random.Random) -> bytes:
    """The data with one bit of a protected byte changed."""
    while True:
        at = source.randrange(len(data))
        if start + at not in unprotected(key):
            break
    changed = bytearray(data)
    changed[at] ^= 1 << source.randrange(8)
    return bytes(changed)


def repeated(data: bytes, source: random.Random) -> bytes:
    """As many bytes, but some of them twice and the last ones missing."""
    if len(data) < 400:
        return data[:0] + b"\xff" * len(data)
    again = source.randrange(1, 200)
    at = source.randrange(again, len(data) - again)
    return (data[:at] + data[at - again :])[: len(data)]
