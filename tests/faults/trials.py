"""Runs seeded scans of the golden tier from a store that fails at random, and checks each result.

A trial chooses at random a topic, an isolation level, the task size, kinds of faults and their
rate. It plans and reads without Spark. It must return exactly the rows of the Kafka consumer, or
raise a `TieredKafkaError`. If a fault hid a segment from the planner, only the rows of the planned
offsets are compared.

Some faults change bytes but not their number. They are injected only into logs, where checksums
detect them. These faults never flip a bit in a base offset of a compacted log, because no checksum
covers base offsets. Side files and manifests of plain segments have no checksum. Only TLS and the
store itself protect them.
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
# Time limit for one trial. It is far above the sum of the deadlines, for busy machines.
MAX_SECONDS: Final = 60.0
# For these topics, a listing without the newest segment equals a listing of an earlier time.
LAG_TOPICS: Final = ("appendtime", "codecs", "encrypted", "evolved", "timeline", "txn", "wide")
# These faults hide a segment: the reader then sees an earlier end or a later start of the log.
UNSEEN: Final = ("listing lag", "manifest gone")


@dataclass
class Injector:
    """Decides at random which requests of a trial fail, and how.

    Attributes:
        kinds: Kinds of faults to inject.
        rate: Probability of a fault for each request.
        injected: Number of injected faults, by kind.
    """

    kinds: tuple[str, ...]
    rate: float
    random: random.Random
    injected: Counter[str] = field(default_factory=Counter)

    def draw(self, possible: Iterable[str]) -> str | None:
        """Returns a random fault for one request, or `None` if the request must not fail. Chooses
        among the trial's kinds of faults that are also in `possible`.
        """
        candidates = [kind for kind in self.kinds if kind in possible]
        if not candidates or self.random.random() >= self.rate:
            return None
        kind = self.random.choice(candidates)
        self.injected[kind] += 1
        return kind


@dataclass
class Tally:
    """Counts the outcomes of trials."""

    outcomes: Counter[str] = field(default_factory=Counter)
    by_fault: Counter[tuple[str, str]] = field(default_factory=Counter)
    slowest: float = 0.0

    def table(self) -> str:
        """Returns a text with the number of trials for each fault and outcome.

        A trial with several kinds of faults is counted for each of them.
        """
        outcomes = sorted(self.outcomes)
        faults = sorted({fault for fault, _ in self.by_fault})
        lines = [f"{sum(self.outcomes.values())} scans, slowest {self.slowest:.1f} s"]
        for fault in faults:
            counts = (f"{self.by_fault[fault, outcome]} {outcome}" for outcome in outcomes)
            lines.append(f"{fault:<22}" + ", ".join(text for text in counts if text[0] != "0"))
        counts = (f"{self.outcomes[outcome]} {outcome}" for outcome in outcomes)
        lines.append(f"{'all':<22}" + ", ".join(counts))
        return "\n".join(lines)


def seed() -> int:
    """Returns the seed in `KTS_FAULT_SEED`, or a random seed if the variable is not set."""
    return int(os.environ.get("KTS_FAULT_SEED") or random.SystemRandom().randrange(1 << 32))


def run_trials(
    count: int,
    seconds: float,
    kinds: tuple[str, ...],
    open_faulty: Callable[[Injector], tuple[str, ObjectStore]],
    first_seed: int,
    *,
    min_trials: int,
) -> Tally:
    """Runs trials until `count` trials ran or `seconds` are over, but at least `min_trials`.

    Trial n uses the seed `first_seed + n`. Each trial passes its injector to `open_faulty`, which
    returns the path and the store to read.
    """
    tally = Tally()
    began = time.monotonic()
    for number in range(count):
        if number >= min_trials and time.monotonic() - began > seconds:
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
    assert took < MAX_SECONDS, f"a scan took {took:.1f} s: seed {own_seed}"
    tally.slowest = max(tally.slowest, took)
    tally.outcomes[outcome] += 1
    for fault in injector.injected or ("none",):
        tally.by_fault[fault, outcome] += 1


def _within(expected: pa.Table, plan: ScanPlan) -> pa.Table:
    """Returns the rows of `expected` whose offsets are in an offset range of `plan`."""
    ranges = [
        expected.filter(
            pc.and_(
                pc.equal(expected["partition"], partition.partition),
                pc.and_(
                    pc.greater_equal(expected["offset"], partition.start),
                    pc.less(expected["offset"], partition.stop),
                ),
            )
        )
        for partition in plan.partitions
    ]
    return pa.concat_tables(ranges) if ranges else expected.slice(0, 0)


@cache
def unprotected(key: str) -> frozenset[int]:
    """Returns the positions of those bytes of an object in which readers cannot detect a flipped
    bit.

    In a compacted log, these are the base offsets of the batches, because no checksum covers them.
    Other logs have no such bytes: a wrong base offset does not fit the neighboring batches.
    """
    if "/compacted-" not in f"/{key}":
        return frozenset()
    log = (TIER / key).read_bytes()
    return frozenset(entry.position + byte for entry in iter_entries(log) for byte in range(8))


def flipped(data: bytes, key: str, start: int, source: random.Random) -> bytes:
    """Returns a copy of `data` with one flipped bit, in a byte that is not in `unprotected(key)`.

    `data` are the bytes of the object `key` from the position `start` on.
    """
    while True:
        position = source.randrange(len(data))
        if start + position not in unprotected(key):
            break
    changed = bytearray(data)
    changed[position] ^= 1 << source.randrange(8)
    return bytes(changed)


def repeated(data: bytes, source: random.Random) -> bytes:
    """Returns a copy of `data` in which some bytes occur twice in a row.

    The copy is truncated to the size of `data`. If `data` has fewer than 400 bytes, returns the
    same number of bytes 0xff.
    """
    if len(data) < 400:
        return data[:0] + b"\xff" * len(data)
    size = source.randrange(1, 200)
    position = source.randrange(size, len(data) - size)
    return (data[:position] + data[position - size :])[: len(data)]
