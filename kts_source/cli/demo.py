"""`make demo`: reads a tier that a real broker wrote and prints what it holds.

The sample is part of the checkout, not of the wheel; `--path` shows another tier.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kts_source.cli.tables import format_table, format_time, preview_bytes
from kts_source.errors import TieredKafkaError, UnsupportedSparkError
from kts_source.options import READ_COMMITTED, READ_UNCOMMITTED, parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.texts import format_bytes
from kts_source.tier import open_tier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from kts_source.planning.scan_plan import ScanPlan

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden"
SAMPLE_TIER = GOLDEN / "tier"
SAMPLE_PREFIX = "tiered/"
SAMPLE_TOPIC = "txn"
SHOWN_ROWS = 5


def main(arguments: list[str] | None = None) -> int:
    """Runs the demo; returns the exit code."""
    given = _parser().parse_args(arguments)
    if given.path is None and not SAMPLE_TIER.is_dir():
        print(
            f"The sample tier is part of the checkout and is not at {SAMPLE_TIER}."
            " Run `make demo` in a checkout, or name a tier with --path.",
            file=sys.stderr,
        )
        return 1
    options = _options(given)
    # What planning remarks on, among the rest of the output.
    logging.basicConfig(format="note: %(message)s", level=logging.WARNING, stream=sys.stdout)
    try:
        topics = _show_tier(options)
        topic = given.topic if given.topic in topics else topics[0]
        try:
            from kts_source.spark.session import session_builder
        except UnsupportedSparkError as error:
            _show_rows_without_spark(options, topic)
            print(f"\nWith Spark 4 it shows more. {error}.")
            return 0
        with _spark(session_builder()) as spark:
            _show_rows(spark, options, topic)
            _show_counts(spark, options)
    except TieredKafkaError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kts_source.cli.demo", description=__doc__)
    parser.add_argument("--path", help="root of another tier: a folder or a URL")
    parser.add_argument("--key-prefix", default="", help="its key.prefix (default: none)")
    parser.add_argument("--topic", default=SAMPLE_TOPIC, help="whose rows to show")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another option of the data source; may be repeated",
    )
    return parser


def _options(given: argparse.Namespace) -> dict[str, str]:
    """Options of the data source: every topic of the tier."""
    if given.path is None:
        options = {"path": SAMPLE_TIER.as_uri(), "keyPrefix": SAMPLE_PREFIX}
        for file in sorted((GOLDEN / "keys").glob("*.private.pem")):
            key_id = file.name.removesuffix(".private.pem")
            options[f"encryption.key.pairs.{key_id}.private.key.file"] = str(file)
    else:
        options = {"path": given.path, "keyPrefix": given.key_prefix}
    options["subscribePattern"] = ".*"
    for text in given.option:
        name, _, value = text.partition("=")
        options[name] = value
    return options


def _show_tier(options: Mapping[str, str]) -> list[str]:
    """Plans and reads everything in this process, where work can be counted; returns the topics."""
    scan_options = parse_options(options)
    tier = open_tier(scan_options)
    print(f"The tier at {options['path']}:\n")
    try:
        started = time.perf_counter()
        plan = plan_scan(scan_options, tier)
        seconds = time.perf_counter() - started
        planning = tier.store.counters
        _print_plan(plan)
        print(
            f"\nPlanned in {seconds:.2f} s with {planning.list_requests:,} listings,"
            f" {planning.requests:,} requests and {format_bytes(planning.bytes)}."
        )
        _load_kernels()
        reader = SegmentSource(tier, scan_options.key_ring.loaded())
        settings = ReadSettings.of(scan_options)
        started = time.perf_counter()
        rows = sum(
            batch.num_rows for task in plan.tasks for batch in read_task(task, reader, settings)
        )
        seconds = time.perf_counter() - started
        reading = tier.store.counters - planning
    finally:
        tier.close()
    print(
        f"Read without Spark in {seconds:.2f} s with {reading.requests:,} requests and"
        f" {format_bytes(reading.bytes)} for {format_bytes(plan.nominal_bytes)} of segments:"
        f" {rows:,} rows, {scan_options.isolation_level}.\n"
    )
    return list(dict.fromkeys(partition.topic for partition in plan.partitions))


def _load_kernels() -> None:
    """Compiles the record kernels apart from what is timed: once per machine, then from disk."""
    from segment_format.kernels.decoder import load_kernel

    started = time.perf_counter()
    load_kernel()
    seconds = time.perf_counter() - started
    if seconds > 1:
        print(f"Compiled the record kernels in {seconds:.0f} s; they stay on disk.")


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
    print(format_table(header, rows))


@contextmanager
def _spark(builder: SparkSession.Builder) -> Iterator[SparkSession]:
    """A Spark in local mode that knows the data source; its chatter is shown only on failure."""
    from kts_source import register

    with (
        tempfile.TemporaryDirectory(prefix="tiered-kafka-demo-") as folder,
        _held_back_stderr(Path(folder, "stderr.txt")),
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
def _held_back_stderr(file: Path) -> Iterator[None]:
    """Keeps what this process and its children write to stderr in a file; shows it on an error."""
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


def _show_rows(spark: SparkSession, options: Mapping[str, str], topic: str) -> None:
    started = time.perf_counter()
    chosen = {name: value for name, value in options.items() if name != "subscribePattern"}
    frame = (
        spark.read.format("tiered-kafka")
        .options(**chosen)
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .load()
    )
    found = frame.orderBy("partition", "offset").limit(SHOWN_ROWS).collect()
    seconds = time.perf_counter() - started
    print(f"The first rows of {topic} as Spark reads them ({seconds:.1f} s, cold):\n")
    _print_rows([row.asDict() for row in found])


def _show_rows_without_spark(options: Mapping[str, str], topic: str) -> None:
    chosen = {name: value for name, value in options.items() if name != "subscribePattern"}
    parsed = parse_options({**chosen, "subscribe": topic, "includeHeaders": "true"})
    found: list[dict[str, Any]] = []
    with closing(open_tier(parsed)) as tier:
        reader = SegmentSource(tier, parsed.key_ring.loaded())
        for task in plan_scan(parsed, tier).tasks[:1]:
            for batch in read_task(task, reader, ReadSettings.of(parsed)):
                found += batch.slice(0, SHOWN_ROWS - len(found)).to_pylist()
                if len(found) >= SHOWN_ROWS:
                    break
    print(f"The first rows of {topic}, read without Spark:\n")
    _print_rows(found)


def _print_rows(found: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        (
            row["partition"],
            row["offset"],
            format_time(row["timestamp"]),
            preview_bytes(row["key"], 12),
            preview_bytes(row["value"], 40),
            ", ".join(
                f"{header['key']}={preview_bytes(header['value'], 10)}" for header in row["headers"]
            ),
        )
        for row in found
    ]
    print(format_table(("partition", "offset", "timestamp", "key", "value", "headers"), rows))


def _show_counts(spark: SparkSession, options: Mapping[str, str]) -> None:
    counts: dict[str, dict[str, int]] = {}
    seconds: dict[str, float] = {}
    for level in (READ_UNCOMMITTED, READ_COMMITTED):
        started = time.perf_counter()
        frame = (
            spark.read.format("tiered-kafka")
            .options(**options)
            .option("isolationLevel", level)
            .option("columns", "topic,offset")
            .load()
        )
        found: list[Any] = frame.groupBy("topic").count().collect()
        counts[level] = {row["topic"]: row["count"] for row in found}
        seconds[level] = time.perf_counter() - started
    rows = [
        (topic, counts[READ_UNCOMMITTED][topic], counts[READ_COMMITTED].get(topic, 0))
        for topic in sorted(counts[READ_UNCOMMITTED])
    ]
    print("\nRows by isolation level:\n")
    print(format_table(("topic", READ_UNCOMMITTED, READ_COMMITTED), rows))
    print()
    for level in (READ_UNCOMMITTED, READ_COMMITTED):
        total = sum(counts[level].values())
        print(f"Spark counted {total:,} rows of {level} in {seconds[level]:.1f} s.")


if __name__ == "__main__":
    sys.exit(main())
