"""Imports Spark's Python data source API for all supported versions of Spark, and defines how data
source classes are pickled and registered again.
"""

from __future__ import annotations

import abc
import copyreg
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from kts_source.errors import UnsupportedSparkError
from kts_source.libraries import missing_extra

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


try:
    from pyspark.sql import types as types
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        InputPartition,
    )
except ModuleNotFoundError as error:
    spark = sys.modules.get("pyspark")
    if spark is None:
        raise missing_extra("pyspark", "spark", "Spark's format 'tiered-kafka'") from error
    if error.name == "pyspark.sql.datasource":
        reason = (
            f"Spark {spark.__version__} has no Python data sources; they need Spark 4.0 or later."
            " The command `kts` and backfill(None, ...) need no Spark"
        )
    else:
        reason = f"PySpark {spark.__version__} cannot be imported: {error}"
    raise UnsupportedSparkError(reason) from error

from kts_source.spark.worker import load

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ModuleNotFoundError:  # new in Spark 4.2; older versions use none

    class ReadAllAvailable:  # type: ignore[no-redef]
        """Replaces Spark's class of this name, which versions before 4.2 do not have."""

    class ReadMaxRows:  # type: ignore[no-redef]
        """Replaces Spark's class of this name, which versions before 4.2 do not have."""

        def __init__(self, max_rows: int) -> None:
            self.max_rows = max_rows

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Replaces Spark's class of this name, which versions before 4.2 do not have."""


__all__ = [
    "DataSource",
    "DataSourceReader",
    "DataSourceStreamReader",
    "InputPartition",
    "ReadAllAvailable",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "UnpickledByLoad",
]


class UnpickledByLoad(abc.ABCMeta):
    """Metaclass of classes that Spark pickles. `worker.load` unpickles these classes, so a worker
    without this package raises an error that explains the problem.
    """


def _loaded(cls: type) -> tuple[Any, ...]:
    return load, (cls.__module__, cls.__qualname__)


copyreg.pickle(UnpickledByLoad, _loaded)


_MANAGER: Final = "org.apache.spark.sql.execution.datasources.DataSourceManager"


@contextmanager
def without_replacement_warning(spark: SparkSession) -> Iterator[None]:
    """While the block runs, hides Spark's warning that a new data source replaces a registered one.
    Does nothing if the session gives no access to its JVM.
    """
    try:
        log4j = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]  # noqa: SLF001
        configurator = log4j.core.config.Configurator
        level = log4j.LogManager.getLogger(_MANAGER).getLevel()
        if not level.isMoreSpecificThan(log4j.Level.ERROR):
            configurator.setLevel(_MANAGER, log4j.Level.ERROR)
    except Exception:  # noqa: BLE001  # a client of Spark Connect, or another logging library
        yield
        return
    try:
        yield
    finally:
        configurator.setLevel(_MANAGER, level)
