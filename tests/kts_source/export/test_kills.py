"""Kills exports with SIGKILL at random points. Readers must see each row at most once, and all rows
after a second run.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
from tests.quick import examples, examples_source

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

pytestmark = [pytest.mark.kills, pytest.mark.timeout(1500)]

POINTS = examples(48)
RUNS = examples(16)

# Children are forked from a fork server that has only imported modules, so it has no running
# library threads and no open clients.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.kts_source.export.warm"])


@dataclass(frozen=True)
class Case:
    """Options of the exports, and the topics that they read."""

    topics: tuple[str, ...]
    options: dict[str, str] = field(default_factory=dict[str, str])
    topic_options: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])

    def arguments(self) -> dict[str, Any]:
        return {
            "options": source(self.topics, **self.options),
            "topic_options": self.topic_options,
        }

    def check(self, lake: Lake) -> None:
        """Asserts that the table has each row of the topics once, with the decoded value."""
        table = lake.read()
        if self.topic_options:
            for row in table.select(["topic", "value", "valueRaw"]).to_pylist():
                assert row["value"] == self._decoded(row["topic"], row["valueRaw"])
            names = [name for name in table.column_names if name != "value"]
            plain = [{"valueRaw": "value"}.get(name, name) for name in names]
            table = table.select(names).rename_columns(plain)
        assert_holds(table, self.topics)

    def _decoded(self, topic: str, value: bytes | None) -> dict[str, Any] | None:
        try:
            document = json.loads(value or b"")
        except ValueError:
            return None
        known = [part.split()[0] for part in self.topic_options[topic]["value.schema"].split(",")]
        return {name: document[name] if name in known else None for name in ("t", "id", "n")}


BYTES = Case(("txn",))
BY_TOPIC = Case(
    ("txn", "retained"),
    {
        "value.mode": "PERMISSIVE",
        "columns": "topic,partition,offset,timestamp,timestampType,key,headers,value,valueRaw",
    },
    {
        "txn": {"value.format": "json", "value.schema": "t string, n bigint"},
        "retained": {"value.format": "json", "value.schema": "id bigint, t string"},
    },
)
CASES = pytest.mark.parametrize("case", [BYTES, BY_TOPIC], ids=["bytes", "formats by topic"])


def run(lake: Lake, case: Case, fatal: int | None, after: bool, ready: Connection) -> None:
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
        lake.export(**case.arguments(), table=table)
    else:
        lake.export(**case.arguments())
    ready.send(len(steps.names))


class Child:
    """An export that runs in a child process. The constructor returns when the child is ready."""

    def __init__(
        self, lake: Lake, case: Case, fatal: int | None = None, *, after: bool = False
    ) -> None:
        self._receiver, sender = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=run, args=(lake, case, fatal, after, sender))
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


def check(lake: Lake, case: Case) -> None:
    """Asserts that no row is in the table twice, and that another run completes the table."""
    assert_at_most_once(lake)
    lake.export(**case.arguments())
    case.check(lake)
    assert lake.export(**case.arguments()).rows == 0


@CASES
def test_folder_export_killed_at_random_steps_writes_each_row_once_after_resume(
    tmp_path: Path, case: Case
) -> None:
    chosen = examples_source("killed at steps")
    count = Child(Lake(tmp_path / "count", "parquet"), case).steps()
    assert count > 10
    for number in range(POINTS):
        lake = Lake(tmp_path / f"{number}", "parquet")
        fatal, after = chosen.randrange(count), chosen.random() < 0.5
        code = Child(lake, case, fatal, after=after).end()
        assert code == -signal.SIGKILL
        check(lake, case)


@CASES
@pytest.mark.parametrize("table_format", FORMATS)
def test_run_killed_at_random_times_writes_each_row_once_after_resume(
    tmp_path: Path, table_format: str, case: Case
) -> None:
    chosen = examples_source(f"killed at times {table_format}")
    seconds = 0.0
    for name in ("warm", "timed"):  # the first run also fills the machine's caches
        lake = Lake(tmp_path / name, table_format)
        lake.folder.mkdir()
        child = Child(lake, case)
        child.steps()
        seconds = time.monotonic() - child.started
    killed = 0
    for number in range(RUNS):
        lake = Lake(tmp_path / f"{number}", table_format)
        lake.folder.mkdir()
        child = Child(lake, case)
        time.sleep(chosen.random() * seconds)
        child.process.kill()
        killed += child.end() == -signal.SIGKILL
        check(lake, case)
    assert killed >= RUNS // 4
