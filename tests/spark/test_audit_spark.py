"""Checks that an audit with Spark jobs returns the same report as an audit in one process.

A second audit with the same `state` file must read nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import kts_source
from tests.golden_data import TOPICS, tier_options
from tests.kts_source.auditing.damaged_tier import NOW_MS
from tests.quick import only

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")


@pytest.mark.parametrize("topics", only(1, [("txn", "encrypted"), TOPICS]))
def test_audit_in_spark_returns_the_same_report_as_in_one_process(
    spark: SparkSession, tmp_path: Path, topics: tuple[str, ...]
) -> None:
    options = tier_options(topics)
    expected = kts_source.audit(options, level="bytes", now_ms=NOW_MS)
    state = tmp_path / "state"
    read: list[int] = []
    for _ in range(2):
        report = kts_source.audit(
            options,
            spark=spark,
            level="bytes",
            now_ms=NOW_MS,
            state=str(state),
            on_read=read.append,
        )
        assert report == expected
    half = len(read) // 2
    assert sum(read[:half]) > 0
    assert sum(read[half:]) == 0
