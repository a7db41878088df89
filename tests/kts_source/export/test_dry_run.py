"""Tests `dry_run`: the planned figures, the sample, and that nothing is written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kts_source.cli.app import main
from kts_source.errors import ExportError, InvalidOptionError
from tests.golden_data import TIER, expected_table
from tests.kts_source.export.exporting import FORMATS, Lake, source

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("table_format", FORMATS)
def test_dry_run_reports_the_ranges_of_the_next_run_and_writes_nothing(
    tmp_path: Path, table_format: str
) -> None:
    lake = Lake(tmp_path, table_format)
    lake.export(source(endingOffsets='{"txn": {"0": 1000, "1": 7}}'))
    before = lake.read().num_rows
    options = source(metricsPath=str(tmp_path / "metrics"))
    planned = lake.export(options, dry_run=True)
    assert planned.dry_run
    assert planned.rows == planned.files == 0
    assert lake.read().num_rows == before
    assert not (tmp_path / "metrics").exists()
    written = lake.export(source())
    assert (planned.ranges, planned.commits) == (written.ranges, written.commits)
    assert planned.skipped == written.skipped
    assert planned.segment_bytes == written.segment_bytes


def test_dry_run_does_not_create_the_table(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    assert lake.export(source(), dry_run=True).commits > 0
    assert not (tmp_path / "table").exists()


def test_dry_run_counts_rejected_records_of_a_sample(tmp_path: Path) -> None:
    options = source("codecs", **{"value.format": "json", "value.schema": "id bigint"})
    report = Lake(tmp_path, "parquet").export(options, dry_run=True)
    rows = expected_table("codecs", "read_committed").num_rows
    assert 0 < report.rejected <= report.rows_read <= rows
    assert "sampled records would be rejected, first reason: " in str(report)
    assert "Dry run of " in str(report)


def test_dry_run_raises_the_errors_of_the_run(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    lake.export(source())
    with pytest.raises(ExportError):
        lake.export(source(columns="value,partition,offset"), dry_run=True)
    with pytest.raises(InvalidOptionError, match="cannot be combined"):
        lake.settings(dry_run=True, follow=True)


def test_kts_export_dry_run_prints_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "table"
    arguments = ["export", str(TIER), "txn", str(target), "--key-prefix", "tiered/", "--dry-run"]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dryRun"] is True
    assert not target.exists()


def test_kts_export_dry_run_keeps_the_metrics_of_the_last_run(tmp_path: Path) -> None:
    metrics = tmp_path / "export.prom"
    metrics.write_text("kts_export_success 0\n")
    arguments = ["export", str(TIER), "txn", str(tmp_path / "table"), "--key-prefix", "tiered/"]
    assert main([*arguments, "--dry-run", "--prometheus", str(metrics)]) == 0
    assert metrics.read_text() == "kts_export_success 0\n"
