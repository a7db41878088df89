"""Reports the offsets and rows that a run of an export would write, from its plan and a sample of
its records.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kts_source.export.report import empty_report, newest_ms, written_ranges
from kts_source.export.task import OFFSET
from kts_source.export.transforms import RowTransform
from kts_source.planning.estimate import estimate

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from kts_source.export.export_plan import ExportPlan
    from kts_source.export.report import BackfillReport
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
    options: ScanOptions, settings: ExportSettings, plan: ExportPlan, seconds: Mapping[str, float]
) -> BackfillReport:
    """Returns a report of the run that `plan` describes. The figures of the report are planned or
    estimated.

    Reads at most 10,000 records of the first task, and decodes them. Writes nothing.
    """
    sample = _sample(options, settings, plan)
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


def _sample(options: ScanOptions, settings: ExportSettings, plan: ExportPlan) -> _Sample:
    from kts_source.read.read_task import run_task

    sample = _Sample()
    columns = tuple(dict.fromkeys((*options.columns, OFFSET)))
    fetch = replace(options.fetch, metrics_path=None)  # write nothing
    reading = replace(options, columns=columns, fetch=fetch)
    for task in plan.scan.tasks[:1]:
        with closing(run_task(task, reading, set_aside=sample.set_aside)) as batches:
            for batch in batches:
                sample.rows += batch.num_rows
                if isinstance(settings.transform, RowTransform):
                    rejected = settings.transform.apply(batch.select(list(options.columns)))
                    sample.rows -= len(rejected.rejected)
                    sample.set_aside(batch, {row.row: row.reason for row in rejected.rejected})
                if sample.rows + sample.rejected >= _SAMPLE_ROWS:
                    break
    return sample
