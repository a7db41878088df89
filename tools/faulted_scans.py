"""Runs the part of the soak that scans through failing stores."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field


@dataclass(slots=True)
class Faulted:
    """Result of the scans through failing stores.

    Attributes:
        scans: Number of scans.
        tables: Outcomes by fault.
        failures: Output of failed tests.
    """

    scans: int = 0
    tables: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def soak_faults(total: int, seed: int) -> Faulted:
    """Runs the tests of `tests/faults` without Spark, with `total` scans."""
    settings = {
        "KTS_FAULT_SCANS": str(total),
        "KTS_FAULT_SECONDS": str(24 * 3600),
        "KTS_FAULT_SEED": str(seed),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-m", "faults"]
    command.append("tests/faults/test_faulted_scans.py")
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    result = Faulted()
    for table in re.findall(r"^(.+: KTS_FAULT_SEED=\d+\n(?:.+\n)+?all .+)$", done.stdout, re.M):
        result.tables.append(table)
        result.scans += int(re.findall(r"^(\d+) scans", table, re.M)[0])
    if done.returncode:
        failure_text = f"exit code {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        result.failures.append(failure_text)
    return result


def faults_report(result: Faulted) -> tuple[dict[str, int], list[str]]:
    """Returns the figures and the text lines of the report about failing stores."""
    tables = (table.partition(":") for table in result.tables)
    lines = [
        line
        for name, _, text in tables
        for line in (f"{name}:", "", "```text", *text.split("\n")[1:], "```", "")
    ]
    return {"tried": result.scans, "failed": len(result.failures)}, lines[:-1]
