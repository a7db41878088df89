"""Writes random records to a topic and waits until they are tiered."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.integration.admin import wait_until
from tests.integration.background import RandomWork

if TYPE_CHECKING:
    from tests.integration.cluster import Cluster


class Topic:
    """Topic with one partition, random records and random transactions.

    Args:
        cluster: A cluster of one node.
        name: Name of the topic to create.
    """

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        cluster.admin.create_topic(name)
        seed = random.SystemRandom().randrange(1 << 31)
        print(f"seed {seed}")  # noqa: T201  # shown if the test fails
        self.work = RandomWork(cluster.bootstrap, [(name, 0)], seed)

    def write(self, segments: int) -> None:
        """Writes until `segments` additional segments are closed; ends all transactions."""
        closed, last = 0, self._active()
        while closed < segments:
            self.work.step()
            before, last = last, self._active()
            closed += last != before
        self.finish()

    def finish(self) -> None:
        """Ends all transactions and waits until consumers can read all records."""
        self.work.finish()
        self._cluster.admin.wait_stable(self.name)

    def settle(self) -> int:
        """Waits until all closed segments are in the tier and deleted from the broker's disk.
        Returns the offset after the last tiered offset.
        """
        admin, active = self._cluster.admin, self._active()
        admin.wait_tiered(self.name, 0, active)
        admin.wait_local_deleted(self.name, 0, active)
        return active

    def _active(self) -> int:
        admin = self._cluster.admin
        # A broker can be the leader before its first log file exists.
        wait_until(lambda: bool(admin.local_bases(1, self.name)))
        return admin.local_bases(1, self.name)[-1]
