"""Tasks as one Spark job, wherever Python data sources run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kts_source.spark.counting import counted_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from kts_source.export.progress import Progress
    from kts_source.spark.export_source import WorkerTask


def run_tasks(
    spark: SparkSession, tag: str, tasks: Sequence[WorkerTask], job: object, progress: Progress
) -> Iterator[str]:
    """The reports of all tasks as texts, when all are done.

    Args:
        spark: The session.
        tag: Unique to the run; names what it runs.
        tasks: What workers run.
        job: What all tasks share.
        progress: Told of tasks that are done before they report, where Spark counts them.
    """
    from kts_source.spark.export_source import export_data_source

    spark.dataSource.register(export_data_source(tag, tasks, job))
    tagged = _tagging(spark, tag)
    try:
        with counted_tasks(spark, tag, progress):
            rows = spark.read.format(tag).load().collect()
    except KeyboardInterrupt:
        if tagged:
            spark.interruptTag(tag)
        raise
    finally:
        if tagged:
            spark.removeTag(tag)
        # The session keeps the class: do not let it keep the tasks and the credentials.
        spark.dataSource.register(export_data_source(tag, (), None))
    for row in rows:
        yield row["report"]


def _tagging(spark: SparkSession, tag: str) -> bool:
    """Tags what this thread runs, so that it can be interrupted."""
    try:
        spark.addTag(tag)
    except (AttributeError, NotImplementedError):
        return False
    return True
