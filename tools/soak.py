"""Runs large random tests: parsers with bad inputs, histories of tiers and exports, failing stores,
scans of a changing cluster, disks after a crash, and killed streams.

    python -m tools.soak                               everything, two processes at a time
    python -m tools.soak --share 0.1 --jobs 1          a tenth
    python -m tools.soak --seed 7 --only histories
    python -m tools.soak --share 0.1 --only fuzz --target kernels

With the default share of 1, writes the results of each part to `benchmarks/SOAK.md`. Prints
failures, and keeps failing fuzz inputs under `build/fuzz/failures`. If there are failures, the exit
code is 1.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import math
import multiprocessing
import platform
import random
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from tests.fuzz.header_flips import RIGHT, Flips, check_flips
from tests.fuzz.runner import Engine, Result, has_coverage, run_target, shares
from tests.fuzz.targets import targets
from tests.kts_source.export.exporting import FORMATS
from tests.kts_source.export.fates import random_export_history
from tests.kts_source.export.history import check_export_history
from tests.kts_source.planning.history import History, random_history, shortened
from tests.kts_source.planning.reading import check_history, without_threads
from tools.disk_scans import disks_report, soak_disks
from tools.faulted_scans import faults_report, soak_faults
from tools.hybrid_scans import hybrid_report, soak_hybrid
from tools.stream_runs import live_report, soak_live, soak_streams, streams_report

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REPORT: Final = Path("benchmarks") / "SOAK.md"
INTRODUCTION: Final = """# Soak: bad inputs, random histories, stores that fail

Results of the last complete run of each part of `make soak`.
"""
PARTS: Final = {
    "histories": (
        "Histories of scans",
        "Random leaders, transactions, uploads, crashes, retention, lost objects and damaged side"
        " files. The rows equal the surviving log at both isolation levels. An error names the"
        " missing ranges if, and only if, some are missing.",
    ),
    "exports": (
        "Histories of exports",
        "The same histories with exports into Parquet folders, Delta and Iceberg tables. Exports"
        " are killed, run concurrently, resume, replay plans, lose objects and responses, are"
        " cleaned up and rolled back. The table contains the committed rows, each once. An"
        " election, a shorter log or a rollback raises an error.",
    ),
    "flips": (
        "Flipped bits in headers",
        "One flipped bit in the header of a batch at the boundary of a read, in both layouts and"
        " all message formats. Bounded scans, conditions, searches, counts and exports return the"
        " right rows or raise an error.",
    ),
    "fuzz": (
        "Bad inputs",
        "Arbitrary bytes result in a value or a format error with a position in the input, within"
        " 5 s of CPU time and 192 MiB. The kernels return the same as the readable decoder. Guard"
        " pages surround the inputs.",
    ),
    "faults": (
        "Faulted scans",
        "Scans of the golden tier through stores with requests that fail, stall, end early or"
        " return wrong bytes. Each scan returns the consumer's rows or raises an error.",
    ),
    "hybrid": (
        "Scans of tier and brokers",
        "Scans of a real cluster with random options, during production, transactions, uploads,"
        " local deletion, retention and DeleteRecords, and with missing objects in the tier. The"
        " rows equal a consumer's rows of the same offsets, or an error names the offsets that the"
        " log start has passed.",
    ),
    "disks": (
        "Disks after a crash",
        "Copies of a running broker's disk under transactional load, compaction and"
        " DeleteRecords. Logs and indexes after the recovery point are truncated, zeroed, flipped"
        " or deleted at random. Rows, log starts and ends equal those of a broker that starts on"
        " the copy, at both isolation levels.",
    ),
    "streams": (
        "Streams that are killed",
        "Queries on Spark 4.0 to 4.3. The driver, the JVM, the planning process, a reading"
        " process or all processes are killed at random times, three times per run. Each row is"
        " once in a file sink, and in a Delta table written by foreachBatch, with deltalake, or"
        " with Spark if Delta has a release for it. Kills are counted. Each kind of run occurs at"
        " least once.",
    ),
    "live": (
        "Streams of a live cluster",
        "The unit is a second of writes to a real cluster, with transactions, uploads, retention"
        " and restarts. Queries of every Spark version and both isolation levels follow it, one at"
        " a time, and are killed repeatedly. Each row that a consumer gets is once in each sink.",
    ),
}
"""Title of each part, and the statement that it tests, in the order of the parts."""
TOTALS: Final = {
    "histories": 20_000,
    "exports": 2_000,
    "flips": 5_000,
    "fuzz": 10_000_000,
    "faults": 10_000,
    "hybrid": 1_000,
    "disks": 50,
    "streams": 66,
    "live": 1800,
}
"""Number of trials of a complete soak."""
ROUND_SECONDS: Final = 300.0
"""Seconds for which all targets together are fuzzed before the inputs are counted."""
BLOCK: Final = 100
"""Number of histories that one process runs before it reports."""
MAX_FAILURES: Final = 5
"""Number of failures of one kind after which a part stops."""
LIBRARIES: Final = (
    "numpy",
    "pyarrow",
    "numba",
    "backports.zstd",
    "lz4",
    "google-crc32c",
    "cryptography",
)


def say(text: str) -> None:
    """Prints a progress line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@dataclass(slots=True)
