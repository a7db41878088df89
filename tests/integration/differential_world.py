"""Reads of one broker: by Spark's Kafka source, by ours with the brokers, and what they leave."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tests.golden_data import ISOLATION_LEVELS, SPARK_SCHEMA
from tests.integration.broker import running_broker
from tests.integration.differential_brokers import MORE
from tests.integration.differential_case import Verdict
from tests.integration.differential_refusals import DIFFERENT, REFUSED
from tests.integration.differential_same import SAME
from tests.integration.kafka_jars import spark_kafka_jars
from tests.integration.spark_kafka import Counts, Outcome, counts_of, run_reads
from tests.integration.workload import TierFacts, fill
from tests.kts_source.planning.scanning import scan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tests.golden_data import IsolationLevel
    from tests.integration.differential_case import Case

CASES: Mapping[str, Case] = {**SAME, **REFUSED, **DIFFERENT, **MORE}
LEVEL_OPTION = "kafka.isolation.level"
LEVEL_LEFT_OUT = "everything, the isolation level left out"
BOTH_LEVELS = "everything there is"
SEED = os.environ.get("KTS_DIFFERENTIAL_SEED", str(random.SystemRandom().randrange(1 << 31)))
"""Decides the isolation level of cases that are read with one of them."""
SERVERS_OPTION = "kafka.bootstrap.servers"
GROWING = "growing"
"""A topic that gets more records while DataFrames on it are used."""

TIER, UNION, BROKERS = "tier", "tier and brokers", "brokers"
"""What ours is given."""

THROUGH_SPARK = (
    "subscribe all",
    "start and end offsets",
    "start and end times by partition",
    "headers",
    "few records each in more partitions",
    "no selection",
    "start without a partition",
)
THROUGH_SPARK_WITH_BROKERS = (
    *THROUGH_SPARK,
    "across the border, in more partitions",
    "end offsets of one more partition",
)


@dataclass(frozen=True)
class Ours:
    """What one scan of ours gave."""

    table: pa.Table | None
    error: Exception | None


@dataclass(frozen=True)
class World:
    """What both sources read while a broker ran, and the tier that it left.

    Attributes:
        spark: Spark's own source, by `read_name`.
        ours: Our scans with the brokers, by what they were given and `read_name`.
        through_spark: The same through Spark, and of the tier alone.
        spark_counts: How many rows a DataFrame of Spark's source had before and after a topic grew.
        our_counts: The same of ours.
    """

    facts: TierFacts
    tier: Path
    spark: Mapping[str, Outcome]
    ours: Mapping[tuple[str, str], Ours]
    through_spark: Mapping[tuple[str, str], Outcome]
    spark_counts: Counts
    our_counts: Counts

    @property
    def of_tier(self) -> dict[str, str]:
        """Options that lead our source to the tier."""
        return {"path": str(self.tier), "layout": "local-tiered-storage"}

    def given(self, name: str, level: str) -> dict[str, str]:
        """The options of a case, the isolation level among them."""
        return given(self.facts, name, level)

    def expected(self, name: str, level: str) -> pa.Table:
        """Spark's rows, cut per partition where the tier ends."""
        table = self.whole(name, level)
        limits = self.facts.limit(level)
        pairs = zip(table["topic"].to_pylist(), table["partition"].to_pylist(), strict=True)
        ends = pa.array([limits[pair] for pair in pairs], pa.int64())
        return table.filter(pc.less(table["offset"], ends))

    def whole(self, name: str, level: str) -> pa.Table:
        """Spark's rows."""
        table = self.spark[read_name(name, level)].table
        assert table is not None
        return without_null_headers(table)


def given(facts: TierFacts, name: str, level: str) -> dict[str, str]:
    """The options of a case, the isolation level among them."""
    chosen = {} if name == LEVEL_LEFT_OUT else {LEVEL_OPTION: level}
    return {**chosen, **CASES[name].options(facts)}


