"""One picture of what an export did; needs matplotlib (extra `plot`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kts_source.export.report import BackfillReport

_SKIPPED_SHOWN: Final = 8
_WIDTH: Final = 72


def draw_report(report: BackfillReport) -> Any:  # noqa: ANN401  # matplotlib ships no types for this
    """Seconds by stage as bars, and rows, files, requests, cost and skipped ranges beside them.

    Returns:
        A `matplotlib.figure.Figure`; it belongs to no window, and `savefig` writes it.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    bars, facts = figure.subplots(1, 2, width_ratios=(2, 3))
    names = list(report.seconds)
    seconds = [report.seconds[name] for name in names]
    drawn = bars.barh(names, seconds)
    bars.bar_label(drawn, [f"{value:.1f} s" for value in seconds], padding=3)
    bars.margins(x=0.2)
    bars.invert_yaxis()
    bars.set_xlabel("seconds (tasks and writing: sums over all tasks)")
    bars.set_title("Where the time went")
    facts.axis("off")
    facts.text(0, 1, "\n".join(_lines(report)), va="top", family="monospace", fontsize=8)
    return figure


def _lines(report: BackfillReport) -> list[str]:
    mib = 1 << 20
    lines = [
        f"{report.table_format}: {report.target}",
        "",
        f"rows        {report.rows:,}",
        f"files       {report.files:,} in {report.commits:,} commits",
        f"bytes       {report.segment_bytes / mib:,.1f} MiB of segments"
        f" -> {report.file_bytes / mib:,.1f} MiB (ratio {report.ratio:.1f})",
        f"GETs        {report.requests:,} ({report.retries:,} retries),"
        f" {report.bytes_read / mib:,.1f} MiB",
        f"cost        about ${report.cost:.4f}",
        f"rejected    {report.rejected:,} rows",
        f"skipped     {len(report.skipped):,} ranges",
    ]
    lines += [
        f"  {gap.topic}-{gap.partition} [{gap.start}, {gap.stop}): {gap.reason}"
        for gap in report.skipped[:_SKIPPED_SHOWN]
    ]
    if len(report.skipped) > _SKIPPED_SHOWN:
        lines.append(f"  and {len(report.skipped) - _SKIPPED_SHOWN:,} more")
    # A dollar sign begins a formula.
    return [_short(line).replace("$", r"\$") for line in lines]


def _short(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"
