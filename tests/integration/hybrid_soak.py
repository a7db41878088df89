"""Runs random scans of tier and brokers while the topics change.

Each scan is compared with the rows of a consumer.

Producers write with every codec, commit, abort, and keep transactions open for a while. The broker
uploads segments and deletes its local copies; retention and DeleteRecords move log starts. The
reader uses a copy of the tier, from which some objects are removed before or after planning.

A scan must return the same rows as a consumer that reads the planned offsets. It may raise an error
only in two cases:

* The log start has moved past a planned offset.
* A task starts or ends inside a segment, and the offset index of this segment was removed.
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
from tests.integration.oracle import Row, consume_range
from tests.integration.tier_mischief import list_tiered_segments, remove_random

if TYPE_CHECKING:
    from collections.abc import Callable

    from kts_source.planning.partition_plan import PartitionPlan
    from kts_source.planning.scan_plan import ScanPlan
    from kts_source.read.task_metrics import TaskMetrics
    from tests.integration.moving_topics import MovingTopics, PartitionKey

RowValues = tuple[object, ...]

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
class SoakResult:
    """Results of the scans.

    Attributes:
        scans: Number of scans.
        rows: Number of compared rows.
        outcomes: Counts by name. The names are the results of scans, such as "equal", and things
            that are counted over all scans, such as "tasks" and "objects missing".
        failures: Descriptions of failed scans: options and error.
    """

    scans: int = 0
    rows: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RandomScan:
    """Options of a scan.

    Attributes:
        options: Options of the data source.
        columns: Names of the compared columns, in order.
        fits: Function that returns whether a row satisfies the option `where`.
        gone_before: Number of objects to remove from the tier before planning.
        gone_between: Number of objects to remove between planning and reading.
    """

    options: dict[str, str]
    columns: tuple[str, ...]
    fits: Callable[[Row], bool]
    gone_before: int
    gone_between: int

    @property
    def level(self) -> str:
        return self.options["isolationLevel"]

    def requested_start(self, topic: str, partition: int) -> int:
        """Returns the start offset that the options set for a partition, or a negative number if
        they set none.
        """
        starts = json.loads(self.options.get("startingOffsets", "{}"))
        return int(starts.get(topic, {}).get(str(partition), EARLIEST_OFFSET))


def random_scan(topics: MovingTopics, tier: Path, choice: random.Random) -> RandomScan:
    """Returns a scan of random topics with random options. The scan reads the tier copy in the
    folder `tier`.
    """
    names = sorted({topic for topic, _ in topics.partition_keys})
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
    action = choice.random()
    before = between = 0
    if action < 0.1:
        return RandomScan(hybrid_options(topics.cluster.bootstrap, **more), columns, fits, 0, 0)
    if action < 0.2:
        more["tail"] = "false"
        more.pop("startingOffsets", None)  # the start may be after the end of the tier
    if action > 0.3:
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
            start = choice.choice((-2, choice.randint(first, max(first, end))))
            starts.setdefault(topic, {})[str(number)] = start
    return json.dumps(starts)


class Soak:
    """Runs scans one after the other.

    Args:
        topics: Topics to read.
        folder: Folder for the copies of the tier that scans read.
        seed: Seed of all random choices.
    """

    def __init__(self, topics: MovingTopics, folder: Path, seed: int) -> None:
        self._topics = topics
        self._folder = folder
        self._seed = seed
        self._gone: list[str] = []
        self.result = SoakResult()

    def scan(self, number: int) -> None:
        """Runs one scan and adds its outcome to `result`; does not raise if the scan fails."""
        choice = random.Random(f"{self._seed}-{number}")
        tier_copy = self._folder / f"seen-{number}"
        self._gone = []
        # Read the log starts first, to notice if they move past the offsets that the scan chooses.
        starts = self._topics.log_starts()
        scan = random_scan(self._topics, tier_copy, choice)
        self.result.scans += 1
        try:
            # Here, many reads in a row may fail with the same error. Do not give up early.
            with patch("kts_source.read.broker_rows._MAX_SAME_FAILURES", 1 << 30):
                outcome = self._outcome(scan, tier_copy, choice, starts)
            self.result.outcomes[outcome] += 1
        except Exception:  # noqa: BLE001 - a wrong exception is as bad as wrong rows
            error_text = traceback.format_exc(limit=-6)
            self.result.failures.append(
                f"seed {self._seed}, scan {number}: {scan}\nwithout {self._gone}\n{error_text}"
            )
        finally:
            _remove(tier_copy)

    def _outcome(
        self,
        scan: RandomScan,
        tier_copy: Path,
        choice: random.Random,
        starts: dict[PartitionKey, int],
    ) -> str:
        _link(self._topics.cluster.tier, tier_copy)
        self._remove_objects(tier_copy, scan.gone_before, choice)
        cut: set[str] = set()
        try:
            plan = plan_scan(parse_options(scan.options))
            starts |= {(p.topic, p.partition): p.start for p in plan.partitions}
            slices = [task_slice for task in plan.tasks for task_slice in task.slices]
            cut = {task_slice.segment_id for task_slice in slices if not task_slice.is_whole}
            self._remove_objects(tier_copy, scan.gone_between, choice)
            rows = self._read(plan, scan, choice)
        except ObjectNotFoundError as error:
            # Slices that start inside a segment need its offset index. Only a new plan would read
            # such a segment from brokers.
            name = Path(error.uri or "").name
            if not name.endswith(".index") or not any(segment_id in name for segment_id in cut):
                raise
            return "an error: the offset index of a split segment is missing"
        except DataLossError as error:
            key = error.topic or "", error.partition or 0
            now = self._topics.log_starts()[key]
            if now <= max(starts[key], scan.requested_start(*key)):
                raise
            return "an error: the log start moved past planned offsets"
        is_complete = True
        for partition in plan.partitions:
            key = partition.topic, partition.partition
            is_complete &= self._compare(partition, scan, rows.get(key, []))
        return "equal" if is_complete else "equal from the new log start"

    def _read(
        self, plan: ScanPlan, scan: RandomScan, choice: random.Random
    ) -> dict[PartitionKey, list[RowValues]]:
        parsed = parse_options(scan.options)
        ended: list[TaskMetrics] = []
        rows: dict[PartitionKey, list[RowValues]] = {}
        results: dict[int, list[pa.RecordBatch]] = {}
        for index in choice.sample(range(len(plan.tasks)), len(plan.tasks)):
            results[index] = list(run_task(plan.tasks[index], parsed, on_end=ended.append))
        for index in sorted(results):
            for batch in results[index]:
                topics = batch.column("topic").to_pylist()
                numbers = batch.column("partition").to_pylist()
                for topic, number, values in zip(
                    topics, numbers, _row_values(batch, scan.columns), strict=True
                ):
                    rows.setdefault((topic, number), []).append(values)
        counts = self.result.outcomes
        counts["scans by the metadata topic"] += parsed.by_metadata_topic
        counts["tasks"] += len(plan.tasks)
        counts["slices of the tier"] += sum(len(task.slices) for task in plan.tasks)
        counts["ranges of brokers"] += sum(len(task.ranges) for task in plan.tasks)
        counts["slices that brokers finished"] += sum(task.broker_fallbacks for task in ended)
        return rows

    def _compare(self, planned: PartitionPlan, scan: RandomScan, actual: list[RowValues]) -> bool:
        """Asserts that a consumer returns the same rows of a partition as the scan.

        If the log start moved past planned offsets, compares only the rows from the new log start
        on.

        Returns whether the rows of all planned offsets were compared.
        """
        key = planned.topic, planned.partition
        start = planned.start
        for attempt in range(_ATTEMPTS):
            try:
                rows = consume_range(
                    self._topics.cluster.bootstrap, *key, start, planned.stop, isolation=scan.level
                )
                break
            except KafkaException:
                now = self._topics.log_starts()[key]
                if now <= start or attempt + 1 == _ATTEMPTS:
                    raise
                start = min(now, planned.stop)
        expected = [
            tuple(_FIELDS[name](row) for name in scan.columns) for row in rows if scan.fits(row)
        ]
        self.result.rows += len(expected)
        has_moved = start > planned.start
        if has_moved:
            actual = actual[max(0, len(actual) - len(expected)) :]
        if actual != expected:
            differ = [
                index
                for index, pair in enumerate(zip(actual, expected, strict=False))
                if len(set(pair)) > 1
            ]
            raise AssertionError(
                f"{key} [{start}, {planned.stop}) of a plan from {planned.start}: {len(actual)}"
                f" rows, a consumer has {len(expected)}; first differences at {differ[:5]}:"
                f" {[actual[index] for index in differ[:2]]} and"
                f" {[expected[index] for index in differ[:2]]}; brokers {planned.brokers}"
            )
        return not has_moved

    def _remove_objects(self, tier_copy: Path, count: int, choice: random.Random) -> None:
        # Keep transaction indexes: readers of this layout cannot notice that one is missing.
        segments = [
            replace(segment, objects=tuple(p for p in segment.objects if p.suffix != ".txnindex"))
            for key in self._topics.partition_keys
            for segment in list_tiered_segments(tier_copy, *key)
        ]
        objects = sum(len(segment.objects) for segment in segments)
        gone = remove_random(segments, min(count, objects), choice)
        self.result.outcomes["objects missing"] += len(gone)
        self._gone += [path.name for path in gone]


def _row_values(batch: pa.RecordBatch, columns: tuple[str, ...]) -> list[RowValues]:
    """Converts a batch to rows that can be compared with the rows of a consumer.

    Values have the same types as in `Row`: timestamps are milliseconds, headers are tuples.
    """
    columns_of_values: list[list[object]] = []
    for name in columns:
        column = batch.column(name)
        if name == "timestamp":
            microseconds = column.cast(pa.int64()).to_pylist()
            columns_of_values.append([time // 1000 for time in microseconds])
        elif name == "headers":
            columns_of_values.append(
                [
                    tuple((header["key"], header["value"]) for header in headers or ())
                    for headers in column.to_pylist()
                ]
            )
        else:
            columns_of_values.append(column.to_pylist())
    return list(zip(*columns_of_values, strict=True))


def _link(tier: Path, tier_copy: Path) -> None:
    """Creates the folder `tier_copy` with hard links to all files of `tier`.

    Deleting a file of the copy does not change the tier.
    """
    for folder, _, names in os.walk(tier):
        target = tier_copy / os.path.relpath(folder, tier)
        target.mkdir(parents=True, exist_ok=True)
        for name in names:
            try:
                os.link(os.path.join(folder, name), target / name)  # noqa: PTH118 - thousands of files
            except FileNotFoundError:  # deleted by retention
                continue


def _remove(folder: Path) -> None:
    for path, folders, names in os.walk(folder, topdown=False):
        for name in names:
            os.unlink(os.path.join(path, name))  # noqa: PTH108, PTH118
        for name in folders:
            os.rmdir(os.path.join(path, name))  # noqa: PTH106, PTH118
    folder.rmdir()
