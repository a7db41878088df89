"""The part of the soak that scans disks after a crash."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Crashed:
    """How the scans of disks went.

    Attributes:
        copies: How many.
        rows: Compared, at both levels together.
        spoiled: How many files of a kind were spoiled how.
        failures: What the tests said that failed.
    """

    copies: int = 0
    rows: int = 0
    spoiled: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def soak_disks(total: int, seed: int) -> Crashed:
    """As many copies of `tests/integration/test_disks.py` as are wanted."""
    wanted = {"KTS_DISK_COPIES": str(total), "KTS_DISK_SEED": str(seed)}
    command = [sys.executable, "-m", "pytest", "-q", "-s", "--show-capture=no", "-m", "integration"]
    command.append("tests/integration/test_disks.py")
    done = subprocess.run(
        command, env={**os.environ, **wanted}, capture_output=True, text=True, check=False
    )
    result = Crashed()
    for rows, spoiled in re.findall(r"copy \d+: (\d+) rows; (.*)$", done.stdout, re.M):
        result.copies += 1
        result.rows += int(rows)
        for entry in filter(None, spoiled.split(", ")):
            count, _, what = entry.partition(" ")
            result.spoiled[what] += int(count)
    if done.returncode or result.copies < total:
        text = f"exit code {done.returncode}\n{done.stdout[-200_000:]}\n{done.stderr[-6000:]}"
        result.failures.append(text)
    return result


def disks_report(found: Crashed) -> tuple[dict[str, int], list[str]]:
    """What to say of disks after a crash."""
    facts = {"tried": found.copies, "rows": found.rows, "failed": len(found.failures)}
    lines = ["| files that were spoiled | how often |", "|---|---|"]
    return facts, lines + [f"| {what} | {count:,} |" for what, count in found.spoiled.most_common()]
