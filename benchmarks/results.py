"""Writes benchmarks/RESULTS.md and one page of figures, goals and misses for each benchmark."""

from __future__ import annotations

import re
from dataclasses import dataclass
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
    "tls_s3": "Scans from S3 over TLS",
    "fixed": "Fixed costs, cold start, cores",
    "decode": "Log bytes to Arrow, one core",
    "typed": "Values to Arrow, one core",
    "typed_where": "Conditions on fields of typed values",
    "typed_peers": "Typed values, against Spark's Kafka source",
    "metadata": "Records of `__remote_log_metadata`, one core",
    "find": "Records of some keys",
    "hybrid": "Brokers, alone and with a tier",
    "hybrid_disk": "A broker's disk, in place",
    "stream": "Streams",
    "engines": "Without Spark",
    "fetch": "Fetching",
    "memory": "Memory of a task's process",
    "plan": "Planning 100,000 segments",
    "audit": "Audits, one core",
    "picture": "A report of 100,000 segments",
    "restore": "Restores: plan, write, and events for zero copy",
    "export": "Export, against the Parquet writer alone",
}


@dataclass(frozen=True, slots=True)
class Headline:
    """A ratio on the first page of results.

    Attributes:
        part: The benchmark that measures it.
        row: Name of its row.
        label: The compared tasks.
        peer: The program that this library is compared with.
        bound: Limit of the ratio. Empty if the note of the row contains the largest possible ratio.
    """

    part: str
    row: str
    label: str
    peer: str
    bound: str = ""


_SCAN: Final = (
    "against Spark's Kafka source, data in the tier, {}, all columns → noop, newest pyspark"
)
_KEY: Final = (
    "against Spark's Kafka source, WHERE key = …, records scanned a second,"
    " targetPartitionBytes=512m"
)
_TYPED: Final = (
    "SELECT country, sum(amount), {} in the tier, ten fields, Spark 4.0: against Spark's"
)
_SOURCE: Final = "Spark's Kafka source"
HEADLINES: Final = (
    Headline("peers", _SCAN.format("100 B"), "full scan in Spark, records of 100 B", _SOURCE),
    Headline("peers", _SCAN.format("1000 B"), "full scan in Spark, records of 1 KB", _SOURCE),
    Headline(
        "peers",
        "processor time of Spark's Kafka source's and its broker's, 100 B, all columns → noop",
        "processor time of that scan, records of 100 B (less is better)",
        f"{_SOURCE} and its broker",
    ),
    Headline(
        "export_peers",
        "against Spark's Kafka source, 100 B → zstd Parquet",
        "export to zstd Parquet, records of 100 B",
        f"{_SOURCE}, `write.parquet`",
    ),
    Headline("where", _KEY, "`where` with one key, records scanned per second", _SOURCE),
    Headline(
        "typed_peers",
        f"{_TYPED.format('avro')} Kafka source and from_avro",
        "sum by country over Avro values",
        f"{_SOURCE} and `from_avro`",
        "not measured",
    ),
    Headline(
        "typed_peers",
        f"{_TYPED.format('json')} Kafka source and from_json",
        "sum by country over JSON values",
        f"{_SOURCE} and `from_json`",
        "not measured",
    ),
    Headline(
        "hybrid",
        "brokers only, against Spark's Kafka source, 100 B, codec none, hot on the broker, all"
        " columns → noop",
        "full scan of brokers alone, records of 100 B",
        _SOURCE,
        "not measured",
    ),
    Headline(
        "stream",
        "catching up 11.2 million records of 100 B, against a stream of Spark's Kafka source, data"
        " in the tier",
        "a stream that catches up",
        f"{_SOURCE}, streaming",
        "one batch scan: the stream reaches 0.96 × of its speed",
    ),
    Headline(
        "decode",
        "100 B records, all columns: aiokafka + pyarrow",
        "log bytes to Arrow on one core, records of 100 B",
        "aiokafka and pyarrow",
        "not measured",
    ),
    Headline(
        "typed",
        "Avro, ten of ten fields, against fastavro + pyarrow",
        "Avro values to Arrow on one core",
        "fastavro and pyarrow",
        "not measured",
    ),
    Headline(
        "engines",
        "scan().to_reader(), one thread, of the additive bound, 100 B",
        "scan without Spark on one thread",
        "read, checksum and decode, each alone",
        "1 ×",
    ),
    Headline(
        "engines",
        "Sail against Spark's Kafka source, 100 B, data in the tier, aggregate of all columns",
        "aggregate of all columns on Sail",
        f"{_SOURCE} on Spark",
        "not measured",
    ),
    Headline(
        "loopback_s3",
        "scan, 100 B, from S3 on loopback, processor time by that from a folder",
        "processor time of a scan from S3 (less is better)",
        "the same scan from a folder",
        "1 ×",
    ),
    Headline(
        "audit",
        "level bytes, codec none: of reading and CRC-32C",
        "audit of every byte",
        "reading and CRC-32C alone",
        "1 ×",
    ),
)
_RATIO: Final = re.compile(r"(\d+(?:\.\d+)?) ×")


