"""Changes topics while tests read them.

Threads write records and call DeleteRecords. The broker tiers segments and deletes old ones.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Self

from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.integration.admin import WAIT_SECONDS
from tests.integration.background import Background, RandomWork
from tests.integration.tier_mischief import list_tiered_segments

if TYPE_CHECKING:
    from tests.integration.cluster import Cluster

PartitionKey = tuple[str, int]

RECORDS_PER_SECOND = 400.0
_KEPT_ROWS = 6000
"""DeleteRecords moves the log start of a partition that has more rows than this."""


class MovingTopics:
    """Topics that change during a `with` block: threads write records and move the log starts.

    Args:
        cluster: A cluster of one node.
        seed: Seed of all random choices.
    """

    partition_keys: tuple[PartitionKey, ...] = (
        ("keep", 0),
        ("keep", 1),
        ("short", 0),
        ("local", 0),
    )

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self._random = random.Random(f"{seed} trims")
        self._stopped = threading.Event()
        self._trims = threading.Thread(target=self._trim, name="trims", daemon=True)
        work = RandomWork(cluster.bootstrap, self.partition_keys, seed)
        self._work = Background(work, RECORDS_PER_SECOND)
        self._error: Exception | None = None
        self.trimmed = 0

    def __enter__(self) -> Self:
        """Creates the topics and starts the threads.

        Before it starts the threads, it writes records until every partition has more than three
        tiered segments.
        """
        admin = self.cluster.admin
        admin.create_topic("keep", 2)
        # Retention of this topic deletes tiered segments.
        admin.create_topic("short", 1, retention_bytes="250000")
        # The broker keeps some tiered segments of this topic on its disk.
        admin.create_topic(
            "local", 1, local_retention_bytes="100000", message_timestamp_type="LogAppendTime"
        )
        work = RandomWork(
            self.cluster.bootstrap, self.partition_keys, self._random.randrange(1 << 30)
        )
        while sum(work.step() for _ in range(20)) and not self._all_tiered():
            pass
        work.finish()
        self._work.__enter__()
        self._trims.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops the threads; raises `RuntimeError` if one of them failed."""
        self._stopped.set()
        self._trims.join(WAIT_SECONDS)
        self._work.__exit__()
        if self._error is not None:
            raise RuntimeError("the thread that moves log starts failed") from self._error

    def log_starts(self) -> dict[PartitionKey, int]:
        return self._offsets(OffsetSpec.earliest())

    def ends(self, level: str = "read_uncommitted") -> dict[PartitionKey, int]:
        """Returns the current end of each partition for reads with isolation level `level`.

        This is the high watermark, or the last stable offset for `read_committed`.
        """
        return self._offsets(OffsetSpec.latest(), level)

    def _offsets(
        self, spec: OffsetSpec, level: str = "read_uncommitted"
    ) -> dict[PartitionKey, int]:
        specs = {TopicPartition(*key): spec for key in self.partition_keys}
        futures = self.cluster.admin.client().list_offsets(
            specs, isolation_level=IsolationLevel[level.upper()]
        )
        return {
            (key.topic, key.partition): int(future.result(WAIT_SECONDS).offset)
            for key, future in futures.items()
        }

    def _all_tiered(self) -> bool:
        return all(
            len(list_tiered_segments(self.cluster.tier, *key)) > 3 for key in self.partition_keys
        )

    def _trim(self) -> None:
        try:
            while not self._stopped.wait(self._random.uniform(0.5, 4)):
                key = self._random.choice([key for key in self.partition_keys if key[0] != "short"])
                start = self.log_starts()[key]
                end = self.ends()[key]
                max_deleted = max(end - start - _KEPT_ROWS, self._random.choice((0, 1, 40, 300)))
                if self._random.random() < 0.02:
                    max_deleted = end - start
                before = min(end, start + self._random.randint(max_deleted // 2, max_deleted))
                if before > start:
                    self.cluster.admin.delete_records(*key, before)
                    self.trimmed += 1
        except Exception as error:  # noqa: BLE001 - raised again in __exit__
            self._error = error
