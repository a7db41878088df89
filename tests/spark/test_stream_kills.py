"""kill −9 of a streaming query: each row once in its sink, when it has run to its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.golden_data import (
    SPARK_SCHEMA,
    IsolationLevel,
    assert_same_rows,
    expected_table,
    tier_options,
)
from tests.integration.spark_kafka import spark_python

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.kills, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
KILLS = ("offsets/0", "sink/_spark_metadata/0", "offsets/2", "commits/3")
"""The file that appears last before the query is killed, for each of its runs."""


def processes(parent: int) -> Iterator[int]:
    """A process and all below it: the driver, its JVM, and the Python processes of both."""
    yield parent
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from processes(int(child))


def kill(driver: subprocess.Popen[str]) -> None:
    for process in list(processes(driver.pid)):
        with contextlib.suppress(ProcessLookupError):  # it followed its parent
            os.kill(process, signal.SIGKILL)
    driver.communicate(timeout=30)


def begin(python: Path, folder: Path, options: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(str(python), "-m", "tests.spark.stream_child"),
            *(str(folder), str(folder / "sink"), json.dumps(options)),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def written(folder: Path) -> pa.Table:
    """The rows of the files that the sink has committed."""
    files = set()
    for log in (folder / "sink" / "_spark_metadata").iterdir():
        if not log.name.startswith("."):
            lines = log.read_text().splitlines()[1:]
            files |= {json.loads(line)["path"].removeprefix("file://") for line in lines}
    tables = [pq.read_table(file) for file in sorted(files)]
    return pa.concat_tables([one.select(SPARK_SCHEMA.names).cast(SPARK_SCHEMA) for one in tables])


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for children in /proc")
@pytest.mark.parametrize(
    ("spark", "isolation_level"), [("newest", "read_committed"), ("oldest", "read_uncommitted")]
)
def test_each_row_once(tmp_path: Path, spark: str, isolation_level: IsolationLevel) -> None:
    python = Path(sys.executable) if spark == "newest" else spark_python()
    options = tier_options(
        "txn", isolationLevel=isolation_level, includeHeaders="true", maxSegmentsPerTrigger="3"
    )
    for name in KILLS:
        driver = begin(python, tmp_path, options)
        deadline = time.monotonic() + 120
        while not (tmp_path / name).exists():
            assert time.monotonic() < deadline
            assert driver.poll() is None, name
            time.sleep(0.005)
        kill(driver)
    driver = begin(python, tmp_path, options)
    assert driver.communicate(timeout=240)[0] == "done\n"
    assert_same_rows(written(tmp_path), expected_table("txn", isolation_level))
