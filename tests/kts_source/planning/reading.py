"""Reads the tier of a simulated history with different options, and checks the returned rows."""

from __future__ import annotations

import json
import random
from collections import Counter
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar
from unittest import mock

import pyarrow as pa
import pytest

from kts_source.errors import CorruptSegmentError, DataLossError, OffsetOutOfRangeError
from kts_source.options import parse_options
from kts_source.planning import planner
from kts_source.planning.planner import plan_scan
from kts_source.read import fetch
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import Tier
from tests.kts_source.planning.history import TOPIC, History, World
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.truth import (
    Range,
    Row,
    is_in_doubt,
    newest_incarnation,
    truth_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kts_source.planning.scan_plan import ScanPlan

ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
_REQUIRED: Final = frozenset({"index", "leader_epoch_checkpoint"})
"""Side files that cannot be rebuilt: they contain the end offset and the leader epochs of an
upload.
"""
P = ParamSpec("P")
T = TypeVar("T")


class Reading:
    """Reads a tier with different options, checks the rows and counts the outcomes.

    Args:
        world: Simulated tier.
        source: Random generator for ranges and task sizes.
        outcomes: Counter of outcomes by name.
    """

    def __init__(self, world: World, source: random.Random, outcomes: Counter[str]) -> None:
        modified = {
            key: copy.event_timestamp_ms
            for lives in world.incarnations.values()
            for life in lives
            for copy in life.uploads
            for key in copy.keys
        }
        # Without modification times, the planner must not ignore any object.
        has_times = source.random() < 0.8
        self._store = MemoryStore(world.store, modified if has_times else {})
        self._in_doubt = is_in_doubt(world, times=has_times)
        self._truth = {} if self._in_doubt else truth_of(world)
        self._layout = (
            # This layout does not record which incarnation is newer.
            {"layout": "local-tiered-storage", "topicId": newest_incarnation(world)}
            if world.shape.local
            else {}
        )
        self._random = source
        self._outcomes = outcomes

    def check(self) -> None:
        """Reads the tier at both isolation levels.

        Raises `AssertionError` for a wrong row, a missing error or an unexpected error.
        """
        if self._in_doubt:
            options = {"path": "/", "subscribe": TOPIC, **self._layout}
            # Unreadable checkpoints raise CorruptSegmentError.
            with pytest.raises((DataLossError, CorruptSegmentError)):
                plan_scan(parse_options(options), Tier(self._store))
            self._outcomes["in doubt"] += 1
            return
        if not self._truth:
            self._outcomes["nothing tiered"] += 1
            return
        if self._layout and any(truth.is_ambiguous for truth in self._truth.values()):
            self._outcomes["ambiguous"] += 1
            return
        all_offsets = {
            number: (truth.log_start, truth.stop) for number, truth in self._truth.items()
        }
        for isolation in ISOLATION_LEVELS:
            self._read(isolation, all_offsets, {})
            if any(truth.is_outlived for truth in self._truth.values()):
                self._outcomes["windows left out"] += 1  # see kts_source.planning.tier_source
                continue
            for _ in range(2 if isolation == "read_committed" else 1):
                self._read_offsets(isolation)
            if self._random.random() < 0.3:
                self._read_dates(isolation)

    def _read_offsets(self, isolation: str) -> None:
        """Reads a random range of offsets of each partition and checks the rows."""
        bounds = {}
        for number, truth in self._truth.items():
            limit = truth.stop
            if isolation == "read_committed" and self._random.random() < 0.7:
                limit = max(truth.log_start, truth.last_stable_offset)
            start = self._random.randint(truth.log_start, limit)
            bounds[number] = start, self._random.randint(start, limit)
        starts = {str(number): start for number, (start, _) in bounds.items()}
        stops = {str(number): stop for number, (_, stop) in bounds.items()}
        offset_options = {
            "startingOffsets": json.dumps({TOPIC: starts}),
            "endingOffsets": json.dumps({TOPIC: stops}),
        }
        self._read(isolation, bounds, offset_options, has_offsets=True)

    def _read_dates(self, isolation: str) -> None:
        """Reads a random range of timestamps and checks the rows."""
        dates = sorted({date for truth in self._truth.values() for date in truth.dates})
        first, last = sorted(self._random.choice(dates) + self._random.randint(-1, 1) for _ in "ab")
        time_options = {
            "startingTimestamp": str(first),
            "startingOffsetsByTimestampStrategy": "latest",
        }
        if self._random.random() < 0.7:
            time_options["endingTimestamp"] = str(last)
        else:
            last = 1 << 60
        ranges = {
            number: (
                truth.find_offset_since(first, include_missing=False),
                truth.find_offset_since(last, include_missing=False),
            )
            for number, truth in self._truth.items()
        }
        may_hide = any(
            low < ranges[number][0]
            for number, truth in self._truth.items()
            for low, _ in truth.missing
        )
        since = 0
        if self._random.random() < 0.5:
            ahead = self._random.choice((0, 3000))
            time_options["maxTimestampAheadMs"] = str(ahead)
            since = first - ahead
        must_hide = any(
            truth.hides(first, ranges[number][0], since) for number, truth in self._truth.items()
        )
        self._read(isolation, ranges, time_options, hidden=(may_hide, must_hide))

    def _find_expected_rows(
        self, ranges: Mapping[int, Range], isolation: str, rows: list[Row]
    ) -> list[Row]:
        """Returns the rows that a read of `ranges` must return.

        If a producer snapshot is damaged, the read may also end early, at `undecided_rows_from`. If
        `rows` ends at this offset, the expected rows end at it, too.
        """
        committed = isolation == "read_committed"
        expected: list[Row] = []
        for number, (start, stop) in sorted(ranges.items()):
            truth = self._truth[number]
            expected_rows = truth.rows(
                isolation, start, min(stop, truth.decided_stop if committed else stop)
            )
            if committed and "snapshot" in truth.spoiled:
                decided = truth.decided_rows(start, stop)
                if [row for row in rows if row[0] == number] == decided:
                    expected_rows = decided
            expected += expected_rows
        return expected

    def _read(
        self,
        isolation: str,
        ranges: Mapping[int, Range],
        bounds: Mapping[str, str],
        *,
        has_offsets: bool = False,
        hidden: tuple[bool, bool] = (False, False),
    ) -> None:
        options = {
            "path": "/",
            "subscribe": TOPIC,
            "isolationLevel": isolation,
            "targetPartitionBytes": str(self._random.choice((1, 100, 300, 1 << 20))),
            "maxConcurrentRequests": "1",
            **self._layout,
            **bounds,
        }
        committed = isolation == "read_committed"
        may_fail, must_fail = self._find_losses(ranges, committed=committed)
        if committed and has_offsets:
            undecided_ranges = [self._is_undecided(*bound) for bound in ranges.items()]
            may_fail = may_fail or any(may_be_undecided for may_be_undecided, _ in undecided_ranges)
            must_fail = must_fail or any(is_undecided for _, is_undecided in undecided_ranges)
        may_fail = may_fail or (has_offsets and self._starts_after_proven_end(ranges))
        may_fail, must_fail = may_fail or hidden[0], must_fail or hidden[1]
        spoiled = {name for truth in self._truth.values() for name in truth.spoiled}
        try:
            plan, rows = self._scan_rows(options)
        except CorruptSegmentError as error:
            if not spoiled & _REQUIRED:
                raise AssertionError(f"{options}: {spoiled} can be rebuilt") from error
            if error.partition is None or error.uri is None:
                raise AssertionError(f"{options}: it names no partition or object") from error
            self._outcomes["CorruptSegmentError"] += 1
            return
        except DataLossError as error:
            if "Segments would be skipped because of it" in str(error):
                if not self._truth[error.partition or 0].is_start_unsure:
                    raise AssertionError(f"{options}: the log start is certain") from error
                self._outcomes["ambiguous"] += 1
                return
            if not may_fail:
                raise AssertionError(f"{options}: no offset is missing") from error
            if not isinstance(error, OffsetOutOfRangeError) and not hidden[0]:
                self._check_names(error, ranges)
            self._outcomes[type(error).__name__] += 1
            self._read_with_loss_allowed({**options, "failOnDataLoss": "false"}, ranges, isolation)
            return
        assert not must_fail, f"{options}: offsets are missing, but no error"
        expected = self._find_expected_rows(ranges, isolation, rows)
        assert rows == expected, _describe_difference(options, rows, expected)
        for partition in plan.partitions:
            truth = self._truth[partition.partition]
            assert partition.surviving.log_start == truth.log_start, options
            assert partition.surviving.stop == truth.stop, options
        self._outcomes[isolation] += 1
        if spoiled:
            self._outcomes[f"{isolation}, spoiled"] += 1
        self._outcomes["rows"] += len(rows)

    def _starts_after_proven_end(self, ranges: Mapping[int, Range]) -> bool:
        """Returns whether a range starts after the last offset that a reader can find in the tier.

        LocalTieredStorage records the end of a segment only in its log file. If the last log file
        is lost, a reader finds only the first offset of that segment.
        """
        return "layout" in self._layout and any(
            start > self._truth[number].missing_end_start + 1
            for number, (start, _) in ranges.items()
        )

    def _is_undecided(self, number: int, bound: Range) -> tuple[bool, bool]:
        """Returns whether a read of the range `bound` may end early at undecided offsets, and
        whether it must.

        Offsets are undecided if they come after the start of a transaction whose outcome is
        unknown. Both values are equal if no producer snapshot is damaged.
        """
        truth = self._truth[number]
        ends = [truth.decided_stop]
        if "snapshot" in truth.spoiled:
            ends.append(truth.undecided_rows_from)
        undecided = [bound[0] < bound[1] > max(bound[0], end) for end in ends]
        return any(undecided), all(undecided)

    def _find_losses(self, ranges: Mapping[int, Range], *, committed: bool) -> tuple[bool, bool]:
        may = must = False
        for number, (start, stop) in ranges.items():
            truth = self._truth[number]
            if any(max(low, start) < min(high, stop) for low, high in truth.missing):
                return True, True
            if committed and start < stop:
                # Without usable snapshots, open transactions after a hole are unknown. If a
                # transaction index is damaged, a read needs snapshots, even if the range ends in
                # the segment of the index.
                may = may or bool(truth.missing and truth.spoiled & {"snapshot", "txnindex"})
                may_fail, must_fail = truth.lost_outcomes(start, stop)
                may, must = may or may_fail, must or must_fail
        return may, must

    def _check_names(self, error: DataLossError, ranges: Mapping[int, Range]) -> None:
        """Checks that the error names every missing offset range of its partition that is part of
        `ranges`.
        """
        truth = self._truth[error.partition or 0]
        start, stop = ranges[truth.number]
        for low, high in truth.missing:
            if max(low, start) < min(high, stop):
                assert f"[{max(low, start)}, {min(high, stop)})" in str(error), str(error)

    def _read_with_loss_allowed(
        self, options: Mapping[str, str], ranges: Mapping[int, Range], isolation: str
    ) -> None:
        """Checks a read with `failOnDataLoss=false`.

        The read may skip only missing offsets, and transactions that end in missing offsets.
        """
        damaged = {name for truth in self._truth.values() for name in truth.spoiled} & _REQUIRED
        try:
            _, rows = self._scan_rows(options)
        except CorruptSegmentError:
            if not damaged:
                raise
            return
        row_set = set(rows)
        assert len(row_set) == len(rows), f"{options}: rows twice"
        # The plan skips segments with damaged metadata. Without the newest segment, the log
        # differs.
        for number, (start, stop) in () if damaged else ranges.items():
            truth = self._truth[number]
            rows_due = truth.rows(isolation, start, stop)
            present_rows = {row for row in rows_due if not truth.is_missing(row[1])}
            allowed_rows = present_rows
            spoiled = "snapshot" in truth.spoiled
            if isolation == "read_committed" and (spoiled or truth.missing_end_start < truth.stop):
                # A transaction that ends in a hole is skipped, and all other rows are read. If the
                # last offsets are in a segment of a dead branch, the snapshot of this segment
                # belongs to another log. Then the reader does not find open transactions without
                # data after the log start, as with damaged snapshots.
                select_rows = (
                    truth.committed_rows if spoiled and truth.missing else truth.decided_rows
                )
                decided = select_rows(start, stop)
                allowed_rows = present_rows | {
                    row for row in decided if not truth.is_missing(row[1])
                }
            plain_offsets = {row.offset for row in truth.log.all_rows if row.transaction is None}
            partition_rows = {row for row in row_set if row[0] == number}
            assert partition_rows <= allowed_rows, (
                f"{options}: rows that are not visible {sorted(partition_rows - allowed_rows)}"
            )
            optional = isolation == "read_committed"
            end = truth.decided_stop if optional else stop
            required_rows = {
                row
                for row in present_rows
                if row[1] < end and (not optional or row[1] in plain_offsets)
            }
            missing_rows = required_rows - partition_rows
            assert not missing_rows, f"{options}: rows skipped {sorted(missing_rows)}"
            assert truth.missing or present_rows <= partition_rows, (
                f"{options}: {sorted(present_rows - partition_rows)} skipped"
            )
        self._outcomes[f"{isolation}, loss allowed"] += 1

    def _scan_rows(self, option_texts: Mapping[str, str]) -> tuple[ScanPlan, list[Row]]:
        options = parse_options(option_texts)
        plan = plan_scan(options, Tier(self._store))
        reader = SegmentSource(Tier(self._store), options.key_ring)
        settings = ReadSettings.of(options)
        batches = [batch for task in plan.tasks for batch in read_task(task, reader, settings)]
        if not batches:
            return plan, []
        table = pa.Table.from_batches(batches)
        columns: list[list[Any]] = [
            table["partition"].to_pylist(),
            table["offset"].to_pylist(),
            table["key"].to_pylist(),
            table["value"].to_pylist(),
            table["timestamp"].cast(pa.int64()).to_pylist(),
        ]
        return plan, list(zip(*columns, strict=True))


def _describe_difference(options: Mapping[str, str], rows: list[Row], expected: list[Row]) -> str:
    missing = sorted(set(expected) - set(rows))
    extra = sorted(set(rows) - set(expected))
    return f"{options}: {len(missing)} rows missing {missing[:4]}, {len(extra)} extra {extra[:4]}"


class InTurn(Executor):
    """Executor that runs each task inside `submit`. Using threads for small tasks would be much
    slower.
    """

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Runs the task and returns its finished future."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  # the future raises it
            future.set_exception(error)
        return future


@contextmanager
def without_threads() -> Iterator[None]:
    """Makes planner and reader run all tasks in the current thread during a `with` block."""
    with (
        mock.patch.object(planner, "ThreadPoolExecutor", InTurn),
        mock.patch("kts_source.planning.isolation.ThreadPoolExecutor", InTurn),
        mock.patch.object(fetch, "ThreadPoolExecutor", InTurn),
    ):
        yield


def check_history(history: History, seed: int, outcomes: Counter[str] | None = None) -> World:
    """Builds the tier of a history, reads it with different options, and asserts that rows and
    errors are correct. `seed` selects ranges and task sizes. Counts the results in `outcomes`.
    """
    world = World(history)
    Reading(world, random.Random(seed), Counter() if outcomes is None else outcomes).check()
    return world
