"""Export to zstd Parquet: against `write_table` alone, and against Spark writing what we read.

Beside writing, an export fetches, checks, decompresses and decodes. Decompressing zstd batches
alone costs about half of what compressing the same bytes for Parquet does: both codecs are shown.

Processor time of one task in a process of its own, so that memory is its own too, and the share is
that of one core on a machine that has other work. Through Spark: wall time, taken in turns.
"""

from __future__ import annotations

import multiprocessing
import resource
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.report import Row, at_least, at_most
from benchmarks.tiers import Tier, TierShape, make_tier
from kts_source.export.executor import LocalExecutor
from kts_source.export.run import export
from kts_source.export.settings import export_settings
from kts_source.options import parse_options
from kts_source.remote.segment_reader import SegmentReader
from kts_source.remote.stores import open_store
from kts_source.scan.execute import ReadSettings, read_task
from kts_source.scan.planner import plan_scan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

WRITER_SHARE: Final = 0.75
AGAINST_SPARK: Final = 4.0
MAX_MIB: Final = 512.0


def run(*, quick: bool) -> list[Row]:
    """Shares, ratios and memory for records of 100 B and 1 KB."""
    log_bytes = 128 << 20 if quick else 512 << 20
    repeats = 2 if quick else 5
    rows: list[Row] = []
    sizes = (100, 1000)
    tiers = [make_tier(TierShape(size, log_bytes, payload="json", codec="zstd")) for size in sizes]
    plain = [make_tier(TierShape(size, log_bytes // 2, payload="json")) for size in sizes]
    for tier in (*tiers, *plain):
        rows += _against_the_writer(tier, repeats)
    rows += _against_spark(tiers, repeats)
    return rows


def _against_the_writer(tier: Tier, repeats: int) -> list[Row]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        export_seconds, mib = pool.submit(measure_export, tier.options, repeats).result()
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        writer_seconds = pool.submit(measure_writer, tier.options, repeats).result()
    what = f"{tier.shape.value_bytes} B records, codec {tier.shape.codec}"
    return [
        Row(f"export, {what}, one core", tier.records / export_seconds / 1e6, "M records/s"),
        Row(f"write_table, {what}", tier.records / writer_seconds / 1e6, "M records/s"),
        at_least(
            f"export, {what}: share of write_table",
            writer_seconds / export_seconds,
            "×",
            WRITER_SHARE,
        ),
        at_most(f"export, {what}: peak memory of the task's process", mib, "MiB", MAX_MIB),
    ]


def measure_export(options: Mapping[str, str], repeats: int) -> tuple[float, float]:
    """Least processor seconds of an export in this process, and its peak memory in MiB."""
    seconds = []
    for _ in range(repeats + 1):
        folder = Path(tempfile.mkdtemp(prefix="kts-export-"))
        started = time.process_time()
        export(dict(options), export_settings(str(folder)), LocalExecutor(1))
        seconds.append(time.process_time() - started)
        shutil.rmtree(folder)
    return min(seconds[1:]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_writer(options: Mapping[str, str], repeats: int) -> float:
    """Least processor seconds of `write_table` with the same batches, from memory."""
    parsed = parse_options(options)
    store = open_store(parsed.path, parsed.storage)
    reader = SegmentReader(store, parsed.key_ring)
    settings = ReadSettings.of(parsed)
    table = pa.Table.from_batches(
        batch for task in plan_scan(parsed).tasks for batch in read_task(task, reader, settings)
    )
    store.close()
    seconds = []
    for _ in range(repeats):
        with tempfile.NamedTemporaryFile() as file:
            started = time.process_time()
            pq.write_table(table, file, compression="zstd")
            seconds.append(time.process_time() - started)
    return min(seconds)


def _against_spark(tiers: list[Tier], repeats: int) -> list[Row]:
    from benchmarks.sparks import start_spark
    from kts_source import register

    spark = start_spark()
    register(spark)
    try:
        return [row for tier in tiers for row in _one_against_spark(spark, tier, repeats)]
    finally:
        spark.stop()


def _one_against_spark(spark: SparkSession, tier: Tier, repeats: int) -> list[Row]:
    from kts_source import backfill

    options = {**tier.options, "targetPartitionBytes": "32m"}
    ours, sparks = [], []
    for number in range(repeats + 1):
        folder = Path(tempfile.mkdtemp(prefix="kts-export-"))
        started = time.perf_counter()
        backfill(spark, source=options, target=str(folder / "ours"), progress=False)
        middle = time.perf_counter()
        frame = spark.read.format("tiered-kafka").options(**options).load()
        frame.write.option("compression", "zstd").parquet(str(folder / "sparks"))
        ended = time.perf_counter()
        shutil.rmtree(folder)
        if number:  # the first round warms up
            ours.append(middle - started)
            sparks.append(ended - middle)
    ratio = statistics.median(theirs / mine for mine, theirs in zip(ours, sparks, strict=True))
    what = f"{tier.shape.value_bytes} B records"
    speed = tier.records / statistics.median(ours) / 1e6
    return [
        Row(f"backfill in Spark, {what}", speed, "M records/s"),
        at_least(f"backfill against df.write.parquet, {what}", ratio, "×", AGAINST_SPARK),
    ]
