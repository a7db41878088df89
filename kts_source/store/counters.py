"""What a store did so far, counted where the requests are made."""

from __future__ import annotations

import operator
import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreCounters:
    """A snapshot of a store's work.

    Attributes:
        requests: Reads and look-ups sent, each attempt counted (GET and HEAD prices).
        list_requests: Listing pages asked for, each attempt counted (LIST prices).
        bytes: Bytes of object data received in answers that were accepted.
        retries: Attempts made again after one that failed.
        hedges: Second requests sent because the first was late.
        mirrored: Reads and listings that the mirror answered.
    """

    requests: int = 0
    list_requests: int = 0
    bytes: int = 0
    retries: int = 0
    hedges: int = 0
    mirrored: int = 0

    def __sub__(self, earlier: StoreCounters) -> StoreCounters:
        """The work between two snapshots."""
        return StoreCounters(*map(operator.sub, _values(self), _values(earlier)))

    def __add__(self, other: StoreCounters) -> StoreCounters:
        """The work of two stores."""
        return StoreCounters(*map(operator.add, _values(self), _values(other)))


_values = operator.attrgetter(*StoreCounters.__slots__)


class Tally:
    """Adds up `StoreCounters` from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = StoreCounters()

    def add(self, **work: int) -> None:
        """Counts some work, by the names of `StoreCounters`."""
        more = StoreCounters(**work)
        with self._lock:
            self._total += more

    @property
    def snapshot(self) -> StoreCounters:
        """What was counted so far."""
        return self._total
