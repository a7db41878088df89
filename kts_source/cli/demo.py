"""`kts demo`: prints a plan, rows and sums of a sample tier, read with this package.

By default, the command writes a sample tier with the orders of a shop. `--all` reads the tier of
the test suite, which a broker wrote and which has transactional, compressed and encrypted topics.
It is in the source repository but not in the wheel. `--path` reads any other tier.
"""

from __future__ import annotations

import logging
import os
import runpy
import shutil
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kts_source.cli.output import dated_rows, print_table
from kts_source.engines.scan import scan
from kts_source.errors import MissingExtraError, TierNotFoundError, UnsupportedSparkError
from kts_source.options import READ_COMMITTED, READ_UNCOMMITTED, parse_options
from kts_source.planning.describe import describe
from kts_source.planning.planner import plan_scan
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.texts import format_bytes, preview_bytes
from kts_source.tier import open_tier
from segment_format.testing.sample_shop import SampleShop

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from kts_source.engines.scan import Scan
    from kts_source.planning.scan_plan import ScanPlan


GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
SAMPLE_TIER = GOLDEN / "tier"
SAMPLE_TOPIC = "txn"
SHOWN_ROWS = 5


@click.command()
@click.argument("given_path", metavar="[PATH]", required=False)
@click.option("--path", help="The same as PATH.")
@click.option("--key-prefix", "key_prefix", default="", help="Its key.prefix.")
@click.option("--all", "every_topic", is_flag=True, help="Read the broker's tier of a checkout.")
def demo(given_path: str | None, path: str | None, key_prefix: str, *, every_topic: bool) -> None:
    """Write a small sample tier and read it, or read the tier at PATH. Use Spark, too, if it is
    installed.
    """
    other = given_path or path
    if other is None and not every_topic:
        _show_shop()
        return
    options = {"path": other, "keyPrefix": key_prefix} if other else _sample_options()
    # Prints the warnings of planning as part of the output.
    logging.basicConfig(format="note: %(message)s", level=logging.WARNING, stream=sys.stdout)
    topics = _show_tier({**options, "subscribePattern": ".*"})
    topic = SAMPLE_TOPIC if SAMPLE_TOPIC in topics else topics[0]
    chosen = {**options, "subscribe": topic, "includeHeaders": "true"}
    try:
        from kts_source.spark.datasource import session_builder
    except (MissingExtraError, UnsupportedSparkError) as error:
        shown = scan(chosen).limit(SHOWN_ROWS).to_table().to_batches()
        rows = [row for batch in shown for row in dated_rows(batch)]
        print(f"The first rows of {topic}, read without Spark:\n")
        _print_rows(rows)
        print(f"\nWith Spark 4 it shows more. {error}.")
        return
    with _spark(session_builder()) as spark:
        _show_rows(spark, chosen)
        _show_counts(spark, {**options, "subscribePattern": ".*"})


def _show_shop() -> None:
    """Writes the sample tier of a shop, and shows its orders."""
    folder = sample_folder()
    options = write_shop(folder)
    orders = scan(options)
    show_tier(options)
    show_orders(orders)
    show_large_orders(orders)
    try:
        from kts_source.spark.datasource import session_builder
    except (MissingExtraError, UnsupportedSparkError) as error:
        show_months(monthly_totals(orders), f"Python. {error}")
    else:
        with _spark(session_builder()) as spark:
            totals = _monthly_totals(spark, options)
        show_months(totals, f"Spark {spark.version}")
    show_next_steps(folder, _command())


def _command() -> str:
    """Returns `kts`, with its folder if the shell would not find it."""
    command = Path(sys.executable).with_name("kts")
    is_found = shutil.which("kts") == str(command)
    return str(command) if command.exists() and not is_found else "kts"


def _monthly_totals(spark: SparkSession, options: Mapping[str, str]) -> dict[str, float]:
    """Returns the sum of the amounts per month, computed by Spark."""
    frame = spark.read.format("tiered-kafka").options(**options).load()
    monthly = frame.groupBy(frame["timestamp"].cast("string").substr(1, 7).alias("month"))
    totals = monthly.agg({"value.amount": "sum"}).collect()
    return {str(row[0]): float(row[1]) for row in totals}


def _sample_options() -> dict[str, str]:
    if not SAMPLE_TIER.is_dir():
        raise TierNotFoundError(
            f"the sample tier does not exist at {SAMPLE_TIER}: it is not part of the wheel."
            " Run `make demo DEMO=--all` in a checkout, or set --path to another tier."
        )
    options = {"path": SAMPLE_TIER.as_uri(), "keyPrefix": "tiered/"}
    for file in (GOLDEN / "keys").glob("*.private.pem"):
        key_id = file.name.removesuffix(".private.pem")
        options[f"encryption.key.pairs.{key_id}.private.key.file"] = str(file)
    return options