class Histories:
    """Result of running histories.

    Attributes:
        tried: Number of histories.
        outcomes: Number of reads by kind of outcome; "rows" is the number of compared rows.
        failures: Descriptions of failing histories, after steps that do not matter were removed.
    """

    tried: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


Facts: TypeAlias = dict[str, int]
Check: TypeAlias = Callable[[History, int, Counter[str]], object]
"""Runs a history. The number is the seed of choices that the history does not contain."""


def soak_histories(
    block: Callable[[int, range], Histories], total: int, seed: int, jobs: int
) -> Histories:
    """Runs `total` random histories in blocks, with up to `jobs` concurrent processes that call
    `block`. Stops early after `MAX_FAILURES` failures.
    """
    result = Histories()
    blocks = [range(start, min(start + BLOCK, total)) for start in range(0, total, BLOCK)]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn) as pool:
        for block_result in pool.map(block, [seed] * len(blocks), blocks):
            result.tried += block_result.tried
            result.outcomes += block_result.outcomes
            result.failures += block_result.failures
            for text in block_result.failures:
                say(text)
            if len(result.failures) >= MAX_FAILURES:
                pool.shutdown(cancel_futures=True)
                break
    return result


def scan_block(seed: int, numbers: range) -> Histories:
    """Runs the histories with these numbers, and reads the tier at the end of each history."""
    with without_threads():
        return _block(random_history, check_history, seed, numbers)


def export_block(seed: int, numbers: range) -> Histories:
    """Runs the histories with these numbers, including their exports. The table formats take
    turns.
    """

    def check(history: History, number: int, outcomes: Counter[str]) -> None:
        table_format = FORMATS[number % len(FORMATS)]
        check_export_history(history, number // len(FORMATS), table_format, outcomes)

    return _block(random_export_history, check, seed, numbers)


def _block(
    draw: Callable[[random.Random], History], check: Check, seed: int, numbers: range
) -> Histories:
    logging.disable(logging.CRITICAL)
    result = Histories()

    def error_of(history: History, number: int, outcomes: Counter[str]) -> str | None:
        try:
            check(history, number, outcomes)
        except Exception:  # noqa: BLE001  # a wrong exception is as wrong as wrong rows
            return traceback.format_exc(limit=-4)
        return None

    for number in numbers:
        history = draw(random.Random(f"{seed}-{number}"))
        error = error_of(history, number, result.outcomes)
        result.tried += 1
        if error is not None:
            short = shortened(
                history,
                lambda candidate, n=number: error_of(candidate, n, Counter()) is not None,  # type: ignore[misc]
            )
            error_of_short = error_of(short, number, Counter()) or error
            result.failures.append(f"seed {seed}, history {number}:\n{short}\n{error_of_short}")
    return result


def soak_flips(total: int, seed: int, jobs: int) -> Flips:
    """Tries `total` bit flips in batch headers, in blocks with up to `jobs` concurrent
    processes.
    """
    result = Flips()
    starts = range(0, total, BLOCK)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn) as pool:
        for block_result in pool.map(
            flip_block, starts, [total] * len(starts), [seed] * len(starts)
        ):
            result.tried += block_result.tried
            result.outcomes += block_result.outcomes
            result.silent += block_result.silent
            for text in block_result.silent:
                say(text)
    return result


