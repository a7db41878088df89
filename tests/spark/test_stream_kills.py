"""kill −9 of a streaming query: each row once in its sink, when it has run to its end."""

from __future__ import annotations

import os
import random
import secrets
from typing import TYPE_CHECKING

import pytest

from tests.golden_data import (
    ISOLATION_LEVELS,
    IsolationLevel,
    assert_same_rows,
    expected_table,
    tier_options,
)
from tests.spark.stream_killing import HAS_PROC, Query, interpreters, sinks_of

if TYPE_CHECKING:
    from pathlib import Path

# Runs of a query that is killed five times; a soak asks for more.
RUNS = int(os.environ.get("KTS_STREAM_RUNS", "1"))
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
    ("spark", "isolation_level"), [("newest", "read_committed"), ("40", "read_uncommitted")]
)
def test_each_row_once(tmp_path: Path, spark: str, isolation_level: IsolationLevel) -> None:
    options = tier_options(
        "txn", isolationLevel=isolation_level, includeHeaders="true", maxSegmentsPerTrigger="3"
    )
    query = Query(interpreters()[spark], tmp_path, options)
    for name in (*KILLS, LAST_KILL):
        query.killed_behind(name)
    query.end()
    assert_same_rows(query.written(), expected_table("txn", isolation_level))


@pytest.mark.parametrize("number", range(RUNS))
def test_killed_anywhere(tmp_path: Path, number: int) -> None:
    seed = os.environ.get("KTS_STREAM_SEED", str(secrets.randbits(31)))
    source = random.Random(f"{seed} {number}")
    print(f"KTS_STREAM_SEED={seed}")  # noqa: T201
    spark, python = source.choice(sorted(interpreters().items()))
    topic = source.choice(("txn", "codecs", "epochs", "timeline"))
    level, sink = source.choice(ISOLATION_LEVELS), source.choice(sinks_of(spark))
    expected = expected_table(topic, level)
    kills_wanted = 1 if RUNS == 1 else 5
    # So many batches that the query is still at work when it is killed for the last time.
    most = {"maxOffsetsPerTrigger": str(expected.num_rows // (20 * kills_wanted))}
    options = tier_options(topic, isolationLevel=level, includeHeaders="true", **most)
    query = Query(python, tmp_path, options, sink)
    kills = [query.killed_somewhere(source) for _ in range(kills_wanted)]
    query.end()
    assert_same_rows(query.written(), expected)
    told = "; ".join(kills)
    print(f"run {number}: Spark {spark}, {topic}, {level}, {sink}: {told}")  # noqa: T201