def write_results(report: Report, about: Mapping[str, Any], quick: bool) -> None:
    """Writes RESULTS.md, RESULTS.png, RESULTS.json and `results/<part>.md` of each benchmark.

    Args:
        report: The measurements.
        about: The machine, as `report.machine` returns it.
        quick: True for a quick run, which the pages then mention.
    """
    is_drawn = draw(report.speeds, HERE / "RESULTS.png")
    _write(HERE / "RESULTS.md", _first_page(report, about, quick, is_drawn=is_drawn))
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    for part, rows in report.rows.items():
        budgets = report.budgets if part == "scan" else {}
        _write(folder / f"{part}.md", _part_page(part, rows, about, budgets))
    write_json(report, about, HERE / "RESULTS.json", quick=quick)


def _write(path: Path, lines: Sequence[str]) -> None:
    path.write_text("\n".join(lines).rstrip("\n") + "\n", encoding="utf-8")


def _first_page(
    report: Report, about: Mapping[str, Any], quick: bool, *, is_drawn: bool
) -> list[str]:
    goals = [row for rows in report.rows.values() for row in rows if row.met is not None]
    versions = ", ".join(f"{name} {text}" for name, text in about["versions"].items())
    others = "; ".join(f"{name}: {text}" for name, text in about.get("others", {}).items())
    processors = " or ".join(dict.fromkeys(about["processor"].split(" and ")))
    lines = [
        "# Benchmark results",
        "",
        *(["![Comparison with Spark's Kafka source](RESULTS.png)", ""] if is_drawn else []),
        *(["**A quick run: small inputs, few repeats.**", ""] if quick else []),
        "Ratios of the last run of `make bench`. All contestants of a ratio take turns within one"
        " run; the ratio is the median over rounds. The bound is the best ratio that is possible"
        " in the same run.",
        "",
        "| measured | ratio | against | bound |",
        "|---|---:|---|---|",
        *_headlines(report),
        "",
        f"{len(goals) - len(report.missed)} of {len(goals)} goals are met. Details, goals and"
        f" misses: {', '.join(_link(part) for part in report.rows)}.",
        "",
        f"Machine: {about['cpus']} cores, {about['memory_gib']} GiB, {processors}."
        f" Versions: Python {about['python']}, {versions}; {others}.",
    ]
    if report.skipped or report.failed:
        lines += ["", "Not run:", ""]
        lines += [f"* {name}: {reason}" for name, reason in report.skipped.items()]
        lines += [f"* {name} failed: {error}" for name, error in report.failed.items()]
    return lines


def _link(part: str) -> str:
    return f"[{part}](results/{part}.md)"


def _headlines(report: Report) -> list[str]:
    lines = []
    for headline in HEADLINES:
        rows = [row for row in report.rows.get(headline.part, ()) if row.name == headline.row]
        for row in rows:
            ratio = _RATIO.search(row.note)
            bound = headline.bound or (f"{ratio[1]} ×" if ratio else "not measured")
            figure = f"{row.value:.3g} ×"
            lines.append(f"| {headline.label} | **{figure}** | {headline.peer} | {bound} |")
    return lines


def _part_page(
    part: str,
    rows: Sequence[Row],
    about: Mapping[str, Any],
    budgets: Mapping[str, Mapping[str, float]],
) -> list[str]:
    """Returns the lines of the result page of one benchmark."""
    date = about.get("dates", {}).get(part, about["date"])
    goals = [row for row in rows if row.met is not None]
    missed = [row for row in goals if not row.met]
    slower = [row for row in rows if row.unit == "×" and row.name.startswith("against")]
    slower = [row for row in slower if row.value < 1]
    summary = f"Measured {date} by `python -m benchmarks {part}`."
    if goals:
        summary += f" {len(goals) - len(missed)} of {len(goals)} goals are met."
    lines = [f"# {TITLES[part]}", "", summary, ""]
    if missed:
        lines += ["## Not met", "", *(f"* {_in_words(row)}" for row in missed), ""]
    if slower:
        lines += ["## Slower than a peer", "", *_table(slower), ""]
    lines += ["## Figures", "", *_table(rows), ""]
    return lines + (_budget(budgets) if budgets else [])


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
        "Processor nanoseconds per record and stage, for a full scan into `noop` in the newest"
        " Spark. Fetch, decrypt, chunk and the sum of frame to Arrow come from the scan's metrics."
        " Frame, CRC and codec are measured with the library alone on the same bytes; decode →"
        " Arrow is the rest of that sum. Python → JVM is the remaining time of the Python workers,"
        " JVM the time of the JVM. The largest figure of a row is bold.",
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
