"""Runs the two parts of the soak that kill streaming queries: over a fixed tier, and on a changing
cluster.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[1]
KILLS_OF_A_RUN = 3


@dataclass(slots=True)
class Killed:
    """Result of the queries.

    Attributes:
        kills: Number of kills.
        kinds: Kinds of runs and of kills, as text.
        failures: Output of failed tests.
    """

    kills: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def soak_streams(total: int, seed: int) -> Killed:
    """Runs `tests/spark/test_stream_kills.py` with at least `total` kills."""
    runs = -(-total // KILLS_OF_A_RUN)
    done = _run_test(
        "kills",
        "tests/spark/test_stream_kills.py::test_query_killed_at_random_times_writes_each_row_once",
        {"KTS_STREAM_RUNS": str(runs), "KTS_STREAM_SEED": str(seed)},
    )
    result = Killed()
    runs_found = re.findall(r"run \d+: (.+, .+, .+), \w+: (.*)$", done.stdout, re.M)
    for case, kills in runs_found:
        result.kinds[f"run: {case}"] += 1
        for kill in kills.split("; "):
            event = kill.partition(" after ")[0]
            result.kinds[f"killed: {event}"] += 1
            result.kills += event != "it had ended"
    if done.returncode or len(runs_found) < runs:
        result.failures.append(_said(done))
    return result


@dataclass(slots=True)
class Followed:
    """Result of the streams of a changing cluster.

    Attributes:
        seconds: Time in which producers wrote.
        rows: Number of compared rows.
        counts: Events, as text.
        failures: Output of the failed test.
    """

    seconds: int = 0
    rows: int = 0
    counts: list[tuple[str, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def soak_live(seconds: int, seed: int) -> Followed:
    """Runs `tests/integration/test_stream_live.py`, which writes for this many seconds."""
    done = _run_test(
        "integration",
        "tests/integration/test_stream_live.py",
        {"KTS_LIVE_SECONDS": str(seconds), "KTS_LIVE_SEED": str(seed)},
    )
    result = Followed()
    match = re.search(r"^(\d+) seconds, (\d+) rows\n((?: *[\d,]+ .+\n)*)", done.stdout, re.M)
    if match is not None:
        result.seconds, result.rows = int(match[1]), int(match[2])
        count_lines = (line.strip().partition(" ") for line in match[3].splitlines())
        result.counts = [(word, count) for count, _, word in count_lines]
    if done.returncode or match is None:
        result.failures.append(_said(done))
    return result


def live_report(result: Followed) -> tuple[dict[str, int], list[str]]:
    """Returns the figures and the text lines of the report about streams of a live cluster."""
    facts = {"tried": result.seconds, "rows": result.rows, "failed": len(result.failures)}
    lines = ["| what | how often |", "|---|---|"]
    return facts, lines + [f"| {event} | {count} |" for event, count in result.counts]


def _run_test(
    marker: str, test: str, settings: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Creates the Python environments for every Spark version, runs a test with `settings` as
    additional environment variables, and returns the ended process.
    """
    for release in ("40", "41", "42"):
        subprocess.run([ROOT / ".ci" / "spark_env", release], check=True)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "--show-capture=no", "-m", marker, test]
    return subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return f"exit code {done.returncode}\n{done.stdout[-200_000:]}\n{done.stderr[-6000:]}"


def streams_report(result: Killed) -> tuple[dict[str, int], list[str]]:
    """Returns the figures and the text lines of the report about streams."""
    facts = {"tried": result.kills, "failed": len(result.failures)}
    lines = ["| what | how often |", "|---|---|"]
    return facts, lines + [
        f"| {event} | {count} |" for event, count in sorted(result.kinds.items())
    ]
