"""The parts of the soak that kill streaming queries, beside a live cluster too."""

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
    """How the queries went.

    Attributes:
        kills: How many.
        kinds: Of runs and of kills, in words.
        failures: What the tests said that failed.
    """

    kills: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def soak_streams(total: int, seed: int) -> Killed:
    """Runs of `tests/spark/test_stream_kills.py`, until as many kills as are wanted."""
    runs = -(-total // KILLS_OF_A_RUN)
    done = _tested(
        "kills",
        "tests/spark/test_stream_kills.py::test_query_killed_at_random_times_writes_each_row_once",
        {"KTS_STREAM_RUNS": str(runs), "KTS_STREAM_SEED": str(seed)},
    )
    result = Killed()
    found = re.findall(r"run \d+: (.+, .+, .+), \w+: (.*)$", done.stdout, re.M)
    for case, kills in found:
        result.kinds[f"run: {case}"] += 1
        for one in kills.split("; "):
            what = one.partition(" after ")[0]
            result.kinds[f"killed: {what}"] += 1
            result.kills += what != "it had ended"
    if done.returncode or len(found) < runs:
        result.failures.append(_said(done))
    return result


@dataclass(slots=True)
class Followed:
    """How streams of a live cluster went.

    Attributes:
        seconds: How long it was written.
        rows: Compared.
        counts: Of what happened, in words.
        failures: What the test said that failed.
    """

    seconds: int = 0
    rows: int = 0
    counts: list[tuple[str, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def soak_live(seconds: int, seed: int) -> Followed:
    """`tests/integration/test_stream_live.py` for so long."""
    done = _tested(
        "integration",
        "tests/integration/test_stream_live.py",
        {"KTS_LIVE_SECONDS": str(seconds), "KTS_LIVE_SEED": str(seed)},
    )
    result = Followed()
    told = re.search(r"^(\d+) seconds, (\d+) rows\n((?: *[\d,]+ .+\n)*)", done.stdout, re.M)
    if told is not None:
        result.seconds, result.rows = int(told[1]), int(told[2])
        found = (line.strip().partition(" ") for line in told[3].splitlines())
        result.counts = [(word, count) for count, _, word in found]
    if done.returncode or told is None:
        result.failures.append(_said(done))
    return result


def live_report(found: Followed) -> tuple[dict[str, int], list[str]]:
    """What to say of streams of a live cluster."""
    facts = {"tried": found.seconds, "rows": found.rows, "failed": len(found.failures)}
    lines = ["| what | how often |", "|---|---|"]
    return facts, lines + [f"| {what} | {count} |" for what, count in found.counts]


def _tested(marker: str, test: str, wanted: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A run of a test with these settings in its environment, beside every Spark."""
    for release in ("40", "41", "42"):
        subprocess.run([ROOT / ".ci" / "spark_env", release], check=True)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "--show-capture=no", "-m", marker, test]
    return subprocess.run(
        command, env={**os.environ, **wanted}, capture_output=True, text=True, check=False
    )


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return f"exit code {done.returncode}\n{done.stdout[-200_000:]}\n{done.stderr[-6000:]}"


def streams_report(found: Killed) -> tuple[dict[str, int], list[str]]:
    """What to say of streams."""
    facts = {"tried": found.kills, "failed": len(found.failures)}
    lines = ["| what | how often |", "|---|---|"]
    return facts, lines + [f"| {what} | {count} |" for what, count in sorted(found.kinds.items())]
