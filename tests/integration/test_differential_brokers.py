"""Tests that this product and Spark's Kafka source return the same rows and errors.

Both read from the same running broker. This product reads each case twice: from tier and broker,
and from the broker alone. `STILL_DIFFERENT` contains the cases with different results. A table in
`docs/kafka-source.md` lists these differences.
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
    DEFAULT_LEVEL,
    THROUGH_SPARK_WITH_BROKERS,
    UNION,
    DifferentialResults,
    isolation_levels_of,
    read_name,
)

if TYPE_CHECKING:
    from tests.golden_data import IsolationLevel

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(720)]

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "kafka-source.md"
SOURCES = (UNION, BROKERS)
ALIKE = [name for name in CASES if name not in STILL_DIFFERENT | {DEFAULT_LEVEL}]


@pytest.mark.parametrize("name", ALIKE)
def test_scan_with_brokers_matches_spark_kafka_source(
    differential: DifferentialResults, name: str
) -> None:
    for level in isolation_levels_of(name):
        _check_same(differential, name, level)


def _check_same(differential: DifferentialResults, name: str, level: IsolationLevel) -> None:
    spark = differential.spark[read_name(name, level)]
    for source in SOURCES:
        ours = differential.ours[source, read_name(name, level)]
        if spark.error is not None:
            assert isinstance(ours.error, TieredKafkaError), (source, spark.error, ours.error)
            continue
        assert ours.table is not None, (source, ours.error)
        expected = differential.spark_rows(name, level)
        assert ours.table.column_names == expected.column_names
        if expected.num_rows:
            assert_same_rows(ours.table, expected)
        else:
            assert ours.table.num_rows == 0


@pytest.mark.parametrize("name", MORE)
def test_spark_kafka_source_fails_or_returns_rows_as_case_expects(
    differential: DifferentialResults, name: str
) -> None:
    for level in isolation_levels_of(name):
        spark = differential.spark[read_name(name, level)]
        verdict = MORE[name].verdict
        assert (spark.error is not None) == (verdict is Verdict.BOTH_REFUSE), spark.error
        if spark.table is not None and verdict is not Verdict.ONLY_OURS_REFUSES:
            assert (spark.table.num_rows > 0) == (verdict is Verdict.SAME_ROWS)


@pytest.mark.parametrize("name", sorted(STILL_DIFFERENT))
def test_case_with_documented_difference_fails_in_exactly_one_source(
    differential: DifferentialResults, name: str
) -> None:
    spark = differential.spark[read_name(name, "read_uncommitted")]
    for source in SOURCES:
        ours = differential.ours[source, read_name(name, "read_uncommitted")]
        assert (spark.error is None) != (ours.error is None), (source, spark.error, ours.error)
        assert ours.error is None or isinstance(ours.error, TieredKafkaError)


def test_scan_with_brokers_reads_committed_by_default(differential: DifferentialResults) -> None:
    committed = differential.spark_rows(BOTH_LEVELS, "read_committed")
    uncommitted = differential.spark_rows(BOTH_LEVELS, "read_uncommitted")
    assert committed.num_rows < uncommitted.num_rows
    (level,) = isolation_levels_of(DEFAULT_LEVEL)
    assert_same_rows(differential.spark_rows(DEFAULT_LEVEL, level), uncommitted)
    for source in SOURCES:
        ours = differential.ours[source, read_name(DEFAULT_LEVEL, level)].table
        assert ours is not None
        assert_same_rows(ours, committed)


def test_missing_headers_are_an_empty_list_not_null(differential: DifferentialResults) -> None:
    name = read_name("everything with headers", isolation_levels_of("everything with headers")[0])
    spark = differential.spark[name].table
    assert spark is not None
    is_null = [headers is None for headers in spark["headers"].to_pylist()]
    assert any(is_null)
    assert not all(is_null)
    for source in SOURCES:
        ours = differential.ours[source, name].table
        assert ours is not None
        assert sum(headers == [] for headers in ours["headers"].to_pylist()) == sum(is_null)


def test_data_frame_collected_twice_returns_same_row_count(
    differential: DifferentialResults,
) -> None:
    spark, ours = differential.spark_counts, differential.our_counts
    assert (spark.again - spark.collected, spark.counted - spark.collected) == (1, 2)
    assert (ours.again - ours.collected, ours.counted - ours.collected) == (0, 2)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", THROUGH_SPARK_WITH_BROKERS)
def test_data_source_in_spark_matches_spark_kafka_source(
    differential: DifferentialResults, name: str, source: str
) -> None:
    outcome = differential.through_spark[source, name]
    if CASES[name].verdict is Verdict.BOTH_REFUSE:
        assert outcome.table is None
    else:
        assert outcome.table is not None, outcome.error
        assert_same_rows(outcome.table, differential.spark_rows(name, isolation_levels_of(name)[0]))


HERE = "integration/test_differential_brokers.py"
ELSEWHERE = {
    "default isolation level": (HERE, "test_scan_with_brokers_reads_committed_by_default"),
    "rows, and `latest`, without brokers": (
        "integration/test_differential_options.py",
        "test_scan_of_tier_matches_spark_kafka_source",
    ),
    "a record without headers": (HERE, "test_missing_headers_are_an_empty_list_not_null"),
    "several incarnations of a topic, without brokers": (
        "kts_source/planning/test_golden_scan.py",
        "test_scan_with_topic_id_reads_older_incarnation",
    ),
    "one DataFrame, collected twice": (
        HERE,
        "test_data_frame_collected_twice_returns_same_row_count",
    ),
    "streams": (
        "integration/test_stream_hybrid.py",
        "test_stream_reads_each_row_once_from_tier_or_brokers",
    ),
    "writing": ("spark/test_errors_spark.py", "test_write_is_refused_as_read_only"),
}
"""Rows of the table in the docs that no case shows, and the tests that show them."""


def test_docs_table_lists_all_differences_to_spark_kafka_source() -> None:
    _, _, section = PAGE.read_text().partition("## Differences")
    rows = re.findall(r"^\| (\S.*?) \|", section, re.MULTILINE)
    rows.remove("| `tiered-kafka`")
    assert len(rows) == len(set(rows))
    assert set(rows) == {*ROWS, *ELSEWHERE}
    for file, test in ELSEWHERE.values():
        assert f"def {test}(" in (TESTS / file).read_text()
    shown = {name for names in ROWS.values() for name in names}
    different = set(DIFFERENT) | {name for name, case in MORE.items() if case.reason}
    assert shown == different
