"""Tests the log lines of an export, and the figures of its report."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import time
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from kts_source import metrics
from kts_source.cli.app import main
from kts_source.errors import InvalidOptionError
from kts_source.export.report import add_reports, empty_report
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.golden_data import partition_summaries
from tests.kts_source.export.exporting import FORMATS, Lake, source
from tests.kts_source.export.small_tier import T0, SmallTier, offset_option
from tests.kts_source.read.typed_tier import TOPIC, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOGGER = "kts_source.export.run"


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


@pytest.mark.parametrize("table_format", FORMATS)
def test_export_writes_log_lines_about_start_commits_and_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, table_format: str
) -> None:
    lake = Lake(tmp_path, table_format)
    caplog.set_level(logging.INFO, LOGGER)
    first = lake.export(source(endingOffsets='{"txn": {"0": 1000, "1": 7}}'))
    begin, planned, *commits, end = lines_of(caplog)
    assert all(line.startswith(f"run {first.run_id}: ") for line in lines_of(caplog))
    assert lake.target in begin
    assert "txn-0 [0, 1000), a new partition; txn-1 [0, 7), a new partition" in planned
    assert len(commits) == first.commits > 0
    assert "txn-1 [0, 7)" in " ".join(commits)
    assert f"{first.rows} rows, 0 rejected, 0 dropped as malformed" in end
    caplog.clear()
    second = lake.export(source())
    assert second.run_id != first.run_id
    assert "resumes at offset 1000" in lines_of(caplog)[1]


def test_commit_lines_name_the_versions_of_the_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake = Lake(tmp_path, "delta")
    caplog.set_level(logging.INFO, LOGGER)
    report = lake.export(source())
    lines = [line for line in lines_of(caplog) if ": committed " in line]
    assert DeltaTable(lake.target).version() == report.commits - 1 > 0
    for number, line in enumerate(lines):
        assert f": committed version {number}: " in line


def test_second_run_without_new_records_logs_no_commit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lake = Lake(tmp_path, "parquet")
    lake.export(source())
    caplog.set_level(logging.INFO, LOGGER)
    lake.export(source())
    assert not any(": committed " in line for line in lines_of(caplog))
    assert any(" ended: 0 rows" in line for line in lines_of(caplog))


def test_report_has_the_age_of_the_newest_record(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "parquet")
    lake.export(source())
    report = lake.export(source())  # nothing new
    newest = max(
        segment["max_timestamp_ms"]
        for partition in partition_summaries("txn").values()
        for segment in partition["remote_segments"]
    )
    assert report.newest_ms == newest
    assert report.ended_ms is not None
    assert report.freshness.startswith("the newest record of the tier is ")
    assert report.freshness in str(report)


@pytest.mark.parametrize(
    ("hours", "age"),
    [(0, "0.0 hours"), (48, "48.0 hours"), (60, "2.5 days"), (43_830, "5.0 years")],
)
def test_unit_of_the_age_of_the_newest_record_depends_on_the_age(hours: int, age: str) -> None:
    report = dataclasses.replace(
        empty_report("t", "parquet"), newest_ms=0, ended_ms=hours * 3_600_000
    )
    assert report.freshness == f"the newest record of the tier is {age} old"


def test_newest_record_in_the_future_is_reported_and_logged_as_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = LogBuilder()
    log.append([SimpleRecord(b"v", timestamp=int(time.time() * 1000) + 72 * 3_600_000)])
    writer = AivenTierWriter(tmp_path / "tier", topic="t")
    for segment in log.build().segments:
        writer.write_segment(segment)
    report = Lake(tmp_path, "parquet").export({"path": str(tmp_path / "tier"), "subscribe": "t"})
    ahead = "the newest record of the tier is dated 3.0 days in the future, so its age is unknown"
    assert report.freshness == ahead
    assert [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING] == [
        f"run {report.run_id}: {ahead}: a clock is wrong"
    ]


def test_record_less_than_an_hour_ahead_is_new() -> None:
    report = dataclasses.replace(empty_report("t", "parquet"), newest_ms=3_600_000, ended_ms=0)
    assert report.freshness == "the newest record of the tier is 0.0 hours old"
    assert not report.is_ahead


def test_idle_run_reports_the_newest_record_of_a_tier_with_many_segments(tmp_path: Path) -> None:
    tier = SmallTier(tmp_path / "tier").grow(12)
    lake = Lake(tmp_path, "parquet")
    first = lake.export(tier.options())
    idle = lake.export(tier.options())
    assert (idle.rows, idle.commits) == (0, 0)
    assert idle.newest_ms == first.newest_ms == T0 + 1000 * 119
    assert idle.figures()["newest_record_timestamp_seconds"] == (T0 + 1000 * 119) / 1000
    early = Lake(tmp_path / "early", "parquet").export(
        tier.options(endingOffsets=offset_option(20))
    )
    assert early.newest_ms == first.newest_ms, "the run reads only the first segments"


def test_idle_run_reports_the_newest_record_if_another_partition_is_damaged(
    tmp_path: Path,
) -> None:
    root = tmp_path / "tier"
    damaged = SmallTier(root).grow(3)
    healthy = SmallTier(root, partition=1, topic_id=damaged.topic_id).grow(12)
    lake = Lake(tmp_path, "parquet")
    options = healthy.options(failOnDataLoss="false")
    first = lake.export(options)
    (manifest,) = (key for key in damaged.keys[1] if key.endswith(".rsm-manifest"))
    (root / manifest).unlink()
    idle = lake.export(options)
    assert idle.rows == 0
    assert idle.newest_ms == first.newest_ms == T0 + 1000 * 119


def test_unknown_time_of_the_newest_record_causes_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = SmallTier(tmp_path / "tier").grow(1)
    (manifest,) = (tmp_path / "tier").rglob("*.rsm-manifest")
    text = manifest.read_text()
    assert f'"maxTimestampMs":{T0 + 9000}' in text
    manifest.write_text(text.replace(f'"maxTimestampMs":{T0 + 9000}', '"maxTimestampMs":-1'))
    report = Lake(tmp_path, "parquet").export(tier.options())
    assert report.newest_ms is None
    assert "newest_record_timestamp_seconds" not in report.figures()
    (line,) = [line for line in lines_of(caplog) if "no time of the newest record" in line]
    assert line.startswith(f"run {report.run_id}: ")


def test_sum_of_reports_keeps_the_last_known_time_of_the_newest_record() -> None:
    known = dataclasses.replace(empty_report("t", "parquet"), newest_ms=5)
    unknown = empty_report("t", "parquet")
    assert add_reports(known, unknown).newest_ms == 5
    assert add_reports(unknown, known).newest_ms == 5


@pytest.mark.parametrize("table_format", FORMATS)
def test_report_says_whether_the_run_created_the_table(tmp_path: Path, table_format: str) -> None:
    lake = Lake(tmp_path, table_format)
    first = lake.export(source(endingOffsets='{"txn": {"0": 1000, "1": 7}}'))
    second = lake.export(source())
    assert (first.created, second.created) == (True, False)
    assert "created the table" in str(first)
    assert second.rows > 0
    assert "created the table" not in str(second)
    assert add_reports(first, second).created


def test_report_has_seconds_of_each_stage(tmp_path: Path) -> None:
    report = Lake(tmp_path, "parquet").export(source())
    for stage in ("planning", "fetching", "compiling", "decoding", "writing", "committing"):
        assert report.seconds[stage] >= 0
    assert report.seconds["decoding"] > 0


def test_metrics_contain_run_time_and_host(tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    report = Lake(tmp_path, "parquet").export(source(metricsPath=str(folder)))
    lines = [json.loads(file.read_text()) for file in folder.rglob("*.jsonl")]
    assert {line["run_id"] for line in lines} == {report.run_id}
    assert all(line["host"] for line in lines)
    days = {line["ended"][:10] for line in lines}
    assert {file.parent.name for file in folder.rglob("*.jsonl")} == days
    assert {task.run_id for task in metrics.summary(str(folder)).tasks} == {report.run_id}


def test_summary_of_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="the folder does not exist"):
        metrics.summary(str(tmp_path / "missing"))


def test_offsets_after_an_open_transaction_cause_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    report = Lake(tmp_path, "parquet").export(source())
    (gap,) = report.skipped
    (line,) = [line for line in lines_of(caplog) if "left for a later run" in line]
    assert line.endswith(str(gap))
    assert not [r for r in caplog.records if r.name == LOGGER and r.levelno >= logging.WARNING]


@pytest.fixture
def stderr_of(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Returns a function that runs a command in this process, and returns what it and its worker
    processes write to standard error.
    """

    def run(*arguments: str) -> str:
        assert main(list(arguments)) == 0
        return capfd.readouterr().err

    return run


