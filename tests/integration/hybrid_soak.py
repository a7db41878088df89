"""Random scans of tier and brokers while everything moves, each beside what a consumer is given.

Producers write (every codec, transactions, aborts, transactions that stay open for a while), the
broker uploads segments and deletes its own copies, retention and DeleteRecords move log starts, and
objects of the tier are missing for the reader alone: before it lists, or between plan and read.
A scan gives the consumer's rows of the offsets that it planned. It may fail with a data-loss error
only where the log start has really passed a planned offset.
"""

from __future__ import annotations

import json
import os
import random
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pyarrow as pa
from confluent_kafka import KafkaException

from kts_source.errors import DataLossError, ObjectNotFoundError
from kts_source.options import parse_options
from kts_source.options.selection import EARLIEST_OFFSET
from kts_source.planning.planner import plan_scan
from kts_source.read.read_task import run_task
from tests.integration.filler import BASE_MS, STEP_MS
from tests.integration.hybrid import hybrid_options
from tests.integration.oracle import Row, consumed
from tests.integration.tier_mischief import remove_random, tiered_segments

if TYPE_CHECKING:
    from collections.abc import Callable

    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.read.task_metrics import TaskMetrics
    from tests.integration.moving_topics import MovingTopics, Place

Shown = tuple[object, ...]

LEVELS = ("read_committed", "read_uncommitted")
_ATTEMPTS = 20

_FIELDS: dict[str, Callable[[Row], object]] = {
    "offset": lambda row: row.offset,
    "timestamp": lambda row: row.timestamp,
    "timestampType": lambda row: row.timestamp_type,
    "key": lambda row: row.key,
    "value": lambda row: row.value,
    "headers": lambda row: row.headers,
}
_COLUMNS = (
    ("offset", "timestamp", "timestampType", "key", "value", "headers"),
    ("value", "offset"),
    ("key", "value"),
    ("timestamp", "headers", "value"),
)
_DAY = "TIMESTAMP '2023-11-15 00:00:00Z'"
_DAY_MS = 1_700_006_400_000
_WHERE: tuple[tuple[str, Callable[[Row], bool]], ...] = (
    ("key IS NULL", lambda row: row.key is None),
    ("value IS NOT NULL AND key LIKE 'key 1%'", lambda row: _like(row.key, row.value)),
    (f"timestamp >= {_DAY}", lambda row: row.timestamp >= _DAY_MS),
    (f"timestamp < {_DAY} OR key = ''", lambda row: row.timestamp < _DAY_MS or row.key == b""),
)


def _like(key: bytes | None, value: bytes | None) -> bool:
    return value is not None and key is not None and key.startswith(b"key 1")


@dataclass(slots=True)
class Soaked:
    """How the scans went.

    Attributes:
        scans: How many.
        rows: Compared.
        outcomes: What came of the scans, and what they met.
        failures: What was wrong, with the scan's options.
    """

    scans: int = 0
    rows: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RandomScan:
    """One scan.

    Attributes:
        options: Of the source.
        columns: Those compared, in their order.
        fits: What `where` lets through.
        gone_before: Objects of the tier that are missing before it is listed.
        gone_between: The same between plan and read.
    """

    options: dict[str, str]
    columns: tuple[str, ...]
    fits: Callable[[Row], bool]
    gone_before: int
    gone_between: int

    @property
    def level(self) -> str:
        """The isolation level."""
        return self.options["isolationLevel"]

    def first_asked(self, topic: str, partition: int) -> int:
        """The offset that the options begin at; negative where they name none."""
        asked = json.loads(self.options.get("startingOffsets", "{}"))
        return int(asked.get(topic, {}).get(str(partition), EARLIEST_OFFSET))


