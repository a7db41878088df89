"""Prints how the steps of a run went and the sum of all tests; exits with 1 unless all passed."""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

# An empty suite is no failure, unless it is a main suite.
MUST_HAVE_TESTS = {"test"}


def count_tests(report: Path) -> tuple[int, int, int]:
    """Returns (passed, failed, skipped) of one JUnit report; a truncated file counts as one
    failure.
    """
    try:
        suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    except ElementTree.ParseError:
        return 0, 1, 0
    totals = {
        name: sum(int(suite.get(name, "0")) for suite in suites)
        for name in ("tests", "failures", "errors", "skipped")
    }
    failed = totals["failures"] + totals["errors"]
    return totals["tests"] - failed - totals["skipped"], failed, totals["skipped"]


def summarise(results: Path) -> bool:
    """Prints the table and the closing line; returns whether every step passed."""
    passed = failed = skipped = 0
    good = True
    print(f"{'step':<22}{'outcome':<16}{'minutes':>8}   tests")
    for line in (results / "steps.tsv").read_text().splitlines():
        name, outcome, seconds = line.split("\t")
        report = results / f"{name}.xml"
        counts = count_tests(report) if report.exists() else None
        ran = f"{counts[0]} passed, {counts[1]} failed, {counts[2]} skipped" if counts else ""
        print(f"{name:<22}{outcome:<16}{int(seconds) / 60:>8.1f}   {ran}".rstrip())
        step_good = outcome == "passed" or (outcome == "no tests" and name not in MUST_HAVE_TESTS)
        good = good and step_good
        if counts:
            passed, failed, skipped = passed + counts[0], failed + counts[1], skipped + counts[2]
        if not step_good and not (counts and counts[1]):
            failed += 1  # lint, a limit, a crash: no test reports it, the closing line must
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped")
    return good and failed == 0 and passed > 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    sys.exit(0 if summarise(parser.parse_args().results) else 1)
