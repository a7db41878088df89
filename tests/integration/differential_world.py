"""Reads one broker with Spark's Kafka source and with this product, which also reads the tier."""

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
from tests.integration.spark_kafka import Counts, Outcome, read_counts, run_reads
from tests.integration.workload import TierFacts, fill
from tests.kts_source.planning.scanning import scan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tests.golden_data import IsolationLevel
    from tests.integration.differential_case import Case

CASES: Mapping[str, Case] = {**SAME, **REFUSED, **DIFFERENT, **MORE}
LEVEL_OPTION = "kafka.isolation.level"
DEFAULT_LEVEL = "everything, default isolation level"
BOTH_LEVELS = "everything"
SEED = os.environ.get("KTS_DIFFERENTIAL_SEED", str(random.SystemRandom().randrange(1 << 31)))
"""Random seed for the isolation level of the cases that are read with only one level."""
SERVERS_OPTION = "kafka.bootstrap.servers"
GROWING = "growing"
"""A topic that gets new records while DataFrames read it."""

TIER, UNION, BROKERS = "tier", "tier and brokers", "brokers"
"""Names of the storage from which this product reads in a scan."""

THROUGH_SPARK = (
    "subscribe all",
    "start and end offsets",
    "start and end times by partition",
    "headers",
    "few records each in more partitions",
    "no selection",
    "start without JSON",
)
THROUGH_SPARK_WITH_BROKERS = (
    *THROUGH_SPARK,
    "across the end of the tier, in more partitions",
    "end offsets of one more partition",
)


@dataclass(frozen=True)
class Ours:
    """Result of one scan with this product: a table or an error."""

    table: pa.Table | None
    error: Exception | None


@dataclass(frozen=True)
class DifferentialResults:
    """Results of reading one broker with Spark's Kafka source and with this product.

    Attributes:
        facts: Offsets of the broker and of its tier.
        tier: Folder of the tier, which remains after the broker stopped.
        spark: Results of Spark's Kafka source, by `read_name`.
        ours: Results of this product's Python API, by storage and `read_name`. The storage is tier
            and brokers, or only brokers.
        through_spark: Results of this product as a Spark data source, by storage and case. Here the
            storage can also be only the tier.
        spark_counts: Row counts of a DataFrame of Spark's Kafka source. The topic grows between the
            counts.
        our_counts: The same counts for a DataFrame of this product.
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
        """Returns the options that make a scan read the tier."""
        return {"path": str(self.tier), "layout": "local-tiered-storage"}

    def options(self, name: str, level: str) -> dict[str, str]:
        """Returns the options of case `name` with this isolation level."""
        return case_options(self.facts, name, level)

    def expected(self, name: str, level: str) -> pa.Table:
        """Returns the rows of case `name` that a scan of only the tier must return.

        These are the rows of Spark's Kafka source before the end of the tier.
        """
        table = self.spark_rows(name, level)
        limits = self.facts.limit(level)
        pairs = zip(table["topic"].to_pylist(), table["partition"].to_pylist(), strict=True)
        ends = pa.array([limits[pair] for pair in pairs], pa.int64())
        return table.filter(pc.less(table["offset"], ends))

    def spark_rows(self, name: str, level: str) -> pa.Table:
        """Returns the rows of Spark's Kafka source for case `name`.

        Null headers are replaced by empty lists.
        """
        table = self.spark[read_name(name, level)].table
        assert table is not None
        return without_null_headers(table)


def case_options(facts: TierFacts, name: str, level: str) -> dict[str, str]:
    """Returns the options of case `name`, including the isolation level `level`.

    The case that tests the default isolation level gets no level.
    """
    chosen = {} if name == DEFAULT_LEVEL else {LEVEL_OPTION: level}
    return {**chosen, **CASES[name].options(facts)}


def without_null_headers(table: pa.Table) -> pa.Table:
    """Replaces null by an empty list in `headers`.

    Spark's Kafka source returns null for records without headers."""
    if "headers" not in table.column_names:
        return table
    kind = SPARK_SCHEMA.field("headers").type
    filled = [[] if headers is None else headers for headers in table["headers"].to_pylist()]
    index = table.column_names.index("headers")
    return table.set_column(index, SPARK_SCHEMA.field("headers"), pa.array(filled, kind))