def random_scan(topics: MovingTopics, tier: Path, choice: random.Random) -> RandomScan:
    """A scan with random options, of random topics.

    Args:
        topics: Those that there are.
        tier: Where the reader looks.
        choice: Decides.
    """
    names = sorted({topic for topic, _ in topics.places})
    names = choice.sample(names, choice.randint(1, len(names)))
    columns, level = choice.choice(_COLUMNS), choice.choice(LEVELS)
    more = {
        "subscribe": ",".join(names),
        "columns": ",".join(("topic", "partition", *columns)),
        "isolationLevel": level,
    }
    fits: Callable[[Row], bool] = lambda _: True  # noqa: E731
    if choice.random() < 0.4:
        more["where"], fits = choice.choice(_WHERE)
    if choice.random() < 0.4:
        more["minPartitions"] = str(choice.choice((2, 7, 40)))
    if choice.random() < 0.4:
        more["targetPartitionBytes"] = choice.choice(("1500", "7000", "60000"))
    if choice.random() < 0.2:
        more["maxRecordsPerPartition"] = choice.choice(("61", "997"))
    if choice.random() < 0.4:
        more["kafka.max.partition.fetch.bytes"] = choice.choice(("1", "3000", "50000"))
    if choice.random() < 0.5:
        more["startingOffsets"] = _random_starts(topics, names, level, choice)
    elif choice.random() < 0.2:
        more["startingTimestamp"] = str(BASE_MS + choice.randrange(20_000) * STEP_MS)
        more["startingOffsetsByTimestampStrategy"] = "latest"
    kind = choice.random()
    before = between = 0
    if kind < 0.1:
        return RandomScan(hybrid_options(topics.cluster.bootstrap, **more), columns, fits, 0, 0)
    if kind < 0.2:
        more["tail"] = "false"
        more.pop("startingOffsets", None)  # perhaps behind the tier
    if kind > 0.3:
        before = choice.choice((0, 1, 5, 20))
        between = choice.choice((0, 1, 5, 20))
    if choice.random() < 0.3:
        more["catalog"] = "metadata-topic"
    options = hybrid_options(topics.cluster.bootstrap, tier, **more)
    return RandomScan(options, columns, fits, before, between)


def _random_starts(
    topics: MovingTopics, names: list[str], level: str, choice: random.Random
) -> str:
    starts: dict[str, dict[str, int]] = {}
    ends = topics.ends(level)
    for (topic, number), first in topics.log_starts().items():
        if topic in names:
            end = ends[topic, number]
            wanted = choice.choice((-2, choice.randint(first, max(first, end))))
            starts.setdefault(topic, {})[str(number)] = wanted
    return json.dumps(starts)


