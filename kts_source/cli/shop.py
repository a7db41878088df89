"""Shows rows, a filter and monthly sums of the orders of a sample shop."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kts_source.cli.output import print_table
from kts_source.planning.describe import describe
from kts_source.texts import format_bytes
from segment_format.testing.sample_shop import SampleShop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kts_source.engines.scan import Scan

TOPIC: Final = "orders"
CONDITION: Final = "value.amount > 150 AND value.country = 'CH'"
_SCHEMA: Final = "order BIGINT, customer STRING, country STRING, amount DOUBLE"
_FIELDS: Final = ("order", "customer", "country", "amount")
_MONTHS: Final = 12
_SHOWN: Final = 10
_BAR: Final = 40


def sample_folder() -> Path:
    """Returns the folder of the sample tier, which is next to the user's other caches."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "tiered-kafka-sample"


def write_shop(folder: Path) -> dict[str, str]:
    """Writes the tier, and returns the options that read the orders. Every call writes identical
    objects.
    """
    shutil.rmtree(folder / "tiered", ignore_errors=True)  # another version wrote other objects
    shop = SampleShop(str(folder))
    shop.tier_months(_MONTHS)
    typed = {"value.format": "json", "value.schema": _SCHEMA}
    return {**shop.options, "subscribe": TOPIC, **typed}


def show_tier(options: Mapping[str, str]) -> None:
    """Prints the segments of the tier."""
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
    """Prints three of the orders that satisfy `CONDITION`, and the number of all such orders."""
    large = orders.where(CONDITION)
    print(f"\n3. Large orders from Switzerland: where({CONDITION!r})\n")
    _print_orders(large.limit(3).to_table().to_pylist())
    print(f"\n{large.count():,} of {orders.count():,} orders match.")


def _print_orders(rows: Sequence[Mapping[str, Any]]) -> None:
    columns = ("partition", "offset", "timestamp")
    print_table(
        (*columns, *_FIELDS),
        [
            (
                *(row[name] for name in columns[:2]),
                f"{row['timestamp']:%Y-%m-%d %H:%M}",
                *(row["value"][name] for name in _FIELDS),
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
        f"  {command} find {place} --key c007\n"
        f"  {command} report {folder} --key-prefix tiered/ --output report.html"
    )
