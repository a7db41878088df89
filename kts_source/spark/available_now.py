"""All that is tiered now as a stream, in limited batches, on every Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kts_source.spark.datasource import TieredKafkaDataSource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_WITHOUT_LIMITS: Final = ("4.0.", "4.1.")
"""Sparks whose `Trigger.AvailableNow` asks a Python source for one batch."""


def run_available_now(
    spark: SparkSession,
    options: Mapping[str, str],
    write: Callable[[DataFrame], DataStreamWriter],
    *,
    schema: str | None = None,
) -> StreamingQuery:
    """Runs a stream over what is tiered now, in batches as large as the options allow, and returns
    when all is written.

    From Spark 4.2 on this is `trigger(availableNow=True)`. Spark 4.0 and 4.1 would run one batch
    then: there the source fixes its end, and the query runs without a trigger until it is reached.

    Args:
        spark: The session; the source is registered with it.
        options: As for `spark.readStream.format("tiered-kafka")`.
        write: From the stream's frame to a writer with a sink and a checkpoint, not yet started and
            without a trigger.
        schema: Columns that are wanted, as for `readStream.schema`.

    Returns:
        The query, ended.

    Raises:
        StreamingQueryException: It failed; the next run goes on from its checkpoint.
    """
    pinned = spark.version.startswith(_WITHOUT_LIMITS)
    reader = spark.readStream.format(TieredKafkaDataSource.name()).options(**options)
    if pinned:
        reader = reader.option("stopAtEnd", "true")
    if schema is not None:
        reader = reader.schema(schema)
    writer = write(reader.load())
    if not pinned:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query
    query = writer.start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    return query
