"""Tests objects that are deleted or changed between the plan and the read."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pytest

from kts_source import metrics
from kts_source.errors import DataLossError, ObjectChangedError, StoreNotFoundError
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read.read_task import run_task
from kts_source.read.task_metrics import TaskMetrics, TaskPlace, write_metrics
from kts_source.tier import Tier
from segment_format.testing import LogBuilder, SimpleRecord
from tests.golden_data import KEY_PREFIX, TIER, assert_same_rows, expected_table, tier_options
from tests.kts_source.planning.memory_store import MemoryStore
from tests.kts_source.planning.scanning import run
from tests.kts_source.planning.written_logs import write_log

if TYPE_CHECKING:
    from pathlib import Path

    from kts_source.read.task import SegmentSlice


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    """Returns a copy of the golden tier that a test may damage."""
    return shutil.copytree(TIER, tmp_path / "tier")


def options_for(tier: Path, topic: str, **more: str) -> dict[str, str]:
    return {**tier_options(topic, **more), "path": str(tier)}


def logs(tier: Path, topic: str) -> list[Path]:
    return sorted((tier / KEY_PREFIX).glob(f"{topic}-*/*/*.log"))


def slices_of(tier: Path, options: dict[str, str], log: Path) -> list[SegmentSlice]:
    key = log.relative_to(tier).as_posix()
    plan = plan_scan(parse_options(options))
    return [
        task_slice
        for task in plan.tasks
        for task_slice in task.slices
        if task_slice.objects.log.key == key
    ]


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_tier_that_becomes_empty_is_not_taken_as_lost_records(
    tier: Path, fail_on_data_loss: str
) -> None:
    options = options_for(tier, "codecs", failOnDataLoss=fail_on_data_loss)
    plan = plan_scan(parse_options(options))
    shutil.rmtree(tier)
    tier.mkdir()  # the mount point
    with pytest.raises(StoreNotFoundError, match="no object of topic codecs any more") as caught:
        run(plan, options)
    assert caught.value.topic == "codecs"


@pytest.mark.parametrize("number", [0, 2, -1])
def test_deleted_log_raises_data_loss_error_with_its_offsets(tier: Path, number: int) -> None:
    options = options_for(tier, "codecs")
    plan = plan_scan(parse_options(options))
    log = logs(tier, "codecs")[number]
    (task_slice,) = slices_of(tier, options, log)
    log.unlink()
    with pytest.raises(DataLossError) as error:
        run(plan, options)
    assert f"offsets [{task_slice.start_offset}, {task_slice.stop_offset})" in str(error.value)
    assert "failOnDataLoss" in str(error.value)
    assert log.name in str(error.value)


@pytest.mark.parametrize("number", [0, 2, -1])
def test_deleted_log_is_skipped_without_fail_on_data_loss(
    tier: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    options = options_for(tier, "codecs", failOnDataLoss="false")
    plan = plan_scan(parse_options(options))
    log = logs(tier, "codecs")[number]
    (task_slice,) = slices_of(tier, options, log)
    log.unlink()
    with caplog.at_level(logging.WARNING):
        table = run(plan, options)
    expected = expected_table("codecs", "read_committed")
    gone = pc.and_(
        pc.equal(expected["partition"], task_slice.partition),
        pc.and_(
            pc.greater_equal(expected["offset"], task_slice.start_offset),
            pc.less(expected["offset"], task_slice.stop_offset),
        ),
    )
    assert pc.sum(gone).as_py() > 0
    assert_same_rows(table, expected.filter(pc.invert(gone)))
    assert f"offsets [{task_slice.start_offset}, {task_slice.stop_offset})" in caplog.text


def test_lost_index_entry_after_deleted_segment_raises_data_loss_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    builder = LogBuilder()
    builder.append([SimpleRecord(b"plain")])
    builder.send(1, [SimpleRecord(b"aborted")])
    builder.roll()
    builder.append([SimpleRecord(b"plain")])
    builder.abort(1)
    builder.roll()
    first, last = builder.build().segments
    segments = first, replace(last, txnindex=None)
    objects = write_log(replace(builder.build(), segments=segments), local=False)
    tier = Tier(MemoryStore(objects))
    options = {"path": "/", "subscribe": "t", "targetPartitionBytes": "1"}
    plan = plan_scan(parse_options(options), tier)
    only_last = replace(plan, tasks=plan.tasks[-1:])
    (key,) = (task.slices[0].objects.log.key for task in plan.tasks[:1])
    del objects[key]
    with pytest.raises(DataLossError, match="cannot be compared with the log around"):
        run(only_last, options, tier)
    rows = run(only_last, {**options, "failOnDataLoss": "false"}, tier)
    assert rows["offset"].to_pylist() == [2]
    assert "cannot be compared with the log around" in caplog.text


def test_slices_whose_index_was_deleted_are_reported_as_lost(tier: Path) -> None:
    options = options_for(tier, "codecs", targetPartitionBytes="100k")
    plan = plan_scan(parse_options(options))
    for path in (tier / KEY_PREFIX).glob("codecs-*/*/*.indexes"):
        path.unlink()
    with pytest.raises(DataLossError, match=r"deleted .*: \S+\.indexes\. .* object \S+\.indexes\]"):
        run(plan, options)
    lenient = {**options, "failOnDataLoss": "false"}
    summary = run(plan, lenient)
    assert summary.num_rows < expected_table("codecs", "read_committed").num_rows


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_changed_object_raises_error_even_if_data_loss_is_allowed(tier: Path, lenient: str) -> None:
    options = options_for(tier, "codecs", failOnDataLoss=lenient)
    plan = plan_scan(parse_options(options))
    log = logs(tier, "codecs")[1]
    log.write_bytes(log.read_bytes())
    with pytest.raises(ObjectChangedError, match="the object changed"):
        run(plan, options)


def test_every_task_writes_a_metrics_line(tier: Path, tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    options = parse_options(
        options_for(
            tier,
            "codecs",
            metricsPath=str(folder),
            failOnDataLoss="false",
            maxSegmentsPerTask="1",
        )
    )
    plan = plan_scan(options)
    logs(tier, "codecs")[0].unlink()
    rows = 0
    for number, task in enumerate(plan.tasks):
        for batch in run_task(task, options, TaskPlace("scan-1", 7, number)):
            rows += batch.num_rows
    summary = metrics.summary(str(folder))
    assert len(summary.tasks) == len(plan.tasks)
    assert summary.outcomes == {"done": len(plan.tasks)}
    assert summary.total["rows"] == summary.total["records"] == rows
    assert summary.total["bytes"] > 0
    assert summary.total["requests"] >= len(plan.tasks) - 1
    assert summary.total["decode_seconds"] > 0
    assert [task.partition for task in summary.tasks] == list(range(len(plan.tasks)))
    (lost,) = summary.lost
    assert lost.startswith("codecs-")
    assert lost in str(summary)
    assert "modification time" in summary.tasks[0].pinned_by
    assert summary.of_scan("scan-1") == summary
    assert summary.of_scan("other").tasks == ()


def test_metrics_count_aborted_and_control_batches() -> None:
    options = parse_options(tier_options("txn"))
    plan = plan_scan(options)
    from kts_source.read.read_settings import ReadSettings
    from kts_source.read.read_task import read_task
    from kts_source.read.segment_source import SegmentSource
    from kts_source.read.task_metrics import TaskMeter
    from kts_source.tier import open_tier

    committed = aborted = control = 0
    for task in plan.tasks:
        store = open_tier(options)
        meter = TaskMeter(task, store, TaskPlace())
        reader = SegmentSource(store, options.key_ring)
        for batch in read_task(task, reader, ReadSettings.of(options), meter=meter):
            committed += batch.num_rows
        task_metrics = meter.finished("done")
        aborted += task_metrics.batches_skipped_aborted
        control += task_metrics.batches_skipped_control
    assert committed == expected_table("txn", "read_committed").num_rows
    assert aborted > 0
    assert control > 0


def test_metrics_contain_the_outcome_of_the_task(tier: Path, tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    options = parse_options(options_for(tier, "codecs", metricsPath=str(folder)))
    plan = plan_scan(options)
    rows = run_task(plan.tasks[0], options)
    next(rows)
    rows.close()
    logs(tier, "codecs")[0].unlink()
    with pytest.raises(DataLossError):
        list(run_task(plan.tasks[0], options))
    assert metrics.summary(str(folder)).outcomes == {"closed": 1, "DataLossError": 1}


def test_unwritable_metrics_do_not_fail_the_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    options = parse_options(tier_options("appendtime", metricsPath=str(blocked)))
    plan = plan_scan(options)
    assert sum(batch.num_rows for batch in run_task(plan.tasks[0], options)) > 0
    assert "metrics could not be written" in caplog.text


def test_unwritable_metrics_log_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    write_metrics(TaskMetrics(), "nothing://user:s3cr3t@host/folder?signature=s3cr3t", {})
    assert "metrics could not be written" in caplog.text
    assert "s3cr3t" not in caplog.text


def test_incomplete_metrics_line_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summaries = []

    def rename(source: Path, _target: Path) -> None:
        source.write_bytes(source.read_bytes()[:20])
        summaries.append(metrics.summary(str(tmp_path)).tasks)

    monkeypatch.setattr(type(tmp_path), "rename", rename)
    write_metrics(TaskMetrics(), str(tmp_path), {})
    assert summaries == [()]


def test_metrics_with_unknown_or_missing_members_are_read() -> None:
    line = TaskMetrics(scan="s", rows=3, lost=("a",)).to_json()
    assert TaskMetrics.from_json(line) == TaskMetrics(scan="s", rows=3, lost=("a",))
    assert TaskMetrics.from_json('{"rows": 2, "unheard_of": []}') == TaskMetrics(rows=2)


def test_summary_of_metrics_can_be_plotted(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    tasks = (
        TaskMetrics(seconds=2.0, wait_seconds=0.5, decode_seconds=1.0),
        TaskMetrics(seconds=1.0, decrypt_seconds=0.25),
    )
    axes = metrics.Summary(tasks).plot()
    tops = [max(bar.get_y() + bar.get_height() for bar in bars) for bars in axes.containers]
    assert max(tops) == pytest.approx(2.0)
    legend = axes.get_legend()
    assert legend is not None
    assert {text.get_text() for text in legend.get_texts()} >= {"wait", "decode"}
