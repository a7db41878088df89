"""The part of the soak that scans a real cluster while everything in it moves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field


@dataclass(slots=True)
class Scanned:
    """How the scans of tier and brokers went.

    Attributes:
        scans: How many.
        rows: Compared.
        counts: Of outcomes, and of what the scans met.
        failures: What the test said that failed.
    """

    scans: int = 0
    rows: int = 0
    counts: list[tuple[str, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def soak_hybrid(total: int, seed: int) -> Scanned:
    """Those of `tests/integration/test_hybrid_soak.py`, as many as are wanted."""
    wanted = {
        "KTS_HYBRID_SCANS": str(total),
        "KTS_HYBRID_SECONDS": str(24 * 3600),
        "KTS_HYBRID_SEED": str(seed),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-m", "integration"]
    command.append("tests/integration/test_hybrid_soak.py")
    done = subprocess.run(
        command, env={**os.environ, **wanted}, capture_output=True, text=True, check=False
    )
    result = Scanned()
    told = re.search(r"^(\d+) scans, (\d+) rows, .+\n((?: *[\d,]+ .+\n)*)", done.stdout, re.M)
    if told is not None:
        result.scans, result.rows = int(told[1]), int(told[2])
        result.counts = [
            (word, count)
            for count, _, word in (line.strip().partition(" ") for line in told[3].splitlines())
        ]
    if done.returncode or told is None or result.scans < total:
        text = f"exit code {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        result.failures.append(text)
    return result


def hybrid_report(found: Scanned) -> tuple[dict[str, int], list[str]]:
    """What to say of scans of tier and brokers."""
    facts = {"tried": found.scans, "rows": found.rows, "failed": len(found.failures)}
    lines = ["| outcome, or what the scans met | how often |", "|---|---|"]
    return facts, lines + [f"| {word} | {count} |" for word, count in found.counts]
