"""Tries parsers with bad inputs, scans and exports with random histories, as long as wanted.

    python -m tools.soak --minutes 30              a third of the time for each
    python -m tools.soak --minutes 5 --seed 7 --only histories
    python -m tools.soak --minutes 60 --only exports
    python -m tools.soak --minutes 5 --only fuzz --target kernels

Writes what came of it to `benchmarks/SOAK.md`, unless only a part was run. What fails is printed,
fuzzed inputs are kept under `build/fuzz/failures`; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import platform
import random
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from tests.fuzz.runner import Engine, Result, has_coverage, run_all
from tests.fuzz.targets import targets
from tests.kts_source.export.exporting import FORMATS
from tests.kts_source.export.fates import random_export_history
from tests.kts_source.export.history import check_export_history
from tests.kts_source.planning.history import History, random_history, shortened
from tests.kts_source.planning.reading import check_history, without_threads

if TYPE_CHECKING:
    from collections.abc import Sequence

REPORT: Final = Path("benchmarks") / "SOAK.md"
LIBRARIES: Final = (
    "numpy",
    "pyarrow",
    "numba",
    "zstandard",
    "lz4",
    "cramjam",
    "google-crc32c",
    "cryptography",
)


def say(text: str) -> None:
    """A line for whoever watches."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@dataclass(slots=True)
class Histories:
    """How the histories went.

    Attributes:
        tried: How many.
        outcomes: Of the reads, by kind; "rows" counts rows compared.
        failures: What failed, shortened.
        seconds: Spent.
    """

    tried: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


Check: TypeAlias = Callable[[History, int, Counter[str]], object]
"""Lives through a history; the number decides what it leaves open."""


def soak_histories(
    draw: Callable[[random.Random], History],
    check: Check,
    seconds: float,
    seed: int,
    most_failures: int = 5,
) -> Histories:
    """Random histories until the time is up."""
    result = Histories()
    began = time.monotonic()

    def error_of(history: History, number: int, outcomes: Counter[str]) -> str | None:
        try:
            check(history, number, outcomes)
        except Exception:  # noqa: BLE001  # a wrong exception is as wrong as wrong rows
            return traceback.format_exc(limit=-4)
        return None

    while time.monotonic() - began < seconds and len(result.failures) < most_failures:
        number = result.tried
        history = draw(random.Random(f"{seed}-{number}"))
        error = error_of(history, number, result.outcomes)
        result.tried += 1
        if error is not None:
            short = shortened(
                history,
                lambda one, n=number: error_of(one, n, Counter()) is not None,  # type: ignore[misc]
            )
            told = error_of(short, number, Counter()) or error
            text = f"seed {seed}, history {number}:\n{short}\n{told}"
            say(text)
            result.failures.append(text)
    result.seconds = time.monotonic() - began
    return result


def check_scans(history: History, number: int, outcomes: Counter[str]) -> None:
    """Reads what a history leaves behind."""
    with without_threads():
        check_history(history, number, outcomes)