def _show_tier(options: Mapping[str, str]) -> list[str]:
    """Plans and reads the whole tier in this process, and prints a summary. Returns the topics."""
    from segment_format.kernels.native import load_kernel

    scan_options = parse_options(options)
    print(f"The tier at {options['path']}:\n")
    with closing(open_tier(scan_options)) as tier:
        started = time.perf_counter()
        plan = plan_scan(scan_options, tier)
        seconds = time.perf_counter() - started
        planning = tier.store.counters
        _print_plan(plan)
        print(
            f"\nPlanned in {seconds:.2f} s with {planning.list_requests:,} listings,"
            f" {planning.requests:,} requests and {format_bytes(planning.bytes)}."
        )
        load_kernel("decode_window")  # compiles once per machine, so do not time it
        reader = SegmentSource(tier, scan_options.key_ring)
        settings = ReadSettings.of(scan_options)
        started = time.perf_counter()
        rows = sum(
            batch.num_rows for task in plan.tasks for batch in read_task(task, reader, settings)
        )
        seconds = time.perf_counter() - started
        reading = tier.store.counters - planning
    print(
        f"Read without Spark in {seconds:.2f} s with {reading.requests:,} requests and"
        f" {format_bytes(reading.bytes)} for {format_bytes(plan.nominal_bytes)} of segments:"
        f" {rows:,} rows, {scan_options.isolation_level}.\n"
    )
    return list(dict.fromkeys(partition.topic for partition in plan.partitions))


def _print_plan(plan: ScanPlan) -> None:
    header = ("topic", "partition", "segments", "start", "end", "read to", "because")
    rows = [
        (
            partition.topic,
            partition.partition,
            len(partition.surviving.ranges),
            partition.surviving.log_start,
            partition.surviving.stop,
            partition.stop,
            partition.end_reason,
        )
        for partition in plan.partitions
    ]
    print()
    print_table(header, rows)


@contextmanager
def _spark(builder: SparkSession.Builder) -> Iterator[SparkSession]:
    """Starts Spark in local mode and registers the data source. Prints Spark's log only after an
    error.
    """
    from kts_source import register

    with (
        tempfile.TemporaryDirectory(prefix="tiered-kafka-demo-") as folder,
        _stderr_only_on_error(Path(folder, "stderr.txt")),
    ):
        spark = (
            builder.master("local[2]")
            .appName("tiered-kafka demo")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.warehouse.dir", str(Path(folder, "warehouse")))
            .getOrCreate()
        )
        try:
            register(spark)
            yield spark
        finally:
            spark.stop()


@contextmanager
def _stderr_only_on_error(file: Path) -> Iterator[None]:
    """While the block runs, redirects stderr of this process and its children to a file. If the
    block raises an error, prints the file to stderr.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with file.open("wb") as sink:
        os.dup2(sink.fileno(), 2)
    try:
        yield
    except BaseException:
        os.write(kept, file.read_bytes())
        raise
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _show_rows(spark: SparkSession, options: Mapping[str, str]) -> None:
    started = time.perf_counter()
    frame = spark.read.format("tiered-kafka").options(**options).load()
    frame = frame.withColumn("timestamp", frame["timestamp"].cast("string"))
    rows = frame.orderBy("partition", "offset").limit(SHOWN_ROWS).collect()
    seconds = time.perf_counter() - started
    print(
        f"The first rows of {options['subscribe']} as Spark reads them ({seconds:.1f} s, cold):\n"
    )
    _print_rows([row.asDict() for row in rows])


def _print_rows(rows_to_print: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        (
            row["partition"],
            row["offset"],
            row["timestamp"] or "null",
            preview_bytes(row["key"], 12),
            preview_bytes(row["value"], 40),
            ", ".join(
                f"{header['key']}={preview_bytes(header['value'], 10)}" for header in row["headers"]
            ),
        )
        for row in rows_to_print
    ]
    print_table(("partition", "offset", "timestamp", "key", "value", "headers"), rows)


def _show_counts(spark: SparkSession, options: Mapping[str, str]) -> None:
    levels = (READ_UNCOMMITTED, READ_COMMITTED)
    counts: dict[str, dict[str, int]] = {}
    print()
    for level in levels:
        started = time.perf_counter()
        chosen = {**options, "isolationLevel": level, "columns": "topic,offset"}
        frame = spark.read.format("tiered-kafka").options(**chosen).load()
        totals: list[Any] = frame.groupBy("topic").count().collect()
        counts[level] = {row["topic"]: row["count"] for row in totals}
        seconds = time.perf_counter() - started
        total = sum(counts[level].values())
        print(f"Spark counted {total:,} rows of {level} in {seconds:.1f} s.")
    print("\nRows by isolation level:\n")
    topics = sorted(counts[READ_UNCOMMITTED])
    print_table(
        ("topic", *levels),
        [(topic, *(counts[level].get(topic, 0) for level in levels)) for topic in topics],
    )


if __name__ == "__main__":  # `python -m kts_source.cli.demo` is `kts demo`
    sys.argv.insert(1, "demo")
    runpy.run_module("kts_source.cli", run_name="__main__")


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
    print(f"1. The topic {options['subscribe']} in the tier at {options['path']}\n")
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
