"""Topics that are written, uploaded, trimmed and deleted by retention while they are read."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Self

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.integration.admin import WAIT_SECONDS
from tests.integration.background import Background, RandomWork
from tests.integration.tier_mischief import tiered_segments

if TYPE_CHECKING:
    from tests.integration.cluster import Cluster

Place = tuple[str, int]

RECORDS_PER_SECOND = 400.0
_KEPT_ROWS = 6000
"""DeleteRecords moves the log start when a partition has more."""


class MovingTopics:
    """Topics of one cluster that are written and trimmed from `with` to its end.

    Args:
        cluster: Of one node.
        seed: Decides what is written and trimmed.
    """

    places: tuple[Place, ...] = (("keep", 0), ("keep", 1), ("short", 0), ("local", 0))

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self._random = random.Random(f"{seed} trims")
        self._stopped = threading.Event()
        self._trims = threading.Thread(target=self._trim, name="trims", daemon=True)
        work = RandomWork(cluster.bootstrap, self.places, seed)
        self._work = Background(work, RECORDS_PER_SECOND)
        self._error: Exception | None = None
        self.trimmed = 0

    def __enter__(self) -> Self:
        """Creates the topics, fills them a little and begins."""
        admin = self.cluster.admin
        admin.create_topic("keep", 2)
        # Retention deletes objects of the tier.
        admin.create_topic("short", 1, retention_bytes="250000")
        # The broker keeps some of what is uploaded.
        admin.create_topic(
            "local", 1, local_retention_bytes="100000", message_timestamp_type="LogAppendTime"
        )
        work = RandomWork(self.cluster.bootstrap, self.places, self._random.randrange(1 << 30))
        while sum(work.step() for _ in range(20)) and not self._all_tiered():
            pass
        work.finish()
        self._work.__enter__()
        self._trims.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops; raises what went wrong in the background."""
        self._stopped.set()
        self._trims.join(WAIT_SECONDS)
        self._work.__exit__()
        if self._error is not None:
            raise RuntimeError("the trims failed") from self._error

    def log_starts(self) -> dict[Place, int]:
        """Where the log of each partition starts now."""
        return self._offsets(OffsetSpec.earliest())

    def ends(self, level: str = "read_uncommitted") -> dict[Place, int]:
        """Where it ends for readers of an isolation level."""
        return self._offsets(OffsetSpec.latest(), level)

    def _offsets(self, spec: OffsetSpec, level: str = "read_uncommitted") -> dict[Place, int]:
        wanted = {TopicPartition(*place): spec for place in self.places}
        futures = self.cluster.admin.client().list_offsets(
            wanted, isolation_level=IsolationLevel[level.upper()]
        )
        return {
            (at.topic, at.partition): int(future.result(WAIT_SECONDS).offset)
            for at, future in futures.items()
        }

    def _all_tiered(self) -> bool:
        return all(len(tiered_segments(self.cluster.tier, *place)) > 3 for place in self.places)

    def _trim(self) -> None:
        try:
            while not self._stopped.wait(self._random.uniform(0.5, 4)):
                place = self._random.choice([one for one in self.places if one[0] != "short"])
                start = self.log_starts()[place]
                end = self.ends()[place]
                most = max(end - start - _KEPT_ROWS, self._random.choice((0, 1, 40, 300)))
                if self._random.random() < 0.02:
                    most = end - start
                before = min(end, start + self._random.randint(most // 2, most))
                if before > start:
                    self.cluster.admin.delete_records(*place, before)
                    self.trimmed += 1
        except Exception as error:  # noqa: BLE001 - raised again where the thread is joined
            self._error = error
