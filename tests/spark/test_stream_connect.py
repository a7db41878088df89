"""Runs a stream in Spark Connect; the package is installed on the server."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kts_source.streaming import end_offsets
from tests.golden_data import SPARK_SCHEMA, assert_same_rows, expected_table, tier_options

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        importlib.util.find_spec("grpc") is None, reason="pyspark[connect] is not installed"
    ),
]


def test_stream_in_spark_connect_writes_expected_rows(tmp_path: Path) -> None:
    options = tier_options("txn", maxSegmentsPerTrigger="8", includeHeaders="true")
    child = [sys.executable, "-m", "tests.spark.stream_connect_child"]
    done = subprocess.run(
        [*child, tmp_path, json.dumps(options)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=380,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    expected = expected_table("txn", "read_committed")
    session = "pyspark.sql.connect.session"
    assert done.stdout.splitlines() == [f"{session} {expected.num_rows}"] * 2
    files = sorted(str(path) for path in (tmp_path / "sink").glob("*.parquet"))
    rows = pq.ParquetDataset(files).read().select(SPARK_SCHEMA.names).cast(SPARK_SCHEMA)
    assert_same_rows(rows, expected)
    assert set(json.loads(end_offsets(str(tmp_path / "checkpoint")))["txn"]) == {"0", "1"}
