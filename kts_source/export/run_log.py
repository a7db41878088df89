"""Writes the log lines of an export (level INFO): the committed offsets at the start, each commit,
and the end.

All lines of a run begin with the run id, as in the run's report and metrics.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from kts_source.export.ranges import held_range
from kts_source.texts import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kts_source.export.export_plan import ExportPlan
    from kts_source.export.ranges import CommittedRanges
    from kts_source.export.report import BackfillReport
    from kts_source.export.tables.export_table import Commit
    from kts_source.planning.partition_plan import PartitionPlan

log = logging.getLogger(__name__)

_MAX_NAMED: Final = 8
"""Maximum number of partitions in a log line."""


def log_run_start(run_id: str, target: str, plan: ExportPlan, committed: CommittedRanges) -> None:
    """Logs the offsets that a run will write, and the committed offsets that it continues after."""
    log.info(
        "run %s: export to %s begins: %d commits planned, %d tasks, %s of segments",
        *(run_id, target, len(plan.waves), len(plan.scan.tasks)),
        format_bytes(plan.scan.nominal_bytes),
    )
    for topic in dict.fromkeys(partition.topic for partition in plan.scan.partitions):
        lines = []
        for partition in plan.scan.partitions:
            if partition.topic == topic:
                held = held_range(committed, topic, partition.topic_id, partition.partition)
                after = "a new partition" if held is None else f"resumes after offset {held.stop}"
                span = f"[{partition.start}, {partition.stop})"
                if partition.start >= partition.stop:
                    span = "no new offsets"
                lines.append(f"{topic}-{partition.partition} {span}, {after}")
        log.info("run %s: offsets to write: %s", run_id, _joined(lines, "partitions"))


def log_commit(run_id: str, version: str, commit: Commit, seconds: float) -> None:
    """Logs a commit, and the offsets that it added to the table."""
    log.info(
        "run %s: committed %s: %d rows in %d files, %s, %.1f s: %s",
        *(run_id, version, sum(file.rows for file in commit.files), len(commit.files)),
        *(format_bytes(sum(file.size for file in commit.files)), seconds),
        _joined(
            [
                f"{step.topic}-{step.key.partition} [{step.start}, {step.stop})"
                for step in commit.advances
                if step.start < step.stop
            ],
            "partitions",
        ),
    )


def log_run_end(report: BackfillReport, partitions: Iterable[PartitionPlan]) -> None:
    """Logs the figures of a run, and the offsets that it skipped. Lost offsets are logged as a
    warning; offsets after an open transaction are not, because the next run reads them.
    """
    log.info(
        "run %s: export to %s ended: %d rows, %d rejected, %d dropped as malformed, %d commits,"
        " %s received%s",
        *(report.run_id, report.target, report.rows, report.rejected, report.malformed),
        *(report.commits, format_bytes(report.bytes_read)),
        f"; {report.freshness}" if report.freshness else "",
    )
    stops = {(each.topic, each.partition): each.stop for each in partitions}
    lost: list[str] = []
    later: list[str] = []
    for gap in report.skipped:
        is_later = gap.start >= stops.get((gap.topic, gap.partition), gap.stop)
        (later if is_later else lost).append(str(gap))
    for level, action, gaps in (
        (logging.WARNING, "lost offsets were skipped", lost),
        (logging.INFO, "left for a later run", later),
    ):
        if gaps:
            log.log(level, "run %s: %s: %s", report.run_id, action, _joined(gaps, "ranges"))


def _joined(texts: Sequence[str], noun: str) -> str:
    """Joins the first texts, and appends how many texts were omitted."""
    named: Iterable[str] = texts[:_MAX_NAMED]
    more = len(texts) - _MAX_NAMED
    return "; ".join([*named, *([f"and {more:,} more {noun}"] if more > 0 else [])])
