"""Follows a source: bounded rounds, each an ordinary export that continues after the table.

Between two rounds only sums are kept: the table records where the next round begins. Each round
reads options, keys and credentials again, so renewed credentials take effect.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Final

from kts_source.errors import InvalidOptionError, RegistryUnavailableError, TieredKafkaError
from kts_source.export.compaction import can_merge
from kts_source.export.report import add_reports, empty_report
from kts_source.export.row_schema import check_typed
from kts_source.export.run import export
from kts_source.export.tables.export_table import is_outage
from kts_source.options import parse_options
from kts_source.options.scan_options import check_for_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from kts_source.export.report import BackfillReport
    from kts_source.export.settings import ExportSettings
    from kts_source.export.task_writer import ExportExecutor

log = logging.getLogger(__name__)

DONE: Final = "done"
IDLE: Final = "idle"
ABANDONED: Final = "abandoned"
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class RoundMetrics:
    """Figures of a round; see `BackfillReport`. They are zero or empty if the round failed.

    Attributes:
        round: Number, from 0.
        outcome: `done`; `idle` if nothing was new or nothing could be committed; `abandoned` after
            a signal; or the name of the error.
        seconds: Duration of the round.
        ranges: Written offsets, such as `orders-0 [0, 100)`.
        skipped: Skipped offsets, with reasons.
    """

    round: int
    outcome: str
    seconds: float
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
    ranges: tuple[str, ...]
    skipped: tuple[str, ...]

    def to_json(self) -> str:
        """Returns one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))


def follow(
    source: Mapping[str, str],
    settings: ExportSettings,
    executor: ExportExecutor,
    *,
    on_round: Callable[[RoundMetrics], object] = lambda _metrics: None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> BackfillReport:
    """Exports round by round until SIGTERM or SIGINT arrives, and then returns.

    A signal abandons the current round: commits are kept, and the same call continues after them.
    Only the main thread of a process receives signals. A round that fails because of an outage is
    retried after an interval, without a limit.

    Args:
        source: Options as for the data source.
        settings: Settings of the export, with `following`.
        executor: Runs the tasks.
        on_round: Called with the figures of each round, which are also logged.
        clock: Returns seconds.
        pause: Sleeps for a number of seconds.

    Returns:
        The sum of all successful rounds. If an outage or a signal occurs right after a commit, its
        rows are in the table but not in the report.

    Raises:
        InvalidOptionError: The source has an end, or the table cannot be merged.
        TieredKafkaError: See `export`; temporary errors are retried instead.
    """
    if settings.following is None:
        raise InvalidOptionError("the settings lack follow=True")
    rounds = _Rounds(source, settings, executor, on_round, clock)
    stop = _Stop()
    with stop.listening():
        try:
            while not stop.is_requested:
                wait = rounds.run(stop)
                if wait is None:
                    break
                if wait > 0 and not stop.is_requested:
                    pause(wait)
        except KeyboardInterrupt:
            log.info("a signal ended the export between two rounds")
    return rounds.total


class _Rounds:
    """Runs rounds with the same arguments, and adds up their reports.

    Raises:
        InvalidOptionError: See `follow`.
    """

    def __init__(
        self,
        source: Mapping[str, str],
        settings: ExportSettings,
        executor: ExportExecutor,
        on_round: Callable[[RoundMetrics], object],
        clock: Callable[[], float],
    ) -> None:
        assert settings.following is not None
        self._interval = settings.following.interval_seconds
        self._source = source
        self._settings = settings
        self._executor = executor
        self._on_round = on_round
        self._clock = clock
        self._nothing = self.total = empty_report(settings.target, settings.table_format)
        self._number = 0
        self._is_checked = self._try_check()

    def run(self, stop: _Stop) -> float | None:
        """Runs a round; returns the seconds until the next one, or `None` if it was abandoned."""
        began = self._clock()
        report, error = self._attempt()
        if report is not None:  # first, since a signal may arrive at any time
            self.total = add_reports(self.total, report)
            self._is_checked = True
            self._settings = replace(self._settings, verify=False)  # only before the first round
        outcome = _outcome(report, error, stop)
        seconds = self._clock() - began
        metrics = _metrics(self._number, outcome, seconds, report or self._nothing)
        log.info("%s", metrics.to_json())
        self._on_round(metrics)
        self._number += 1
        if report is not None:
            is_behind = report.commits and report.left_bytes
            return 0.0 if is_behind else began + self._interval - self._clock()
        if outcome == ABANDONED:
            return None
        assert error is not None
        if not _is_temporary(error):
            raise error
        log.warning("round %d is retried in %g s: %s", metrics.round, self._interval, error)
        return self._interval

    def _attempt(self) -> tuple[BackfillReport | None, BaseException | None]:
        try:
            if not self._is_checked:
                self._check()
            return export(self._source, self._settings, self._executor), None
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # `run` raises it
            return None, error

    def _try_check(self) -> bool:
        """Checks the arguments; returns False if the registry that has the schema is unavailable.

        In this case the first round waits for the registry.
        """
        try:
            self._check()
        except RegistryUnavailableError:
            return False
        return True

    def _check(self) -> None:
        options = parse_options(self._source)
        check_for_stream(options)
        check_typed(options, self._settings)
        if self._settings.compaction is not None and not can_merge(options, self._settings):
            raise InvalidOptionError(
                "compact=True with follow=True merges round by round: columns must have topic,"
                " partition, offset and key, and timestamp if old tombstones are removed"
            )


def _is_temporary(error: BaseException) -> bool:
    """Returns whether a store, brokers, a registry or a catalog was unavailable."""
    if isinstance(error, TieredKafkaError):
        return error.retriable
    return is_outage(error)


def _outcome(report: BackfillReport | None, error: BaseException | None, stop: _Stop) -> str:
    if report is not None:
        return DONE if report.commits else IDLE
    # Libraries may raise their own errors after an interrupt.
    if stop.is_requested or isinstance(error, KeyboardInterrupt):
        return ABANDONED
    return type(error).__name__


def _metrics(number: int, outcome: str, seconds: float, report: BackfillReport) -> RoundMetrics:
    own = ("round", "outcome", "seconds", "ranges", "skipped")
    numbers = {
        field.name: getattr(report, field.name)
        for field in fields(RoundMetrics)
        if field.name not in own
    }
    return RoundMetrics(
        round=number,
        outcome=outcome,
        seconds=round(seconds, 3),
        ranges=tuple(f"{s.topic}-{s.partition} [{s.start}, {s.stop})" for s in report.ranges),
        skipped=tuple(str(gap) for gap in report.skipped),
        **numbers,
    )


class _Stop:
    """Handles SIGTERM and SIGINT: the first signal interrupts the round, later signals are
    ignored.
    """

    def __init__(self) -> None:
        self.is_requested = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Installs the handlers, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if not self.is_requested:
            self.is_requested = True
            raise KeyboardInterrupt
