"""Runs random histories of exported topics. After each export, the table must contain each
committed row once.

The tests fail if an export has one of these bugs:

* It runs plan files without a check.
* It skips offsets below the table or after a gap.
* It does not record commits without rows.
* It does not report vanished offsets.
* It does not compare ranges before a commit.
* It publishes a commit that it does not record.
"""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from tests.kts_source.export.exporting import FORMATS
from tests.kts_source.export.fates import random_export_history
from tests.kts_source.export.history import check_export_history
from tests.kts_source.planning.history import shortened

# Histories per format, chosen so that all formats take about the same time.
COUNTS = {"parquet": 13, "delta": 8, "iceberg": 4}


@pytest.mark.parametrize("table_format", FORMATS)
def test_exports_in_random_histories_write_each_row_once(table_format: str) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(COUNTS[table_format]):
        history = random_export_history(random.Random(seed))
        check_export_history(history, seed, table_format, outcomes)
    assert outcomes["runs"] > COUNTS[table_format]
    assert outcomes["rows"] > 10


@pytest.mark.fuzz
@pytest.mark.parametrize("table_format", FORMATS)
def test_exports_in_new_random_histories_write_each_row_once(table_format: str) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    stop = time.monotonic() + 15
    number = 0
    while time.monotonic() < stop:
        history = random_export_history(random.Random(f"{seed}-{number}"))
        try:
            check_export_history(history, number, table_format)
        except Exception as error:
            raise AssertionError(f"seed {seed}, history {number}: {history}") from error
        number += 1
    assert number > 5


def test_failing_histories_are_shortened() -> None:
    history = random_export_history(random.Random(3))
    short = shortened(
        history, lambda candidate: sum(step.kind == "export" for step in candidate.steps) >= 2
    )
    assert [step.kind for step in short.steps] == ["export", "export"]
    check_export_history(short, 0, "parquet")