def flip_block(start: int, total: int, seed: int) -> Flips:
    """Tries the flips of the block that begins at number `start`."""
    logging.disable(logging.CRITICAL)
    return check_flips(min(start + BLOCK, total), seed, first=start)


def flips_report(flips: Flips) -> tuple[Facts, list[str]]:
    """Returns how many flips of a bit were tried, refused and failed, and a table of outcomes."""
    refused = flips.tried - flips.outcomes[RIGHT]
    facts = {"tried": flips.tried, "refused": refused, "failed": len(flips.silent)}
    return facts, _outcomes("flips", flips.outcomes)


def soak_parsers(total: int, seed: int, only: Sequence[str], jobs: int) -> list[Result]:
    """Runs every fuzz target with every available engine. Repeats this until `total` inputs ran or
    an input failed.
    """
    engines: tuple[Engine, ...] = ("mutation", "coverage") if has_coverage() else ("mutation",)
    if len(engines) == 1:
        say("atheris is not installed: mutations without coverage")
    chosen = [target for target in targets() if not only or target.name in only]
    seconds = shares(chosen, ROUND_SECONDS / len(engines))
    runs = [(target.name, engine) for target in chosen for engine in engines]
    results: dict[tuple[str, Engine], Result] = {}
    number = 0
    with ThreadPoolExecutor(jobs) as pool:
        while sum(result.inputs for result in results.values()) < total:

            def run(name: str, engine: Engine, run_seed: int = seed + number) -> Result:
                return run_target(name, engine, seconds=seconds[name], seed=run_seed)

            for result in pool.map(run, *zip(*runs, strict=True)):
                key = (result.target, result.engine)
                results[key] = _together(results[key], result) if key in results else result
            failures = [result for result in results.values() if result.failure is not None]
            for result in failures:
                say(result.text)
            if failures:
                break
            number += 1
            say(f"{sum(result.inputs for result in results.values()):,} bad inputs")
    return [results[run] for run in runs if run in results]


def _together(first: Result, second: Result) -> Result:
    return replace(
        second,
        inputs=first.inputs + second.inputs,
        outcomes=Counter(first.outcomes) + Counter(second.outcomes),
        slowest_seconds=max(first.slowest_seconds, second.slowest_seconds),
        growth_bytes=max(first.growth_bytes, second.growth_bytes),
    )


def parsers_report(results: Sequence[Result]) -> tuple[Facts, list[str]]:
    """Returns the figures and the text lines of the report about bad inputs."""
    words = sum((Counter(result.outcomes) for result in results), Counter())
    accepted = words["value"] + words["stepped over"]
    inputs = sum(result.inputs for result in results)
    lines = ["| target | engine | inputs | accepted | refused | slowest, ms | most memory, MiB |"]
    lines.append("|---|---|---|---|---|---|---|")
    for result in results:
        taken = sum(result.outcomes.get(word, 0) for word in ("value", "stepped over"))
        lines.append(
            f"| {result.target} | {result.engine} | {result.inputs:,} | {taken:,} |"
            f" {sum(result.outcomes.values()) - taken:,} |"
            f" {result.slowest_seconds * 1000:.1f} | {result.growth_bytes / (1 << 20):.1f} |"
        )
    lines += ["", *_outcomes("inputs", words)]
    failed = sum(result.failure is not None for result in results)
    return {"tried": inputs, "refused": inputs - accepted, "failed": failed}, lines


