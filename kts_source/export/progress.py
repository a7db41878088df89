"""Long work looks alive: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from kts_source.export.files import TaskReport

_LINE_SECONDS = 10.0
_BAR_SECONDS = 0.2
_BAR_WIDTH = 24


class Progress(Protocol):
    """Told how an export goes, by the driver's thread."""

    def begin(self, tasks: int, segment_bytes: int) -> None:
        """The plan is made."""
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

    def task_done(self, report: TaskReport) -> None:
        """See `Progress`."""

    def end(self) -> None:
        """See `Progress`."""


NO_PROGRESS = NoProgress()


class TextProgress:
    """A bar that redraws itself on a terminal, a line every ten seconds elsewhere.

    Args:
        stream: Where to; default: stderr.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()
        self._tasks = self._total = self._done = self._bytes = self._rows = self._requests = 0
        self._started = self._shown = 0.0

    def begin(self, tasks: int, segment_bytes: int) -> None:
        """See `Progress`."""
        self._tasks, self._total = tasks, segment_bytes
        self._started = self._shown = time.monotonic()
        self._show()

    def task_done(self, report: TaskReport) -> None:
        """See `Progress`."""
        self._done += 1
        self._bytes += report.segment_bytes
        self._rows += report.rows_read
        self._requests += report.requests
        now = time.monotonic()
        wait = _BAR_SECONDS if self._is_terminal else _LINE_SECONDS
        if now - self._shown >= wait or self._done == self._tasks:
            self._shown = now
            self._show()

    def end(self) -> None:
        """See `Progress`."""
        if self._is_terminal:
            self._stream.write("\n")
            self._stream.flush()

    def _show(self) -> None:
        share = self._bytes / self._total if self._total else 1.0
        seconds = time.monotonic() - self._started
        left = seconds / share - seconds if 0 < share < 1 else 0.0
        text = (
            f"{share:4.0%}  {self._done}/{self._tasks} tasks, {self._rows:,} rows,"
            f" {self._bytes / (1 << 20):,.0f} of {self._total / (1 << 20):,.0f} MiB,"
            f" {self._requests:,} requests, {_clock(seconds)}"
        )
        if left:
            text += f", about {_clock(left)} left"
        if self._is_terminal:
            full = round(share * _BAR_WIDTH)
            text = f"\r[{'#' * full}{'.' * (_BAR_WIDTH - full)}] {text}\x1b[K"
        else:
            text += "\n"
        self._stream.write(text)
        self._stream.flush()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
