"""Tier and brokers through Spark, the command line and exports, against a consumer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.dataset
import pytest

from kts_source import backfill, register
from kts_source.cli.app import main
from tests.integration.broker import running_broker
from tests.integration.filler import Filler
from tests.integration.hybrid import consumed_rows, hybrid_options, planned
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
    """A broker that runs, with a topic of two partitions that is tiered in part."""
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
    consumed = consumed_rows(broker.bootstrap, planned(options), "read_committed")
    return {(number, row.offset) for (_, number), rows in consumed.items() for row in rows}


def _of_brokers(options: dict[str, str]) -> set[tuple[int, int]]:
    """The offsets that a plan reads from brokers."""
    return {
        (part.partition, offset)
        for part in planned(options).partitions
        if part.brokers is not None
        for start, stop in part.brokers.ranges
        for offset in range(start, stop)
    }


def test_one_load_is_the_whole_topic(broker: Broker, spark: SparkSession) -> None:
    register(spark)
    options = hybrid_options(broker.bootstrap, broker.tier, subscribe="orders")
    plan = planned(options)
    assert any(task.slices for task in plan.tasks)
    assert any(task.ranges for task in plan.tasks)
    frame = spark.read.format("tiered-kafka").options(**options).load()
    expected = consumed_rows(broker.bootstrap, plan, "read_committed")
    found = {
        (row.topic, row.partition, row.offset): (row.key, row.value) for row in frame.collect()
    }
    assert found == {
        (*place, row.offset): (row.key, row.value)
        for place, rows in expected.items()
        for row in rows
    }
    assert frame.limit(5).count() == 5


def test_an_export_goes_on_where_brokers_were_read(broker: Broker, tmp_path: Path) -> None:
    """Between two runs what brokers served moves into the tier: each offset is exported once."""
    options = hybrid_options(broker.bootstrap, broker.tier, subscribe="orders")
    target = tmp_path / "table"
    of_brokers = _of_brokers(options)
    assert of_brokers
    for round_number in range(3):
        backfill(None, source=options, target=str(target), progress=False)
        table = pyarrow.dataset.dataset(target).to_table(columns=["partition", "offset"])
        found = list(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))
        assert len(found) == len(set(found))
        assert set(found) == _offsets(broker, options)
        if round_number < 2:
            _produce(broker, seed=10 + round_number)
            if round_number:
                broker.wait_until_tiered([("orders", 0), ("orders", 1)])
    assert not of_brokers & _of_brokers(options)


def test_the_command_line_reads_brokers_too(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    options = hybrid_options(broker.bootstrap, broker.tier, subscribe="orders")
    flags = [text for name, value in options.items() for text in ("-o", f"{name}={value}")]
    assert main(["cat", "--json", *flags]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = {(line["partition"], line["offset"]) for line in lines}
    assert len(found) == len(lines)
    assert found == _offsets(broker, options)
