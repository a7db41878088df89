"""`python -m benchmarks decode [--quick] [--json FILE]`."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Final

from benchmarks.report import Row, print_table, write_json

NAMES: Final = ("decode", "fetch", "plan", "scan", "export")


def main(arguments: list[str] | None = None) -> int:
    """Run benchmarks by name; exit status 1 if a goal is not met and `--strict` is given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="+", choices=NAMES)
    parser.add_argument("--quick", action="store_true", help="small inputs, few repeats")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--strict", action="store_true", help="fail if a goal is not met")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for name in options.names:
        measured = importlib.import_module(f"benchmarks.{name}").run(quick=options.quick)
        print(f"\n{name}")
        print_table(measured)
        rows += measured
    if options.json:
        write_json(rows, options.json)
    return 1 if options.strict and any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
