"""Runs the part of the soak that scans a real cluster while topics, transactions and segments
change.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field


@dataclass(slots=True)
class Scanned:
    """Result of the scans of tier and brokers.

    Attributes:
        scans: Number of scans.
        rows: Rows compared.
        counts: Outcomes, and events during the scans.
        failures: Output of failed tests.
    """

    scans: int = 0
    rows: int = 0
    counts: list[tuple[str, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def soak_hybrid(total: int, seed: int) -> Scanned:
    """Runs `tests/integration/test_hybrid_soak.py` with `total` scans."""
    settings = {
        "KTS_HYBRID_SCANS": str(total),
        "KTS_HYBRID_SECONDS": str(24 * 3600),
        "KTS_HYBRID_SEED": str(seed),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-m", "integration"]
    command.append("tests/integration/test_hybrid_soak.py")
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    result = Scanned()
    match = re.search(r"^(\d+) scans, (\d+) rows, .+\n((?: *[\d,]+ .+\n)*)", done.stdout, re.M)
    if match is not None:
        result.scans, result.rows = int(match[1]), int(match[2])
        result.counts = [
            (word, count)
            for count, _, word in (line.strip().partition(" ") for line in match[3].splitlines())
        ]
    if done.returncode or match is None or result.scans < total:
        text = f"exit code {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        result.failures.append(text)
    return result


def hybrid_report(result: Scanned) -> tuple[dict[str, int], list[str]]:
    """Returns the figures and the text lines of the report about tier and brokers."""
    facts = {"tried": result.scans, "rows": result.rows, "failed": len(result.failures)}
    lines = ["| outcome, or what the scans met | how often |", "|---|---|"]
    return facts, lines + [f"| {word} | {count} |" for word, count in result.counts]