@pytest.mark.parametrize("workers", ["1", "2"])
def test_verbose_export_command_prints_log_lines_with_time_and_level(
    workers: str, tmp_path: Path, stderr_of: Callable[..., str]
) -> None:
    path = write(tmp_path / "tier", [[b'{"id": 1}', b"no JSON"], [b'{"id": 2}']])["path"]
    arguments = ["export", path, TOPIC, "--workers", workers, "--json"]
    arguments += ["-o", "value.format=json", "-o", "value.schema=id bigint"]
    arguments += ["-o", "value.mode=DROPMALFORMED", "-o", "maxSegmentsPerTask=1"]
    quiet = stderr_of(*arguments, str(tmp_path / "quiet"))
    assert "INFO" not in quiet
    assert re.search("^1 rows cannot be decoded and are skipped", quiet, re.MULTILINE)
    verbose = stderr_of(*arguments, str(tmp_path / "verbose"), "--verbose")
    time = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    for line in ("offsets to write", "committed", "ended: 2 rows"):
        pattern = rf"{time} INFO kts_source\.export\.run: run [0-9a-f]{{32}}: .*{line}"
        assert re.search(pattern, verbose, re.MULTILINE)
    pattern = rf"{time} WARNING kts_source\.read\.typed_rows: 1 rows cannot be decoded"
    assert re.search(pattern, verbose, re.MULTILINE)


def test_verbose_command_that_fails_prints_a_line_with_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--verbose"]):
        assert main(["topics", str(tmp_path / "missing"), "--key-prefix", "x/", *more]) == 1
        *lines, last = capsys.readouterr().err.splitlines()
        assert last.startswith("kts: the folder does not exist")
        dated = r"\d{4}-\d\d-\d\d .* ERROR .*: the command failed: StoreNotFoundError"
        assert [bool(re.fullmatch(dated, line)) for line in lines] == [True] * len(more)


def test_verbose_cat_command_prints_log_lines(
    tmp_path: Path, stderr_of: Callable[..., str]
) -> None:
    path = write(tmp_path / "tier", [[b"1", b"2"]])["path"]
    assert stderr_of("cat", path, TOPIC) == ""
    assert " INFO kts_source.read.read_task: " in stderr_of("cat", path, TOPIC, "--verbose")
