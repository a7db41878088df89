"""Reports of exports: as figures, as text, as a table for notebooks and as a picture. Reports what
a dry run would write from a plan and a sample of the records.
"""

from __future__ import annotations

import textwrap
import time
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from kts_source.columns import PARTITION, TOPIC
from kts_source.errors import (
    InvalidOptionError,
    InvalidValueError,
    RejectedRowsError,
    TopicsFailedError,
)
from kts_source.export.settings import ADD
from kts_source.export.task import OFFSET
from kts_source.export.topic_fields import check_fields
from kts_source.export.transforms import RowTransform
from kts_source.libraries import require
from kts_source.options.value_formats import FAILFAST
from kts_source.planning.estimate import estimate
from kts_source.read.task import ScanTask
from kts_source.store.open_store import local_file
from kts_source.texts import Displayed, Table, counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa
    from matplotlib.figure import Figure

    from kts_source.export.export_plan import ExportPlan
    from kts_source.export.new_fields import NewFields
    from kts_source.export.ranges import RangeAdvance
    from kts_source.export.settings import ExportSettings
    from kts_source.export.task import TaskReport
    from kts_source.options import ScanOptions
    from kts_source.planning.partition_plan import PartitionPlan

_MAX_SKIPPED: Final = 8
"""Maximum number of skipped ranges in the picture."""
_MANY_FILES: Final = 100
_SMALL_FILE: Final = 1 << 20
_MAX_HOURS: Final = 48
"""Maximum age that is shown in hours."""
_MAX_DAYS: Final = 730
"""Maximum age that is shown in days."""
_MAX_AHEAD_MS: Final = 3_600_000
"""Clocks of producers may be ahead by this time without a warning."""
_STAGES: Final = ("planning", "verifying", "running", "committing")
"""Stages whose seconds add up to the duration of a run."""
_HELP: Final = {
    "timestamp_seconds": "End of the last run, seconds since the epoch.",
    "success": "1 if the last run succeeded, 0 if it failed.",
    "rows": "Rows that the last run wrote.",
    "rejected_rows": "Rows that the last run rejected.",
    "pending_dead_letter_files": "Files of dead letters that are not replayed, of all runs.",
    "malformed_rows": "Malformed rows that the last run dropped.",
    "mirrored_reads": "Reads of the last run that the mirror of the tier served.",
    "newest_record_timestamp_seconds": "Newest timestamp of the tier, seconds since the epoch.",
    "skipped_offsets": "Requested offsets that the last run skipped.",
    "new_fields": "Fields that the last run did not write, because the schema lacks them.",
    "added_fields": "Fields that the last run added to the schema.",
    "commits": "Commits of the last run.",
    "created": "1 if the last run created the table.",
    "seconds": "Duration of the last run.",
}
_LABEL_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_WIDTH: Final = 96
"""Maximum number of characters of a line in the picture."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Offsets [start, stop) of a partition that were requested but not written, and the reason."""

    topic: str
    partition: int
    start: int
    stop: int
    reason: str

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.stop}): {self.reason}"


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """Offsets [start, stop) of a partition that a run wrote into the table."""

    topic: str
    topic_id: str
    partition: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, repr=False)
