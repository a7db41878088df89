"""Tests two simultaneous attempts of a task. Spark starts them with speculative execution on a
cluster of two hosts.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from kts_source.export.run import clean
from tests.kts_source.export.exporting import FORMATS, Lake, assert_holds, source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = [pytest.mark.kills, pytest.mark.timeout(280)]

ROOT = Path(__file__).resolve().parents[3]
SPARK_HOME = Path(pyspark.__file__).parent
# Spark starts a second attempt only on another host, and compares hosts by name.
HOSTS = ("127.0.0.1", "127.0.0.2")
DEPLOY = "org.apache.spark.deploy"


@contextmanager
def cluster(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Starts a Spark master, and one worker for each of `HOSTS`. Yields the URL of the master."""
    with socket.socket() as probe:
        probe.bind((HOSTS[0], 0))
        port = probe.getsockname()[1]
    master = f"spark://{HOSTS[0]}:{port}"
    commands = [
        [f"{DEPLOY}.master.Master", "--host", HOSTS[0], "--port", str(port), "--webui-port", "0"],
        *(
            [
                *(f"{DEPLOY}.worker.Worker", "--host", host, "--webui-port", "0", "--cores", "2"),
                *("--memory", "1g", "--work-dir", str(folder / f"work-{host}"), master),
            ]
            for host in HOSTS
        ),
    ]
    with ExitStack() as running:
        log = running.enter_context((folder / "cluster.log").open("wb"))
        for command in commands:
            process = subprocess.Popen(
                [SPARK_HOME / "bin" / "spark-class", *command],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            running.callback(process.wait, 30)
            running.callback(process.terminate)
        yield master


def test_only_one_of_two_attempts_is_committed(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    with (
        cluster(tmp_path, environment) as master,
        (tmp_path / "driver.log").open("wb") as log,
    ):
        module = "tests.kts_source.export.speculation_child"
        code = subprocess.run(
            [sys.executable, "-m", module, master, tmp_path],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=ROOT,
            timeout=240,
            check=False,
        ).returncode
    logs = "".join(path.read_text(errors="replace")[-2000:] for path in tmp_path.glob("*.log"))
    assert code == 0, logs
    for table_format in FORMATS:
        met = {path.name for path in (tmp_path / f"{table_format}-met").iterdir()}
        assert len(met - {"first"}) >= 2, "there was no second attempt"
        assert "slept" not in met, "the first attempt ended"
        lake = Lake(tmp_path / table_format, table_format)
        assert_holds(lake.read(), ["txn"])
        assert lake.export(source()).rows == 0
        clean(lake.settings(), older_than_hours=-1, remove=True)
        assert_holds(lake.read(), ["txn"])
