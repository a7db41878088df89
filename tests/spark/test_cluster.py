"""Reads on a Spark cluster, where planner, driver and tasks run in different processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from tests.golden_data import SPARK_SCHEMA, assert_same_rows, expected_table, tier_options

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("cluster_side.py")
# The topics have transactions, encryption with a key that the driver reads, and many tasks.
READS = {
    "txn": {"includeHeaders": "true"},
    "encrypted": {"includeHeaders": "true"},
    "codecs": {"includeHeaders": "true", "minPartitions": "8"},
}


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_scan_on_spark_cluster_returns_expected_rows(tmp_path: Path) -> None:
    reads = {topic: {**tier_options(topic), **more} for topic, more in READS.items()}
    environment = {
        **os.environ,
        # Workers of a local cluster start executors from this folder.
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    (tmp_path / "out").mkdir()
    with (tmp_path / "spark.log").open("wb") as output:
        run = subprocess.run(
            [sys.executable, SCRIPT, str(tmp_path / "out"), json.dumps(reads)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=tmp_path,
            timeout=250,
            check=False,
        )
    assert run.returncode == 0, (tmp_path / "spark.log").read_text(errors="replace")[-4000:]
    assert json.loads((tmp_path / "out" / "executors.json").read_text()) == 2
    for topic in READS:
        table = pq.read_table(tmp_path / "out" / topic).cast(SPARK_SCHEMA)
        assert_same_rows(table, expected_table(topic, "read_committed"))
