"""Spark's own tests of golden topics once more, on Sail; runs where it is installed.

What is missing here of them needs `rdd`, which Spark Connect does not have.
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

test_rows_over_s3 = test_golden_spark.test_rows_over_s3
test_narrower_schema = test_golden_spark.test_narrower_schema
test_sparks_own_schema_text = test_golden_spark.test_sparks_own_schema_text
test_temporary_view_in_sql = test_golden_spark.test_temporary_view_in_sql
test_two_scans_of_one_load = test_golden_spark.test_two_scans_of_one_load
test_an_empty_plan_gives_no_rows = test_golden_spark.test_an_empty_plan_gives_no_rows
test_limit_closes_the_scan = test_golden_spark.test_limit_closes_the_scan


@pytest.fixture
def registered(sail: SparkSession) -> SparkSession:
    return sail
