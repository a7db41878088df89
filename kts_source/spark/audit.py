"""`audit(source, …)`: audits a tier in this process, in several, or as a Spark job."""

from __future__ import annotations

import importlib
import uuid
from typing import TYPE_CHECKING, Unpack

from kts_source.auditing.run import AuditOutcome
from kts_source.auditing.run import audit as audit_here
from kts_source.export.progress import NO_PROGRESS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from kts_source.auditing.report import AuditReport
    from kts_source.auditing.run import AuditArguments, AuditJob, AuditTask
    from kts_source.options import ScanOptions


def audit(
    source: Mapping[str, str] | ScanOptions,
    *,
    spark: SparkSession | None = None,
    **arguments: Unpack[AuditArguments],
) -> AuditReport:
    """Checks whether the selected topics of a tier are complete, and reports every fault.

    Faults of the tier are in the report and never raised.

    Args:
        source: Options as for the data source.
        spark: Audits partitions in its workers; the report is the same.
        level: `listing`, `metadata` (default), `indexes` or `bytes`; each includes the one before.
        grace_ms: Younger objects of an unfinished copy count as a running copy.
        store: The tier; default: opened from the options.
        now_ms: Time in ms since 1970 from which ages are counted; default: the clock.
        on_read: Called with the number of segment bytes that were read, at level `bytes`.
        state: File with the results; it is created with mode 0600. Only new, changed or faulty
            segments are read again. After a kill, the next audit resumes from this file.
        jobs: Number of processes that audit partitions; the report is the same.

    Raises:
        InvalidOptionError: The level is unknown, an audit does not support an option, or the state
            is of another tier, invalid, or in use.
        TopicNotFoundError: The tier does not have a topic.
        StoreError: The store does not respond.
        TypeError: An unknown argument.
    """
    if spark is None:
        return audit_here(source, **arguments)
    return audit_here(source, executor=SparkAudits(spark), **arguments)


class SparkAudits:
    """Audits partitions as a Spark job."""

    is_near = False

    def __init__(self, spark: SparkSession) -> None:
        # Fails early if Spark is missing; an audit without Spark does not need it.
        importlib.import_module("kts_source.spark.jobs")
        self._spark = spark

    def run(self, tasks: Sequence[AuditTask], job: AuditJob) -> Iterator[AuditOutcome]:
        """See `AuditExecutor.run`. Yields the outcomes after all tasks have ended."""
        from kts_source.spark.jobs import run_tasks

        if not tasks:
            return iter(())
        tag = f"tiered-kafka-audit-{uuid.uuid4().hex}"
        texts = run_tasks(self._spark, tag, tasks, job, NO_PROGRESS)
        return map(AuditOutcome.from_text, texts)
