"""`audit(source, …)`: an audit in this process, in several, or as a Spark job."""

from __future__ import annotations

import importlib
import uuid
from typing import TYPE_CHECKING, Unpack

from kts_source.auditing.run import AuditOutcome
from kts_source.auditing.run import audit as audit_here
from kts_source.export.progress import NO_PROGRESS
from kts_source.spark.running import run_tasks

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
    """Proves the selected topics of a tier whole, or names every fault.

    What is wrong with the tier is in the report, never raised.

    Args:
        source: Options as for the data source.
        spark: Audits partitions in its workers; the report is the same.
        level: `listing`, `metadata` (default), `indexes` or `bytes`: each looks at more than the
            one before.
        grace_ms: Objects of an unfinished copy that are younger count as a copy under way.
        store: The tier; opened from the options when not given.
        now_ms: The time in ms since 1970 that ages are counted from; the clock's unless given.
        on_read: Called with the bytes of segments that were read, at level `bytes`.
        state: File that keeps what was proven, of mode 0600, and is made if need be: only what is
            new, changed or at fault is read. An audit that was killed goes on with it.
        jobs: Audits partitions in so many processes; the report is the same.

    Raises:
        InvalidOptionError: A level that there is not, an option that an audit cannot honour, or a
            state of another tier, of something else, or in use.
        TopicNotFoundError: A topic that the tier does not have.
        StoreError: The store does not answer.
        TypeError: No such argument.
    """
    if spark is None:
        return audit_here(source, **arguments)
    return audit_here(source, executor=SparkAudits(spark), **arguments)


class SparkAudits:
    """Runs the audits of partitions as a Spark job.

    Args:
        spark: The session.
    """

    is_near = False

    def __init__(self, spark: SparkSession) -> None:
        # Now, before any work; not on top, so that an audit without Spark needs none.
        importlib.import_module("kts_source.spark.export_source")
        self._spark = spark

    def run(self, tasks: Sequence[AuditTask], job: AuditJob) -> Iterator[AuditOutcome]:
        """See `AuditExecutor.run`. Outcomes come when all tasks are done."""
        if not tasks:
            return iter(())
        tag = f"tiered-kafka-audit-{uuid.uuid4().hex}"
        texts = run_tasks(self._spark, tag, tasks, job, NO_PROGRESS)
        return map(AuditOutcome.from_text, texts)
