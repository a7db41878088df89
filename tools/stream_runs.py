"""The part of the soak that kills streaming queries."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KILLS_OF_A_RUN = 5


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
    for release in ("40", "41", "42"):
        subprocess.run([ROOT / ".ci" / "spark_env", release], check=True)
    runs = -(-total // KILLS_OF_A_RUN)
    wanted = {"KTS_STREAM_RUNS": str(runs), "KTS_STREAM_SEED": str(seed)}
    command = [sys.executable, "-m", "pytest", "-q", "-s", "--show-capture=no", "-m", "kills"]
    command += ["tests/spark/test_stream_kills.py", "-k", "anywhere"]
    done = subprocess.run(
        command, env={**os.environ, **wanted}, capture_output=True, text=True, check=False
    )
    result = Killed()
    found = re.findall(r"run \d+: (.+?), .+?, (\w+), (\w+): (.*)$", done.stdout, re.M)
    for spark, level, sink, kills in found:
        result.kinds[f"run: {spark}, {level}, {sink}"] += 1
        for one in kills.split("; "):
            result.kinds[f"killed: {one.partition(' after ')[0]}"] += 1
            result.kills += one != "it had ended"
    if done.returncode or len(found) < runs:
        text = f"exit code {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        result.failures.append(text)
    return result


def streams_report(found: Killed) -> tuple[dict[str, int], list[str]]:
    """What to say of streams."""
    facts = {"tried": found.kills, "failed": len(found.failures)}
    lines = ["| what | how often |", "|---|---|"]
    return facts, lines + [f"| {what} | {count} |" for what, count in sorted(found.kinds.items())]
