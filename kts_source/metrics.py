"""Summarizes the metrics that tasks wrote to the path in option `metricsPath`. Also reports the lag
of streams.

from kts_source import metrics
summary = metrics.summary("/tmp/metrics")
print(summary)
summary.plot()
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kts_source.libraries import require
from kts_source.options import option_texts
from kts_source.read.task_metrics import CLOSED, DONE, TaskMetrics, read_metrics
from kts_source.store.storage_options import storage_options_from
from kts_source.streaming.lag import PartitionLag, StreamLag, stream_lag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes

    from kts_source.options import Options

__all__ = ["PartitionLag", "StreamLag", "Summary", "TaskMetrics", "stream_lag", "summary"]

_SUMMED: Final = tuple(
    field.name
    for field in dataclasses.fields(TaskMetrics)
    if field.type in ("int", "float") and field.name != "attempt"
)
_TIMES: Final = ("wait", "decrypt", "decompress", "decode")


@dataclass(frozen=True, slots=True)
class Summary:
    """Task attempts of one or more scans.

    Attributes:
        tasks: Metrics of each attempt, in order of scan, stage, partition and attempt number.
    """

    tasks: tuple[TaskMetrics, ...]

    @property
    def total(self) -> Mapping[str, int | float]:
        """Sums of the numeric attributes of `TaskMetrics` over all attempts, by name of the
        attribute.
        """
        return {name: sum(getattr(task, name) for task in self.tasks) for name in _SUMMED}

    @property
    def outcomes(self) -> Mapping[str, int]:
        """Number of attempts by outcome."""
        return dict(Counter(task.outcome for task in self.tasks))

    @property
    def lost(self) -> tuple[str, ...]:
        """Messages about ranges of offsets that were skipped because their records were lost."""
        done = (task for task in self.tasks if task.outcome in (DONE, CLOSED))
        return tuple(dict.fromkeys(text for task in done for text in task.lost))

    def of_scan(self, scan: str) -> Summary:
        """Returns a summary of the attempts of one scan."""
        return Summary(tuple(task for task in self.tasks if task.scan == scan))

    def __str__(self) -> str:
        total = self.total
        ends = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.items())
        lines = [
            f"{len(self.tasks)} task attempts ({ends or 'none'})",
            f"rows             {total['rows']:>16,}",
            f"requests         {total['requests']:>16,}",
            f"stored bytes     {total['bytes']:>16,}",
            f"retries          {total['retries']:>16,}",
            f"hedged           {total['hedges']:>16,}",
            f"from the mirror  {total['mirrored']:>16,}",
            f"from cache       {total['cache_hits']:>16,} of"
            f" {total['cache_hits'] + total['cache_misses']:,} ranges",
            f"record batches   {total['batches']:>16,}, skipped:"
            f" {total['batches_skipped_control']:,} control,"
            f" {total['batches_skipped_aborted']:,} aborted,"
            f" {total['batches_skipped_offset']:,} outside the offsets,"
            f" {total['batches_skipped_timestamp']:,} outside the timestamps",
            f"malformed rows   {total['malformed']:>16,}",
            "task seconds     "
            + ", ".join(f"{name} {total[f'{name}_seconds']:.2f}" for name in _TIMES)
            + f"; all {total['seconds']:.2f}",
        ]
        lines += [f"lost             {text}" for text in self.lost]
        return "\n".join(lines)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Plots the time of each task as stacked bars on `axes` (default: the axes of a new
        figure), and returns the axes.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        if axes is None:
            require("matplotlib", "plot", "plot()")
            from matplotlib import pyplot

            _, axes = pyplot.subplots(figsize=(9, 4))
        numbers = range(len(self.tasks))
        bottom = [0.0] * len(self.tasks)
        times = {name: [getattr(t, f"{name}_seconds") for t in self.tasks] for name in _TIMES}
        measured = map(sum, zip(*times.values(), strict=True))
        times["rest"] = [max(0.0, t.seconds - k) for t, k in zip(self.tasks, measured, strict=True)]
        for name, heights in times.items():
            axes.bar(numbers, heights, bottom=bottom, label=name)
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
        axes.set_xlabel("task")
        axes.set_ylabel("seconds")
        axes.set_title(f"{len(self.tasks)} tasks, {self.total['bytes'] / 1e6:,.0f} MB stored")
        axes.legend()
        return axes


def summary(path: str, options: Options | None = None) -> Summary:
    """Reads the metrics of all tasks at `path`.

    Args:
        path: The value of option `metricsPath`.
        options: Storage options (`s3.*`, `storageOptions`) if the path needs them.

    Raises:
        InvalidOptionError: The folder does not exist.
    """
    storage = storage_options_from(option_texts(options or {}))
    return Summary(tuple(read_metrics(path.strip(), storage.reveal())))
