"""Tests that another reader can continue where an exported table or a stream ends.

The rows of the table or stream and the rows of the second reader together must contain each row
that a consumer receives, and each row only once.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from kts_source.export.end_offsets import end_offsets
from kts_source.export.follow import RoundMetrics, follow
from kts_source.export.task_writer import LocalExecutor
from kts_source.streaming import end_offsets as stream_end_offsets
from tests.golden_data import ISOLATION_LEVELS
from tests.integration import named_sources_side
from tests.integration.hybrid import consume_rows, hybrid_options, make_plan, read_rows
from tests.integration.kafka_jars import spark_kafka_jars
from tests.integration.spark_kafka import run_reads, run_script
from tests.integration.worked_topic import Topic
from tests.kts_source.export.exporting import Lake
from tests.kts_source.export.small_tier import table_offsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.integration.cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(420)]


def expected_offsets(cluster: Cluster, topic: str, level: str) -> list[int]:
    """Returns the offsets that a consumer receives from the topic's only partition."""
    plan = make_plan(hybrid_options(cluster.bootstrap, cluster.tier, subscribe=topic))
    ((_, rows),) = consume_rows(cluster.bootstrap, plan, level).items()
    return [row.offset for row in rows]


def tier_only_options(cluster: Cluster, topic: Topic, level: str) -> dict[str, str]:
    """Writes until a scan of the tier returns rows. Returns options that read only the tier."""
    options = hybrid_options("", cluster.tier, subscribe=topic.name, isolationLevel=level)
    del options["kafka.bootstrap.servers"]
    topic.write(3)
    topic.settle()
    while not read_rows(make_plan(options), options):  # a transaction may be open from offset 0 on
        topic.write(1)
        topic.settle()
    return options


def test_spark_kafka_source_continues_at_end_offsets_of_table(
    cluster: Cluster, tmp_path: Path
) -> None:
    level = random.SystemRandom().choice(ISOLATION_LEVELS)
    topic = Topic(cluster, f"table-handed-over-{level}")
    tier = tier_only_options(cluster, topic, level)
    lake = Lake(tmp_path, "delta")
    lake.export(tier)
    before = table_offsets(lake)
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
    expected = expected_offsets(cluster, topic.name, level)
    for name, run in runs.items():
        assert run.table is not None, f"{name}: {run.error}"
        assert sorted([*before, *run.table["offset"].to_pylist()]) == expected, name


def test_continuous_export_contains_each_row_of_tier_and_brokers_once(
    cluster: Cluster, tmp_path: Path
) -> None:
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
    report = follow(
        options,
        settings,
        LocalExecutor(1),
        on_round=lambda metrics, _total: rounds.append(metrics),
        pause=pause,
    )
    assert len(pauses) == 3
    assert len([metrics for metrics in rounds if metrics.commits]) >= 3
    assert table_offsets(lake) == expected_offsets(cluster, topic.name, level)
    assert report.rows == len(table_offsets(lake))


def test_second_named_source_starts_where_the_first_named_source_ended(
    cluster: Cluster, tmp_path: Path
) -> None:
    level = random.SystemRandom().choice(ISOLATION_LEVELS)
    topic = Topic(cluster, f"named-{level}")
    tier = tier_only_options(cluster, topic, level)
    del tier["columns"]  # the default columns are those of Spark's Kafka source, in its order
    tier |= {"includeHeaders": "true", "maxSegmentsPerTrigger": "1"}
    brokers = {"kafka.bootstrap.servers": cluster.bootstrap}
    live = {
        "kafka": {
            **brokers,
            "subscribe": topic.name,
            "includeHeaders": "true",
            "kafka.isolation.level": level,
        },
        "tiered-kafka": tier | brokers,
    }
    queries = {source: tmp_path / source for source in live}
    run_named(tmp_path, {folder: {"tier": ("tiered-kafka", tier)} for folder in queries.values()})
    assert all(count_written_offsets(folder) for folder in queries.values())
    # The second source must also read these segments, although they are in the tier.
    topic.write(2)
    topic.settle()
    for source, folder in queries.items():
        checkpoint = str(folder / "checkpoint")
        live[source]["startingOffsets"] = stream_end_offsets(checkpoint, source="tier")
    for _ in range(2):
        topic.write(1)
        run_named(
            tmp_path,
            {folder: {"live": (source, live[source])} for source, folder in queries.items()},
        )
        expected = Counter(expected_offsets(cluster, topic.name, level))
        for source, folder in queries.items():
            assert count_written_offsets(folder) == expected, source


def run_named(
    folder: Path, queries: Mapping[Path, Mapping[str, tuple[str, Mapping[str, str]]]]
) -> None:
    """Runs streaming queries with the script `named_sources_side`. `queries` maps the output folder
    of each query to its sources, which map a name to a format and options.
    """
    spec = {
        "jars": [str(path) for path in spark_kafka_jars("4.2")],
        "queries": {str(query): dict(sources) for query, sources in queries.items()},
        "out": str(folder / "spark"),
    }
    run_script(Path(named_sources_side.__file__), spec, folder, spark="4.2")


def count_written_offsets(query: Path) -> Counter[int]:
    """Counts how often a query wrote each offset of the topic's only partition."""
    return Counter(pq.read_table(query / "table")["offset"].to_pylist())
