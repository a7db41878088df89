"""Replaces registered data source classes without Spark's warning."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

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
