"""The part of the soak that scans through stores that fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field


@dataclass(slots=True)
class Faulted:
    """How the scans went through stores that fail.

    Attributes:
        scans: How many.
        tables: What became of them, by fault.
        failures: What the tests said that failed.
    """

    scans: int = 0
    tables: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def soak_faults(total: int, seed: int) -> Faulted:
    """Those of `tests/faults` that read below Spark, as many as are wanted."""
    wanted = {
        "KTS_FAULT_SCANS": str(total),
        "KTS_FAULT_SECONDS": str(24 * 3600),
        "KTS_FAULT_SEED": str(seed),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-m", "faults"]
    command.append("tests/faults/test_faulted_scans.py")
    done = subprocess.run(
        command, env={**os.environ, **wanted}, capture_output=True, text=True, check=False
    )
    result = Faulted()
    for table in re.findall(r"^(.+: KTS_FAULT_SEED=\d+\n(?:.+\n)+?all .+)$", done.stdout, re.M):
        result.tables.append(table)
        result.scans += int(re.findall(r"^(\d+) scans", table, re.M)[0])
    if done.returncode:
        told = f"exit code {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        result.failures.append(told)
    return result


def faults_report(found: Faulted) -> tuple[dict[str, int], list[str]]:
    """What to say of stores that fail."""
    tables = (table.partition(":") for table in found.tables)
    lines = [
        line
        for name, _, rest in tables
        for line in (f"{name}:", "", "```text", *rest.split("\n")[1:], "```", "")
    ]
    return {"tried": found.scans, "failed": len(found.failures)}, lines[:-1]
