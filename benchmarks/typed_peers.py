"""Compares two ways to decode values in the same Spark 4.0: with this library from the tier, and
with Spark's `from_avro` and `from_json` from a real broker that has the same values.

Queries run on two cores. The values have Confluent's header, which the queries remove before they
call `from_avro`, as users do.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import fastavro

from benchmarks.bench import SPARK_4_0, Bench, Contestant, Timings
from benchmarks.brokers import PARTITIONS, SPAN_MS, FilledBroker, Topic, fill_with
from benchmarks.report import Row, at_least
from benchmarks.typed import FLAT, encode_record, make_order
from benchmarks.typed_texts import DDL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from benchmarks.session import Query, Run

_ORDERS: Final = 65_536
"""Number of different orders, which repeat in a topic."""
_SCHEMA_ID: Final = 7
_HEADER: Final = b"\0" + _SCHEMA_ID.to_bytes(4, "big")
_QUERY: Final = "SELECT country, sum(amount) FROM ({}) GROUP BY country"
_CHECKED: Final = "SELECT sum(user) + count(DISTINCT country) FROM ({})"


@dataclass(frozen=True, slots=True)
class _Form:
    """A value format.

    Attributes:
        name: Name of the format's topic; also used in the report.
        count: Number of records.
        our_options: Options of this library, without `value.columns`.
        spark_expression: SQL expression that decodes a value of Spark's Kafka source.
        peer: Name of Spark's function.
        least: Required ratio of the speeds.
    """

    name: str
    count: int
    our_options: Mapping[str, str]
    spark_expression: str
    peer: str
    least: float


def run(bench: Bench) -> list[Row]:
    """Returns the rows of queries that read two fields of Avro and JSON values, and of an export of
    Avro values.
    """
    bench.need("java", "mvn")
    folder = bench.folder()
    avro_form, json_form = _forms(folder, quick=bench.quick)
    with _broker(bench, folder, (avro_form, json_form)) as broker:
        return [
            *_queried(bench, broker, avro_form),
            *_queried(bench, broker, json_form),
            *_exported(bench, broker, avro_form),
        ]


def _forms(folder: Path, *, quick: bool) -> tuple[_Form, _Form]:
    schema = json.dumps(FLAT)
    schemas = folder / "schemas"
    schemas.mkdir()
    (schemas / f"{_SCHEMA_ID}.avsc").write_text(schema)
    avro = {
        "value.format": "avro-confluent",
        "value.schema": schema,
        "value.schema-registry.url": str(schemas),
    }
    spark_from_avro = f"from_avro(substring(value, {len(_HEADER) + 1}), '{schema}', map())"
    spark_from_json = f"from_json(CAST(value AS STRING), '{DDL}')"
    as_json = {"value.format": "json", "value.schema": DDL}
    times = 1 if quick else 15
    return (
        _Form("avro", 600_000 * times, avro, spark_from_avro, "from_avro", 6),
        _Form("json", 300_000 * times, as_json, spark_from_json, "from_json", 5),
    )


@contextlib.contextmanager
def _broker(bench: Bench, folder: Path, forms: tuple[_Form, ...]) -> Iterator[FilledBroker]:
    """Yields a broker whose closed segments are only in the tier."""
    from tests.integration.broker import running_broker

    segment = str((8 if bench.quick else 64) << 20)
    with running_broker(folder / "broker") as broker:
        broker.create_topics(
            {form.name: PARTITIONS for form in forms},
            internal_segment_bytes=segment,
            index_interval_bytes="4096",
            segment_ms=str(10 * SPAN_MS),
        )
        for form, values in zip(forms, _values(), strict=True):
            repeated = itertools.cycle(values)
            fill_with(broker.bootstrap, form.name, form.count, repeated.__next__)
            bench.say(f"broker: {form.name} is filled")
        partitions = [(form.name, number) for form in forms for number in range(PARTITIONS)]
        broker.wait_until_tiered(partitions)
        ends = broker.offsets("latest-tiered")
        topics = {}
        for form in forms:
            stops = {number: ends[form.name, number] + 1 for number in range(PARTITIONS)}
            topics[form.name] = Topic(form.name, 0, stops, SPAN_MS / (form.count / PARTITIONS))
        bench.say(f"broker: of {topics} in the tier")
        yield FilledBroker(broker, topics)


def _values() -> tuple[list[bytes], list[bytes]]:
    chance = random.Random(1)
    orders = [make_order(chance, number) for number in range(_ORDERS)]
    parsed = fastavro.parse_schema(FLAT)
    return (
        [_HEADER + encode_record(parsed, order) for order in orders],
        [json.dumps(order, separators=(",", ":")).encode() for order in orders],
    )


def _decoded_by_us(broker: FilledBroker, form: _Form, sql: str, **fields: str) -> Query:
    """Returns a query that runs `sql` on the values decoded by this library."""
    options = {**form.our_options, "columns": "value", **fields}
    sql = sql.format("SELECT value.* FROM records")
    return broker.from_tier(form.name, options=options, sql=sql, sink="rows")


def _decoded_by_spark(broker: FilledBroker, form: _Form, sql: str) -> Query:
    """Returns a query that runs `sql` on the values decoded by Spark's function."""
    sql = sql.format(f"SELECT v.* FROM (SELECT {form.spark_expression} AS v FROM records)")
    return broker.through_broker(form.name, sql=sql, sink="rows")