class BackfillReport(Displayed):
    """Figures of one run of an export.

    Attributes:
        ranges: Offset ranges that this run committed, without skipped offsets.
        rows: Number of rows that were written.
        rows_read: Number of rows that were read from the source. It may differ from `rows` if there
            is a transform.
        rejected: Number of rejected rows, which were written to the folder `dead_letters`.
        files: Number of committed files.
        file_bytes: Size of the committed files in bytes.
        segment_bytes: Original size of the segments that were read, in bytes.
        left_bytes: With `follow`, original size of the segments that the next round will read, in
            bytes.
        requests: Number of read requests that tasks sent to the tier.
        bytes_read: Number of bytes that tasks received from objects.
        retries: Number of requests that were repeated after an error.
        cost: Estimated cost of the read requests in US dollars, at list prices.
        skipped: Offset ranges that were requested but not written, with reasons.
        seconds: Seconds by stage of the run. The stages `tasks` and `writing` are sums over all
            tasks.
        verified: Results of the verification with `verify=True`, as sentences.
        run_id: Id of the run, as in log lines and metrics.
        malformed: Number of rows that mode `DROPMALFORMED` dropped.
        mirrored: Number of reads of tasks that the mirror (`fallbackPath`) served.
        newest_ms: Newest timestamp of the tier's segments of the selected partitions, in ms since
            the epoch; `None` if unknown, for example for records that only brokers have.
        ended_ms: Time of the end of the run, in ms since the epoch.
        dry_run: True if nothing was written. Then ranges, bytes, commits, requests and cost are
            planned, and `rows_read` and `rejected` are counts of a sample.
        new_fields: Fields of keys and values that were not written, because the schema lacks them.
        added_fields: Fields that `on_new_fields="add"` added to the table and wrote.
        created: True if the run created the table, or the folder of Parquet files.
        replayed: Number of files of dead letters that were replayed.
        lost_letters: Number of files of dead letters whose loss a replay accepted. The table does
            not record how many rows they had.
        pending_letters: Number of files of dead letters that are not replayed, of all runs: those
            in the folder `dead_letters`, and those that the table records and the folder lacks.
            `None` in a dry run, and if there is neither a folder nor a recorded file.
        tables: With a table per topic, the report of each topic; the other attributes are sums.
    """

    target: str
    table_format: str
    ranges: tuple[WrittenRange, ...]
    rows: int
    rows_read: int
    rejected: int
    files: int
    file_bytes: int
    segment_bytes: int
    left_bytes: int
    commits: int
    requests: int
    bytes_read: int
    retries: int
    cost: float
    skipped: tuple[Skipped, ...]
    seconds: Mapping[str, float]
    verified: tuple[str, ...] = ()
    run_id: str = ""
    malformed: int = 0
    mirrored: int = 0
    newest_ms: int | None = None
    ended_ms: int | None = None
    dry_run: bool = False
    replayed: int = 0
    lost_letters: int = 0
    pending_letters: int | None = None
    created: bool = False
    new_fields: tuple[str, ...] = ()
    added_fields: tuple[str, ...] = ()
    tables: tuple[BackfillReport, ...] = ()

    @property
    def ratio(self) -> float:
        """Original bytes of the segments divided by the bytes of the written files; 0 if no file
        was written.
        """
        return self.segment_bytes / self.file_bytes if self.file_bytes else 0.0

    @property
    def freshness(self) -> str:
        """Sentence about the age of the newest record in the tier at the end of the run; empty if
        the age is unknown.
        """
        if self.newest_ms is None or self.ended_ms is None:
            return ""
        if self.is_ahead:
            return (
                "the newest record of the tier is dated"
                f" {_duration(self.newest_ms - self.ended_ms)} in the future, so its age is unknown"
            )
        return (
            f"the newest record of the tier is {_duration(max(0, self.ended_ms - self.newest_ms))}"
            " old"
        )

    @property
    def is_ahead(self) -> bool:
        """True if the newest record is dated more than an hour after the end of the run."""
        if self.newest_ms is None or self.ended_ms is None:
            return False
        return self.newest_ms - self.ended_ms > _MAX_AHEAD_MS

    @property
    def small_files(self) -> str:
        """A sentence of advice if the run wrote many small files; otherwise empty."""
        if self.files < _MANY_FILES or self.file_bytes >= self.files * _SMALL_FILE:
            return ""
        return (
            f"{self.files:,} files of {format_bytes(self.file_bytes // self.files)} on average are"
            " slow to read: choose a coarser partition_by, such as month(timestamp), or fewer and"
            " longer runs"
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as values that JSON supports."""
        derived = {"ratio": self.ratio, "freshness": self.freshness}
        return {**asdict(self), **derived, "tables": [table.to_dict() for table in self.tables]}

    def to_prometheus(self) -> str:
        """Returns the figures of the run in the text format of Prometheus.

        Raises:
            InvalidOptionError: The report is of a dry run.
        """
        if any(report.dry_run for report in self.tables or (self,)):
            raise InvalidOptionError(
                "a dry run has no metrics, because they would clear the alert about a failed or"
                " missing run"
            )
        return _prometheus({report.target: report.figures() for report in self.tables or (self,)})

    def figures(self) -> dict[str, float]:
        """Returns the figures for Prometheus by name, without the prefix `kts_export_`."""
        figures: dict[str, float] = {
            "success": 1,
            "rows": self.rows,
            "rejected_rows": self.rejected,
            "malformed_rows": self.malformed,
            "mirrored_reads": self.mirrored,
            "skipped_offsets": sum(gap.stop - gap.start for gap in self.skipped),
            "new_fields": len(self.new_fields),
            "added_fields": len(self.added_fields),
            "commits": self.commits,
            "created": int(self.created),
            "seconds": sum(self.seconds.get(stage, 0.0) for stage in _STAGES),
        }
        if self.pending_letters is not None:
            figures["pending_dead_letter_files"] = self.pending_letters
        if self.newest_ms is not None:
            figures["newest_record_timestamp_seconds"] = self.newest_ms / 1000
        return figures

    def _tables(self) -> tuple[Table, ...]:
        first, *facts = (line.strip() for line in _summary(self))
        rows = [(f"{r.topic}-{r.partition}", r.start, r.stop, "written") for r in self.ranges]
        rows += [(f"{g.topic}-{g.partition}", g.start, g.stop, g.reason) for g in self.skipped]
        figures = Table(first, (), [(fact,) for fact in facts])
        ranges = Table("Ranges", ("partition", "start", "stop", ""), rows)
        return (figures, ranges) if rows else (figures,)

    def save_png(self, path: str | Path) -> None:
        """Saves the report as a PNG picture.

        Raises:
            MissingExtraError: matplotlib is not installed.
            InvalidOptionError: The path is a URL or looks like a URL. It must be a local path.
        """
        draw_report(self).savefig(local_file(path), format="png", dpi=120)

    def __str__(self) -> str:
        if self.tables:
            return "\n".join(map(str, self.tables))
        lines = _summary(self)
        lines.extend(
            f"  {span.topic}-{span.partition}: [{span.start}, {span.stop})" for span in self.ranges
        )
        if self.replayed:
            lines.append(f"  replayed {counted(self.replayed, 'file')} of dead letters")
        if self.lost_letters:
            lines.append(
                f"  accepted the loss of {counted(self.lost_letters, 'file')} of dead letters"
            )
        if not (self.ranges or self.replayed or self.lost_letters):
            lines.append("  nothing new to write")
        return "\n".join([*lines, *(f"  skipped {gap}" for gap in self.skipped)])


def failure_to_prometheus(target: str, error: Exception) -> str:
    """Returns the figures of a failed run in the text format of Prometheus. With a table per
    topic, each topic has its own figures, whether it failed or not.
    """
    if not isinstance(error, TopicsFailedError):
        return _prometheus({target: _failed(error)})
    tables = error.report.tables if isinstance(error.report, BackfillReport) else ()
    figures = {report.target: report.figures() for report in tables}
    for topic, each in error.errors.items():
        figures[error.targets[topic]] = _failed(each)
    return _prometheus(figures)


def _failed(error: Exception) -> dict[str, float]:
    # Without a folder for dead letters, the first row that cannot be decoded ends the run.
    rejected = int(isinstance(error, InvalidValueError))
    if isinstance(error, RejectedRowsError):
        rejected = error.rejected
    return {"success": 0, "rejected_rows": rejected}


def _prometheus(by_target: Mapping[str, Mapping[str, float]]) -> str:
    """Returns the text format of Prometheus. `by_target` maps a target to its figures by name."""
    samples: dict[str, list[str]] = {}
    for target, figures in by_target.items():
        label = target.translate(_LABEL_ESCAPES)
        for name, value in {"timestamp_seconds": time.time(), **figures}.items():
            sample = f'kts_export_{name}{{target="{label}"}} {value:.15g}\n'
            samples.setdefault(name, []).append(sample)
    return "".join(
        f"# HELP kts_export_{name} {_HELP[name]}\n# TYPE kts_export_{name} gauge\n{''.join(lines)}"
        for name, lines in samples.items()
    )


def draw_report(report: BackfillReport) -> Figure:
    """Returns a `matplotlib.figure.Figure` of the report, without a window: on the left a bar with
    the seconds of each stage, on the right the text of the report. Write it with `savefig`.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    require("matplotlib", "plot", "the picture of a report")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    bars, facts = figure.subplots(1, 2, width_ratios=(2, 3))
    drawn = bars.barh(list(report.seconds), list(report.seconds.values()))
    bars.bar_label(drawn, fmt="%.1f s", padding=3)
    bars.margins(x=0.2)
    bars.invert_yaxis()
    bars.set_xlabel("seconds (tasks and writing: sums over all tasks)")
    bars.set_title("Where the time went")
    facts.axis("off")
    lines = _summary(report)
    lines += [f"  skipped {gap}" for gap in report.skipped[:_MAX_SKIPPED]]
    if len(report.skipped) > _MAX_SKIPPED:
        lines.append(f"  and {len(report.skipped) - _MAX_SKIPPED:,} more")
    wrapped = (textwrap.fill(line, _WIDTH, subsequent_indent="    ") for line in lines)
    text = "\n".join(wrapped).replace("$", r"\$")  # a dollar sign begins a formula
    facts.text(0, 1, text, va="top", family="monospace", fontsize=8)
    return figure


def _summary(report: BackfillReport) -> list[str]:
    """Returns the lines of the report text that describe the whole run, without the lines about
    offset ranges.
    """
    seconds = ", ".join(f"{name} {value:.1f}" for name, value in report.seconds.items())
    if report.dry_run:
        return [
            f"Dry run of {report.target} ({report.table_format}):"
            f" {counted(report.commits, 'commit')} planned",
            f"  would read {format_bytes(report.segment_bytes)} of segments with"
            f" {counted(report.requests, 'request')}, about ${report.cost:.4f}",
            *(f"  {line}" for line in (*report.verified, report.freshness) if line),
        ]
    lines = [
        f"Exported to {report.target} ({report.table_format}):"
        f" {counted(report.rows, 'row')} in {counted(report.files, 'file')},"
        f" {counted(report.commits, 'commit')}",
        f"  {format_bytes(report.segment_bytes)} of segments -> {format_bytes(report.file_bytes)}"
        + (f" (ratio {report.ratio:.1f})" if report.file_bytes else ""),
        f"  {counted(report.requests, 'request')}, {format_bytes(report.bytes_read)} received,"
        f" {report.retries} retries, about ${report.cost:.4f}",
        f"  seconds: {seconds}",
    ]
    if report.created:
        lines.append("  created the table")
    lines.extend(f"  {line}" for line in report.verified)
    if report.rejected:
        lines.append(f"  {report.rejected:,} rows went to the dead letters")
    if report.malformed:
        lines.append(f"  {report.malformed:,} rows were dropped, because they cannot be decoded")
    if report.mirrored:
        lines.append(f"  {counted(report.mirrored, 'read')} from the mirror: repair the tier")
    lines.extend(f"  {line}" for line in (report.freshness, report.small_files) if line)
    if report.added_fields:
        lines.append(f"  added to the schema: {', '.join(report.added_fields)}")
    if report.new_fields:
        lines.append(f"  not in the schema, so not written: {', '.join(report.new_fields)}")
    return lines


def _duration(duration_ms: int) -> str:
    hours = duration_ms / 3_600_000
    days = hours / 24
    if hours <= _MAX_HOURS:
        return f"{hours:.1f} hours"
    return f"{days:,.1f} days" if days <= _MAX_DAYS else f"{days / 365.25:,.1f} years"


def empty_report(target: str, table_format: str) -> BackfillReport:
    """Returns a report whose figures are all zero or empty."""
    numbers: dict[str, Any] = {
        field.name: 0 for field in fields(BackfillReport) if field.type in ("int", "float")
    }
    texts: dict[str, Any] = {"target": target, "table_format": table_format}
    return BackfillReport(**texts, **numbers, ranges=(), skipped=(), seconds={})


def add_reports(first: BackfillReport, then: BackfillReport) -> BackfillReport:
    """Adds the figures of two reports: `first` of earlier runs, and `then` of the next run.

    Drops offsets that were skipped earlier and are written by the next run, so that the report
    stays small after many runs.
    """
    sums: dict[str, Any] = {
        field.name: getattr(first, field.name) + getattr(then, field.name)
        for field in fields(BackfillReport)
        if field.type in ("int", "float")
    }
    sums["left_bytes"] = then.left_bytes
    if then.newest_ms is None:
        sums["newest_ms"] = first.newest_ms
    ranges: list[WrittenRange] = []
    order = attrgetter("topic", "topic_id", "partition", "start")
    for span in sorted((*first.ranges, *then.ranges), key=order):
        last = ranges[-1] if ranges else None
        if last and order(last)[:3] == order(span)[:3] and last.stop == span.start:
            ranges[-1] = replace(last, stop=span.stop)
        else:
            ranges.append(span)
    gaps = {
        (gap.topic, gap.partition, gap.start): gap
        for gap in first.skipped
        if not any(
            (gap.topic, gap.partition) == (span.topic, span.partition)
            and gap.start < span.stop
            and span.start < gap.stop
            for span in then.ranges
        )
    }
    gaps |= {(gap.topic, gap.partition, gap.start): gap for gap in then.skipped}
    seconds = dict(first.seconds)
    for stage, value in then.seconds.items():
        seconds[stage] = seconds.get(stage, 0.0) + value
    return replace(
        then,
        **sums,
        created=first.created or then.created,
        ranges=tuple(ranges),
        skipped=tuple(gap for _, gap in sorted(gaps.items())),
        seconds=seconds,
        verified=(*first.verified, *then.verified),
        new_fields=tuple(dict.fromkeys((*first.new_fields, *then.new_fields))),
        added_fields=tuple(dict.fromkeys((*first.added_fields, *then.added_fields))),
    )


def newest_ms(partitions: Iterable[PartitionPlan]) -> int | None:
    """Returns the newest timestamp of the segments of partitions in ms; `None` if it is unknown."""
    timestamps = (partition.surviving.newest_ms for partition in partitions)
    return max((newest for newest in timestamps if newest is not None), default=None)


def lost_offsets(reports: Iterable[TaskReport]) -> Iterator[Skipped]:
    """Yields the offset ranges that tasks could not read because objects are missing. Each range
    occurs once, even if several tasks read slices of one segment.
    """
    for lost in sorted({lost for report in reports for lost in report.lost}):
        reason = "the object was deleted after planning"
        if lost.in_part:
            reason += "; some may have been written"
        yield Skipped(lost.topic, lost.partition, lost.start, lost.stop, reason)


def written_ranges(
    advances: Iterable[RangeAdvance], skipped: Iterable[Skipped]
) -> tuple[WrittenRange, ...]:
    """Returns the offset ranges that commits added, without the offsets in `skipped`. Merges
    adjacent ranges.
    """
    gaps = sorted(skipped, key=lambda gap: gap.start)
    ranges: list[WrittenRange] = []
    for advance in sorted(advances, key=lambda step: (step.topic, step.key, step.start)):
        start = advance.start
        for gap in gaps:
            is_same = (gap.topic, gap.partition) == (advance.topic, advance.key.partition)
            if is_same and start < gap.stop and gap.start < advance.stop:
                _extend(ranges, advance, start, gap.start)
                start = gap.stop
        _extend(ranges, advance, start, advance.stop)
    return tuple(sorted(ranges, key=lambda span: (span.topic, span.partition, span.start)))


def _extend(ranges: list[WrittenRange], advance: RangeAdvance, start: int, stop: int) -> None:
    if start >= stop:
        return
    owner = advance.topic, *advance.key
    if ranges and ranges[-1] == WrittenRange(*owner, ranges[-1].start, start):
        start = ranges.pop().start
    ranges.append(WrittenRange(*owner, start, stop))


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
    sampled_fields = None
    if is_first and options.formats and settings.on_new_fields != ADD:
        from kts_source.export.new_fields import NewFields  # imports value decoders

        sampled_fields = NewFields(options.formats, adds=False)
    sample = _sample(options, settings, plan, sampled_fields)
    if sampled_fields is not None:
        has_more = len(plan.scan.tasks) > 1 or sample.rows + sample.rejected >= _SAMPLE_ROWS
        check_fields(sampled_fields.topics.values(), options.formats, is_sample=has_more)
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
