"""Queries that follow a live cluster and are killed over and over, while it is written, tiered,
shortened by retention and restarted; `python -m tools.soak --only live` does it for half an hour.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.golden_data import ISOLATION_LEVELS
from tests.integration.background import RandomWork
from tests.integration.cluster import Cluster
from tests.integration.following_consumer import FollowingConsumer
from tests.integration.hybrid import assert_as_consumed, by_partition, hybrid_options
from tests.integration.tier_mischief import tiered_segments
from tests.needs import needs
from tests.spark.stream_killing import HAS_PROC, SINKS, Query, interpreters

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping
    from pathlib import Path

    from tests.golden_data import IsolationLevel

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_PROC, reason="looks for children in /proc"),
]

SECONDS = int(os.environ.get("KTS_LIVE_SECONDS", "25"))
PLACES = (("live-kept", 0), ("live-kept", 1), ("live-short", 0))
RETENTION_MS = 420_000
"""Of the topic that is shortened: longer than a query is away, shorter than a soak."""
RECORDS_PER_SECOND = 150.0


class Life:
    """A cluster's life, and the queries that follow it.

    Args:
        cluster: Of one node.
        queries: By isolation level. One at a time runs: the machine has two cores.
        source: Decides what happens.

    Attributes:
        happened: How often what happened.
    """

    def __init__(
        self,
        cluster: Cluster,
        queries: Mapping[IsolationLevel, Query],
        source: random.Random,
        seed: int,
    ) -> None:
        self.happened: Counter[str] = Counter()
        self._cluster = cluster
        self._queries = queries
        self._random = source
        self._work = RandomWork(cluster.bootstrap, PLACES, seed)
        self._sent = 0

    def go_on(self, seconds: float) -> None:
        """Writes and restarts for so long, while queries run and are killed."""
        begun = time.monotonic()
        restart = self._random.uniform(0.3, 0.6) * min(seconds, 60)
        level = self._random.choice(ISOLATION_LEVELS)
        while time.monotonic() - begun < seconds:
            level = next(other for other in ISOLATION_LEVELS if other != level)
            driver = self._queries[level].begin(goes_on=True)
            before, end = self._queries[level].batches, None
            while end is None or time.monotonic() < end:
                self._step(begun)
                if time.monotonic() - begun > restart:
                    self._restart()
                    restart += self._random.uniform(20, 90)
                if end is None and self._queries[level].batches > before:
                    end = time.monotonic() + self._random.uniform(1, 15)
                if driver.poll() is not None:
                    break
            self._end(level, driver)
        self._work.finish()

    def ends(self, level: IsolationLevel) -> dict[tuple[str, int], int]:
        """Where each partition ends for readers of an isolation level."""
        name = "last_stable" if level == "read_committed" else "latest"
        return {place: getattr(self._cluster.admin.offsets(*place), name) for place in PLACES}

    def _step(self, begun: float) -> None:
        self._sent += self._work.step()
        ahead = self._sent / RECORDS_PER_SECOND - (time.monotonic() - begun)
        time.sleep(min(max(0.0, ahead), 1.0))

    def _restart(self) -> None:
        is_clean = self._random.random() < 0.5
        self._cluster.restart_node(1, is_clean=is_clean)
        self.happened[f"broker {'stopped' if is_clean else 'killed'} and started"] += 1

    def _end(self, level: IsolationLevel, driver: subprocess.Popen[str]) -> None:
        victim = self._queries[level].kill(driver, self._random)
        self.happened[f"query of {level}: {victim}"] += 1


@pytest.mark.timeout(SECONDS + 500)
def test_each_row_once_while_everything_moves(tmp_path: Path) -> None:
    needs("java", "mvn")
    seed = int(os.environ.get("KTS_LIVE_SEED", secrets.randbits(31)))
    print(f"KTS_LIVE_SEED={seed}")  # noqa: T201
    source = random.Random(seed)
    sinks = source.sample(SINKS, 2)
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(tmp_path / "cluster"))
        cluster.admin.create_topic("live-kept", 2)
        cluster.admin.create_topic(
            "live-short",
            retention_ms=str(RETENTION_MS),
            message_timestamp_type="LogAppendTime",
        )
        queries, consumers = {}, {}
        for level, sink in zip(ISOLATION_LEVELS, sinks, strict=True):
            spark, python = source.choice(sorted(interpreters().items()))
            options = hybrid_options(cluster.bootstrap, cluster.tier, subscribePattern="live-.*")
            options |= {"isolationLevel": level, "maxOffsetsPerTrigger": "20000"}
            queries[level] = Query(python, tmp_path / level, options, sink)
            print(f"{level}: Spark {spark}, {sink}")  # noqa: T201
            consumers[level] = stack.enter_context(
                FollowingConsumer(cluster.bootstrap, PLACES, level)
            )
        life = Life(cluster, queries, source, seed)
        life.go_on(SECONDS)
        for level, query in queries.items():
            consumers[level].wait_for(life.ends(level))
            query.end()
        start = cluster.admin.offsets("live-short").earliest
        tiered = {place: len(tiered_segments(cluster.tier, *place)) for place in PLACES}
    rows = 0
    for level, query in queries.items():
        found = by_partition(query.written().to_batches())
        for given in found.values():
            given.sort(key=lambda row: row.offset)
        assert_as_consumed(found, consumers[level].rows)
        rows += sum(len(given) for given in found.values())
        said = query.log.read_text(errors="replace")
        assert not re.search(r"DataLoss|OffsetOutOfRange", said), said[-4000:]
    life.happened["segments in the tier at the end"] = sum(tiered.values())
    life.happened["first offset that retention left"] = start
    print(f"{SECONDS} seconds, {rows} rows")  # noqa: T201
    for what, count in life.happened.most_common():
        print(f"{count:9,} {what}")  # noqa: T201
    assert rows > 0
    assert all(tiered.values())
