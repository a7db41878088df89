"""Compares option `where` on a field of decoded values with Spark's own filter, both with this
library's source in the same Spark. The condition is true for 1 % of the rows.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any, Final

import fastavro

from benchmarks.bench import NEWEST_SPARK, Bench, Contestant
from benchmarks.report import Row, at_least
from benchmarks.session import Query
from benchmarks.typed import FLAT, encode_record, make_order
from benchmarks.typed_export import TOPIC, write_tier
from benchmarks.typed_texts import DDL

if TYPE_CHECKING:
    from collections.abc import Sequence

_CONDITION: Final = "value.user < 10000"
"""Condition that is true for 1 % of the rows, because `user` is below a million."""
_ORDERS: Final = 65_536


def run(bench: Bench) -> list[Row]:
    """Measures Avro and JSON."""
    chance = random.Random(1)
    orders = [make_order(chance, number) for number in range(_ORDERS)]
    parsed = fastavro.parse_schema(FLAT)
    avro = [encode_record(parsed, order) for order in orders]
    texts = [json.dumps(order, separators=(",", ":")).encode() for order in orders]
    return [
        *_compared(bench, "avro", json.dumps(FLAT), avro, least=3),
        *_compared(bench, "json", DDL, texts, least=1.5),
    ]


def _compared(
    bench: Bench, form: str, schema: str, values: Sequence[bytes], *, least: float
) -> list[Row]:
    folder = bench.folder()
    records = write_tier(folder, [*values] * (8 if bench.quick else 24))
    options: dict[str, Any] = {
        "path": str(folder),
        "subscribe": TOPIC,
        "value.format": form,
        "value.schema": schema,
    }
    queries = {
        "where": Query("tiered-kafka", {**options, "where": _CONDITION}),
        "spark": Query("tiered-kafka", options, where=_CONDITION),
    }
    timings = bench.in_turns(
        {name: Contestant(NEWEST_SPARK, query) for name, query in queries.items()},
        repeats=min(bench.repeats, 3),
    )
    label = f"option where on a field, 1 % of rows, {form}, ten fields"
    seconds = timings["where"].seconds
    return [
        Row(f"{label}: scanned", records / seconds / 1e6, "M records/s"),
        at_least(
            f"{label}: against all rows, filtered in Spark",
            timings["where"].times_faster_than(timings["spark"]),
            "×",
            least,
        ),
    ]