def _queried(bench: Bench, broker: FilledBroker, form: _Form) -> list[Row]:
    two = {"value.columns": "country,amount"}
    pid = broker.broker.pid
    queries = {
        "two": Contestant(SPARK_4_0, _decoded_by_us(broker, form, _QUERY, **two)),
        "all": Contestant(SPARK_4_0, _decoded_by_us(broker, form, _QUERY)),
        "peer": Contestant(SPARK_4_0, _decoded_by_spark(broker, form, _QUERY), other_pid=pid),
    }
    _check_equal_sums(
        bench, _decoded_by_us(broker, form, _CHECKED), _decoded_by_spark(broker, form, _CHECKED)
    )
    timings = bench.in_turns(queries, repeats=min(bench.repeats, 3))
    records = broker.topics[form.name].records
    label = f"SELECT country, sum(amount), {form.name} in the tier, ten fields, Spark 4.0"
    return [
        Row(f"{label}: ours", records / timings["two"].seconds / 1e6, "M records/s"),
        Row(
            f"{label}: ours without value.columns",
            records / timings["all"].seconds / 1e6,
            "M records/s",
        ),
        Row(
            f"{label}: Spark's Kafka source and {form.peer}",
            records / timings["peer"].seconds / 1e6,
            "M records/s",
        ),
        at_least(
            f"{label}: against Spark's Kafka source and {form.peer}",
            timings["two"].times_faster_than(timings["peer"]),
            "×",
            form.least,
        ).noted(
            f"{records / 1e6:.1f} M records, {timings['two'].seconds:.2f} s against"
            f" {timings['peer'].seconds:.2f}; without value.columns"
            f" {timings['all'].times_faster_than(timings['peer']):.1f} ×; processor time"
            f" {timings['two'].processor:.2f} s against {timings['peer'].processor:.2f}"
        ),
    ]


def _exported(bench: Bench, broker: FilledBroker, form: _Form) -> list[Row]:
    """Compares two ways to export the decoded values: with this library, and with Spark. Every run
    writes to an empty folder.
    """
    target = bench.folder() / "written"
    ours = broker.from_tier(
        form.name, options=form.our_options, sink="backfill", target=str(target)
    )
    sql = (
        f"SELECT key, {form.spark_expression} AS value, topic, partition, offset, timestamp"
        " FROM records"
    )
    peer = broker.through_broker(form.name, sql=sql, sink="parquet", target=str(target))
    contestants = {
        "ours": Contestant(SPARK_4_0, ours),
        "peer": Contestant(SPARK_4_0, peer, other_pid=broker.broker.pid),
    }
    runs: dict[str, list[Run]] = {name: [] for name in contestants}
    for number in range(min(bench.repeats, 3) + 1):
        for name, contestant in contestants.items():
            run = bench.run(contestant)
            shutil.rmtree(target, ignore_errors=True)
            if number:
                runs[name].append(run)
    mine, theirs = (Timings(tuple(measured)) for measured in runs.values())
    records = broker.topics[form.name].records
    label = f"typed backfill, {form.name}, ten fields → zstd Parquet, Spark 4.0"
    return [
        Row(f"{label}: ours", records / mine.seconds / 1e6, "M records/s"),
        Row(
            f"{label}: against Spark's Kafka source and {form.peer}",
            mine.times_faster_than(theirs),
            "×",
        ).noted(
            f"{mine.seconds:.2f} s against {theirs.seconds:.2f}; processor time"
            f" {mine.processor:.2f} s against {theirs.processor:.2f}, the broker's counted"
        ),
    ]


def _check_equal_sums(bench: Bench, *queries: Query) -> None:
    """Checks that all queries return the same sum. If they did not, the comparison would be
    invalid.
    """
    sums = [
        bench.run(Contestant(SPARK_4_0, replace(query, sink="number"))).rows for query in queries
    ]
    if len(set(sums)) != 1 or not sums[0]:
        raise AssertionError(f"the queries return different sums: {sums}")
