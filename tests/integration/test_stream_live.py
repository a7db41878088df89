"""Kills and restarts streaming queries of a cluster that changes at the same time.

Producers write, the broker tiers segments and restarts, and retention deletes segments.
`python -m tools.soak --only live` runs this for half an hour with every Spark version.
"""

from __future__ import annotations

import itertools
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
from tests.integration.hybrid import assert_as_consumed, group_by_partition, hybrid_options
from tests.integration.tier_mischief import list_tiered_segments
from tests.needs import needs
from tests.spark.stream_killing import HAS_PROC, SINKS, Case, Query, interpreters

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_PROC, reason="looks for children in /proc"),
]

SECONDS = int(os.environ.get("KTS_LIVE_SECONDS", "25"))
SHORT = "live-short"
PARTITIONS = (("live-kept", 0), ("live-kept", 1), (SHORT, 0))
LONG = SECONDS >= 600
RETENTION_MS = 900_000
"""Retention of the shortened topic: longer than a query is down, shorter than a soak. It is set
after the first batch of each query, because a query must see the first rows."""
RECORDS_PER_SECOND = 150.0


class LiveRun:
    """Starts and kills streaming queries on a cluster that changes.

    Args:
        cluster: A cluster of one node.
        queries: Pairs of a case and its query. Only one query runs at a time, to limit the CPU
            load.
        source: Source of all random choices.
        seed: Seed of the written records.

    Attributes:
        events: Number of broker restarts and query kills, by description.
    """

    def __init__(
        self,
        cluster: Cluster,
        queries: Sequence[tuple[Case, Query]],
        source: random.Random,
        seed: int,
    ) -> None:
        self.events: Counter[str] = Counter()
        self._cluster = cluster
        self._queries = queries
        self._random = source
        self._work = RandomWork(cluster.bootstrap, PARTITIONS, seed)
        self._sent = 0

    def run(self, seconds: float) -> None:
        """Runs for `seconds`: writes records, restarts the broker, and starts and kills queries."""
        started = time.monotonic()
        restart = self._random.uniform(0.3, 0.6) * min(seconds, 60)
        for turn, (case, query) in enumerate(itertools.cycle(self._queries)):
            if time.monotonic() - started >= seconds:
                break
            if turn == len(self._queries):
                self._cluster.admin.alter_topic(SHORT, retention_ms=str(RETENTION_MS))
            driver = query.start(is_endless=True)
            before, end = query.batches, None
            while end is None or time.monotonic() < end:
                self._step(started)
                if time.monotonic() - started > restart:
                    self._restart()
                    restart += self._random.uniform(20, 90)
                if end is None and query.batches > before:
                    end = time.monotonic() + self._random.uniform(1, 15)
                if driver.poll() is not None:
                    break
            self.events[f"{case}: {query.kill(driver, self._random)}"] += 1
        self._work.finish()
        for partition in PARTITIONS:
            self._cluster.admin.wait_stable(*partition)
        self._cluster.admin.alter_topic(SHORT, retention_ms="-1")

    def ends(self, level: str) -> dict[tuple[str, int], int]:
        """Returns the offset of each partition at which reads with isolation level `level` end."""
        name = "last_stable" if level == "read_committed" else "latest"
        offsets = {key: self._cluster.admin.offsets(*key) for key in PARTITIONS}
        return {key: getattr(offsets[key], name) for key in PARTITIONS}

    def _step(self, started: float) -> None:
        self._sent += self._work.step()
        ahead = self._sent / RECORDS_PER_SECOND - (time.monotonic() - started)
        time.sleep(min(max(0.0, ahead), 1.0))

    def _restart(self) -> None:
        is_clean = self._random.random() < 0.5
        self._cluster.restart_node(1, is_clean=is_clean)
        self.events[f"broker {'stopped' if is_clean else 'killed'} and started"] += 1


def chosen_cases(source: random.Random) -> list[Case]:
    """Returns one case for each isolation level, with a random Spark version and a random sink.

    In a soak (`LONG`), returns one case for each isolation level and each Spark version.
    """
    sparks = source.sample(sorted(interpreters()), len(interpreters()) if LONG else 1)
    sinks = source.sample(SINKS, 2)
    return [
        Case(spark if LONG else source.choice(sorted(interpreters())), level, sinks[turn % 2])
        for number, spark in enumerate(sparks)
        for turn, level in enumerate(ISOLATION_LEVELS, number)
    ]


@pytest.mark.timeout(SECONDS + (1200 if LONG else 500))
def test_killed_and_restarted_queries_write_each_row_once(tmp_path: Path) -> None:
    needs("java", "mvn")
    seed = int(os.environ.get("KTS_LIVE_SEED", secrets.randbits(31)))
    print(f"KTS_LIVE_SEED={seed}")  # noqa: T201
    source = random.Random(seed)
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(tmp_path / "cluster"))
        cluster.admin.create_topic("live-kept", 2)
        cluster.admin.create_topic(SHORT, message_timestamp_type="LogAppendTime")
        options = hybrid_options(cluster.bootstrap, cluster.tier, subscribePattern="live-.*")
        options |= {"maxOffsetsPerTrigger": "20000"}
        queries = []
        for number, case in enumerate(chosen_cases(source)):
            queries.append((case, Query(case, tmp_path / str(number), options)))
            print(case)  # noqa: T201
        consumers = {
            level: stack.enter_context(FollowingConsumer(cluster.bootstrap, PARTITIONS, level))
            for level in ISOLATION_LEVELS
        }
        live_run = LiveRun(cluster, queries, source, seed)
        live_run.run(SECONDS)
        for level, consumer in consumers.items():
            consumer.wait_for(live_run.ends(level))
        for _, query in queries:
            query.run_to_end()
        start = cluster.admin.offsets(SHORT).earliest
        tiered = {key: len(list_tiered_segments(cluster.tier, *key)) for key in PARTITIONS}
    rows = 0
    for case, query in queries:
        rows_by_partition = group_by_partition(query.written().to_batches())
        for partition_rows in rows_by_partition.values():
            partition_rows.sort(key=lambda row: row.offset)
        assert_as_consumed(rows_by_partition, consumers[case.isolation_level].rows)
        rows += sum(len(partition_rows) for partition_rows in rows_by_partition.values())
        log = query.log.read_text(errors="replace")
        assert not re.search(r"DataLoss|OffsetOutOfRange", log), log[-4000:]
    live_run.events["segments in the tier at the end"] = sum(tiered.values())
    live_run.events["first offset that retention left"] = start
    print(f"{SECONDS} seconds, {rows} rows")  # noqa: T201
    for event, count in live_run.events.most_common():
        print(f"{count:9,} {event}")  # noqa: T201
    assert rows > 0
    assert all(tiered.values())
