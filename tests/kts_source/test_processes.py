"""Tests worker processes of a script with and without a main guard."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
from kts_source.processes import in_processes

{guard}
    print(sorted(in_processes(abs, [-1, -2, -3], 2)))
"""

LOG_SCRIPT = """
import logging
from kts_source.processes import in_processes

log = logging.getLogger("kts_source")

def warn(number):
    log.warning("task %d", number)
    return number

if __name__ == "__main__":
    class Unknown(logging.Formatter):
        pass

    handler = logging.StreamHandler()
    handler.setFormatter(Unknown("%(message)s"))
    log.addHandler(handler)
    print(list(in_processes(warn, [1], 1)))
"""


def run_script(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "script.py"
    path.write_text(script)
    return subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=120, check=False
    )


def test_script_with_main_guard_runs_its_tasks_in_processes(tmp_path: Path) -> None:
    result = run_script(tmp_path, SCRIPT.format(guard='if __name__ == "__main__":'))
    assert (result.returncode, result.stdout) == (0, "[1, 2, 3]\n"), result.stderr


def test_script_without_main_guard_raises_worker_start_error(tmp_path: Path) -> None:
    result = run_script(tmp_path, SCRIPT.format(guard="if True:"))
    assert result.returncode == 1
    assert "WorkerStartError: no worker process could start" in result.stderr
    assert 'if __name__ == "__main__":' in result.stderr


def test_worker_without_the_class_of_the_formatter_runs_its_task_and_logs(tmp_path: Path) -> None:
    result = run_script(tmp_path, LOG_SCRIPT)
    assert (result.returncode, result.stdout) == (0, "[1]\n"), result.stderr
    assert result.stderr == "task 1\n"


KILLED_SCRIPT = """
import os, signal
from multiprocessing import parent_process
from kts_source.errors import TieredKafkaError
from kts_source.processes import in_processes

def kill(task):
    os.kill(os.getpid(), signal.SIGKILL)

if {at_start} and parent_process() is not None:
    kill(0)

if __name__ == "__main__":
    try:
        list(in_processes(kill, [1, 2], 2))
    except TieredKafkaError as error:
        print(type(error).__name__, error.retriable, error)
"""


@pytest.mark.parametrize("at_start", [False, True])
def test_killed_worker_raises_retriable_worker_died_error(tmp_path: Path, at_start: bool) -> None:
    result = run_script(tmp_path, KILLED_SCRIPT.format(at_start=at_start))
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("WorkerDiedError True a worker process was killed (SIGKILL),")
    assert "use fewer workers" in result.stdout
