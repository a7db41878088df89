"""The same options give the same rows and the same refusals as Spark's own Kafka source.

Spark reads from a broker whose closed segments are tiered; ours reads the tier after the broker has
stopped. Spark sees more, because the active segment is never tiered: its rows are cut where the
broker says that the tier ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from kts_source.errors import TieredKafkaError
from tests.golden_data import ISOLATION_LEVELS, SPARK_SCHEMA, assert_same_rows
from tests.integration.broker import running_broker
from tests.integration.differential_case import Case, Verdict
from tests.integration.differential_refusals import DIFFERENT, REFUSED
from tests.integration.differential_same import SAME
from tests.integration.kafka_jars import spark_kafka_jars
from tests.integration.spark_kafka import Outcome, run_reads
from tests.integration.workload import TOPICS, TierFacts, fill
from tests.kts_source.planning.scanning import scan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.golden_data import IsolationLevel

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(720)]

CASES: dict[str, Case] = {**SAME, **REFUSED, **DIFFERENT}
LEVEL_OPTION = "kafka.isolation.level"
THROUGH_SPARK = (
    "subscribe all",
    "start and end offsets",
    "start and end times by partition",
    "headers",
    "few records each in more partitions",
    "no selection",
    "start without a partition",
)


@dataclass(frozen=True)
class World:
    """The tier that a stopped broker left, and what Spark's source read while it ran."""

    facts: TierFacts
    tier: Path
    spark: Mapping[str, Outcome]
    folder: Path

    @property
    def ours(self) -> dict[str, str]:
        """Options that lead our source to the tier."""
        return {"path": str(self.tier), "layout": "local-tiered-storage"}

    def given(self, name: str, level: str) -> dict[str, str]:
        """The options of a case, the isolation level among them."""
        return {LEVEL_OPTION: level, **CASES[name].options(self.facts)}

    def expected(self, name: str, level: str) -> pa.Table:
        """Spark's rows, cut per partition where the tier ends."""
        table = self.spark[read_name(name, level)].table
        assert table is not None
        limits = self.facts.limit(level)
        pairs = zip(table["topic"].to_pylist(), table["partition"].to_pylist(), strict=True)
        ends = pa.array([limits[pair] for pair in pairs], pa.int64())
        return without_null_headers(table.filter(pc.less(table["offset"], ends)))


def without_null_headers(table: pa.Table) -> pa.Table:
    """Headers of a record that has none: null in Spark's source, an empty list in ours."""
    if "headers" not in table.column_names:
        return table
    kind = SPARK_SCHEMA.field("headers").type
    filled = [[] if headers is None else headers for headers in table["headers"].to_pylist()]
    where = table.column_names.index("headers")
    return table.set_column(where, SPARK_SCHEMA.field("headers"), pa.array(filled, kind))


def read_name(name: str, level: str) -> str:
    return f"{list(CASES).index(name):03d}-{level}"


def levels(name: str) -> tuple[IsolationLevel, ...]:
    """One is enough where nothing is read."""
    return ISOLATION_LEVELS if name in SAME else ("read_uncommitted",)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Fills a broker, lets Spark read from it, and stops it."""
    spark_kafka_jars()  # skips before anything has started
    folder = tmp_path_factory.mktemp("differential")
    with running_broker(folder / "broker") as broker:
        facts = fill(broker)
        reads = {
            read_name(name, level): {LEVEL_OPTION: level, **case.options(facts)}
            for name, case in CASES.items()
            for level in levels(name)
        }
        # Reads that fail only because nothing comes must not wait for two minutes.
        options = {
            "kafka.bootstrap.servers": facts.bootstrap,
            "kafkaConsumer.pollTimeoutMs": "10000",
        }
        outcomes = run_reads("kafka", reads, folder / "spark", options)
    return World(facts, broker.tier, outcomes, folder)


def test_the_tier_has_what_the_test_is_about(world: World) -> None:
    facts = world.facts
    assert set(facts.tier_ends) >= {(name, n) for name in TOPICS for n in range(TOPICS[name])}
    assert facts.tier_ends["plain-sparse", 1] == 0 < facts.latest["plain-sparse", 1]
    assert facts.starts["trimmed", 0] == 777
    for partition in range(2):
        assert facts.tier_stable["txn", partition] < facts.tier_ends["txn", partition]
    for pair in facts.tier_ends:
        if pair[0] in TOPICS:
            assert facts.tier_ends[pair] < facts.latest[pair]


@pytest.mark.parametrize("level", ISOLATION_LEVELS)
@pytest.mark.parametrize("name", SAME)
def test_same_rows(world: World, name: str, level: IsolationLevel) -> None:
    assert world.spark[read_name(name, level)].error is None
    expected = world.expected(name, level)
    table = scan({**world.ours, **world.given(name, level)})
    assert table.column_names == expected.column_names
    assert (expected.num_rows == 0) == (SAME[name].verdict is Verdict.NO_ROWS)
    if expected.num_rows:
        assert_same_rows(table, expected)
    else:
        assert table.num_rows == 0


@pytest.mark.parametrize("name", REFUSED)
def test_both_refuse(world: World, name: str) -> None:
    assert world.spark[read_name(name, "read_uncommitted")].error is not None
    with pytest.raises(TieredKafkaError):
        scan({**world.ours, **world.given(name, "read_uncommitted")})


@pytest.mark.parametrize("name", DIFFERENT)
def test_one_refuses_for_a_reason(world: World, name: str) -> None:
    case, outcome = DIFFERENT[name], world.spark[read_name(name, "read_uncommitted")]
    assert case.reason
    given = {**world.ours, **world.given(name, "read_uncommitted")}
    if case.verdict is Verdict.ONLY_OURS_REFUSES:
        assert outcome.error is None
        with pytest.raises(TieredKafkaError):
            scan(given)
    else:
        assert case.verdict is Verdict.ONLY_SPARK_REFUSES
        assert outcome.error is not None
        scan(given)


def test_the_default_is_read_committed(world: World) -> None:
    table = scan({**world.ours, "subscribe": ",".join(TOPICS)})
    assert_same_rows(table, world.expected("subscribe all", "read_committed"))


def test_through_spark(world: World) -> None:
    reads = {read_name(name, "read_committed"): name for name in THROUGH_SPARK}
    outcomes = run_reads(
        "tiered-kafka",
        {read: world.given(name, "read_committed") for read, name in reads.items()},
        world.folder / "ours",
        world.ours,
    )
    for read, name in reads.items():
        table = outcomes[read].table
        if name in REFUSED:
            assert table is None
        else:
            assert table is not None, outcomes[read].error
            assert_same_rows(table, world.expected(name, "read_committed"))
