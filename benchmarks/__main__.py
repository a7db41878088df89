"""`python -m benchmarks [PART...] [--quick] [--json FILE]`: runs all parts, or the named ones.

A quick run skips the parts in `LONG_PARTS` unless they are named. A full run writes
build/bench/results.json and results.png; `--results` also updates benchmarks/RESULTS.md and its
figure. `--from-json benchmarks/RESULTS.json NEW.json` updates the parts that a later run measured.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Final

from benchmarks.bench import Bench, SkippedError
from benchmarks.plot import draw
from benchmarks.report import joined, machine, print_table, read_json, write_json
from benchmarks.results import write_results

PARTS: Final = (
    "peers",
    "export_peers",
    "where",
    "scan",
    "loopback_s3",
    "tls_s3",
    "fixed",
    "decode",
    "typed",
    "typed_where",
    "typed_peers",
    "metadata",
    "find",
    "hybrid",
    "hybrid_disk",
    "stream",
    "engines",
    "fetch",
    "memory",
    "plan",
    "audit",
    "picture",
    "restore",
    "export",
)
# Parts that a quick run skips unless they are named.
LONG_PARTS: Final = frozenset(
    {
        "loopback_s3",
        "tls_s3",
        "typed_peers",
        "hybrid",
        "fetch",
        "memory",
        "plan",
        "audit",
        "picture",
        "restore",
        "export",
    }
)
FOLDER: Final = Path("build/bench")


def main(arguments: list[str] | None = None) -> int:
    """Runs benchmarks by name. Returns the exit status: 1 if a part failed, or if `--strict` is
    given and a goal is not met; else 0.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="small inputs, few repeats")
    parser.add_argument("--json", type=Path, help="the figures; default build/bench/….json")
    parser.add_argument("--results", action="store_true", help="renew benchmarks/RESULTS.md")
    parser.add_argument(
        "--from-json",
        type=Path,
        nargs="+",
        help="measure nothing: RESULTS.md and figure from these files, of several runs' parts",
    )
    parser.add_argument("--strict", action="store_true", help="fail if a goal is not met")
    options = parser.parse_args(arguments)
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if options.from_json:
        write_results(*joined([read_json(path) for path in options.from_json]))
        return 0
    bench = Bench(options.quick)
    wanted = set(options.parts or set(PARTS) - (LONG_PARTS if options.quick else set()))
    about = machine()
    # A SIGTERM becomes an exit, so that sessions and the broker end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    report = bench.report
    path = options.json or FOLDER / ("quick.json" if options.quick else "results.json")
    try:
        for part in PARTS:
            if part in wanted:
                _run(part, bench)
                about["others"] = bench.versions
                # Writes after every part, so that an interrupted run keeps its results.
                write_json(report, about, path, quick=options.quick)
    finally:
        bench.close()
    draw(report.speeds, path.with_suffix(".png"))
    if options.results:
        write_results(report, about, options.quick)
    for name, reason in report.skipped.items():
        print(f"skipped: {name}: {reason}")
    rows = [row for part_rows in report.rows.values() for row in part_rows]
    goals = [row for row in rows if row.met is not None]
    print(
        f"{len(rows)} figures, {len(goals) - len(report.missed)} of {len(goals)} goals met, in"
        f" {sum(report.seconds.values()) / 60:.1f} min; {path}, {path.with_suffix('.png')}"
    )
    for part, error in report.failed.items():
        print(f"failed: {part}: {error}")
    return 1 if report.failed or (options.strict and report.missed) else 0


def _run(part: str, bench: Bench) -> None:
    """Runs one part and prints its rows. Records the reason if the part is skipped or fails."""
    measure = importlib.import_module(f"benchmarks.{part}").run
    started = time.perf_counter()
    try:
        takes_bench = "bench" in inspect.signature(measure).parameters
        rows = measure(bench) if takes_bench else measure(quick=bench.quick)
    except SkippedError as skipped:
        bench.report.skipped[part] = str(skipped)
        print(f"{part}: skipped, {skipped}", flush=True)
        return
    except Exception as error:  # noqa: BLE001 - the other parts are still worth having
        bench.report.failed[part] = f"{type(error).__name__}: {error}"
        traceback.print_exc()
        return
    bench.report.seconds[part] = time.perf_counter() - started
    bench.report.rows[part] = rows
    print_table(f"{part}, {bench.report.seconds[part]:.0f} s", rows)


if __name__ == "__main__":
    sys.exit(main())