class Soak:
    """Runs scans one after the other.

    Args:
        topics: What is read.
        folder: For what the reader sees of the tier.
        seed: Decides the scans.
    """

    def __init__(self, topics: MovingTopics, folder: Path, seed: int) -> None:
        self._topics = topics
        self._folder = folder
        self._seed = seed
        self._gone: list[str] = []
        self.result = Soaked()

    def scan(self, number: int) -> None:
        """Runs one scan; what is wrong is kept in the result."""
        choice = random.Random(f"{self._seed}-{number}")
        seen = self._folder / f"seen-{number}"
        self._gone = []
        # Before the scan names offsets: a log start that passes them afterwards has moved since.
        starts = self._topics.log_starts()
        scan = random_scan(self._topics, seen, choice)
        self.result.scans += 1
        try:
            # More than a few slices in a row fail here, and they should.
            with patch("kts_source.read.broker_rows._MAX_SAME_FAILURES", 1 << 30):
                outcome = self._outcome(scan, seen, choice, starts)
            self.result.outcomes[outcome] += 1
        except Exception:  # noqa: BLE001 - a wrong exception is as wrong as wrong rows
            told = traceback.format_exc(limit=-6)
            self.result.failures.append(
                f"seed {self._seed}, scan {number}: {scan}\nwithout {self._gone}\n{told}"
            )
        finally:
            _remove(seen)

    def _outcome(
        self, scan: RandomScan, seen: Path, choice: random.Random, starts: dict[Place, int]
    ) -> str:
        _link(self._topics.cluster.tier, seen)
        self._spoil(seen, scan.gone_before, choice)
        cut: set[str] = set()
        try:
            plan = plan_scan(parse_options(scan.options))
            starts |= {(part.topic, part.partition): part.start for part in plan.partitions}
            slices = [part for task in plan.tasks for part in task.slices]
            cut = {part.segment_id for part in slices if not part.is_whole}
            self._spoil(seen, scan.gone_between, choice)
            found = self._read(plan, scan, choice)
        except ObjectNotFoundError as error:
            # Nobody can tell then where the parts of a segment begin; a new plan reads brokers.
            name = Path(error.uri or "").name
            if not name.endswith(".index") or not any(one in name for one in cut):
                raise
            return "an error: the offset index of a segment in parts is gone"
        except DataLossError as error:
            place = error.topic or "", error.partition or 0
            now = self._topics.log_starts()[place]
            if now <= max(starts[place], scan.first_asked(*place)):
                raise
            return "an error: the log start passed what is read"
        equal = True
        for part in plan.partitions:
            equal &= self._compare(part, scan, found.get((part.topic, part.partition), []))
        return "equal" if equal else "equal from the log start that passed the first rows"

    def _read(
        self, plan: ScanPlan, scan: RandomScan, choice: random.Random
    ) -> dict[Place, list[Shown]]:
        parsed = parse_options(scan.options)
        ended: list[TaskMetrics] = []
        found: dict[Place, list[Shown]] = {}
        results: dict[int, list[pa.RecordBatch]] = {}
        for at in choice.sample(range(len(plan.tasks)), len(plan.tasks)):
            results[at] = list(run_task(plan.tasks[at], parsed, on_end=ended.append))
        for at in sorted(results):
            for batch in results[at]:
                topics = batch.column("topic").to_pylist()
                numbers = batch.column("partition").to_pylist()
                for *place, row in zip(topics, numbers, _shown(batch, scan.columns), strict=True):
                    found.setdefault((place[0], place[1]), []).append(row)
        counts = self.result.outcomes
        counts["scans by the metadata topic"] += parsed.by_metadata_topic
        counts["tasks"] += len(plan.tasks)
        counts["slices of the tier"] += sum(len(task.slices) for task in plan.tasks)
        counts["ranges of brokers"] += sum(len(task.ranges) for task in plan.tasks)
        counts["slices that brokers finished"] += sum(one.broker_fallbacks for one in ended)
        return found

    def _compare(self, part: PartitionPlan, scan: RandomScan, found: list[Shown]) -> bool:
        """Whether the whole range was compared, not only what is behind a new log start."""
        place = part.topic, part.partition
        start = part.start
        for attempt in range(_ATTEMPTS):
            try:
                rows = consumed(
                    self._topics.cluster.bootstrap, *place, start, part.stop, isolation=scan.level
                )
                break
            except KafkaException:
                now = self._topics.log_starts()[place]
                if now <= start or attempt + 1 == _ATTEMPTS:
                    raise
                start = min(now, part.stop)
        expected = [
            tuple(_FIELDS[name](row) for name in scan.columns) for row in rows if scan.fits(row)
        ]
        self.result.rows += len(expected)
        passed = start > part.start
        mine = found[max(0, len(found) - len(expected)) :] if passed else found
        if mine != expected:
            differ = [
                at
                for at, pair in enumerate(zip(mine, expected, strict=False))
                if len(set(pair)) > 1
            ]
            raise AssertionError(
                f"{place} [{start}, {part.stop}) of a plan from {part.start}: {len(mine)} rows, a"
                f" consumer has {len(expected)}; the first that differ {differ[:5]}:"
                f" {[mine[at] for at in differ[:2]]} and {[expected[at] for at in differ[:2]]};"
                f" brokers {part.brokers}"
            )
        return not passed

    def _spoil(self, seen: Path, count: int, choice: random.Random) -> None:
        # Nothing in this tier tells that a segment had a transaction index.
        segments = [
            replace(one, objects=tuple(p for p in one.objects if p.suffix != ".txnindex"))
            for place in self._topics.places
            for one in tiered_segments(seen, *place)
        ]
        objects = sum(len(segment.objects) for segment in segments)
        gone = remove_random(segments, min(count, objects), choice)
        self.result.outcomes["objects missing"] += len(gone)
        self._gone += [path.name for path in gone]


def _shown(batch: pa.RecordBatch, columns: tuple[str, ...]) -> list[Shown]:
    """The rows of a batch, with values as a consumer has them."""
    found: list[list[object]] = []
    for name in columns:
        column = batch.column(name)
        if name == "timestamp":
            found.append([at // 1000 for at in column.cast(pa.int64()).to_pylist()])
        elif name == "headers":
            found.append(
                [
                    tuple((one["key"], one["value"]) for one in headers or ())
                    for headers in column.to_pylist()
                ]
            )
        else:
            found.append(column.to_pylist())
    return list(zip(*found, strict=True))


def _link(tier: Path, seen: Path) -> None:
    """What the tier holds now under other names: whatever is removed there stays in the tier."""
    for folder, _, names in os.walk(tier):
        mine = seen / os.path.relpath(folder, tier)
        mine.mkdir(parents=True, exist_ok=True)
        for name in names:
            try:
                os.link(os.path.join(folder, name), mine / name)  # noqa: PTH118 - thousands of them
            except FileNotFoundError:  # retention was faster
                continue


def _remove(folder: Path) -> None:
    for path, folders, names in os.walk(folder, topdown=False):
        for name in names:
            os.unlink(os.path.join(path, name))  # noqa: PTH108, PTH118
        for name in folders:
            os.rmdir(os.path.join(path, name))  # noqa: PTH106, PTH118
    folder.rmdir()
