"""Defines measured figures, prints them as a table, and stores them in the JSON file from which
RESULTS.md is written.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_VERSIONS: Final = (
    "tiered-kafka",
    "pyspark",
    "pyarrow",
    "numpy",
    "numba",
    "backports.zstd",
    "lz4",
    "google-crc32c",
    "cryptography",
    "aiokafka",
    "confluent-kafka",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure.

    Attributes:
        name: What was measured.
        value: The figure, in `unit`.
        unit: Unit of the figure, such as "M records/s" or "×".
        goal: Goal as text; None if the figure has no goal.
        met: True if the figure reaches its goal; None without a goal.
        note: Bound of the figure, or how it was measured; empty if the name is sufficient.
    """

    name: str
    value: float
    unit: str
    goal: str | None = None
    met: bool | None = None
    note: str = ""

    def noted(self, note: str) -> Row:
        """Returns a copy of the row with the note `note`."""
        return dataclasses.replace(self, note=note)


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a run.

    Attributes:
        rows: Figures by the part that measured them.
        budgets: For each workload, nanoseconds per record of each stage.
        skipped: Maps a skipped part or comparison to the reason.
        failed: Maps a part to its error.
        seconds: Duration of each part.
    """

    rows: dict[str, list[Row]] = dataclasses.field(default_factory=dict)
    budgets: dict[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def speeds(self) -> dict[str, float]:
        """Returns the figures in million records per second, by name."""
        rows = (row for part_rows in self.rows.values() for row in part_rows)
        return {row.name: row.value for row in rows if row.unit == "M records/s"}

    @property
    def missed(self) -> list[Row]:
        """Returns the figures that miss their goal."""
        return [row for rows in self.rows.values() for row in rows if row.met is False]


def at_least(name: str, value: float, unit: str, least: float) -> Row:
    """Returns a row whose goal is a figure of at least `least`."""
    return Row(name, value, unit, f"≥ {least:g}", value >= least)


def at_most(name: str, value: float, unit: str, most: float) -> Row:
    """Returns a row whose goal is a figure of at most `most`."""
    return Row(name, value, unit, f"≤ {most:g}", value <= most)


def best_seconds(
    *actions: Callable[[], object], repeats: int, clock: Callable[[], float] = time.thread_time
) -> list[float]:
    """Returns the shortest time of each action, measured with `clock`: by default, the processor
    time of the calling thread. The actions run in turns, so that other load on the machine
    affects all of them.
    """
    best = [float("inf")] * len(actions)
    for _ in range(repeats):
        for index, action in enumerate(actions):
            start = clock()
            action()
            best[index] = min(best[index], clock() - start)
    return best


def verdict(met: bool | None) -> str:
    """Returns the word that tables show for a met or missed goal; empty if the row has no goal."""
    return {None: "", True: "met", False: "not met"}[met]


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Prints the rows as a table on the terminal."""
    table = Table(title=title, title_justify="left")
    for name in ("what", "figure", "unit", "goal", ""):
        table.add_column(name, justify="right" if name == "figure" else "left")
    for row in rows:
        style = None if row.met is None else ("green" if row.met else "red")
        table.add_row(
            row.name, f"{row.value:.3g}", row.unit, row.goal or "", verdict(row.met), style=style
        )
    Console(width=None if os.isatty(1) else 150).print(table)


def machine() -> dict[str, Any]:
    """Returns a description of the machine, and the current time."""
    installed = {}
    for name in _VERSIONS:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
        "versions": installed,
    }


def _processor() -> str:
    """Returns the processor model from Linux, or from the platform module elsewhere."""
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def write_json(report: Report, about: Mapping[str, Any], path: Path, *, quick: bool) -> None:
    """Writes all measurements and the machine."""
    document = {"quick": quick, "machine": about, **dataclasses.asdict(report)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> tuple[Report, dict[str, Any], bool]:
    """Reads the report, the machine, and the quick flag that `write_json` wrote."""
    document = json.loads(path.read_text(encoding="utf-8"))
    rows = {part: [Row(**row) for row in entries] for part, entries in document["rows"].items()}
    others = (document[name] for name in ("budgets", "skipped", "failed", "seconds"))
    report = Report(rows, *others)
    return report, document["machine"], bool(document["quick"])


def joined(
    runs: Sequence[tuple[Report, dict[str, Any], bool]],
) -> tuple[Report, dict[str, Any], bool]:
    """Merges the reports of several runs. For each part, uses the last run that measured it."""
    merged = Report()
    for report, _, _ in runs:
        for field in dataclasses.fields(Report):
            getattr(merged, field.name).update(getattr(report, field.name))
    about = {key: value for _, facts, _ in runs for key, value in facts.items()}
    dates: dict[str, str] = {}
    for report, facts, _ in runs:
        dates |= facts.get("dates") or dict.fromkeys(report.rows, facts["date"])
    about["dates"] = dates
    about["date"] = "; ".join(
        f"{', '.join(part for part in dates if dates[part] == date)}: {date}"
        for date in dict.fromkeys(dates.values())
    )
    for key in ("processor", "system"):
        about[key] = " and ".join(dict.fromkeys(facts[key] for _, facts, _ in runs))
    about["others"] = {
        name: version for _, facts, _ in runs for name, version in facts.get("others", {}).items()
    }
    return merged, about, any(quick for _, _, quick in runs)
