"""Long work looks alive: rich's bar on a terminal and in notebooks, plain lines elsewhere."""

from __future__ import annotations

import importlib.util
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

if TYPE_CHECKING:
    from kts_source.export.files import TaskReport

_LINE_SECONDS: Final = 10.0


class Progress(Protocol):
    """Told how an export goes, by one thread at a time."""

    def begin(self, tasks: int, segment_bytes: int) -> None:
        """The plan is made."""
        ...

    def ahead(self, tasks: int) -> None:
        """So many tasks are done and have not been told of with `task_done` yet."""
        ...

    def task_done(self, report: TaskReport) -> None:
        """One task has reported."""
        ...

    def end(self) -> None:
        """Nothing more will come."""
        ...


class NoProgress:
    """Says nothing."""

    def begin(self, tasks: int, segment_bytes: int) -> None:
        """See `Progress`."""

    def ahead(self, tasks: int) -> None:
        """See `Progress`."""

    def task_done(self, report: TaskReport) -> None:
        """See `Progress`."""

    def end(self) -> None:
        """See `Progress`."""


NO_PROGRESS = NoProgress()


class _Counts:
    """What is done so far."""

    def __init__(self) -> None:
        self.tasks = self.total = self.done = self.waiting = 0
        self.bytes = self.rows = self.requests = 0

    def begin(self, tasks: int, segment_bytes: int) -> None:
        self.tasks, self.total = tasks, segment_bytes

    def add(self, report: TaskReport) -> None:
        self.done += 1
        self.waiting = max(0, self.waiting - 1)
        self.bytes += report.segment_bytes
        self.rows += report.rows_read
        self.requests += report.requests

    @property
    def seen_bytes(self) -> int:
        """Bytes done, with a guess at those of tasks that have not reported."""
        guess = self.waiting * self.total // self.tasks if self.tasks else 0
        return min(self.total, self.bytes + guess)

    @property
    def share(self) -> float:
        return self.seen_bytes / self.total if self.total else 1.0

    def __str__(self) -> str:
        return (
            f"{self.done + self.waiting}/{self.tasks} tasks, {self.rows:,} rows,"
            f" {self.requests:,} requests"
        )


class LineProgress:
    """A line every ten seconds, and one at the end.

    Args:
        stream: Where to; default: stderr.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._counts = _Counts()
        self._started = self._shown = 0.0
        self._last = ""

    def begin(self, tasks: int, segment_bytes: int) -> None:
        """See `Progress`."""
        self._counts.begin(tasks, segment_bytes)
        self._started = time.monotonic()
        self._show()

    def ahead(self, tasks: int) -> None:
        """See `Progress`."""
        self._counts.waiting = tasks
        self._show_sometimes()

    def task_done(self, report: TaskReport) -> None:
        """See `Progress`."""
        self._counts.add(report)
        self._show_sometimes()

    def end(self) -> None:
        """See `Progress`."""
        self._show()

    def _show_sometimes(self) -> None:
        if time.monotonic() - self._shown >= _LINE_SECONDS:
            self._show()

    def _show(self) -> None:
        counts = self._counts
        self._shown = time.monotonic()
        seconds = self._shown - self._started
        text = (
            f"{counts.share:4.0%}  {counts}, {counts.seen_bytes / (1 << 20):,.0f} of"
            f" {counts.total / (1 << 20):,.0f} MiB, {_clock(seconds)}"
        )
        if 0 < counts.share < 1:
            text += f", about {_clock(seconds / counts.share - seconds)} left"
        if text != self._last:
            self._last = text
            self._stream.write(f"{text}\n")
            self._stream.flush()


class RichProgress:
    """rich's progress bar: bytes, rate and time left, rows and requests.

    Args:
        console: A `rich.console.Console`; default: stderr.
    """

    def __init__(self, console: Any = None) -> None:  # noqa: ANN401  # rich is optional
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._counts = _Counts()
        self._bar = Progress(
            TextColumn("export"),
            BarColumn(bar_width=24),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console or Console(stderr=True),
        )
        self._task = self._bar.add_task("", total=None)

    def begin(self, tasks: int, segment_bytes: int) -> None:
        """See `Progress`."""
        self._counts.begin(tasks, segment_bytes)
        self._bar.start()
        self._show()

    def ahead(self, tasks: int) -> None:
        """See `Progress`."""
        self._counts.waiting = tasks
        self._show()

    def task_done(self, report: TaskReport) -> None:
        """See `Progress`."""
        self._counts.add(report)
        self._show()

    def end(self) -> None:
        """See `Progress`."""
        self._bar.stop()

    def _show(self) -> None:
        counts = self._counts
        self._bar.update(
            self._task,
            total=counts.total,
            completed=counts.seen_bytes,
            description=str(counts),
        )


def default_progress() -> Progress:
    """Rich's bar where it can be drawn: a terminal, or a notebook with widgets; else lines."""
    if importlib.util.find_spec("rich") is not None:
        from rich.console import Console

        console = Console(stderr=True)
        has_widgets = importlib.util.find_spec("ipywidgets") is not None
        if has_widgets if console.is_jupyter else console.is_terminal:
            return RichProgress(console)
    return LineProgress()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
