"""Reports what a run of an export would write, without writing it."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kts_source.columns import PARTITION, TOPIC
from kts_source.export.report import BackfillReport, empty_report, newest_ms, written_ranges
from kts_source.export.settings import ADD
from kts_source.export.task import OFFSET
from kts_source.export.topic_fields import check_fields
from kts_source.export.transforms import RowTransform
from kts_source.options.value_formats import FAILFAST
from kts_source.planning.estimate import estimate
from kts_source.read.task import ScanTask

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from kts_source.export.export_plan import ExportPlan
    from kts_source.export.new_fields import NewFields
    from kts_source.export.settings import ExportSettings
    from kts_source.options import ScanOptions

_SAMPLE_ROWS: Final = 10_000


@dataclass(slots=True)
class _Sample:
    """Counts of sampled records. `reason` is the reason of the first rejected record."""

    rows: int = 0
    rejected: int = 0
    reason: str = ""

    def set_aside(self, _batch: pa.RecordBatch, reasons: Mapping[int, str]) -> None:
        """Counts records that cannot be decoded."""
        self.rejected += len(reasons)
        self.reason = self.reason or next(iter(reasons.values()), "")

    def __str__(self) -> str:
        total = self.rows + self.rejected
        reason = f", first reason: {self.reason}" if self.reason else ""
        return f"{self.rejected:,} of {total:,} sampled records would be rejected{reason}"


def dry_report(
    options: ScanOptions,
    settings: ExportSettings,
    plan: ExportPlan,
    seconds: Mapping[str, float],
    *,
    is_first: bool,
) -> BackfillReport:
    """Returns a report of the run that `plan` describes. The figures of the report are planned or
    estimated.

    Reads at most 10,000 records of the first task, and decodes them; if topics have formats of
    their own, of the first task of each topic. Writes nothing. If `is_first` is True, the run would
    make the first commit of the export, and the fields of the sample are checked; see
    `check_fields`.
    """
    fields = None
    if is_first and options.formats and settings.on_new_fields != ADD:
        from kts_source.export.new_fields import NewFields  # imports value decoders

        fields = NewFields(options.formats, adds=False)
    sample = _sample(options, settings, plan, fields)
    if fields is not None:
        has_more = len(plan.scan.tasks) > 1 or sample.rows + sample.rejected >= _SAMPLE_ROWS
        check_fields(fields.topics.values(), options.formats, is_sample=has_more)
    estimated = estimate(plan.scan.tasks)
    advances = (advance for wave in plan.waves for advance in wave.advances)
    return replace(
        empty_report(settings.target, settings.table_format),
        dry_run=True,
        ranges=written_ranges(advances, plan.skipped),
        rows_read=sample.rows + sample.rejected,
        rejected=sample.rejected,
        segment_bytes=plan.scan.nominal_bytes,
        commits=len(plan.waves),
        requests=estimated.requests,
        bytes_read=estimated.bytes,
        cost=estimated.cost(),
        skipped=plan.skipped,
        seconds=seconds,
        verified=(str(sample),),
        newest_ms=newest_ms(plan.scan.partitions),
        ended_ms=time.time_ns() // 1_000_000,
    )


def _sample(
    options: ScanOptions, settings: ExportSettings, plan: ExportPlan, fields: NewFields | None
) -> _Sample:
    from kts_source.read.read_task import run_task

    sample = _Sample()
    is_counted = settings.dead_letters is not None or any(
        form.mode == FAILFAST for form in options.formats
    )
    set_aside = sample.set_aside if is_counted else None  # a run would drop or keep the rows
    needed = () if fields is None else (TOPIC, PARTITION, *fields.columns)
    columns = tuple(dict.fromkeys((*options.columns, OFFSET, *needed)))
    fetch = replace(options.fetch, metrics_path=None)  # write nothing
    reading = replace(options, columns=columns, fetch=fetch)
    for task in _sampled_tasks(options, plan):
        most = sample.rows + sample.rejected + _SAMPLE_ROWS
        with closing(run_task(task, reading, set_aside=set_aside)) as batches:
            for batch in batches:
                sample.rows += batch.num_rows
                if fields is not None and batch.num_rows:
                    fields.add_unknown(batch)
                if isinstance(settings.transform, RowTransform):
                    rejected = settings.transform.apply(batch.select(list(options.columns)))
                    sample.rows -= len(rejected.rejected)
                    sample.set_aside(batch, {row.row: row.reason for row in rejected.rejected})
                if sample.rows + sample.rejected >= most:
                    break
    return sample


def _sampled_tasks(options: ScanOptions, plan: ExportPlan) -> list[ScanTask]:
    """Returns the first task. If topics have formats of their own, returns the parts of each topic
    in the first task that reads the topic.
    """
    if not options.has_formats_by_topic:
        return list(plan.scan.tasks[:1])
    tasks: dict[str, ScanTask] = {}
    for task in plan.scan.tasks:
        for topic in dict.fromkeys(part.topic for part in task.parts):
            if topic not in tasks:
                parts = [part for part in task.parts if part.topic == topic]
                tasks[topic] = ScanTask.of(parts)
    return list(tasks.values())
