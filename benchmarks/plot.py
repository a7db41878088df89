"""The figure of a run: speeds, and how each goal stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.report import Report

_MET: Final = "#2a7f4f"
_MISSED: Final = "#b5402a"
_PLAIN: Final = "#4d6f96"


def draw(report: Report, path: Path) -> None:
    """One PNG: rows a second on the left, figures by their goals on the right."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    rows = [row for found in report.rows.values() for row in found]
    speeds = [row for row in rows if row.unit == "M records/s"]
    goals = [(row, _score(row.goal or "", row.value)) for row in rows if row.met is not None]
    height = max(4.0, 0.24 * max(len(speeds), len(goals)) + 1)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(22, height))
    left.barh([row.name for row in speeds], [row.value for row in speeds], color=_PLAIN)
    left.set_xlabel("M records/s (logarithmic)")
    if speeds:
        left.set_xscale("log")
    right.barh(
        [f"{row.name}  ({row.goal} {row.unit})" for row, _ in goals],
        [score for _, score in goals],
        color=[_MET if row.met else _MISSED for row, _ in goals],
    )
    right.axvline(1, color="black", linewidth=0.8)
    right.set_xlabel("figure by goal: right of 1 is met (logarithmic)")
    if goals:
        right.set_xscale("log")
    for axes in (left, right):
        axes.invert_yaxis()
        axes.tick_params(axis="y", labelsize=7)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def _score(goal: str, value: float) -> float:
    """How often the goal is reached; below 1 is not."""
    sign, bound = goal.split(" ", 1)
    if value == float(bound):
        return 1.0
    reached = value / float(bound) if sign == "≥" else float(bound) / max(value, 1e-9)
    return max(reached, 1e-3)
