"""Tests that equal options have the same result in this product and in Spark's Kafka source.

The result consists of the rows, or is an error.

Spark's source reads from a broker that has tiered all closed segments. This product reads only the
tier, after the broker stopped. The active segment is never tiered. The tests therefore compare only
the rows before the end of the tier. The broker reported this offset before it stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kts_source.errors import TieredKafkaError
from tests.golden_data import ISOLATION_LEVELS, assert_same_rows
from tests.integration.differential_case import Verdict
from tests.integration.differential_refusals import DIFFERENT, REFUSED
from tests.integration.differential_same import SAME
from tests.integration.differential_world import (
    THROUGH_SPARK,
    TIER,
    DifferentialResults,
    isolation_levels_of,
    read_name,
)
from tests.integration.workload import TOPICS
from tests.kts_source.planning.scanning import scan

if TYPE_CHECKING:
    from tests.golden_data import IsolationLevel

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(720)]


def test_workload_creates_partitions_and_offsets_for_all_cases(
    differential: DifferentialResults,
) -> None:
    facts = differential.facts
    assert set(facts.tier_ends) >= {(name, n) for name in TOPICS for n in range(TOPICS[name])}
    assert facts.tier_ends["plain-sparse", 1] == 0 < facts.latest["plain-sparse", 1]
    assert facts.starts["trimmed", 0] == 777
    for partition in range(2):
        assert facts.tier_stable["txn", partition] < facts.tier_ends["txn", partition]
    for pair in facts.tier_ends:
        if pair[0] in TOPICS:
            assert facts.tier_ends[pair] < facts.latest[pair]


@pytest.mark.parametrize("level", ISOLATION_LEVELS)
@pytest.mark.parametrize("name", SAME)
def test_scan_of_tier_matches_spark_kafka_source(
    differential: DifferentialResults, name: str, level: IsolationLevel
) -> None:
    assert differential.spark[read_name(name, level)].error is None
    expected = differential.expected(name, level)
    table = scan({**differential.of_tier, **differential.options(name, level)})
    assert table.column_names == expected.column_names
    assert (expected.num_rows == 0) == (SAME[name].verdict is Verdict.NO_ROWS)
    if expected.num_rows:
        assert_same_rows(table, expected)
    else:
        assert table.num_rows == 0


@pytest.mark.parametrize("name", REFUSED)
def test_rejected_options_fail_in_both_sources(
    differential: DifferentialResults, name: str
) -> None:
    assert differential.spark[read_name(name, "read_uncommitted")].error is not None
    with pytest.raises(TieredKafkaError):
        scan({**differential.of_tier, **differential.options(name, "read_uncommitted")})


@pytest.mark.parametrize("name", DIFFERENT)
def test_case_with_documented_difference_fails_only_in_named_source(
    differential: DifferentialResults, name: str
) -> None:
    case, outcome = DIFFERENT[name], differential.spark[read_name(name, "read_uncommitted")]
    assert case.reason
    options = {**differential.of_tier, **differential.options(name, "read_uncommitted")}
    if case.verdict is Verdict.ONLY_OURS_REFUSES:
        assert outcome.error is None
        with pytest.raises(TieredKafkaError):
            scan(options)
    else:
        assert case.verdict is Verdict.ONLY_SPARK_REFUSES
        assert outcome.error is not None
        scan(options)


def test_scan_of_tier_reads_committed_by_default(differential: DifferentialResults) -> None:
    table = scan({**differential.of_tier, "subscribe": ",".join(TOPICS)})
    assert_same_rows(table, differential.expected("subscribe all", "read_committed"))


@pytest.mark.parametrize("name", THROUGH_SPARK)
def test_data_source_of_tier_in_spark_matches_spark_kafka_source(
    differential: DifferentialResults, name: str
) -> None:
    outcome = differential.through_spark[TIER, name]
    if name in REFUSED:
        assert outcome.table is None
    else:
        assert outcome.table is not None, outcome.error
        assert_same_rows(outcome.table, differential.expected(name, isolation_levels_of(name)[0]))
