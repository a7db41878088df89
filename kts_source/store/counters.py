"""What a store did so far, counted where the requests are made."""

from __future__ import annotations

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
        return StoreCounters(
            self.requests - earlier.requests,
            self.list_requests - earlier.list_requests,
            self.bytes - earlier.bytes,
            self.retries - earlier.retries,
            self.hedges - earlier.hedges,
            self.mirrored - earlier.mirrored,
        )

    def __add__(self, other: StoreCounters) -> StoreCounters:
        """The work of two stores."""
        return StoreCounters(
            self.requests + other.requests,
            self.list_requests + other.list_requests,
            self.bytes + other.bytes,
            self.retries + other.retries,
            self.hedges + other.hedges,
            self.mirrored + other.mirrored,
        )


class Tally:
    """Adds up `StoreCounters` from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = self._list_requests = self._received = 0
        self._retries = self._hedges = self._mirrored = 0

    def add(
        self,
        *,
        requests: int = 0,
        list_requests: int = 0,
        received: int = 0,
        retries: int = 0,
        hedges: int = 0,
        mirrored: int = 0,
    ) -> None:
        """Counts some work."""
        with self._lock:
            self._requests += requests
            self._list_requests += list_requests
            self._received += received
            self._retries += retries
            self._hedges += hedges
            self._mirrored += mirrored

    @property
    def snapshot(self) -> StoreCounters:
        """What was counted so far."""
        with self._lock:
            return StoreCounters(
                self._requests,
                self._list_requests,
                self._received,
                self._retries,
                self._hedges,
                self._mirrored,
            )
