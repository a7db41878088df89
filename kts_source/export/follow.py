"""Follows a source: runs an export in rounds. Each round continues after the offsets in the table.

Between two rounds, only the sums for the report are kept in memory, because the table records where
the next round begins. Each round reads options, keys and credentials again, so it uses renewed
credentials.
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

from kts_source.errors import (
    InvalidOptionError,
    RegistryUnavailableError,
    TieredKafkaError,
    TierNotFoundError,
)
from kts_source.export.compaction import can_merge
from kts_source.export.report import add_reports, empty_report
from kts_source.export.row_schema import check_typed
from kts_source.export.run import export
from kts_source.export.tables.library_errors import is_outage
from kts_source.options.scan_options import check_for_stream, refuse_durations
from kts_source.planning.topic_options import options_by_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from kts_source.export.report import BackfillReport
    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.export_table import ExportTable
    from kts_source.export.task_writer import ExportExecutor
    from kts_source.options import Options

log = logging.getLogger(__name__)

DONE: Final = "done"
IDLE: Final = "idle"
ABANDONED: Final = "abandoned"
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_MAX_MISSING_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class RoundMetrics:
    """Figures of one round. For figures that are not described here, see `BackfillReport`; they are
    zero or empty if the round failed.

    Attributes:
        round: Number of the round, counted from 0.
        outcome: `done` if the round committed offsets, `idle` if it committed nothing, `abandoned`
            if a signal stopped it. If the round failed, the class name of the error.
        seconds: Duration of the round in seconds.
        ranges: Offsets that were written, as texts such as `orders-0 [0, 100)`.
        skipped: Offsets that were skipped, as texts with the reason.
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
        """Returns the figures as one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":"))


def follow(
    source: Options,
    settings: ExportSettings,
    executor: ExportExecutor,
    *,
    opened: Callable[[ExportSettings], ExportTable | None] = lambda _settings: None,
    on_round: Callable[[RoundMetrics, BackfillReport], object] = lambda _metrics, _total: None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> BackfillReport:
    """Exports in rounds until SIGTERM or SIGINT arrives, and then returns.

    A signal stops the current round. Its commits are kept, and a later call continues after them.
    Only the main thread of a process receives signals. If a round fails because of an outage, it is
    repeated after the interval until it succeeds. If the tier disappears after a successful round,
    as during a remount, rounds are repeated for up to an hour.

    Args:
        executor: Runs the tasks.
        source: Options as for the data source.
        settings: Settings of the export. `following` must be set.
        opened: Returns the target of a round; `None` to open it from the settings.
        on_round: Called after each round with the figures of the round, which are also logged, and
            with the sum of the reports of all successful rounds.
        clock: Returns the current time in seconds, as `time.monotonic` does.
        pause: Sleeps for a number of seconds.

    Returns:
        The sum of the reports of all successful rounds. If an outage or a signal stops a round
        after a commit, the rows of this commit are in the table but not in the report.

    Raises:
        InvalidOptionError: The options of the source set an end, or the table cannot be compacted
            in rounds.
        ExportError: The table no longer exists, although an earlier round has written to it.
        TieredKafkaError: See `export`. Temporary errors are not raised, but retried.
    """
    if settings.following is None:
        raise InvalidOptionError("follow() needs settings with follow=True")
    rounds = _Rounds(source, settings, executor, opened, on_round, clock)
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
    """Runs rounds with the same arguments and adds up their reports. Raises `InvalidOptionError`
    for arguments that `follow` does not accept.
    """

    def __init__(
        self,
        source: Options,
        settings: ExportSettings,
        executor: ExportExecutor,
        opened: Callable[[ExportSettings], ExportTable | None],
        on_round: Callable[[RoundMetrics, BackfillReport], object],
        clock: Callable[[], float],
    ) -> None:
        assert settings.following is not None
        self._interval = settings.following.interval_seconds
        self._source = source
        self._settings = settings
        self._executor = executor
        self._opened = opened
        self._on_round = on_round
        self._clock = clock
        self._nothing = self.total = empty_report(settings.target, settings.table_format)
        self._number = 0
        self._missing_since: float | None = None
        self._is_checked = self._try_check()

    def run(self, stop: _Stop) -> float | None:
        """Runs one round. Returns the number of seconds to wait before the next round. Returns
        `None` if a signal stopped the round.
        """
        began = self._clock()
        report, error = self._attempt()
        if report is not None:  # count it first, since a signal may arrive at any time
            self.total = add_reports(self.total, report)
            self._is_checked = True
            self._missing_since = None
            self._settings = self._next_settings(report)
        outcome = _outcome(report, error, stop)
        seconds = self._clock() - began
        metrics = _metrics(self._number, outcome, seconds, report or self._nothing)
        log.info("%s", metrics.to_json())
        self._on_round(metrics, self.total)
        self._number += 1
        if report is not None:
            is_behind = report.commits and report.left_bytes
            return 0.0 if is_behind else began + self._interval - self._clock()
        if outcome == ABANDONED:
            return None
        assert error is not None
        if not (_is_temporary(error) or self._may_return(error, began)):
            raise error
        log.warning("round %d is retried in %g s: %s", metrics.round, self._interval, error)
        return self._interval

    def _attempt(self) -> tuple[BackfillReport | None, BaseException | None]:
        try:
            if not self._is_checked:
                self._check()
            table = self._opened(self._settings)
            return export(self._source, self._settings, self._executor, table=table), None
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # `run` raises it
            return None, error

    def _next_settings(self, report: BackfillReport) -> ExportSettings:
        following = self._settings.following
        assert following is not None
        has_table = following.has_table or report.commits > 0
        # Verify only before the first round.
        return replace(
            self._settings, verify=False, following=replace(following, has_table=has_table)
        )

    def _may_return(self, error: BaseException, began: float) -> bool:
        """Returns True if the tier disappeared after a successful round, less than an hour ago."""
        if not isinstance(error, TierNotFoundError) or self.total is self._nothing:
            return False
        if self._missing_since is None:
            self._missing_since = began
        return began - self._missing_since < _MAX_MISSING_SECONDS

    def _try_check(self) -> bool:
        """Checks the arguments. Returns False if the check was not possible, because it needs a
        schema registry that is unavailable. In this case, the first round repeats the check.
        """
        try:
            self._check()
        except RegistryUnavailableError:
            return False
        return True

    def _check(self) -> None:
        options = options_by_topic(self._source, self._settings.topic_options.reveal())
        check_for_stream(options)
        check_typed(options, self._settings)
        reason = "follow=True must continue at the same offsets after a restart"
        refuse_durations(options, options.durations, reason)
        if self._settings.compaction is not None and not can_merge(options, self._settings):
            raise InvalidOptionError(
                "compact=True with follow=True merges each round into the table: option columns"
                " must include topic, partition, offset and key, and timestamp if old tombstones"
                " are removed"
            )


def _is_temporary(error: BaseException) -> bool:
    """Returns True if the error means that a store, brokers, a schema registry or a catalog was
    unavailable. Then the round can be repeated.
    """
    if isinstance(error, TieredKafkaError):
        return error.retriable
    return is_outage(error)


def _outcome(report: BackfillReport | None, error: BaseException | None, stop: _Stop) -> str:
    if report is not None:
        return DONE if report.commits else IDLE
    # Libraries may convert the interrupt to an error of their own.
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
    """Handles SIGTERM and SIGINT. The first signal stops the export with a `KeyboardInterrupt`.
    Later signals are ignored.
    """

    def __init__(self) -> None:
        self.is_requested = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Installs the signal handlers while the block runs, but only in the main thread."""
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
