"""Checks that an export with `follow=True` ends after a signal at any step, and that the next
export continues it.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from kts_source.export.follow import RoundMetrics, follow
from kts_source.export.task_writer import LocalExecutor
from tests.kts_source.export.exporting import FORMATS, Lake
from tests.kts_source.export.small_tier import SmallTier, table_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType

POINTS = 4
ROWS = list(range(30))


class Calls:
    """Counts calls and returns of kts_source functions while `follow` handles SIGTERM. Sends a
    SIGTERM to this process at call or return number `number`.

    Attributes:
        count: Number of calls and returns.
    """

    def __init__(self, number: int | None) -> None:
        self.count = 0
        self._number = number

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts calls and returns inside the `with` block."""
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _argument: object) -> None:
        # Before and after the export, the signal has its default effect.
        if event not in ("call", "return") or "kts_source" not in frame.f_code.co_filename:
            return
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            return
        self.count += 1
        if self.count == self._number:
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGTERM)


def followed(lake: Lake, tier: SmallTier, calls: Calls) -> list[RoundMetrics]:
    """Follows the tier until `calls` sends its signal, at the latest until the second pause.
    Returns the metrics of each round.
    """
    rounds: list[RoundMetrics] = []
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > 1:
            os.kill(os.getpid(), signal.SIGTERM)

    settings = lake.settings(follow=True, round_bytes=1)
    with calls.counted():
        follow(
            tier.options(),
            settings,
            LocalExecutor(1),
            on_round=lambda metrics, _total: rounds.append(metrics),
            pause=pause,
        )
    return rounds


@pytest.mark.slow
# A file opened just before the signal is closed by the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("table_format", FORMATS)
def test_export_after_signal_at_any_step_of_follow_completes_table(
    tmp_path: Path, table_format: str
) -> None:
    tier = SmallTier(tmp_path / "tier").grow(3)
    expected = Calls(None)
    (tmp_path / "whole").mkdir()
    followed(Lake(tmp_path / "whole", table_format), tier, expected)
    source = random.Random(random.SystemRandom().randrange(1 << 31))
    outcomes: Counter[str] = Counter()
    for _ in range(POINTS):
        step = source.randint(1, expected.count)
        folder = tmp_path / str(step)
        folder.mkdir(exist_ok=True)
        lake = Lake(folder, table_format)
        rounds = followed(lake, tier, Calls(step))
        outcomes.update([round_metrics.outcome for round_metrics in rounds])
        before = table_offsets(lake)
        assert before == ROWS[: len(before)], f"signal at call {step}"
        followed(lake, tier, Calls(None))
        assert table_offsets(lake) == ROWS, f"signal at call {step}"
    assert outcomes["abandoned"], outcomes
    gc.collect()  # collects open files here, so that the warning is not in the next test
