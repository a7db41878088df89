"""Runs Spark's tests of golden topics on Sail, if it is installed. Omits tests that use `rdd`,
which Spark Connect does not have.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from tests.spark import test_golden_spark
from tests.spark.test_sail import sail as sail

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(importlib.util.find_spec("pysail") is None, reason="Sail is not installed"),
]

test_scan_of_s3_tier_returns_expected_rows = (
    test_golden_spark.test_scan_of_s3_tier_returns_expected_rows
)
test_user_schema_selects_columns = test_golden_spark.test_user_schema_selects_columns
test_spark_schema_of_scan_with_headers_is_as_documented = (
    test_golden_spark.test_spark_schema_of_scan_with_headers_is_as_documented
)
test_view_in_sql_returns_expected_rows = test_golden_spark.test_view_in_sql_returns_expected_rows
test_union_of_two_scans_returns_rows_of_both = (
    test_golden_spark.test_union_of_two_scans_returns_rows_of_both
)
test_empty_plan_returns_no_rows = test_golden_spark.test_empty_plan_returns_no_rows
test_limit_ends_the_scan_early = test_golden_spark.test_limit_ends_the_scan_early


@pytest.fixture
def registered(sail: SparkSession) -> SparkSession:
    return sail
