"""A table of `backfill`, and who goes on behind it, over a real cluster: every row that a consumer
is given, once.
"""

from __future__ import annotations

import os
import random
import signal
from typing import TYPE_CHECKING

import pytest

from kts_source.export.end_offsets import end_offsets
from kts_source.export.executor import LocalExecutor
from kts_source.export.follow import RoundMetrics, follow
from tests.golden_data import ISOLATION_LEVELS
from tests.integration.hybrid import consumed_rows, hybrid_options, planned, rows_of
from tests.integration.spark_kafka import run_reads
from tests.integration.worked_topic import Topic
from tests.kts_source.export.exporting import Lake
from tests.kts_source.export.small_tier import held

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(420)]


def due_offsets(cluster: Cluster, topic: str, level: str) -> list[int]:
    """What a consumer is given of the one partition."""
    whole = planned(hybrid_options(cluster.bootstrap, cluster.tier, subscribe=topic))
    ((_, due),) = consumed_rows(cluster.bootstrap, whole, level).items()
    return [row.offset for row in due]


def test_sparks_kafka_source_goes_on_where_a_table_ends(cluster: Cluster, tmp_path: Path) -> None:
    level = random.SystemRandom().choice(ISOLATION_LEVELS)
    topic = Topic(cluster, f"table-handed-over-{level}")
    topic.write(3)
    topic.settle()
    tier = hybrid_options("", cluster.tier, subscribe=topic.name, isolationLevel=level)
    del tier["kafka.bootstrap.servers"]
    while not rows_of(planned(tier), tier):  # a transaction may be open from offset 0 on
        topic.write(1)
        topic.settle()
    lake = Lake(tmp_path, "delta")
    lake.export(tier)
    before = held(lake)
    topic.write(1)
    read = {
        "subscribe": topic.name,
        "startingOffsets": end_offsets(source=tier, target=lake.target, table_format="delta"),
        "includeHeaders": "true",
        "kafka.isolation.level": level,
        "kafka.bootstrap.servers": cluster.bootstrap,
    }
    runs = run_reads("kafka", {"batch": read}, tmp_path / "spark", {}, streams={"stream": read})
    assert before
    due = due_offsets(cluster, topic.name, level)
    for name, rest in runs.items():
        assert rest.table is not None, f"{name}: {rest.error}"
        assert sorted([*before, *rest.table["offset"].to_pylist()]) == due, name


def test_an_export_follows_through_tier_and_brokers(cluster: Cluster, tmp_path: Path) -> None:
    level = random.SystemRandom().choice(ISOLATION_LEVELS)
    topic = Topic(cluster, f"followed-{level}")
    topic.write(3)
    topic.settle()
    options = hybrid_options(
        cluster.bootstrap, cluster.tier, subscribe=topic.name, isolationLevel=level
    )
    lake, rounds, pauses = Lake(tmp_path, "parquet"), list[RoundMetrics](), list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        topic.write(1)
        if len(pauses) == 2:
            topic.settle()

    settings = lake.settings(follow=True, round_bytes=100_000)
    report = follow(options, settings, LocalExecutor(1), on_round=rounds.append, pause=pause)
    assert len(pauses) == 3
    assert len([one for one in rounds if one.commits]) >= 3
    assert held(lake) == due_offsets(cluster, topic.name, level)
    assert report.rows == len(held(lake))
