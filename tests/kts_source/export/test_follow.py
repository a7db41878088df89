"""Tests exports with `follow=True`: rounds, outages, signals and intervals."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.catalog import load_catalog

from kts_source import backfill
from kts_source.errors import (
    ExportError,
    FingerprintError,
    InvalidOptionError,
    StoreNotFoundError,
    StoreUnavailableError,
)
from kts_source.export.follow import RoundMetrics, follow
from kts_source.export.report import Skipped, WrittenRange, add_reports, empty_report
from kts_source.export.run import clean
from kts_source.export.task_writer import LocalExecutor
from tests.golden_data import expected_table
from tests.kts_source.export.exporting import FORMATS, Lake, assert_holds, row_locations, source
from tests.kts_source.export.small_tier import SmallTier, offset_option, table_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kts_source.export.report import BackfillReport
    from kts_source.export.task import ExportJob, RunnableTask, TaskReport
    from kts_source.export.task_writer import ExportExecutor

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param)


def only_x(batch: pa.RecordBatch) -> pa.RecordBatch | None:
    """A transform that returns only records with key `x`, or `None` if there are none. It declares
    no columns, so they are unknown until it returns rows.
    """
    rows = batch.filter(pc.equal(batch["key"], b"x"))
    return rows if rows.num_rows else None


@dataclass
class Driven:
    """Runs `follow` with a fake clock. Each pause calls the next function of `steps`. In the pause
    after the last function, a SIGTERM ends the export.

    Attributes:
        steps: Functions, one per pause.
        pauses: Length of each pause in seconds.
        rounds: Metrics of each round.
        rows: Rows of all rounds so far, after each round.
        seconds_a_round: Simulated duration of a round.
    """

    steps: Sequence[Callable[[], object]] = ()
    pauses: list[float] = field(default_factory=list)
    rounds: list[RoundMetrics] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    seconds_a_round: float = 0.0
    now: float = 1000.0

    def run(
        self,
        lake: Lake,
        options: dict[str, str],
        executor: ExportExecutor | None = None,
        **arguments: Any,  # noqa: ANN401
    ) -> BackfillReport:
        settings = lake.settings(follow=True, **{"round_bytes": 1, **arguments})
        return follow(
            options,
            settings,
            executor or LocalExecutor(1),
            on_round=self._round,
            clock=lambda: self.now,
            pause=self._pause,
        )

    @property
    def outcomes(self) -> list[str]:
        return [round_metrics.outcome for round_metrics in self.rounds]

    def _round(self, metrics: RoundMetrics, total: BackfillReport) -> None:
        self.rounds.append(metrics)
        self.rows.append(total.rows)
        self.now += self.seconds_a_round
        assert len(self.rounds) < 50, "it never waits"

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        if len(self.pauses) > len(self.steps):
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("no handler received the signal")
        self.steps[len(self.pauses) - 1]()


def test_follow_writes_records_that_arrive_between_rounds(lake: Lake, tmp_path: Path) -> None:
    tier = SmallTier(tmp_path / "tier").grow(3)
    driven = Driven([lambda: tier.grow(2), lambda: None])
    report = driven.run(lake, tier.options())
    assert table_offsets(lake) == list(range(50))
    assert [round_metrics.ranges for round_metrics in driven.rounds] == [
        ("t-0 [0, 10)",),
        ("t-0 [10, 20)",),
        ("t-0 [20, 30)",),
        ("t-0 [30, 40)",),
        ("t-0 [40, 50)",),
        (),
    ]
    assert driven.outcomes == ["done"] * 5 + ["idle"]
    assert driven.rows == [10, 20, 30, 40, 50, 50]
    assert [round_metrics.left_bytes > 0 for round_metrics in driven.rounds] == [
        True,
        True,
        False,
        True,
        False,
        False,
    ]
    assert (report.rows, report.commits, report.left_bytes) == (50, 5, 0)
    assert [(span.start, span.stop) for span in report.ranges] == [(0, 50)]
    assert report.requests == sum(round_metrics.requests for round_metrics in driven.rounds) > 0


def test_round_ends_after_the_segment_that_reaches_its_byte_limit(
    lake: Lake, tmp_path: Path
) -> None:
    tier = SmallTier(tmp_path / "tier").grow(6)
    total_bytes = Lake(tmp_path / "whole", "parquet").export(tier.options()).segment_bytes
    driven = Driven()
    driven.run(lake, tier.options(), round_bytes=total_bytes * 5 // 12)
    assert [round_metrics.ranges for round_metrics in driven.rounds] == [
        ("t-0 [0, 30)",),
        ("t-0 [30, 60)",),
    ]
    assert driven.pauses == [60.0]


def test_round_without_new_records_commits_nothing(lake: Lake, tmp_path: Path) -> None:
    tier = SmallTier(tmp_path / "tier").grow(1)
    driven = Driven([lambda: None] * 3)
    driven.run(lake, tier.options())
    assert driven.outcomes == ["done", "idle", "idle", "idle"]
    assert [round_metrics.commits for round_metrics in driven.rounds] == [1, 0, 0, 0]


@pytest.mark.parametrize(("seconds", "pause"), [(0.0, 90.0), (30.0, 60.0), (89.0, 1.0)])
def test_round_begins_one_interval_after_the_start_of_the_previous_round(
    tmp_path: Path, seconds: float, pause: float
) -> None:
    tier, lake = SmallTier(tmp_path / "tier").grow(1), Lake(tmp_path, "parquet")
    driven = Driven([lambda: None] * 2, seconds_a_round=seconds)
    driven.run(lake, tier.options(), interval="90s")
    assert driven.pauses == [pause] * 3


def test_next_round_starts_immediately_after_a_long_round(tmp_path: Path) -> None:
    tier, lake = SmallTier(tmp_path / "tier").grow(1), Lake(tmp_path, "parquet")
    driven = Driven(seconds_a_round=100.0)
    with pytest.raises(AssertionError, match="never waits"):
        driven.run(lake, tier.options(), interval="90s")


class Failing(LocalExecutor):
    """Runs tasks. Its n-th run raises the n-th entry of `errors`, unless this entry is `None`."""

    def __init__(self, errors: Sequence[Exception | None]) -> None:
        super().__init__(1)
        self._errors = list(errors)

    def run(self, tasks: Sequence[RunnableTask], job: ExportJob) -> Iterator[TaskReport]:
        if self._errors and (error := self._errors.pop(0)):
            raise error
        yield from super().run(tasks, job)


def test_follow_retries_after_outage(
    lake: Lake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = SmallTier(tmp_path / "tier").grow(2)
    down = StoreUnavailableError("the store is down", uri="s3://b/k")
    driven = Driven([lambda: None] * 2)
    report = driven.run(lake, tier.options(), Failing([None, down, down]))
    assert driven.outcomes == ["done", *["StoreUnavailableError"] * 2, "done"]
    assert driven.pauses == [60.0] * 3
    assert table_offsets(lake) == list(range(20))
    assert report.rows == 20
    warnings = [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    ]
    assert [text for text in warnings if "the store is down" in text and "60 s" in text]


def test_follow_ends_at_permanent_error(tmp_path: Path) -> None:
    tier, lake = SmallTier(tmp_path / "tier").grow(2), Lake(tmp_path, "parquet")
    driven = Driven()
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(FingerprintError):
        driven.run(lake, tier.options(), Failing([None, FingerprintError("another")]))
    assert driven.outcomes == ["done", "FingerprintError"]
    assert driven.pauses == []
    assert table_offsets(lake) == list(range(10))
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_follow_continues_after_the_tier_was_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier, lake = SmallTier(tmp_path / "tier").grow(1), Lake(tmp_path, "delta")
    hidden = tmp_path / "hidden"

    def remount() -> None:
        hidden.rename(tier.root)
        tier.grow(1)

    driven = Driven([lambda: tier.root.rename(hidden), lambda: None, remount])
    driven.run(lake, tier.options())
    assert driven.outcomes == ["done", *["StoreNotFoundError"] * 2, "done"]
    assert table_offsets(lake) == list(range(20))
    assert "the folder does not exist" in caplog.text


def test_follow_ends_if_the_tier_is_missing_for_an_hour(tmp_path: Path) -> None:
    tier, lake = SmallTier(tmp_path / "tier").grow(1), Lake(tmp_path, "delta")
    hide = partial(tier.root.rename, tmp_path / "hidden")
    driven = Driven([hide, *[lambda: None] * 9])
    with pytest.raises(StoreNotFoundError):
        driven.run(lake, tier.options(), interval="20m")
    assert driven.pauses == [1200.0] * 4


def test_follow_ends_if_there_was_no_tier_at_its_start(tmp_path: Path) -> None:
    tier, lake = SmallTier(tmp_path / "tier").grow(1), Lake(tmp_path, "delta")
    tier.root.rename(tmp_path / "hidden")
    driven = Driven()
    with pytest.raises(StoreNotFoundError):
        driven.run(lake, tier.options())


def test_follow_does_not_create_a_dropped_table_again(lake: Lake, tmp_path: Path) -> None:
    tier = SmallTier(tmp_path / "tier").grow(2)

    def drop() -> None:
        if lake.table_format == "iceberg":
            load_catalog("lake", **lake.catalog).drop_table(lake.target)
        else:
            shutil.rmtree(lake.target)
        tier.grow(1)

    driven = Driven([drop])
    with pytest.raises(ExportError, match="the table no longer exists"):
        driven.run(lake, tier.options())
    assert driven.outcomes == ["done", "done", "ExportError"]
    assert driven.run(lake, tier.options()).rows == 30  # a new start creates the table


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_follow_merges_into_compacted_table_in_each_round(
    tmp_path: Path, table_format: str
) -> None:
    tier = SmallTier(tmp_path / "tier").grow(2, b"a").grow(1, b"b")
    lake = Lake(tmp_path, table_format)
    driven = Driven([lambda: tier.grow(1, b"a")])
    report = driven.run(lake, tier.options(), compact=True)
    assert [round_metrics.ranges for round_metrics in driven.rounds] == [
        (f"t-0 [{first}, {first + 10})",) for first in (0, 10, 20, 30)
    ]
    assert report.commits == 4
    rows = {row["key"]: row["offset"] for row in lake.read().to_pylist()}
    assert rows == {b"a": 39, b"b": 29}
    assert lake.read().num_rows == 2


def test_follow_creates_table_after_rounds_without_rows(tmp_path: Path) -> None:
    tier = SmallTier(tmp_path / "tier").grow(2, b"k").grow(1, b"x").grow(1, b"x")
    lake, driven = Lake(tmp_path, "delta"), Driven([lambda: None])
    driven.run(lake, tier.options(), transform=only_x)
    assert driven.outcomes == ["done", "done", "idle"]
    assert table_offsets(lake) == list(range(20, 40))


def test_round_with_byte_limit_reports_only_gaps_that_it_reached(tmp_path: Path) -> None:
    tier = SmallTier(tmp_path / "tier").grow(5)
    tier.expire(2)
    lake, driven = Lake(tmp_path, "parquet"), Driven([lambda: None])
    report = driven.run(lake, tier.options(failOnDataLoss="false"))
    gap_counts = [len(round_metrics.skipped) for round_metrics in driven.rounds]
    assert gap_counts[0] == 0
    assert sum(gap_counts) == 1
    assert [(gap.start, gap.stop) for gap in report.skipped] == [(20, 30)]
    assert report.rows == len(table_offsets(lake)) == 40


def test_open_transaction_is_reported_once_over_all_rounds(tmp_path: Path) -> None:
    lake, driven = Lake(tmp_path, "parquet"), Driven([lambda: None] * 2)
    report = driven.run(lake, source())
    assert [(g.topic, g.partition, g.start, g.stop) for g in report.skipped] == [
        ("txn", 0, 3675, 3963)
    ]
    assert report.rows == expected_table("txn", "read_committed").num_rows


def test_sum_of_reports_omits_skipped_offsets_that_a_later_run_wrote() -> None:
    nothing = empty_report("lake", "delta")
    tail, lost = Skipped("t", 0, 20, 30, "open transaction"), Skipped("t", 1, 0, 5, "gone")
    first = replace(
        nothing, rows=20, skipped=(lost, tail), ranges=(WrittenRange("t", "id", 0, 0, 20),)
    )
    longer = replace(nothing, skipped=(replace(tail, stop=40),))
    assert add_reports(first, longer).skipped == (replace(tail, stop=40), lost)
    then = replace(nothing, rows=20, ranges=(WrittenRange("t", "id", 0, 20, 40),))
    both = add_reports(add_reports(first, longer), then)
    assert (both.skipped, both.rows) == ((lost,), 40)
    assert both.ranges == (WrittenRange("t", "id", 0, 0, 40),)


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ({"interval": "soon"}, {}, "interval"),
        ({"interval": "10ms"}, {}, "at least 1 s"),
        ({"round_bytes": 0}, {}, "round_bytes"),
        ({"resume": False}, {}, "resume"),
        ({"compact": True}, {}, "Parquet"),
        ({"compact": True, "table_format": "delta"}, {"columns": "key,offset"}, "columns"),
        ({}, {"endingOffsets": offset_option(10)}, "endingOffsets"),
        ({}, {"endingTimestamp": "1"}, "endingTimestamp"),
    ],
)
def test_follow_refuses_invalid_arguments(
    tmp_path: Path, arguments: dict[str, Any], options: dict[str, str], text: str
) -> None:
    tier = SmallTier(tmp_path / "tier").grow(1)
    with pytest.raises(InvalidOptionError, match=text):
        backfill(
            None,
            source=tier.options(**options),
            target=str(tmp_path / "table"),
            **{"follow": True, **arguments},
        )
    assert not (tmp_path / "table").exists()


def test_one_log_line_is_written_for_each_round_of_follow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier, driven = SmallTier(tmp_path / "tier").grow(2), Driven()
    with caplog.at_level(logging.INFO, "kts_source.export.follow"):
        driven.run(Lake(tmp_path, "parquet"), tier.options())
    lines = [
        json.loads(text)
        for record in caplog.records
        if record.name == "kts_source.export.follow"
        and (text := record.getMessage()).startswith("{")
    ]
    assert [line["round"] for line in lines] == [0, 1]
    assert [line["rows"] for line in lines] == [10, 10]
    assert lines == [json.loads(round_metrics.to_json()) for round_metrics in driven.rounds]


@pytest.mark.parametrize(
    ("number", "workers"),
    [
        (signal.SIGTERM, 1),
        pytest.param(signal.SIGINT, 1, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 2, marks=pytest.mark.slow),
    ],
)
def test_follow_finishes_its_round_after_a_signal(
    tmp_path: Path, number: signal.Signals, workers: int
) -> None:
    lake = Lake(tmp_path, "parquet")
    command = [sys.executable, "-m", "tests.kts_source.export.follow_child"]
    child = subprocess.Popen(
        [*command, str(tmp_path), "parquet", str(workers)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        first = json.loads(child.stdout.readline())
        assert first["outcome"] == "done"
        assert first["left_bytes"] > 0
        attempts = tmp_path / "table" / "_kts" / "attempts"
        deadline = time.monotonic() + 120
        # Files that are not committed show that tasks of the second round are running.
        while not any(path.is_file() for path in attempts.rglob("*")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        child.send_signal(number)
        out, _ = child.communicate(timeout=120)
    *rounds, ended = out.splitlines()
    assert (child.returncode, ended) == (0, "ended")
    assert json.loads(rounds[-1])["outcome"] == "abandoned"
    before = row_locations(lake.read())
    assert len(before) == len(set(before)) > 0
    remaining = {
        str(path.relative_to(lake.target)) for path in attempts.rglob("*") if path.is_file()
    }
    assert {
        orphan.key for orphan in clean(lake.settings(), older_than_hours=-1, remove=True)
    } == remaining
    assert [path for path in Path(lake.target).rglob("*") if ".draft" in path.name] == []
    report = Driven().run(lake, source(), round_bytes=250_000)
    assert report.rows == len(row_locations(lake.read())) - len(before) > 0
    assert_holds(lake.read(), ["txn"])
