"""Tests the progress output, the report and the interruption of an export."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from kts_source.export.progress import LineProgress, RichProgress
from kts_source.export.report import draw_report, empty_report
from kts_source.export.run import export
from kts_source.export.task_writer import LocalExecutor
from tests.golden_data import expected_table
from tests.kts_source.export.exporting import Lake, assert_holds, source

if TYPE_CHECKING:
    import pyarrow as pa

    from kts_source.export.progress import Progress
    from kts_source.export.report import BackfillReport

ROOT = Path(__file__).resolve().parents[3]


def export_with(lake: Lake, progress: Progress) -> BackfillReport:
    return export(source(), lake.settings(), LocalExecutor(1), progress=progress)


def test_progress_is_printed_as_lines_without_a_terminal(tmp_path: Path) -> None:
    stream = io.StringIO()
    report = export_with(Lake(tmp_path, "parquet"), LineProgress(stream))
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("  0%  0/")
    assert lines[-1].startswith("100%  ")
    assert f"{report.rows_read:,} rows, {report.requests:,} requests" in lines[-1]
    assert "\r" not in stream.getvalue()


def test_progress_is_shown_as_a_bar_on_a_terminal(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=160)
    report = export_with(Lake(tmp_path, "parquet"), RichProgress(console))
    assert f"{report.rows_read:,} rows, {report.requests:,} requests" in stream.getvalue()
    assert "━" in stream.getvalue()


def test_progress_counts_ended_tasks_before_their_reports_arrive(tmp_path: Path) -> None:
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.begin(4, 4 << 20)
    progress.ahead(1)
    progress.end()
    assert " 25%  1/4 tasks, 0 rows, 0 requests, 1.0 MiB of 4.0 MiB" in stream.getvalue()


def test_progress_of_a_small_tier_is_in_kibibytes() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.begin(2, 4096)
    progress.ahead(1)
    progress.end()
    assert ", 2.0 KiB of 4.0 KiB, " in stream.getvalue()


def test_report_is_saved_as_picture(tmp_path: Path) -> None:
    report = Lake(tmp_path, "parquet").export(source())
    report.save_png(tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG\r\n")
    bars, facts = draw_report(report).axes
    assert [label.get_text() for label in bars.get_yticklabels()] == list(report.seconds)
    text = " ".join(" ".join(column.get_text() for column in facts.texts).split())
    rows = expected_table("txn", "read_committed").num_rows
    for fact in (f": {rows:,} rows in", f"{report.requests:,} requests", r"about \$"):
        assert fact in text
    assert "txn-0 [3675, 3963): open transaction" in text


def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that creates a file named after its process and sleeps. It sleeps for a minute as
    soon as two processes have created files.
    """
    folder = Path(os.environ["KTS_TEST_AT_WORK"])
    (folder / str(os.getpid())).touch()
    time.sleep(0.2 if len(list(folder.iterdir())) < 2 else 60)
    return batch


def interrupted(lake: Lake) -> None:
    """Runs an export with two workers and one commit. The next test calls it in a child process."""
    lake.export(source(), executor=LocalExecutor(2), transform=slow, commit_bytes=1 << 40)


@pytest.mark.kills
@pytest.mark.parametrize("whom", ["everybody", "the driver"])
def test_ctrl_c_ends_all_workers_and_explains_resume(tmp_path: Path, whom: str) -> None:
    lake = Lake(tmp_path / "lake", "parquet")
    at_work = tmp_path / "at work"
    at_work.mkdir()
    program = (
        "from pathlib import Path\n"
        "from tests.kts_source.export.exporting import Lake\n"
        "from tests.kts_source.export.test_progress import interrupted\n"
        f"interrupted(Lake(Path({str(lake.folder)!r}), 'parquet'))\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "KTS_TEST_AT_WORK": str(at_work)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 100
    while len(list(at_work.iterdir())) < 2 and child.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (os.killpg if whom == "everybody" else os.kill)(child.pid, signal.SIGINT)
    _, said = child.communicate(timeout=50)
    assert child.returncode in (1, -signal.SIGINT, 130)
    assert "interrupted: commits are kept, and the same call continues after them" in said
    assert said.count("Process SpawnProcess") == 0
    for name in at_work.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(name.name), 0)
    lake.export(source())
    assert_holds(lake.read(), ["txn"])


@pytest.mark.parametrize(
    ("files", "file_bytes", "warns"),
    [(1295, 1295 << 13, True), (99, 99 << 13, False), (1295, 1295 << 20, False), (0, 0, False)],
)
def test_report_of_many_small_files_names_partition_by(
    files: int, file_bytes: int, warns: bool
) -> None:
    report = replace(empty_report("lake", "parquet"), files=files, file_bytes=file_bytes)
    assert ("partition_by" in str(report)) == warns
    if warns:
        assert "1,295 files of 8.0 KiB on average" in str(report)
