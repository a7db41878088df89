"""Times several actions in turns, so that other load on the machine affects all of them."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(slots=True)
class Times:
    """Seconds of several actions, measured in turns."""

    seconds: dict[str, list[float]]

    def add(self, more: Times) -> None:
        """Appends the times of more rounds of the same actions."""
        for name, seconds in self.seconds.items():
            seconds += more.seconds[name]

    def ratio(self, of: Sequence[str], by: str) -> float:
        """Divides, for each round, the total time of the actions `of` by the time of the action
        `by`. Returns the median of these ratios.
        """
        rounds = zip(*(self.seconds[name] for name in of), strict=True)
        pairs = zip(map(sum, rounds), self.seconds[by], strict=True)
        return statistics.median(together / alone for together, alone in pairs)

    def median(self, name: str) -> float:
        """Returns the median seconds of one action."""
        return statistics.median(self.seconds[name])


def in_turns(actions: Mapping[str, Callable[[], object]], rounds: int) -> Times:
    """Runs a warm-up round, then `rounds` measured rounds. Each round runs every action once. Every
    second round runs the actions in reverse order, so that no action always runs after the same
    other action.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(rounds + 1):
        for name, action in list(actions.items())[:: -1 if number % 2 else 1]:
            began = time.perf_counter()
            action()
            if number:  # the first round is a warm-up
                seconds[name].append(time.perf_counter() - began)
    return Times(seconds)
