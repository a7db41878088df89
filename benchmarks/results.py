"""benchmarks/RESULTS.md: what a run measured, on which machine, what is met and what is not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.plot import draw
from benchmarks.report import Row, verdict, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.report import Report

HERE: Final = Path(__file__).resolve().parent
TITLES: Final = {
    "peers": "Against what users have today",
    "export_peers": "Export, against Spark's Kafka source writing Parquet",
    "where": "`where`, and fewer columns",
    "scan": "Scans of many kinds of topics",
    "loopback_s3": "Scans from S3",
    "fixed": "Fixed costs, cold start, cores",
    "decode": "Log bytes to Arrow, one core",
    "typed": "Values to Arrow, one core",
    "typed_where": "Conditions on fields of typed values",
    "typed_peers": "Typed values, against Spark's Kafka source",
    "metadata": "Records of `__remote_log_metadata`, one core",
    "find": "Records of some keys",
    "hybrid": "Brokers, alone and beside the tier",
    "hybrid_disk": "A broker's disk, in place",
    "stream": "Streams",
    "engines": "Without Spark",
    "fetch": "Fetching",
    "plan": "Planning 100,000 segments",
    "audit": "Audits, one core",
    "picture": "A report of 100,000 segments",
    "export": "Export, against the Parquet writer alone",
}


def write_results(report: Report, about: Mapping[str, Any], quick: bool) -> None:
    """Renews RESULTS.md, RESULTS.png and RESULTS.json, which a run of some parts is joined to.

    Args:
        report: What was measured.
        about: The machine, as `report.machine` gives it.
        quick: Whether it was a quick run, which the text then says.
    """
    drawn = draw(report.speeds, HERE / "RESULTS.png")
    text = "\n".join(_lines(report, about, quick, drawn=drawn)) + "\n"
    (HERE / "RESULTS.md").write_text(text, encoding="utf-8")
    write_json(report, about, HERE / "RESULTS.json", quick=quick)


def _lines(report: Report, about: Mapping[str, Any], quick: bool, *, drawn: bool) -> list[str]:
    rows = [row for found in report.rows.values() for row in found]
    goals = [row for row in rows if row.met is not None]
    missed = report.missed
    others = "; ".join(f"{name}: {text}" for name, text in about.get("others", {}).items())
    versions = ", ".join(f"{name} {text}" for name, text in about["versions"].items())
    lines = [
        "# Results of the last full run",
        "",
        *(["![comparisons with Spark's Kafka source](RESULTS.png)", ""] if drawn else []),
        "Written by `make bench` from its own figures; `make bench-quick` runs a small version in"
        " minutes. Contestants take turns within one run; a ratio is the median over rounds, a time"
        " the median run. Compare ratios between machines, not times.",
        "",
        *(["**A quick run: small inputs, few repeats.**", ""] if quick else []),
        "| | |",
        "|---|---|",
        f"| when | {about['date']}, {sum(report.seconds.values()) / 60:.1f} minutes |",
        f"| machine | {about['processor']}, {about['cpus']} cores, {about['memory_gib']} GiB,"
        f" {about['system']}, load before: {about['load_before']} |",
        f"| versions | Python {about['python']}, {versions} |",
        f"| others | {others} |",
        f"| goals | {len(goals) - len(missed)} of {len(goals)} met |",
        "",
    ]
    if goals:
        lines += ["## Goals", "", *_table(goals), ""]
    if missed:
        lines += ["## Not met", ""]
        lines += [f"* {_in_words(row)}" for row in missed] + [""]
    slower = [row for row in rows if row.unit == "×" and row.name.startswith("against")]
    slower = [row for row in slower if row.value < 1]
    if slower:
        lines += ["## Slower than a peer", "", *_table(slower), ""]
    if report.skipped or report.failed:
        lines += ["## Not run", ""]
        lines += [f"* {name}: {reason}" for name, reason in report.skipped.items()]
        lines += [f"* {name} failed: {error}" for name, error in report.failed.items()] + [""]
    for part, found in report.rows.items():
        lines += [f"## {TITLES[part]}", "", *_table(found), ""]
    if report.budgets:
        lines += _budget(report.budgets)
    return lines


def _table(rows: Sequence[Row]) -> list[str]:
    lines = ["| what | figure | goal | |", "|---|---:|---|---|"]
    for row in rows:
        note = f"<br>{row.note}" if row.note else ""
        goal = "" if row.goal is None else f"{row.goal} {row.unit}".strip()
        figure = f"{row.value:.3g} {row.unit}".strip()
        lines.append(f"| {row.name}{note} | {figure} | {goal} | {verdict(row.met)} |")
    return lines


def _in_words(row: Row) -> str:
    note = f": {row.note}" if row.note else ""
    return f"{row.name}: {row.value:.3g} {row.unit} instead of {row.goal}{note}"


def _budget(budgets: Mapping[str, Mapping[str, float]]) -> list[str]:
    stages = list(next(iter(budgets.values())))
    lines = [
        "## Where the time goes",
        "",
        "Processor nanoseconds a record in each stage, of a full scan into `noop` in the newest"
        " Spark. Fetch, decrypt, chunk and the sum of frame to Arrow are from the scan's own"
        " metrics; frame, CRC and codec are the library alone on the same bytes, and decode →"
        " Arrow is what is left; Python → JVM is what else the Python workers use; JVM is the"
        " JVM's. The largest is bold.",
        "",
        "| workload | " + " | ".join(stages) + " | of the ceiling's |",
        "|---" * (len(stages) + 1) + "|---|",
    ]
    for name, figures in budgets.items():
        largest = max(stages[:-1] if stages[-1] == "ceiling" else stages, key=figures.__getitem__)
        cells = [
            f"**{figures[stage]:.0f}**" if stage == largest else f"{figures[stage]:.0f}"
            for stage in stages
        ]
        total = sum(figures[stage] for stage in stages if stage != "ceiling")
        share = f"{total / figures['ceiling']:.2f} ×" if figures.get("ceiling") else ""
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {share} |")
    return [*lines, ""]
