"""Reads on a Spark cluster, where planner, driver and tasks run in different processes."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pyspark
import pytest

from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from tests.golden_data import SPARK_SCHEMA, assert_same_rows, expected_table, tier_options
from tests.servers import free_ports, running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("cluster_side.py")
SPARK = Path(pyspark.__file__).parent
# The topics have transactions, and encryption with a key that the driver reads.
GOLDEN_TOPICS = ("txn", "encrypted")
PARTITIONS, SEGMENTS, RECORDS = 4, 16, 500
TASKS = PARTITIONS * SEGMENTS


def value_of(partition: int, offset: int) -> bytes:
    return f"{partition}/{offset}".encode() * 50


def write_numbers(folder: Path) -> dict[str, str]:
    """Writes the topic `numbers`, one task per segment. Returns the options that read it."""
    for partition in range(PARTITIONS):
        log = LogBuilder()
        writer = AivenTierWriter(
            folder, topic="numbers", topic_id="A" * 22, partition=partition, key_prefix="tiered/"
        )
        for first in range(0, SEGMENTS * RECORDS, RECORDS):
            offsets = range(first, first + RECORDS)
            log.append([SimpleRecord(value_of(partition, offset)) for offset in offsets])
            segment = log.roll()
            assert segment is not None
            writer.write_segment(segment)
    return {
        "path": folder.as_uri(),
        "keyPrefix": "tiered/",
        "subscribe": "numbers",
        "minPartitions": str(TASKS),
    }


@contextlib.contextmanager
def standalone_cluster(environment: Mapping[str, str]) -> Iterator[str]:
    """Runs a master and two workers of two cores. Yields the URL of the cluster."""
    master_port, *worker_ports = free_ports(3)
    url = f"spark://127.0.0.1:{master_port}"
    program: list[str | Path] = [
        SPARK / "bin" / "spark-class",
        "org.apache.spark.deploy.master.Master",
    ]
    with contextlib.ExitStack() as stack:
        address = ["--host", "127.0.0.1", "--port", str(master_port), "--webui-port", "0"]
        stack.enter_context(running([*program, *address], master_port, environment=environment))
        program[1] = "org.apache.spark.deploy.worker.Worker"
        for number, port in enumerate(worker_ports, 1):
            # Spark runs a speculative copy only on another host.
            host = f"127.0.0.{number}"
            address = ["--host", host, "--port", str(port), "--webui-port", "0"]
            size = ["--cores", "2", "--memory", "1g"]
            stack.enter_context(
                running([*program, *address, *size, url], port, environment=environment, host=host)
            )
        yield url


def assert_disturbed(tasks: Path) -> None:
    """Asserts that the first read had a killed executor, a speculative copy, and new executors."""
    assert (tasks / "copied").exists()
    assert not (tasks / "no copy").exists()
    killed = (tasks / "killed").read_text()
    executors: dict[str, set[str]] = {}
    for file in tasks.glob("*-*"):
        task, _, executor = file.name.partition("-")
        executors.setdefault(task, set()).add(executor)
    assert len(executors) == TASKS
    assert len(set().union(*executors.values())) >= 3
    # Completed tasks run again, too, because their shuffle files are lost.
    lost = [others for others in executors.values() if killed in others]
    assert len(lost) >= 2
    assert all(len(others) >= 2 for others in lost)


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_scan_on_disturbed_spark_cluster_returns_expected_rows(tmp_path: Path) -> None:
    reads = {"numbers": write_numbers(tmp_path / "tier")}
    reads |= {topic: tier_options(topic, includeHeaders="true") for topic in GOLDEN_TOPICS}
    environment = {
        **os.environ,
        # Workers start executors from this folder.
        "SPARK_HOME": str(SPARK),
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    output = tmp_path / "out"
    output.mkdir()
    with standalone_cluster(environment) as url, (tmp_path / "spark.log").open("wb") as log:
        run = subprocess.run(
            [sys.executable, SCRIPT, url, output, json.dumps(reads)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=tmp_path,
            timeout=250,
            check=False,
        )
    assert run.returncode == 0, (tmp_path / "spark.log").read_text(errors="replace")[-4000:]
    assert_disturbed(output / "tasks")
    names = ["partition", "offset", "value"]
    places = itertools.product(range(PARTITIONS), range(SEGMENTS * RECORDS))
    expected = [(*place, value_of(*place)) for place in places]
    numbers = pq.read_table(output / "numbers", columns=names)
    assert sorted(zip(*numbers.to_pydict().values(), strict=True)) == expected
    for topic in GOLDEN_TOPICS:
        table = pq.read_table(output / topic).cast(SPARK_SCHEMA)
        assert_same_rows(table, expected_table(topic, "read_committed"))
