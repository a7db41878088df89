"""Writes a small tier with one topic `orders`, and shows on it what the package does.

`kts demo` writes the tier into a folder of the user, in the format of the Aiven plugin.
"""

from __future__ import annotations

import json
import os
import random
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kts_source.cli.output import print_table
from kts_source.planning.describe import describe
from kts_source.texts import format_bytes
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kts_source.engines.scan import Scan

TOPIC: Final = "orders"
CONDITION: Final = "value.amount > 200 AND value.city = 'Lisbon'"
_SCHEMA: Final = "id BIGINT, customer STRING, city STRING, amount DOUBLE"
_CITIES: Final = ("Berlin", "Lisbon", "Madrid", "Oslo", "Paris")
_PARTITIONS: Final = 2
_SEGMENTS: Final = 4
_ORDERS: Final = 500  # per segment
_BATCH: Final = 50
_JAN_1_2025_MS: Final = 1_735_689_600_000
_GROWTH: Final = 4000  # amounts double within the year
_PAUSE_MS: Final = 7_884_000  # 4,000 orders in a year
_SHOWN: Final = 10
_BAR: Final = 40


def sample_folder() -> Path:
    """Returns the folder of the sample tier, which is next to the user's other caches."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "tiered-kafka-sample"


def write_shop(folder: Path) -> dict[str, str]:
    """Writes the tier, and returns the options that read it. Writes the same objects each time."""
    numbers = random.Random(8)
    for partition in range(_PARTITIONS):
        log = LogBuilder()
        for segment in range(_SEGMENTS):
            first = segment * _ORDERS
            for start in range(first, first + _ORDERS, _BATCH):
                places = range(start, start + _BATCH)
                log.append(
                    [_order(place * _PARTITIONS + partition, numbers) for place in places],
                    codec="zstd",
                )
            log.roll()
        writer = AivenTierWriter(
            str(folder),
            topic=TOPIC,
            partition=partition,
            topic_id=uuid.uuid5(uuid.NAMESPACE_URL, TOPIC),
            key_prefix="tiered/",
        )
        for index, written in enumerate(log.build().segments):
            writer.write_segment(written, segment_id=uuid.UUID(int=100 * partition + index + 1))
    return {
        "path": str(folder),
        "keyPrefix": "tiered/",
        "subscribe": TOPIC,
        "value.format": "json",
        "value.schema": _SCHEMA,
    }


def _order(number: int, numbers: random.Random) -> SimpleRecord:
    customer = f"c{numbers.randrange(200)}"
    value = {
        "id": number,
        "customer": customer,
        "city": numbers.choice(_CITIES),
        "amount": round(numbers.lognormvariate(4, 0.8) * (1 + number / _GROWTH), 2),
    }
    timestamp_ms = _JAN_1_2025_MS + number * _PAUSE_MS
    return SimpleRecord(json.dumps(value).encode(), customer.encode(), (), timestamp_ms)


def show_tier(options: Mapping[str, str]) -> None:
    """Prints what the tier contains."""
    described = describe({name: options[name] for name in ("path", "keyPrefix", "subscribe")})
    print(f"1. What the tier at {options['path']} contains\n")
    names = ("topic", "partition", "log_start", "tier_end", "segments")
    rows = described.to_arrow().to_pylist()
    print_table(
        (*(name.replace("_", " ") for name in names), "bytes"),
        [(*(row[name] for name in names), format_bytes(row["stored_bytes"])) for row in rows],
    )


def show_orders(orders: Scan) -> None:
    """Prints ten rows with typed values."""
    print(f"\n2. Ten orders: the JSON values have the types {_SCHEMA}\n")
    _print_orders(orders.limit(_SHOWN).to_table().to_pylist())


def show_large_orders(orders: Scan) -> None:
    """Prints the rows that satisfy a condition."""
    large = orders.where(CONDITION)
    print(f"\n3. Large orders from Lisbon: where({CONDITION!r})\n")
    _print_orders(large.limit(3).to_table().to_pylist())
    print(f"\n{large.count():,} of {orders.count():,} orders match.")


def _print_orders(rows: Sequence[Mapping[str, Any]]) -> None:
    columns = ("partition", "offset", "timestamp")
    fields = ("id", "customer", "city", "amount")
    print_table(
        (*columns, *fields),
        [
            (
                *(row[name] for name in columns[:2]),
                f"{row['timestamp']:%Y-%m-%d %H:%M}",
                *(row["value"][name] for name in fields),
            )
            for row in rows
        ],
    )


def monthly_totals(orders: Scan) -> dict[str, float]:
    """Returns the sum of the amounts per month, computed in this process."""
    totals: dict[str, float] = {}
    for row in orders.select(["timestamp", "value"]).to_table().to_pylist():
        month = f"{row['timestamp']:%Y-%m}"
        totals[month] = totals.get(month, 0.0) + row["value"]["amount"]
    return totals


def show_months(totals: Mapping[str, float], engine: str) -> None:
    """Draws a bar for each month."""
    print(f"\n4. Revenue per month, computed by {engine}\n")
    largest = max(totals.values())
    for month, total in sorted(totals.items()):
        print(f"   {month}  {'█' * round(_BAR * total / largest):<{_BAR}}  {total:>10,.2f}")


def show_next_steps(folder: Path, command: str) -> None:
    """Prints the folder of the sample tier and commands that read it."""
    place = f"{folder} {TOPIC} --key-prefix tiered/"
    print(
        f"\nThe sample tier is in {folder}. Try next:\n\n"
        f"  {command} cat {place} --limit 3\n"
        f"  {command} find {place} --key c7\n"
        f"  {command} report {folder} --key-prefix tiered/ --output report.html"
    )
