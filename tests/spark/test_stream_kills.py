"""kill −9 of a streaming query: each row once in its sink, when it has run to its end."""

from __future__ import annotations

import os
import random
import secrets
from typing import TYPE_CHECKING

import pytest

from tests.golden_data import assert_same_rows, expected_table, tier_options
from tests.spark.stream_killing import HAS_PROC, NEWEST, OLDEST, Case, Query, cases, interpreters

if TYPE_CHECKING:
    from pathlib import Path

    from tests.golden_data import IsolationLevel

# Runs of a query that is killed three times; a soak asks for as many as there are kinds, or more.
RUNS = int(os.environ.get("KTS_STREAM_RUNS", "1"))
KILLS_OF_A_RUN = 1 if RUNS == 1 else 3
pytestmark = [
    pytest.mark.kills,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not HAS_PROC, reason="looks for children in /proc"),
]

KILLS = ("checkpoint/offsets/0", "sink/_spark_metadata/0", "checkpoint/offsets/2")
"""The file that appears last before the query is killed, for each of its runs."""
LAST_KILL = "checkpoint/commits/3"


@pytest.mark.parametrize(
    "case",
    [
        Case(NEWEST, "read_committed", "parquet"),
        Case(OLDEST, "read_uncommitted", "parquet"),
    ],
    ids=str,
)
def test_each_row_once(tmp_path: Path, case: Case) -> None:
    options = tier_options("txn", includeHeaders="true", maxSegmentsPerTrigger="3")
    query = Query(case, tmp_path, options)
    for name in (*KILLS, LAST_KILL):
        query.killed_behind(name)
    query.end()
    assert_same_rows(query.written(), expected_table("txn", case.isolation_level))


@pytest.mark.parametrize(
    ("isolation_level", "last_file"),
    [("read_committed", "offsets"), ("read_uncommitted", "commits")],
)
def test_each_newer_spark_goes_on(
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
            query.killed_behind(f"checkpoint/{last_file}/{query.batches + 1}")
    query.end()
    assert query.batches == 6, "21 segments"
    assert_same_rows(query.written(), expected_table("txn", isolation_level))


@pytest.mark.parametrize("number", range(RUNS))
def test_killed_anywhere(tmp_path: Path, number: int) -> None:
    seed = os.environ.get("KTS_STREAM_SEED", str(secrets.randbits(31)))
    print(f"KTS_STREAM_SEED={seed}")  # noqa: T201
    kinds = cases()
    # Each kind once before one comes again.
    random.Random(seed).shuffle(kinds)
    case = kinds[number % len(kinds)]
    source = random.Random(f"{seed} {number}")
    topic = source.choice(("txn", "codecs", "epochs", "timeline"))
    expected = expected_table(topic, case.isolation_level)
    # So many batches that the query is still at work when it is killed for the last time.
    batches = KILLS_OF_A_RUN * (7 if case.has_slow_batches else 20)
    most = {"maxOffsetsPerTrigger": str(expected.num_rows // batches)}
    query = Query(case, tmp_path, tier_options(topic, includeHeaders="true", **most))
    kills = [query.killed_somewhere(source) for _ in range(KILLS_OF_A_RUN)]
    query.end()
    assert_same_rows(query.written(), expected)
    told = "; ".join(kills)
    print(f"run {number}: {case}, {topic}: {told}")  # noqa: T201
