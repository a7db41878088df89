"""Shows the progress of an export: as a bar on terminals and in notebooks, otherwise as lines of
text.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import time
from typing import TYPE_CHECKING, Any, Final, TextIO

from kts_source.texts import format_bytes

if TYPE_CHECKING:
    from kts_source.export.task import TaskReport

_LINE_SECONDS: Final = 10.0


class Progress:
    """Interface for showing the progress of an export. Its methods are called by one thread at a
    time. The methods of this class do nothing.
    """

    def begin(self, tasks: int, segment_bytes: int) -> None:
        """Called after planning.

        Args:
            tasks: Number of tasks.
            segment_bytes: Original bytes of all segments to read.
        """

    def ahead(self, tasks: int) -> None:
        """Called when tasks have ended but their reports have not arrived yet. `tasks` is the
        number of these tasks.
        """

    def task_done(self, report: TaskReport) -> None:
        """Called when the report of a task arrives."""

    def end(self) -> None:
        """Called at the end of the export."""


NO_PROGRESS: Final = Progress()


class _Counts(Progress):
    """Adds up completed work, and calls `_show` after every change. Subclasses implement
    `_show`.
    """

    def __init__(self) -> None:
        self._tasks = self._done = self._ahead = 0
        self._total_bytes = self._bytes = self._rows = self._requests = 0

    def begin(self, tasks: int, segment_bytes: int) -> None:
        self._tasks, self._total_bytes = tasks, segment_bytes
        self._show()

    def ahead(self, tasks: int) -> None:
        self._ahead = tasks
        self._show()

    def task_done(self, report: TaskReport) -> None:
        self._done += 1
        self._ahead = max(0, self._ahead - 1)
        self._bytes += report.segment_bytes
        self._rows += report.rows_read
        self._requests += report.requests
        self._show()

    def _show(self) -> None:
        raise NotImplementedError

    @property
    def _seen_bytes(self) -> int:
        """Original bytes of the completed tasks. For tasks whose reports have not arrived, the
        bytes are estimated.
        """
        guess = self._ahead * self._total_bytes // self._tasks if self._tasks else 0
        return min(self._total_bytes, self._bytes + guess)

    def __str__(self) -> str:
        return (
            f"{self._done + self._ahead}/{self._tasks} tasks, {self._rows:,} rows,"
            f" {self._requests:,} requests"
        )


class LineProgress(_Counts):
    """Writes a line of text at most every ten seconds, and one at the end, to `stream` (default:
    stderr).
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        self._stream = stream or sys.stderr
        self._started = 0.0
        self._shown = -math.inf
        self._last = ""

    def begin(self, tasks: int, segment_bytes: int) -> None:
        """See `Progress.begin`."""
        self._started = time.monotonic()
        super().begin(tasks, segment_bytes)

    def end(self) -> None:
        """See `Progress.end`."""
        self._write()

    def _show(self) -> None:
        if time.monotonic() - self._shown >= _LINE_SECONDS:
            self._write()

    def _write(self) -> None:
        self._shown = time.monotonic()
        seconds = self._shown - self._started
        share = self._seen_bytes / self._total_bytes if self._total_bytes else 1.0
        text = (
            f"{share:4.0%}  {self}, {format_bytes(self._seen_bytes)} of"
            f" {format_bytes(self._total_bytes)}, {_duration(seconds)}"
        )
        if 0 < share < 1:
            text += f", about {_duration(seconds / share - seconds)} left"
        if text != self._last:
            self._last = text
            self._stream.write(f"{text}\n")
            self._stream.flush()


class RichProgress(_Counts):
    """Shows a progress bar with the package `rich` on `console` (default: a console on stderr). It
    displays bytes, rate, remaining time, rows and requests.
    """

    def __init__(self, console: Any = None) -> None:  # noqa: ANN401  # rich is optional
        from rich import progress
        from rich.console import Console

        super().__init__()
        self._bar = progress.Progress(
            progress.TextColumn("export"),
            progress.BarColumn(bar_width=24),
            progress.DownloadColumn(binary_units=True),
            progress.TransferSpeedColumn(),
            progress.TextColumn("{task.description}"),
            progress.TimeRemainingColumn(),
            console=console or Console(stderr=True),
        )
        self._task = self._bar.add_task("", total=None)

    def begin(self, tasks: int, segment_bytes: int) -> None:
        """See `Progress.begin`."""
        self._bar.start()
        super().begin(tasks, segment_bytes)

    def end(self) -> None:
        """See `Progress.end`."""
        self._bar.stop()

    def _show(self) -> None:
        self._bar.update(
            self._task, total=self._total_bytes, completed=self._seen_bytes, description=str(self)
        )


def default_progress() -> Progress:
    """Returns the progress display for this process: a progress bar on terminals and in notebooks
    with widgets, otherwise lines of text.
    """
    if importlib.util.find_spec("rich") is not None:
        from rich.console import Console

        console = Console(stderr=True)
        has_widgets = importlib.util.find_spec("ipywidgets") is not None
        if has_widgets if console.is_jupyter else console.is_terminal:
            return RichProgress(console)
    return LineProgress()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
