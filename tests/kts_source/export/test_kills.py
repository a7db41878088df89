"""Kills exports with SIGKILL at random points. Readers must see each row at most once, and all rows
after a second run.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from kts_source.export.tables.target_store import open_target
from tests.kts_source.export.exporting import (
    FORMATS,
    Lake,
    assert_at_most_once,
    assert_holds,
    source,
)
from tests.kts_source.export.killing import Steps, killable_folder

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

pytestmark = [pytest.mark.kills, pytest.mark.timeout(1500)]

POINTS = 50
SEED = 20_240_229

# Children are forked from a fork server that has only imported modules, so it has no running
# library threads and no open clients.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.kts_source.export.warm"])


def run(lake: Lake, fatal: int | None, after: bool, ready: Connection) -> None:
    """Runs one export in a child process.

    Args:
        fatal: Index of the step of the commit protocol at which the process is killed, or `None`.
            Used only for Parquet folders.
        after: True to kill the process after this step, False to kill it before.
        ready: Receives the process id before the export, and the number of steps after it.
    """
    settings = lake.settings()
    steps = Steps(fatal, after=after, really=True)
    ready.send(os.getpid())
    if lake.table_format == "parquet":
        table = killable_folder(settings, open_target(settings.target, settings.storage), steps)
        lake.export(source(), table=table)
    else:
        lake.export(source())
    ready.send(len(steps.names))


class Child:
    """An export that runs in a child process. The constructor returns when the child is ready."""

    def __init__(self, lake: Lake, fatal: int | None = None, *, after: bool = False) -> None:
        self._receiver, sender = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=run, args=(lake, fatal, after, sender))
        self.process.start()
        sender.close()
        self._receiver.recv()
        self.started = time.monotonic()

    def steps(self) -> int:
        """Waits for the export to end. Returns how many steps of the commit protocol it ran."""
        count: int = self._receiver.recv()
        self.process.join()
        return count

    def end(self) -> int | None:
        """Waits until the process ends. Returns the exit code."""
        self.process.join()
        self._receiver.close()
        return self.process.exitcode


def check(lake: Lake) -> None:
    """Asserts that no row is in the table twice, and that another run completes the table."""
    assert_at_most_once(lake)
    lake.export(source())
    assert_holds(lake.read(), ["txn"])
    assert lake.export(source()).rows == 0


def test_folder_export_killed_at_random_steps_writes_each_row_once_after_resume(
    tmp_path: Path,
) -> None:
    chosen = random.Random(SEED)
    count = Child(Lake(tmp_path / "count", "parquet")).steps()
    assert count > 10
    for number in range(POINTS):
        lake = Lake(tmp_path / f"{number}", "parquet")
        fatal, after = chosen.randrange(count), chosen.random() < 0.5
        code = Child(lake, fatal, after=after).end()
        assert code == -signal.SIGKILL
        check(lake)


@pytest.mark.parametrize("table_format", FORMATS)
def test_run_killed_at_random_times_writes_each_row_once_after_resume(
    tmp_path: Path, table_format: str
) -> None:
    chosen = random.Random(SEED)
    seconds = 0.0
    for name in ("warm", "timed"):  # the first run also fills the machine's caches
        lake = Lake(tmp_path / name, table_format)
        lake.folder.mkdir()
        child = Child(lake)
        child.steps()
        seconds = time.monotonic() - child.started
    killed = 0
    for number in range(10):
        lake = Lake(tmp_path / f"{number}", table_format)
        lake.folder.mkdir()
        child = Child(lake)
        time.sleep(chosen.random() * seconds)
        child.process.kill()
        killed += child.end() == -signal.SIGKILL
        check(lake)
    assert killed > 3