def read_name(name: str, level: str) -> str:
    """Returns the key under which the results of a case with an isolation level are stored."""
    return f"{list(CASES).index(name):03d}-{level}"


def isolation_levels_of(name: str) -> tuple[IsolationLevel, ...]:
    """Returns the isolation levels with which a case is read.

    Most cases are read with only one isolation level, because Spark's Kafka source is slow."""
    if name in SAME or name == BOTH_LEVELS:
        return ISOLATION_LEVELS
    if CASES[name].verdict not in (Verdict.SAME_ROWS, Verdict.NO_ROWS):
        return ("read_uncommitted",)
    return (random.Random(f"{SEED} {name}").choice(ISOLATION_LEVELS),)


def run_comparison(folder: Path) -> DifferentialResults:
    """Fills a broker, reads all cases with both sources, and stops the broker. Returns the
    results.
    """
    spark_kafka_jars()  # skips before anything has started
    with running_broker(folder / "broker") as broker, ThreadPoolExecutor(1) as pool:
        print(f"KTS_DIFFERENTIAL_SEED={SEED}")  # noqa: T201  # shown if a test fails
        facts = fill(broker)
        broker.create_topics({GROWING: 1})
        tier = {"path": str(broker.tier), "layout": "local-tiered-storage"}
        reads = {
            read_name(name, level): case_options(facts, name, level)
            for name in CASES
            for level in isolation_levels_of(name)
        }
        # Reads that receive no records fail after this timeout; the default is two minutes.
        options = {SERVERS_OPTION: facts.bootstrap, "kafkaConsumer.pollTimeoutMs": "10000"}
        growing = {SERVERS_OPTION: facts.bootstrap, "subscribe": GROWING}
        spark_reads = pool.submit(run_reads, "kafka", reads, folder / "spark", options, growing)
        ours = dict(_ours(facts, tier))
        spark = spark_reads.result()
        through_spark = _through_spark(facts, tier, folder / "ours", growing)
        return DifferentialResults(
            facts,
            broker.tier,
            spark,
            ours,
            through_spark,
            read_counts(folder / "spark"),
            read_counts(folder / "ours"),
        )


def _ours(facts: TierFacts, tier: Mapping[str, str]) -> Iterable[tuple[tuple[str, str], Ours]]:
    for source, storage in ((UNION, tier), (BROKERS, {})):
        for name in CASES:
            for level in isolation_levels_of(name):
                options = {SERVERS_OPTION: facts.bootstrap, **case_options(facts, name, level)}
                try:
                    outcome = Ours(scan({**options, **storage}), None)
                except Exception as error:  # noqa: BLE001 - tests check which are allowed
                    outcome = Ours(None, error)
                yield (source, read_name(name, level)), outcome


def _through_spark(
    facts: TierFacts, tier: Mapping[str, str], folder: Path, growing: Mapping[str, str]
) -> dict[tuple[str, str], Outcome]:
    servers = {SERVERS_OPTION: facts.bootstrap}
    reads = {
        f"{source}-{read_name(name, isolation_levels_of(name)[0])}".replace(" ", "-"): (
            (source, name),
            {**storage, **case_options(facts, name, isolation_levels_of(name)[0])},
        )
        for source, names, storage in (
            (TIER, THROUGH_SPARK, tier),
            (UNION, THROUGH_SPARK_WITH_BROKERS, {**servers, **tier}),
            (BROKERS, THROUGH_SPARK_WITH_BROKERS, servers),
        )
        for name in names
    }
    outcomes = run_reads(
        "tiered-kafka", {read: options for read, (_, options) in reads.items()}, folder, {}, growing
    )
    return {key: outcomes[read] for read, (key, _) in reads.items()}
