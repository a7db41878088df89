"""Tests that Spark, `kts cat` and exports return the rows that a consumer receives.

They read from tier and brokers.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.dataset
import pytest

from kts_source import backfill, register
from kts_source.cli.app import main
from tests.integration.broker import running_broker
from tests.integration.filler import Filler
from tests.integration.hybrid import consume_rows, hybrid_options, make_plan
from tests.needs import needs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.integration.broker import Broker

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(420)]

RECORDS = 700


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Runs a broker with a topic of two partitions that are partly tiered."""
    needs("java", "mvn")
    with running_broker(tmp_path_factory.mktemp("hybrid") / "broker") as running:
        running.create_topics({"orders": 2})
        _produce(running, seed=1)
        running.wait_until_tiered([("orders", 0), ("orders", 1)])
        yield running


def _produce(broker: Broker, seed: int) -> None:
    filler = Filler(broker.bootstrap, seed)
    for partition in range(2):
        filler.send(filler.plain("lz4"), "orders", partition, RECORDS)


def _offsets(broker: Broker, options: dict[str, str]) -> set[tuple[int, int]]:
    consumed = consume_rows(broker.bootstrap, make_plan(options), "read_committed")
    return {(number, row.offset) for (_, number), rows in consumed.items() for row in rows}


def _broker_offsets(options: dict[str, str]) -> set[tuple[int, int]]:
    """Returns the (partition, offset) pairs that a plan with these options reads from brokers."""
    return {
        (partition.partition, offset)
        for partition in make_plan(options).partitions
        if partition.brokers is not None
        for start, stop in partition.brokers.ranges
        for offset in range(start, stop)
    }


def test_load_in_spark_returns_rows_of_consumer(broker: Broker, spark: SparkSession) -> None:
    register(spark)
    options = hybrid_options(broker.bootstrap, broker.tier, subscribe="orders")
    plan = make_plan(options)
    assert any(task.slices for task in plan.tasks)
    assert any(task.ranges for task in plan.tasks)
    frame = spark.read.format("tiered-kafka").options(**options).load()
    expected = consume_rows(broker.bootstrap, plan, "read_committed")
    rows_by_offset = {
        (row.topic, row.partition, row.offset): (row.key, row.value) for row in frame.collect()
    }
    assert rows_by_offset == {
        (*key, row.offset): (row.key, row.value) for key, rows in expected.items() for row in rows
    }
    assert frame.limit(5).count() == 5


def test_repeated_export_writes_offsets_tiered_between_runs_only_once(
    broker: Broker, tmp_path: Path
) -> None:
    """Between two runs, brokers tier offsets that the earlier run read from the brokers."""
    options = hybrid_options(broker.bootstrap, broker.tier, subscribe="orders")
    target = tmp_path / "table"
    from_brokers = _broker_offsets(options)
    assert from_brokers
    for round_number in range(3):
        backfill(None, source=options, target=str(target), progress=False)
        table = pyarrow.dataset.dataset(target).to_table(columns=["partition", "offset"])
        exported = list(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))
        assert len(exported) == len(set(exported))
        assert set(exported) == _offsets(broker, options)
        if round_number < 2:
            _produce(broker, seed=10 + round_number)
            if round_number:
                broker.wait_until_tiered([("orders", 0), ("orders", 1)])
    assert not from_brokers & _broker_offsets(options)


def test_cat_prints_rows_of_tier_and_brokers(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    options = hybrid_options(broker.bootstrap, broker.tier, subscribe="orders")
    flags = [text for name, value in options.items() for text in ("-o", f"{name}={value}")]
    assert main(["cat", "--json", *flags]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    printed = {(line["partition"], line["offset"]) for line in lines}
    assert len(printed) == len(lines)
    assert printed == _offsets(broker, options)
