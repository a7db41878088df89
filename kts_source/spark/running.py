"""Tasks as one Spark job, wherever Python data sources run.

How many tasks of a running Spark job are done, for a progress bar.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from kts_source.export.progress import Progress
    from kts_source.spark.export_source import WorkerTask


_POLL_SECONDS: Final = 0.5
_GROUP: Final = "spark.jobGroup.id"
_DESCRIPTION: Final = "spark.job.description"


@contextmanager
def counted_tasks(spark: SparkSession, group: str, progress: Progress) -> Iterator[None]:
    """Tells `progress` how many tasks of the jobs run within are done.

    Jobs of this thread belong to a job group of their own meanwhile, which the UI shows. Through
    Spark Connect, which has no status tracker, nothing is told.
    """
    try:
        context = spark.sparkContext
    except Exception:  # noqa: BLE001  # every version says in its own way that there is none
        yield
        return
    before = {name: context.getLocalProperty(name) for name in (_GROUP, _DESCRIPTION)}
    context.setLocalProperty(_GROUP, group)
    context.setLocalProperty(_DESCRIPTION, "tiered-kafka export")
    over = threading.Event()

    def poll() -> None:
        while not over.wait(_POLL_SECONDS):
            progress.ahead(_completed(context, group))

    watcher = threading.Thread(target=poll, name="kts-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        for name, text in before.items():
            context.setLocalProperty(name, text)  # type: ignore[arg-type]  # None clears it


def _completed(context: SparkContext, group: str) -> int:
    """Tasks of the group's newest job that have ended well."""
    tracker = context.statusTracker()
    newest = max(tracker.getJobIdsForGroup(group), default=None)
    job = None if newest is None else tracker.getJobInfo(newest)
    stages = map(tracker.getStageInfo, () if job is None else job.stageIds)
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)


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
