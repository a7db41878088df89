"""One measured figure, and a table or JSON of many."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    Attributes:
        name: What was measured.
        value: The figure, in `unit`.
        unit: Such as "M records/s" or "×".
        goal: What it should reach, as text; None where it only gives scale.
        met: Whether it does; None without a goal.
    """

    name: str
    value: float
    unit: str
    goal: str | None = None
    met: bool | None = None


def at_least(name: str, value: float, unit: str, least: float) -> Row:
    """A row whose figure should be `least` or more."""
    return Row(name, value, unit, f"≥ {least:g}", value >= least)


def at_most(name: str, value: float, unit: str, most: float) -> Row:
    """A row whose figure should be `most` or less."""
    return Row(name, value, unit, f"≤ {most:g}", value <= most)


def best_seconds(*actions: Callable[[], object], repeats: int) -> list[float]:
    """The least processor time of each action on this thread, which is all they use.

    Actions are taken in turns, so that a busy spell of the machine hits all of them; processor time
    leaves out what other processes take.
    """
    best = [float("inf")] * len(actions)
    for _ in range(repeats):
        for index, action in enumerate(actions):
            start = time.thread_time()
            action()
            best[index] = min(best[index], time.thread_time() - start)
    return best


def print_table(rows: Sequence[Row]) -> None:
    """The rows as aligned text."""
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        verdict = "" if row.met is None else ("  met" if row.met else "  NOT MET")
        goal = "" if row.goal is None else f"  goal {row.goal}"
        print(f"{row.name:<{width}}  {row.value:>9.3g} {row.unit:<12}{goal}{verdict}")


def write_json(rows: Sequence[Row], path: Path) -> None:
    """The rows and the machine they were measured on."""
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }
    document = {"machine": machine, "rows": [dataclasses.asdict(row) for row in rows]}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
