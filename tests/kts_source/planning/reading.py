"""Reads the tier that a history left behind in every way there is, and compares with the truth."""

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
from kts_source.planning import early_stops, planner
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
_NO_OTHER: Final = frozenset({"index", "leader_epoch_checkpoint"})
"""Side files that tell what nothing else does: offsets of a plain copy, and the lineage."""
P = ParamSpec("P")
T = TypeVar("T")


class Reading:
    """Reads one world in every way there is to read it, and counts how it went.

    Args:
        world: The tier.
        source: Decides what is read in which tasks.
        outcomes: Counted here.
    """

    def __init__(self, world: World, source: random.Random, outcomes: Counter[str]) -> None:
        modified = {
            key: copy.event_timestamp_ms
            for lives in world.incarnations.values()
            for life in lives
            for copy in life.uploads
            for key in copy.keys
        }
        # Where a store does not tell, nothing may be left unread.
        times = source.random() < 0.8
        self._store = MemoryStore(world.store, modified if times else {})
        self._in_doubt = is_in_doubt(world, times=times)
        self._truth = {} if self._in_doubt else truth_of(world)
        self._layout = (
            # Nothing in this layout tells which incarnation is newer.
            {"layout": "local-tiered-storage", "topicId": newest_incarnation(world)}
            if world.shape.local
            else {}
        )
        self._random = source
        self._outcomes = outcomes

    def check(self) -> None:
        """Fails on the first wrong row, and on an error too many or too few."""
        if self._in_doubt:
            given = {"path": "/", "subscribe": TOPIC, **self._layout}
            # Checkpoints that cannot be read end in their own error.
            with pytest.raises((DataLossError, CorruptSegmentError)):
                plan_scan(parse_options(given), Tier(self._store))
            self._outcomes["in doubt"] += 1
            return
        if not self._truth:
            self._outcomes["nothing tiered"] += 1
            return
        if self._layout and any(one.is_ambiguous for one in self._truth.values()):
            self._outcomes["ambiguous"] += 1
            return
        whole = {number: (one.log_start, one.stop) for number, one in self._truth.items()}
        for isolation in ISOLATION_LEVELS:
            self._read(isolation, whole, {})
            if any(one.is_outlived for one in self._truth.values()):
                self._outcomes["windows left out"] += 1  # see kts_source.planning.partial_log
                continue
            for _ in range(2 if isolation == "read_committed" else 1):
                self._read_offsets(isolation)
            if self._random.random() < 0.3:
                self._read_dates(isolation)

    def _read_offsets(self, isolation: str) -> None:
        """A range that names offsets."""
        bounds = {}
        for number, truth in self._truth.items():
            limit = truth.stop
            if isolation == "read_committed" and self._random.random() < 0.7:
                limit = max(truth.log_start, truth.last_stable_offset)
            start = self._random.randint(truth.log_start, limit)
            bounds[number] = start, self._random.randint(start, limit)
        starts = {str(number): start for number, (start, _) in bounds.items()}
        stops = {str(number): stop for number, (_, stop) in bounds.items()}
        given = {
            "startingOffsets": json.dumps({TOPIC: starts}),
            "endingOffsets": json.dumps({TOPIC: stops}),
        }
        self._read(isolation, bounds, given, named=True)

    def _read_dates(self, isolation: str) -> None:
        """A range of time, over all partitions."""
        dates = sorted({date for truth in self._truth.values() for date in truth.dates})
        first, last = sorted(self._random.choice(dates) + self._random.randint(-1, 1) for _ in "ab")
        given = {"startingTimestamp": str(first), "startingOffsetsByTimestampStrategy": "latest"}
        if self._random.random() < 0.7:
            given["endingTimestamp"] = str(last)
        else:
            last = 1 << 60
        wanted = {
            number: (
                truth.first_dated(first, missing_too=False),
                truth.first_dated(last, missing_too=False),
            )
            for number, truth in self._truth.items()
        }
        may_hide = any(
            low < wanted[number][0] for number, one in self._truth.items() for low, _ in one.missing
        )
        since = 0
        if self._random.random() < 0.5:
            ahead = self._random.choice((0, 3000))
            given["maxTimestampAheadMs"] = str(ahead)
            since = first - ahead
        hides = any(
            one.hides(first, wanted[number][0], since) for number, one in self._truth.items()
        )
        self._read(isolation, wanted, given, hidden=(may_hide, hides))

    def _read(
        self,
        isolation: str,
        wanted: Mapping[int, Range],
        bounds: Mapping[str, str],
        *,
        named: bool = False,
        hidden: tuple[bool, bool] = (False, False),
    ) -> None:
        given = {
            "path": "/",
            "subscribe": TOPIC,
            "isolationLevel": isolation,
            "targetPartitionBytes": str(self._random.choice((1, 100, 300, 1 << 20))),
            "maxConcurrentRequests": "1",
            **self._layout,
            **bounds,
        }
        committed = isolation == "read_committed"
        may_fail, must_fail = self._losses(wanted, committed=committed)
        if committed and named:
            undecided = [self._is_undecided(*bound) for bound in wanted.items()]
            may_fail = may_fail or any(may for may, _ in undecided)
            must_fail = must_fail or any(must for _, must in undecided)
        may_fail = may_fail or (named and self._asks_beyond_what_is_told(wanted))
        may_fail, must_fail = may_fail or hidden[0], must_fail or hidden[1]
        spoiled = {name for truth in self._truth.values() for name in truth.spoiled}
        try:
            plan, rows = self._rows(given)
        except CorruptSegmentError as error:
            if not spoiled & _NO_OTHER:
                raise AssertionError(f"{given}: {spoiled} can be done without") from error
            if error.partition is None or error.uri is None:
                raise AssertionError(f"{given}: no place is named") from error
            self._outcomes["CorruptSegmentError"] += 1
            return
        except DataLossError as error:
            if "on this evidence" in str(error):
                if not self._truth[error.partition or 0].is_start_unsure:
                    raise AssertionError(f"{given}: the evidence is clear") from error
                self._outcomes["ambiguous"] += 1
                return
            if not may_fail:
                raise AssertionError(f"{given}: nothing is missing") from error
            if not isinstance(error, OffsetOutOfRangeError) and not hidden[0]:
                self._check_names(error, wanted)
            self._outcomes[type(error).__name__] += 1
            self._read_what_is_left({**given, "failOnDataLoss": "false"}, wanted, isolation)
            return
        assert not must_fail, f"{given}: offsets are missing, but no error"
        expected = []
        for number, (start, stop) in sorted(wanted.items()):
            truth = self._truth[number]
            right = truth.rows(
                isolation, start, min(stop, truth.decided_stop if committed else stop)
            )
            if committed and "snapshot" in truth.spoiled:
                decided = truth.decided_rows(start, stop)
                right = decided if [row for row in rows if row[0] == number] == decided else right
            expected += right
        assert rows == expected, _difference(given, rows, expected)
        for part in plan.partitions:
            truth = self._truth[part.partition]
            assert part.surviving.log_start == truth.log_start, given
            assert part.surviving.stop == truth.stop, given
        self._outcomes[isolation] += 1
        if spoiled:
            self._outcomes[f"{isolation}, spoiled"] += 1
        self._outcomes["rows"] += len(rows)

    def _asks_beyond_what_is_told(self, wanted: Mapping[int, Range]) -> bool:
        """Whether an offset lies behind one that is lost and where the end is lost, too.

        LocalTieredStorage tells a segment's end in its .log only. Where the last one's is lost,
        its first offset is the last of which the tier tells.
        """
        return "layout" in self._layout and any(
            start > self._truth[number].held_stop + 1 for number, (start, _) in wanted.items()
        )

    def _is_undecided(self, number: int, bound: Range) -> tuple[bool, bool]:
        """Whether a range that the user names may, and does, end where the tier decides no more."""
        truth = self._truth[number]
        ends = [truth.decided_stop]
        if "snapshot" in truth.spoiled:
            ends.append(truth.undecided_rows_from)
        undecided = [bound[0] < bound[1] > max(bound[0], end) for end in ends]
        return any(undecided), all(undecided)

    def _losses(self, wanted: Mapping[int, Range], *, committed: bool) -> tuple[bool, bool]:
        may = must = False
        for number, (start, stop) in wanted.items():
            truth = self._truth[number]
            if any(max(low, start) < min(high, stop) for low, high in truth.missing):
                return True, True
            if committed and start < stop:
                # What was open behind a hole is not told where snapshots are bad; a bad transaction
                # index wants them too, also that of a range which ends inside its segment.
                may = may or bool(truth.missing and truth.spoiled & {"snapshot", "txnindex"})
                may_here, must_here = truth.lost_outcomes(start, stop)
                may, must = may or may_here, must or must_here
        return may, must

    def _check_names(self, error: DataLossError, wanted: Mapping[int, Range]) -> None:
        """The error lists each range that is missing."""
        truth = self._truth[error.partition or 0]
        start, stop = wanted[truth.number]
        for low, high in truth.missing:
            if max(low, start) < min(high, stop):
                assert f"[{max(low, start)}, {min(high, stop)})" in str(error), str(error)

    def _read_what_is_left(
        self, given: Mapping[str, str], wanted: Mapping[int, Range], isolation: str
    ) -> None:
        """Allowing loss loses what is in holes, and transactions that end in them, no more."""
        unsure = {name for truth in self._truth.values() for name in truth.spoiled} & _NO_OTHER
        try:
            _, rows = self._rows(given)
        except CorruptSegmentError:
            if not unsure:
                raise
            return
        found = set(rows)
        assert len(found) == len(rows), f"{given}: rows twice"
        # Segments that cannot be described are left out, the newest perhaps: another log then.
        for number, (start, stop) in () if unsure else wanted.items():
            truth = self._truth[number]
            right = truth.rows(isolation, start, stop)
            held = {row for row in right if not truth.is_missing(row[1])}
            outside = held
            spoiled = "snapshot" in truth.spoiled
            if isolation == "read_committed" and (spoiled or truth.held_stop < truth.stop):
                # A transaction may have ended in a hole: then it is lost, and the rest is read.
                # Where a dead branch's segment holds the last offsets, its snapshot is of another
                # log: what is open without data above the log start is not told, as when spoiled.
                some = truth.committed_rows if spoiled and truth.missing else truth.decided_rows
                decided = some(start, stop)
                outside = held | {row for row in decided if not truth.is_missing(row[1])}
            plain = {row.offset for row in truth.log.all_rows if row.transaction is None}
            here = {row for row in found if row[0] == number}
            assert here <= outside, f"{given}: rows that are not visible {sorted(here - outside)}"
            optional = isolation == "read_committed"
            end = truth.decided_stop if optional else stop
            due = {row for row in held if row[1] < end and (not optional or row[1] in plain)}
            lacking = due - here
            assert not lacking, f"{given}: rows left out {sorted(lacking)}"
            assert truth.missing or held <= here, f"{given}: {sorted(held - here)} left out"
        self._outcomes[f"{isolation}, loss allowed"] += 1

    def _rows(self, given: Mapping[str, str]) -> tuple[ScanPlan, list[Row]]:
        options = parse_options(given)
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


def _difference(given: Mapping[str, str], rows: list[Row], expected: list[Row]) -> str:
    lacking = sorted(set(expected) - set(rows))
    extra = sorted(set(rows) - set(expected))
    return f"{given}: {len(lacking)} rows lacking {lacking[:4]}, {len(extra)} extra {extra[:4]}"


class InTurn(Executor):
    """Does the work where it is handed in: many times as fast as threads with little to do."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """A future that is done."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  # the future's to raise
            future.set_exception(error)
        return future


@contextmanager
def without_threads() -> Iterator[None]:
    """Plans and reads in this thread alone."""
    with (
        mock.patch.object(planner, "ThreadPoolExecutor", InTurn),
        mock.patch.object(early_stops, "ThreadPoolExecutor", InTurn),
        mock.patch.object(fetch, "ThreadPoolExecutor", InTurn),
    ):
        yield


def check_history(history: History, seed: int, outcomes: Counter[str] | None = None) -> World:
    """Reads the tier of a history; `seed` decides the ranges and the size of tasks.

    Raises:
        AssertionError: Wrong rows, or a wrong error.
    """
    world = World(history)
    Reading(world, random.Random(seed), Counter() if outcomes is None else outcomes).check()
    return world
