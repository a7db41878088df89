"""Implements `audit(source, …)`: audits a tier in this process, in several processes, or as a Spark
job.
"""

from __future__ import annotations

import importlib
import uuid
from typing import TYPE_CHECKING, Unpack

from kts_source.auditing.run import AuditOutcome
from kts_source.auditing.run import audit as audit_here
from kts_source.export.progress import NO_PROGRESS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from kts_source.auditing.report import AuditReport
    from kts_source.auditing.run import AuditArguments, AuditJob, AuditTask
    from kts_source.options import Options, ScanOptions


def audit(
    source: Options | ScanOptions,
    *,
    spark: SparkSession | None = None,
    **arguments: Unpack[AuditArguments],
) -> AuditReport:
    """Checks whether the selected topics of a tier are complete and undamaged, and reports every
    fault.

    Faults of the tier are listed in the report, never raised.

    Args:
        source: Options of the data source.
        spark: Session whose workers audit the partitions; by default, this process audits them. The
            report is the same in both cases.
        level: `listing`, `metadata` (default), `indexes` or `bytes`; each level includes the checks
            of the levels before it.
        grace_ms: Age limit in ms. A younger incomplete segment is not reported as a fault, because
            its copy may still be running.
        store: Store of the tier; by default it is opened from the options.
        now_ms: Current time in ms since 1970, to compute ages; by default the time of the clock.
        on_read: At level `bytes`, called with the number of segment bytes read since the last call.
        state: File that stores the results, created with mode 0600. The next audit with this file
            reads only new, changed or faulty segments. If an audit is killed, the next one
            continues where it ended.
        jobs: Number of processes that audit partitions. The number does not change the report.

    Raises:
        InvalidOptionError: The level is unknown, audits do not support an option, or the state file
            is invalid, in use, or of another tier.
        TopicNotFoundError: The tier does not have a topic.
        StoreError: The store does not respond.
        TypeError: An argument is unknown.
    """
    if spark is None:
        return audit_here(source, **arguments)
    return audit_here(source, executor=SparkAudits(spark), **arguments)


class SparkAudits:
    """Audits partitions in a Spark job."""

    is_near = False

    def __init__(self, spark: SparkSession) -> None:
        # Import here to fail early if Spark is missing. An audit without Spark does not need it.
        importlib.import_module("kts_source.spark.jobs")
        self._spark = spark

    def run(self, tasks: Sequence[AuditTask], job: AuditJob) -> Iterator[AuditOutcome]:
        """Runs the tasks in one Spark job, and yields the outcome of each task after all tasks have
        ended. `job` has the settings that all tasks share. Raises the error of a task that fails.
        """
        from kts_source.spark.jobs import run_tasks

        if not tasks:
            return iter(())
        tag = f"tiered-kafka-audit-{uuid.uuid4().hex}"
        texts = run_tasks(self._spark, tag, tasks, job, NO_PROGRESS)
        return map(AuditOutcome.from_text, texts)
