"""With the brokers, ours is what Spark's own Kafka source is: the same rows, the same refusals.

Both read from the same broker while it runs; ours with its tier beside it, and without. What
differs is in `STILL_DIFFERENT`, and each of that in the table of `docs/kafka-source.md`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kts_source.errors import TieredKafkaError
from tests.golden_data import assert_same_rows
from tests.integration.differential_brokers import MORE, ROWS, STILL_DIFFERENT
from tests.integration.differential_case import Verdict
from tests.integration.differential_refusals import DIFFERENT
from tests.integration.differential_world import (
    BOTH_LEVELS,
    BROKERS,
    CASES,
    LEVEL_LEFT_OUT,
    THROUGH_SPARK_WITH_BROKERS,
    UNION,
    World,
    levels,
    read_name,
)

if TYPE_CHECKING:
    from tests.golden_data import IsolationLevel

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(720)]

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "kafka-source.md"
SOURCES = (UNION, BROKERS)
ALIKE = [name for name in CASES if name not in STILL_DIFFERENT | {LEVEL_LEFT_OUT}]


@pytest.mark.parametrize("name", ALIKE)
def test_as_sparks_source(differential: World, name: str) -> None:
    for level in levels(name):
        _check_alike(differential, name, level)


def _check_alike(differential: World, name: str, level: IsolationLevel) -> None:
    spark = differential.spark[read_name(name, level)]
    for source in SOURCES:
        ours = differential.ours[source, read_name(name, level)]
        if spark.error is not None:
            assert isinstance(ours.error, TieredKafkaError), (source, spark.error, ours.error)
            continue
        assert ours.table is not None, (source, ours.error)
        expected = differential.whole(name, level)
        assert ours.table.column_names == expected.column_names
        if expected.num_rows:
            assert_same_rows(ours.table, expected)
        else:
            assert ours.table.num_rows == 0


@pytest.mark.parametrize("name", MORE)
def test_what_only_brokers_know(differential: World, name: str) -> None:
    """The new cases are about what they say: rows, none, or a refusal."""
    for level in levels(name):
        spark = differential.spark[read_name(name, level)]
        verdict = MORE[name].verdict
        assert (spark.error is not None) == (verdict is Verdict.BOTH_REFUSE), spark.error
        if spark.table is not None and verdict is not Verdict.ONLY_OURS_REFUSES:
            assert (spark.table.num_rows > 0) == (verdict is Verdict.SAME_ROWS)


@pytest.mark.parametrize("name", sorted(STILL_DIFFERENT))
def test_what_stays_different(differential: World, name: str) -> None:
    spark = differential.spark[read_name(name, "read_uncommitted")]
    for source in SOURCES:
        ours = differential.ours[source, read_name(name, "read_uncommitted")]
        assert (spark.error is None) != (ours.error is None), (source, spark.error, ours.error)
        assert ours.error is None or isinstance(ours.error, TieredKafkaError)


def test_the_default_is_read_committed(differential: World) -> None:
    committed = differential.whole(BOTH_LEVELS, "read_committed")
    uncommitted = differential.whole(BOTH_LEVELS, "read_uncommitted")
    assert committed.num_rows < uncommitted.num_rows
    (level,) = levels(LEVEL_LEFT_OUT)
    assert_same_rows(differential.whole(LEVEL_LEFT_OUT, level), uncommitted)
    for source in SOURCES:
        ours = differential.ours[source, read_name(LEVEL_LEFT_OUT, level)].table
        assert ours is not None
        assert_same_rows(ours, committed)


def test_a_record_without_headers(differential: World) -> None:
    name = read_name("everything with headers", levels("everything with headers")[0])
    spark = differential.spark[name].table
    assert spark is not None
    without = [headers is None for headers in spark["headers"].to_pylist()]
    assert any(without)
    assert not all(without)
    for source in SOURCES:
        ours = differential.ours[source, name].table
        assert ours is not None
        assert sum(headers == [] for headers in ours["headers"].to_pylist()) == sum(without)


def test_one_data_frame_of_a_topic_that_grows(differential: World) -> None:
    """Collected, collected again, and counted, which is another query."""
    spark, ours = differential.spark_counts, differential.our_counts
    assert (spark.again - spark.collected, spark.counted - spark.collected) == (1, 2)
    assert (ours.again - ours.collected, ours.counted - ours.collected) == (0, 2)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", THROUGH_SPARK_WITH_BROKERS)
def test_through_spark(differential: World, name: str, source: str) -> None:
    outcome = differential.through_spark[source, name]
    if CASES[name].verdict is Verdict.BOTH_REFUSE:
        assert outcome.table is None
    else:
        assert outcome.table is not None, outcome.error
        assert_same_rows(outcome.table, differential.whole(name, levels(name)[0]))


HERE = "integration/test_differential_brokers.py"
ELSEWHERE = {
    "default isolation level": (HERE, "test_the_default_is_read_committed"),
    "what is read, and `latest`, without brokers": (
        "integration/test_differential_options.py",
        "test_same_rows",
    ),
    "a record without headers": (HERE, "test_a_record_without_headers"),
    "several incarnations of a topic, without brokers": (
        "kts_source/planning/test_golden_scan.py",
        "test_scan_with_topic_id_reads_older_incarnation",
    ),
    "one DataFrame, collected twice": (HERE, "test_one_data_frame_of_a_topic_that_grows"),
    "streams": ("integration/test_stream_hybrid.py", "test_batches_on_both_sides_of_the_seam"),
    "writing": ("spark/test_errors_spark.py", "test_does_not_write"),
}
"""Rows of the docs that are no combination of options, and what shows them."""


def test_the_table_of_the_docs() -> None:
    rows = re.findall(r"^\| (\S.*?) \|", PAGE.read_text(), re.MULTILINE)
    rows.remove("| `tiered-kafka`")
    assert len(rows) == len(set(rows))
    assert set(rows) == {*ROWS, *ELSEWHERE}
    for file, test in ELSEWHERE.values():
        assert f"def {test}(" in (TESTS / file).read_text()
    shown = {name for names in ROWS.values() for name in names}
    different = set(DIFFERENT) | {n for n, one in MORE.items() if one.reason}
    assert shown == different | {"assign a partition that is not"}
