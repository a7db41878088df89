"""What an export did, for people and for machines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kts_source.export.ranges import RangeAdvance


@dataclass(frozen=True, slots=True)
class Skipped:
    """Offsets [start, stop) that are not written, and why."""

    topic: str
    partition: int
    start: int
    stop: int
    reason: str


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """Offsets [start, stop) of a partition that this run committed, or that were there before."""

    topic: str
    topic_id: str
    partition: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class BackfillReport:
    """What one run did.

    Attributes:
        ranges: Committed by this run.
        rows: Written.
        rows_read: Decoded; more or less than `rows` where a transform ran.
        rejected: Rows that went to the dead letters.
        files: Number of files committed.
        file_bytes: Their bytes.
        segment_bytes: Original bytes of the segments read.
        commits: Number of commits.
        requests: Reads sent to the tier by the tasks.
        bytes_read: Object bytes the tasks received.
        retries: Requests made again.
        cost: Estimated US dollars for the requests, at list prices.
        skipped: Offsets asked for that were not written, with reasons.
        seconds: Stage to seconds; `tasks` and `writing` add up over all tasks.
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
    commits: int
    requests: int
    bytes_read: int
    retries: int
    cost: float
    skipped: tuple[Skipped, ...]
    seconds: Mapping[str, float]

    @property
    def ratio(self) -> float:
        """Segment bytes per byte written; 0 when nothing was written."""
        return self.segment_bytes / self.file_bytes if self.file_bytes else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "ratio": self.ratio}

    def save_png(self, path: str | Path) -> None:
        """The same as a picture.

        Raises:
            ImportError: matplotlib is not installed (extra `plot`).
        """
        from kts_source.export.report_plot import draw_report

        draw_report(self).savefig(path, format="png", dpi=120)

    def __str__(self) -> str:
        seconds = ", ".join(f"{name} {value:.1f}" for name, value in self.seconds.items())
        lines = [
            f"Exported to {self.target} ({self.table_format}):"
            f" {self.rows:,} rows in {self.files:,} files, {self.commits} commits",
            f"  {_size(self.segment_bytes)} of segments -> {_size(self.file_bytes)}"
            + (f" (ratio {self.ratio:.1f})" if self.file_bytes else ""),
            f"  {self.requests:,} requests, {_size(self.bytes_read)} received,"
            f" {self.retries} retries, about ${self.cost:.4f}",
            f"  seconds: {seconds}",
        ]
        if self.rejected:
            lines.append(f"  {self.rejected:,} rows went to the dead letters")
        lines.extend(
            f"  {span.topic}-{span.partition}: [{span.start}, {span.stop})" for span in self.ranges
        )
        if not self.ranges:
            lines.append("  nothing new to write")
        lines.extend(
            f"  skipped {gap.topic}-{gap.partition} [{gap.start}, {gap.stop}): {gap.reason}"
            for gap in self.skipped
        )
        return "\n".join(lines)


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def written_ranges(advances: Sequence[RangeAdvance]) -> tuple[WrittenRange, ...]:
    """The ranges that several commits moved, one per partition."""
    found: dict[tuple[str, int], WrittenRange] = {}
    for advance in advances:
        before = found.get(advance.key)
        found[advance.key] = WrittenRange(
            advance.topic,
            advance.key.topic_id,
            advance.key.partition,
            advance.start if before is None else before.start,
            advance.stop,
        )
    return tuple(sorted(found.values(), key=lambda span: (span.topic, span.partition)))