def check_exports(history: History, number: int, outcomes: Counter[str]) -> None:
    """Lives through exports, in one table format after the other."""
    table_format = FORMATS[number % len(FORMATS)]
    check_export_history(history, number // len(FORMATS), table_format, outcomes)


def soak_parsers(seconds: float, seed: int, only: Sequence[str]) -> list[Result]:
    """Every target under every engine there is."""
    engines: tuple[Engine, ...] = ("mutation", "coverage") if has_coverage() else ("mutation",)
    if len(engines) == 1:
        say("atheris is not installed: mutations without coverage")
    results = []
    chosen = [target for target in targets() if not only or target.name in only]
    for result in run_all(chosen, engines, seconds=seconds, seed=seed):
        words = ", ".join(f"{word} {count}" for word, count in sorted(result.outcomes.items()))
        say(f"{result.target:18} {result.engine:9} {result.inputs:>10,} inputs: {words}")
        if result.failure is not None:
            say(result.text)
        results.append(result)
    return results


def report(
    minutes: float,
    seed: int,
    results: Sequence[Result],
    histories: Histories,
    exports: Histories,
) -> str:
    """The text of the report."""
    inputs = sum(result.inputs for result in results)
    failed = sum(result.failure is not None for result in results)
    refused = inputs - sum(
        count
        for result in results
        for word, count in result.outcomes.items()
        if word in ("value", "stepped over")
    )
    lines = [
        "# Soak: bad inputs and random histories",
        "",
        "The last run of `make soak`, as it wrote it. Fuzzing: any bytes give a value or a format"
        " error with a position inside the input, within 5 s of CPU time and 192 MiB; the kernels"
        " give the same as the readable decoder, on inputs that lie between guard pages. Histories:"
        " leaders, transactions, uploads, crashes, retention and lost objects at random; rows equal"
        " the surviving log at both isolation levels, or an error names the missing ranges exactly"
        " when some are missing. Exports: the same lives with exports into Parquet folders, Delta"
        " and Iceberg tables, which die, race, resume, replay plans and lose objects; the table"
        " holds what was committed, each row once.",
        "",
        "| | |",
        "|---|---|",
        f"| when | {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {minutes:g} minutes, one core |",
        f"| seed | {seed} |",
        f"| code | {_commit()} |",
        f"| bad inputs tried | {inputs:,}, of them refused {refused:,} |",
        f"| inputs that failed | {failed} |",
        f"| histories tried | {histories.tried:,} in {histories.seconds:.0f} s |",
        f"| rows compared in histories | {histories.outcomes['rows']:,} |",
        f"| histories that failed | {len(histories.failures)} |",
        f"| export histories tried | {exports.tried:,} in {exports.seconds:.0f} s |",
        f"| rows compared in them | {exports.outcomes['rows']:,} |",
        f"| export histories that failed | {len(exports.failures)} |",
        f"| versions | {_versions()} |",
        "",
        "## Parsers",
        "",
        "| target | engine | inputs | accepted | refused | slowest, ms | most memory, MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        accepted = sum(result.outcomes.get(word, 0) for word in ("value", "stepped over"))
        lines.append(
            f"| {result.target} | {result.engine} | {result.inputs:,} | {accepted:,} |"
            f" {sum(result.outcomes.values()) - accepted:,} |"
            f" {result.slowest_seconds * 1000:.1f} | {result.growth_bytes / (1 << 20):.1f} |"
        )
    words = sum((Counter(result.outcomes) for result in results), Counter())
    lines += ["", "| outcome | inputs |", "|---|---|"]
    lines += [f"| {word} | {count:,} |" for word, count in words.most_common()]
    for title, what, found in (
        ("Reads of histories", "reads", histories),
        ("Exports of histories", "exports", exports),
    ):
        lines += ["", f"## {title}", "", f"| outcome | {what} |", "|---|---|"]
        lines += [
            f"| {word} | {count:,} |"
            for word, count in found.outcomes.most_common()
            if word != "rows"
        ]
    return "\n".join([*lines, ""])


def _versions() -> str:
    found = [f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES]
    atheris = [f"atheris {importlib.metadata.version('atheris')}"] if has_coverage() else []
    machine = f"{platform.system()} {platform.machine()}"
    return ", ".join([f"Python {platform.python_version()}", *found, *atheris, machine])


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "not a clone"


def main() -> int:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--only", choices=("fuzz", "histories", "exports"))
    parser.add_argument(
        "--target", action="append", default=[], help="of the fuzzer; all others not"
    )
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    say(f"seed {given.seed}")
    seconds = given.minutes * 60 / (1 if given.only else 3)
    results: list[Result] = []
    histories, exports = Histories(), Histories()
    if given.only in (None, "fuzz"):
        results = soak_parsers(seconds, given.seed, given.target)
    if given.only in (None, "histories"):
        histories = soak_histories(random_history, check_scans, seconds, given.seed)
        say(f"{histories.tried:,} histories: {dict(histories.outcomes)}")
    if given.only in (None, "exports"):
        exports = soak_histories(random_export_history, check_exports, seconds, given.seed)
        say(f"{exports.tried:,} export histories: {dict(exports.outcomes)}")
    if given.only is None and not given.target:
        REPORT.write_text(report(given.minutes, given.seed, results, histories, exports))
        say(f"wrote {REPORT}")
    failed = bool(histories.failures or exports.failures) or any(
        result.failure for result in results
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
