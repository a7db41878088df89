"""Checks of Iceberg tables by name that need no Spark session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kts_source.errors import UnsupportedTargetError
from kts_source.export.settings import export_settings
from kts_source.spark.named_iceberg import NamedIcebergTable


def test_spark_connect_is_refused_before_a_table_is_created() -> None:
    settings = export_settings("lake.shop.t", writer="spark", table_format="iceberg")
    executor: Any = SimpleNamespace(spark=object())  # like a session of Spark Connect, without JVM
    with pytest.raises(UnsupportedTargetError, match="Spark Connect cannot commit"):
        NamedIcebergTable(settings, executor).load()
