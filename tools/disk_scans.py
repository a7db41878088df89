"""Runs the part of the soak that scans disks after a crash."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Crashed:
    """Result of the scans of disks.

    Attributes:
        copies: Number of scanned copies of a disk.
        rows: Number of compared rows, at both isolation levels together.
        spoiled: Number of damaged files, by kind of file and damage.
        failures: Output of failed tests.
    """

    copies: int = 0
    rows: int = 0
    spoiled: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def soak_disks(total: int, seed: int) -> Crashed:
    """Runs `tests/integration/test_disks.py` with `total` copies of disks."""
    settings = {"KTS_DISK_COPIES": str(total), "KTS_DISK_SEED": str(seed)}
    command = [sys.executable, "-m", "pytest", "-q", "-s", "--show-capture=no", "-m", "integration"]
    command.append("tests/integration/test_disks.py")
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    result = Crashed()
    for rows, spoiled in re.findall(r"copy \d+: (\d+) rows; (.*)$", done.stdout, re.M):
        result.copies += 1
        result.rows += int(rows)
        for entry in filter(None, spoiled.split(", ")):
            count, _, damage = entry.partition(" ")
            result.spoiled[damage] += int(count)
    if done.returncode or result.copies < total:
        text = f"exit code {done.returncode}\n{done.stdout[-200_000:]}\n{done.stderr[-6000:]}"
        result.failures.append(text)
    return result


def disks_report(result: Crashed) -> tuple[dict[str, int], list[str]]:
    """Returns the figures and the text lines of the report about disks after a crash."""
    facts = {"tried": result.copies, "rows": result.rows, "failed": len(result.failures)}
    lines = ["| files that were spoiled | how often |", "|---|---|"]
    return facts, lines + [
        f"| {damage} | {count:,} |" for damage, count in result.spoiled.most_common()
    ]
