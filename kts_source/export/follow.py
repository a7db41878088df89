"""An export that follows its source: bounded rounds, each an ordinary export behind the table.

Nothing is kept between two rounds but sums: where a round begins, the table tells. Options, keys
and clients are made anew in each, so that what was renewed meanwhile counts.
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
from kts_source.export.outages import is_outage
from kts_source.export.report import empty_report, together
from kts_source.export.row_schema import check_typed
from kts_source.export.run import export
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
    """What one round did.

    Attributes:
        round: From 0.
        outcome: `done`; `idle`: nothing was new, or nothing could be committed; `abandoned`: a
            signal came; or the name of the error.
        seconds: From its begin to its end.
        ranges: What was written, such as `orders-0 [0, 100)`; this and what follows is empty
            unless the round ended well. See `BackfillReport`.
        skipped: What was left out, and why.
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
        """One line."""
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
    """Exports round by round until SIGTERM or SIGINT comes, and then returns.

    A signal abandons the round under way: what is committed stays, and the same call goes on behind
    it. Only the main thread of a process can hear signals. A round that meets an outage is tried
    again an interval later, for as long as it takes.

    Args:
        source: Options as for the data source.
        settings: Where and how to write, with `following`.
        executor: Runs the tasks.
        on_round: Called with what each round did, which is also logged.
        clock: Seconds.
        pause: Waits for so many seconds.

    Returns:
        All rounds that ended well, as one. What an outage or a signal met right behind its commit
        is in the table and not counted.

    Raises:
        InvalidOptionError: The source has an end, or the table cannot be merged.
        TieredKafkaError: As of `export`, unless waiting may help.
    """
    following = settings.following
    if following is None:
        raise InvalidOptionError("the settings do not say follow=True")
    checked = _is_checked(source, settings)
    nothing = total = empty_report(settings.target, settings.table_format)
    stop = _Stop()
    number = 0
    with stop.listening():
        try:
            while not stop.asked:
                began = clock()
                report, error = _attempt(source, settings, executor, checked=checked)
                if report is not None:  # before anybody is told: a signal may come meanwhile
                    total, checked = together(total, report), True
                    settings = replace(settings, verify=False)  # once, at the start
                outcome = _outcome(report, error, stop)
                metrics = _metrics(number, outcome, clock() - began, report or nothing)
                log.info("%s", metrics.to_json())
                on_round(metrics)
                wait = began + following.interval_seconds - clock()
                if report is not None:
                    if report.commits and report.left_bytes:
                        wait = 0.0
                elif outcome == ABANDONED:
                    break
                elif error is not None and _may_pass(error):
                    wait = following.interval_seconds
                    log.warning("round %d is tried again in %g s: %s", number, wait, error)
                elif error is not None:
                    raise error
                number += 1
                if wait > 0 and not stop.asked:
                    pause(wait)
        except KeyboardInterrupt:
            log.info("a signal ended the export between two rounds")
    return total


def _attempt(
    source: Mapping[str, str], settings: ExportSettings, executor: ExportExecutor, *, checked: bool
) -> tuple[BackfillReport | None, BaseException | None]:
    try:
        if not checked:
            _check(source, settings)
        return export(source, settings, executor), None
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # told first, raised then
        return None, error


def _may_pass(error: BaseException) -> bool:
    """Whether waiting may help: a store, brokers, a registry or a catalog did not answer."""
    if isinstance(error, TieredKafkaError):
        return error.retriable
    return is_outage(error)


def _outcome(report: BackfillReport | None, error: BaseException | None, stop: _Stop) -> str:
    if report is not None:
        return DONE if report.commits else IDLE
    # Libraries may give what interrupted them another name.
    if stop.asked or isinstance(error, KeyboardInterrupt):
        return ABANDONED
    return type(error).__name__


def _is_checked(source: Mapping[str, str], settings: ExportSettings) -> bool:
    """Whether the arguments are known to be fine; not while a registry that says the schema is
    down: the first round meets that, too, and waits.
    """
    try:
        _check(source, settings)
    except RegistryUnavailableError:
        return False
    return True


def _check(source: Mapping[str, str], settings: ExportSettings) -> None:
    options = parse_options(source)
    check_for_stream(options)
    check_typed(options, settings)
    if settings.compaction is not None and not can_merge(options, settings):
        raise InvalidOptionError(
            "compact=True with follow=True merges round by round: columns must have topic,"
            " partition, offset and key, and timestamp where old tombstones are removed"
        )


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
    """Hears SIGTERM and SIGINT: the first one interrupts what is going on, later ones nothing."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """For the block; elsewhere than in the main thread Python lets nobody listen."""
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
        if not self.asked:
            self.asked = True
            raise KeyboardInterrupt
