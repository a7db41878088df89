"""Tests exports of segments that are deleted after planning. The export fails, or skips the lost
offsets and reports them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kts_source.errors import DataLossError, StoreNotFoundError
from kts_source.export.ranges import PartitionKey, RangeAdvance
from kts_source.export.report import Skipped, written_ranges
from kts_source.export.task import TaskReport
from kts_source.export.task_writer import LocalExecutor
from kts_source.read.task_metrics import LostRange, TaskMetrics
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.export.small_tier import SmallTier, gaps, ranges, table_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kts_source.export.task import ExportJob, RunnableTask


@pytest.fixture(params=FORMATS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param)


class Expiring(LocalExecutor):
    """Executor that deletes the segments `numbers` after planning, before it runs the tasks."""

    def __init__(self, tier: SmallTier, *numbers: int) -> None:
        super().__init__(1)
        self._tier, self._numbers = tier, numbers

    def run(self, tasks: Sequence[RunnableTask], job: ExportJob) -> Iterator[TaskReport]:
        self._tier.expire(*self._numbers)
        # Reports are serialized to text, as Spark executors do.
        yield from (TaskReport.from_text(report.to_text()) for report in super().run(tasks, job))


@pytest.mark.parametrize(
    ("commit_bytes", "compact"), [(1, False), (1 << 40, False), (1 << 40, True)]
)
@pytest.mark.parametrize("gone", [(0,), (1,), (0, 2)])
def test_vanished_offsets_are_skipped_and_reported(
    lake: Lake, tmp_path: Path, gone: tuple[int, ...], commit_bytes: int, compact: bool
) -> None:
    tier = SmallTier(tmp_path / "tier").grow(3)
    report = lake.export(
        tier.options(failOnDataLoss="false"),
        executor=Expiring(tier, *gone),
        commit_bytes=commit_bytes,
        compact=compact,
    )
    remaining = [n for n in range(30) if n // 10 not in gone]
    assert table_offsets(lake) == (remaining[-1:] if compact else remaining)
    assert gaps(report) == [(10 * n, 10 * n + 10) for n in gone]
    assert [n for start, stop in ranges(report) for n in range(start, stop)] == remaining
    assert all("deleted after planning" in gap.reason for gap in report.skipped)
    # Later runs continue after the skipped offsets, and write no row twice.
    tier.grow(1)
    if not compact:
        assert ranges(lake.export(tier.options())) == [(30, 40)]
        assert table_offsets(lake) == [*remaining, *range(30, 40)]


def test_tier_that_disappears_is_not_skipped(lake: Lake, tmp_path: Path) -> None:
    tier = SmallTier(tmp_path / "tier").grow(3)
    options = tier.options(failOnDataLoss="false")
    with pytest.raises(StoreNotFoundError, match="no object of topic"):
        lake.export(options, executor=Expiring(tier, 0, 1, 2))


def test_vanished_object_fails_the_export_by_default(lake: Lake, tmp_path: Path) -> None:
    tier = SmallTier(tmp_path / "tier").grow(3)
    with pytest.raises(DataLossError, match=r"\[10, 20\) cannot be read"):
        lake.export(tier.options(), executor=Expiring(tier, 1), commit_bytes=1)
    assert table_offsets(lake) == list(range(10))


def test_lost_ranges_of_task_metrics_round_trip_through_json() -> None:
    lost = (LostRange("t", 0, 10, 20, in_part=True),)
    assert TaskMetrics.from_json(TaskMetrics(lost_ranges=lost).to_json()).lost_ranges == lost


def test_written_ranges_exclude_skipped_offsets() -> None:
    def advance(start: int, stop: int, *, partition: int = 0) -> RangeAdvance:
        return RangeAdvance("t", PartitionKey("id", partition), None, start, stop)

    def skipped(start: int, stop: int) -> Skipped:
        return Skipped("t", 0, start, stop, "")

    written = written_ranges(
        [advance(0, 10), advance(10, 30), advance(40, 50), advance(0, 5, partition=1)],
        [skipped(8, 12), skipped(10, 11), skipped(20, 22), skipped(30, 45), skipped(60, 70)],
    )
    assert [(span.partition, span.start, span.stop) for span in written] == [
        *((0, 0, 8), (0, 12, 20), (0, 22, 30), (0, 45, 50)),
        (1, 0, 5),
    ]