def histories_report(found: Histories) -> tuple[Facts, list[str]]:
    """Returns the figures and the text lines of the report about histories."""
    facts = {"tried": found.tried, "rows": found.outcomes["rows"], "failed": len(found.failures)}
    return facts, _outcomes("how often", found.outcomes)


def _outcomes(heading: str, counts: Counter[str]) -> list[str]:
    lines = [f"| outcome | {heading} |", "|---|---|"]
    return lines + [f"| {word} | {n:,} |" for word, n in counts.most_common() if word != "rows"]


def write_section(part: str, facts: Mapping[str, str | int], lines: Sequence[str]) -> None:
    """Replaces the section of one part in the report file. All other sections stay unchanged."""
    title, about = PARTS[part]
    table = ["| | |", "|---|---|"]
    for name, fact in facts.items():
        table.append(f"| {name} | {fact if isinstance(fact, str) else format(fact, ',')} |")
    sections = {title: "\n".join([title, "", about, "", *table, "", *lines, ""])}
    if REPORT.exists():
        for text in REPORT.read_text().split("\n## ")[1:]:
            sections.setdefault(text.partition("\n")[0], text)
    ordered = [sections[name] for name, _ in PARTS.values() if name in sections]
    REPORT.write_text("\n## ".join([INTRODUCTION, *ordered]))
    say(f"wrote {title} into {REPORT}")


def _versions() -> str:
    versions = [f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES]
    atheris = [f"atheris {importlib.metadata.version('atheris')}"] if has_coverage() else []
    machine = f"{platform.system()} {platform.machine()}"
    return ", ".join([f"Python {platform.python_version()}", *versions, *atheris, machine])


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "not a clone"


def main() -> int:
    """Runs the parts that the command line selects."""
    arguments = _arguments()
    logging.disable(logging.CRITICAL)
    say(f"seed {arguments.seed}")
    failed = False
    for part, total in TOTALS.items():
        if arguments.only not in (None, part):
            continue
        began = time.monotonic()
        facts, lines = _run_part(part, math.ceil(total * arguments.share), arguments)
        say(f"{part}: {facts}")
        failed = failed or facts["failed"] > 0
        if arguments.share == 1 and not arguments.target:
            minutes = (time.monotonic() - began) / 60
            run = {
                "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
                "took": f"{minutes:.0f} minutes, {arguments.jobs} processes",
                "seed": f"{arguments.seed}",
                "code": _commit(),
                "versions": _versions(),
            }
            write_section(part, {**facts, **run}, lines)
    return 1 if failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--share", type=float, default=1.0, help="of a whole soak")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--only", choices=tuple(PARTS))
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        choices=[target.name for target in targets()],
        help="of the fuzzer; all others not",
    )
    return parser.parse_args()


def _run_part(part: str, total: int, arguments: argparse.Namespace) -> tuple[Facts, list[str]]:
    """Runs one part with `total` trials, prints its failures, and returns the figures and the text
    lines of its report.
    """
    seed, jobs = arguments.seed, arguments.jobs
    if part == "fuzz":
        return parsers_report(soak_parsers(total, seed, arguments.target, jobs))
    if part == "flips":
        return flips_report(soak_flips(total, seed, jobs))
    if part == "faults":
        faulted = soak_faults(total, seed)
        _say_all(*faulted.tables, *faulted.failures)
        return faults_report(faulted)
    if part == "hybrid":
        scanned = soak_hybrid(total, seed)
        _say_all(*scanned.failures)
        return hybrid_report(scanned)
    if part == "disks":
        crashed = soak_disks(total, seed)
        _say_all(*crashed.failures)
        return disks_report(crashed)
    if part == "streams":
        killed = soak_streams(total, seed)
        _say_all(*killed.failures)
        return streams_report(killed)
    if part == "live":
        followed = soak_live(total, seed)
        _say_all(*followed.failures)
        return live_report(followed)
    block = scan_block if part == "histories" else export_block
    return histories_report(soak_histories(block, total, seed, jobs))


def _say_all(*texts: str) -> None:
    for text in texts:
        say(text)


if __name__ == "__main__":
    sys.exit(main())