def without_null_headers(table: pa.Table) -> pa.Table:
    """Headers of a record that has none: null in Spark's source, an empty list in ours."""
    if "headers" not in table.column_names:
        return table
    kind = SPARK_SCHEMA.field("headers").type
    filled = [[] if headers is None else headers for headers in table["headers"].to_pylist()]
    where = table.column_names.index("headers")
    return table.set_column(where, SPARK_SCHEMA.field("headers"), pa.array(filled, kind))


def read_name(name: str, level: str) -> str:
    """Name of one read of a case."""
    return f"{list(CASES).index(name):03d}-{level}"


def levels(name: str) -> tuple[IsolationLevel, ...]:
    """The isolation levels that a case is read with; Spark's reads take their time."""
    if name in SAME or name == BOTH_LEVELS:
        return ISOLATION_LEVELS
    if CASES[name].verdict not in (Verdict.SAME_ROWS, Verdict.NO_ROWS):
        return ("read_uncommitted",)
    return (random.Random(f"{SEED} {name}").choice(ISOLATION_LEVELS),)


def compared(folder: Path) -> World:
    """Fills a broker, lets both sources read from it, and stops it."""
    spark_kafka_jars()  # skips before anything has started
    with running_broker(folder / "broker") as broker, ThreadPoolExecutor(1) as beside:
        print(f"KTS_DIFFERENTIAL_SEED={SEED}")  # noqa: T201  # shown where a test fails
        facts = fill(broker)
        broker.create_topics({GROWING: 1})
        tier = {"path": str(broker.tier), "layout": "local-tiered-storage"}
        reads = {
            read_name(name, level): given(facts, name, level)
            for name in CASES
            for level in levels(name)
        }
        # Reads that fail only because nothing comes must not wait for two minutes.
        options = {SERVERS_OPTION: facts.bootstrap, "kafkaConsumer.pollTimeoutMs": "10000"}
        growing = {SERVERS_OPTION: facts.bootstrap, "subscribe": GROWING}
        begun = beside.submit(run_reads, "kafka", reads, folder / "spark", options, growing)
        ours = dict(_ours(facts, tier))
        spark = begun.result()
        through_spark = _through_spark(facts, tier, folder / "ours", growing)
        return World(
            facts,
            broker.tier,
            spark,
            ours,
            through_spark,
            counts_of(folder / "spark"),
            counts_of(folder / "ours"),
        )


def _ours(facts: TierFacts, tier: Mapping[str, str]) -> Iterable[tuple[tuple[str, str], Ours]]:
    for source, places in ((UNION, tier), (BROKERS, {})):
        for name in CASES:
            for level in levels(name):
                options = {SERVERS_OPTION: facts.bootstrap, **given(facts, name, level)}
                try:
                    outcome = Ours(scan({**options, **places}), None)
                except Exception as error:  # noqa: BLE001 - tests say which may be
                    outcome = Ours(None, error)
                yield (source, read_name(name, level)), outcome


def _through_spark(
    facts: TierFacts, tier: Mapping[str, str], folder: Path, growing: Mapping[str, str]
) -> dict[tuple[str, str], Outcome]:
    servers = {SERVERS_OPTION: facts.bootstrap}
    reads = {
        f"{source}-{read_name(name, levels(name)[0])}".replace(" ", "-"): (
            (source, name),
            {**places, **given(facts, name, levels(name)[0])},
        )
        for source, names, places in (
            (TIER, THROUGH_SPARK, tier),
            (UNION, THROUGH_SPARK_WITH_BROKERS, {**servers, **tier}),
            (BROKERS, THROUGH_SPARK_WITH_BROKERS, servers),
        )
        for name in names
    }
    outcomes = run_reads(
        "tiered-kafka", {read: options for read, (_, options) in reads.items()}, folder, {}, growing
    )
    return {place: outcomes[read] for read, (place, _) in reads.items()}
