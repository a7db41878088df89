"""Tests that an export through Spark Connect, which has no SparkContext, writes the same rows."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden_data import expected_table
from tests.kts_source.export.exporting import Lake, assert_holds

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("spark"),
    pytest.mark.skipif(
        importlib.util.find_spec("grpc") is None, reason="pyspark[connect] is not installed"
    ),
]


def test_backfill_through_spark_connect_exports_each_row_once(tmp_path: Path) -> None:
    lake = Lake(tmp_path, "delta")
    done = subprocess.run(
        [sys.executable, "-m", "tests.kts_source.export.connect_child", tmp_path, "delta"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=380,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = expected_table("txn", "read_committed").num_rows
    session = "pyspark.sql.connect.session"
    assert done.stdout.splitlines() == [f"{session} {rows}", f"{session} 0"]
    assert_holds(lake.read(), ["txn"])
