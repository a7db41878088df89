"""Kills streaming queries with SIGKILL and restarts them. At the end, the sink must contain each
row exactly once.
"""

from __future__ import annotations

import os
import random
import secrets
from typing import TYPE_CHECKING

import pytest

from tests.golden_data import assert_same_rows, expected_table, tier_options
from tests.quick import sample
from tests.spark.stream_killing import HAS_PROC, NEWEST, OLDEST, Case, Query, cases, interpreters

if TYPE_CHECKING:
    from pathlib import Path

    from tests.golden_data import IsolationLevel

# Number of queries that are killed three times; a soak uses at least the number of cases.
RUNS = int(os.environ.get("KTS_STREAM_RUNS", "1"))
KILLS_PER_RUN = 1 if RUNS == 1 else 3
pytestmark = [
    pytest.mark.kills,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not HAS_PROC, reason="looks for children in /proc"),
]

KILLS = ("checkpoint/offsets/0", "sink/_spark_metadata/0", "checkpoint/offsets/2")
"""A query is killed when one of these files appears, one file per run."""
LAST_KILL = "checkpoint/commits/3"


@pytest.mark.parametrize(
    "case",
    sample(
        1, [Case(NEWEST, "read_committed", "parquet"), Case(OLDEST, "read_uncommitted", "parquet")]
    ),
    ids=str,
)
def test_killed_query_writes_each_row_once(tmp_path: Path, case: Case) -> None:
    options = tier_options("txn", includeHeaders="true", maxSegmentsPerTrigger="3")
    query = Query(case, tmp_path, options)
    for name in (*KILLS, LAST_KILL):
        query.kill_after_file(name)
    query.run_to_end()
    assert_same_rows(query.written(), expected_table("txn", case.isolation_level))


@pytest.mark.parametrize(
    ("isolation_level", "last_file"),
    sample(1, [("read_committed", "offsets"), ("read_uncommitted", "commits")]),
)
def test_query_continues_after_upgrade_to_each_newer_spark(
    tmp_path: Path, isolation_level: IsolationLevel, last_file: str
) -> None:
    options = tier_options("txn", includeHeaders="true", maxSegmentsPerTrigger="3")
    sparks = list(interpreters())
    assert sparks[0] == OLDEST
    assert sparks[-1] == NEWEST
    for number, spark in enumerate(sparks):
        query = Query(Case(spark, isolation_level, "parquet"), tmp_path, options)
        assert query.batches >= number - 1
        if spark != NEWEST:
            query.kill_after_file(f"checkpoint/{last_file}/{query.batches + 1}")
    query.run_to_end()
    assert query.batches == 6, "21 segments"
    assert_same_rows(query.written(), expected_table("txn", isolation_level))


@pytest.mark.parametrize("number", range(RUNS))
def test_query_killed_at_random_times_writes_each_row_once(tmp_path: Path, number: int) -> None:
    seed = os.environ.get("KTS_STREAM_SEED", str(secrets.randbits(31)))
    print(f"KTS_STREAM_SEED={seed}")  # noqa: T201
    shuffled_cases = cases()
    # Runs every case once before repeating one.
    random.Random(seed).shuffle(shuffled_cases)
    case = shuffled_cases[number % len(shuffled_cases)]
    source = random.Random(f"{seed} {number}")
    topic = source.choice(("txn", "codecs", "epochs", "timeline"))
    expected = expected_table(topic, case.isolation_level)
    # Enough batches that the query is still running at the last kill.
    batches = KILLS_PER_RUN * (7 if case.has_slow_batches else 20)
    limit = {"maxOffsetsPerTrigger": str(expected.num_rows // batches)}
    query = Query(case, tmp_path, tier_options(topic, includeHeaders="true", **limit))
    kills = [query.kill_at_random_time(source) for _ in range(KILLS_PER_RUN)]
    query.run_to_end()
    assert_same_rows(query.written(), expected)
    kill_texts = "; ".join(kills)
    print(f"run {number}: {case}, {topic}: {kill_texts}")  # noqa: T201
