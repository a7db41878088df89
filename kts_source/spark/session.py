"""The Spark that this package's own commands start."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

# Refuses a Spark without Python data sources before one is started.
import kts_source.spark.data_source_api  # noqa: F401

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session_builder() -> SparkSession.Builder:
    """A builder whose Spark runs its Python workers with this process's interpreter, which has the
    package, unless the environment names another one. Spark itself would take `python3`.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return SparkSession.builder
