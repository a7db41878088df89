"""Registers data source classes again without a warning of Spark."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_LOGGER: Final = "org.apache.spark.sql.execution.datasources.DataSourceManager"


@contextmanager
def replacing_quietly(spark: SparkSession) -> Iterator[None]:
    """Hides Spark's warning that a data source replaced a registered one, while the block runs.

    The package replaces its own classes on purpose. Does nothing with Spark Connect, whose server
    has the log.
    """
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        yield
        return
    log4j = jvm.org.apache.logging.log4j
    configurator = log4j.core.config.Configurator
    level = log4j.LogManager.getLogger(_LOGGER).getLevel()
    if level.isMoreSpecificThan(log4j.Level.ERROR):
        yield
        return
    configurator.setLevel(_LOGGER, log4j.Level.ERROR)
    try:
        yield
    finally:
        configurator.setLevel(_LOGGER, level)
