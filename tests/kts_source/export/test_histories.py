"""Random lives of exported topics: the table holds what was committed, each row once.

Seen to fail when broken on purpose: plan files run as they stand; offsets below the table or behind
a gap passed over; empty waves not recorded; vanished offsets not reported; ranges compared with
nothing before a commit; a commit that is published but not recorded.
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

# Of each format, so that all take about as long.
COUNTS = {"parquet": 13, "delta": 8, "iceberg": 4}


@pytest.mark.parametrize("table_format", FORMATS)
def test_random_histories_hold_each_row_once(table_format: str) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(COUNTS[table_format]):
        history = random_export_history(random.Random(seed))
        check_export_history(history, seed, table_format, outcomes)
    assert outcomes["runs"] > COUNTS[table_format]
    assert outcomes["rows"] > 10


@pytest.mark.fuzz
@pytest.mark.parametrize("table_format", FORMATS)
def test_histories_never_seen_before(table_format: str) -> None:
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
    short = shortened(history, lambda one: sum(step.kind == "export" for step in one.steps) >= 2)
    assert [step.kind for step in short.steps] == ["export", "export"]
    check_export_history(short, 0, "parquet")
