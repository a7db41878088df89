"""Measures the export to zstd Parquet. Compares it with `write_table` alone, and with Spark writing
the same rows.

Unlike `write_table`, an export also fetches, checks, decompresses and decodes. Decompressing zstd
batches alone takes about half as long as compressing the same bytes for Parquet. The rows therefore
also show the time of both codecs, and the highest speed that the codecs alone allow. All writers
use the same zstd level.

The figures are the processor time and the peak memory of one task in a separate process. Other load
on the machine therefore has little effect. Figures through Spark are wall times of contestants that
run in turns.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.export_bounds import PARQUET_CODEC, ExportParts, in_a_process, measure_parts
from benchmarks.report import Row, at_least, at_most
from benchmarks.session import ZSTD_LEVEL, ZSTD_LEVEL_OPTION
from benchmarks.tiers import Tier, TierShape, make_tier
from kts_source.export.run import export
from kts_source.export.settings import export_settings
from kts_source.export.task_writer import LocalExecutor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

WRITER_SHARE: Final = 0.75
AGAINST_SPARK: Final = 4.0
MAX_MIB: Final = 512.0
_CORES: Final = 2


def run(*, quick: bool) -> list[Row]:
    """Returns the rows for records of 100 B and of 1 KB: shares, ratios and memory."""
    log_bytes = 128 << 20 if quick else 512 << 20
    repeats = 2 if quick else 5
    rows: list[Row] = []
    sizes = (100, 1000)
    tiers = [make_tier(TierShape(size, log_bytes, payload="json", codec="zstd")) for size in sizes]
    plain = [make_tier(TierShape(size, log_bytes // 2, payload="json")) for size in sizes]
    parts = {}
    for tier in (*tiers, *plain):
        parts[tier.path] = in_a_process(measure_parts, tier.options, tier.shape.codec, repeats)
        rows += _against_the_writer(tier, parts[tier.path], repeats)
    rows.append(_large_segment(log_bytes))
    rows += _against_spark(tiers, [parts[tier.path] for tier in tiers], repeats)
    return rows


def _against_the_writer(tier: Tier, parts: ExportParts, repeats: int) -> list[Row]:
    seconds, mib = in_a_process(measure_export, tier.options, repeats)
    label = f"{tier.shape.value_bytes} B records, codec {tier.shape.codec}"
    alone = parts.write_table + parts.decompress
    share = at_least(
        f"export, {label}: share of write_table", parts.write_table / seconds, "×", WRITER_SHARE
    )
    if parts.decompress:
        share = share.noted(
            f"decompressing the batches alone, by the codec's library, takes"
            f" {parts.decompress / parts.write_table:.2f} of write_table: the two together reach"
            f" {parts.write_table / alone:.2f} ×"
        )
    return [
        Row(f"export, {label}, one core", tier.records / seconds / 1e6, "M records/s"),
        Row(f"write_table, {label}", tier.records / parts.write_table / 1e6, "M records/s"),
        Row(f"{label}: zstd alone, of write_table", parts.compress / parts.write_table, "×"),
        share,
        Row(f"export, {label}: share of write_table and the batches' codec", alone / seconds, "×"),
        at_most(f"export, {label}: peak memory of the task's process", mib, "MiB", MAX_MIB),
    ]


def _large_segment(log_bytes: int) -> Row:
    """Measures the export of one segment that contains all bytes, in one task."""
    tier = make_tier(
        TierShape(1000, log_bytes, 1, payload="json", codec="zstd", segment_bytes=log_bytes)
    )
    options = {**tier.options, "targetPartitionBytes": "8g"}
    _, mib = in_a_process(measure_export, options, 1)
    label = f"one segment of {log_bytes >> 20} MiB in one task"
    return at_most(f"export, {label}: peak memory of the task's process", mib, "MiB", MAX_MIB)


def measure_export(options: Mapping[str, str], repeats: int) -> tuple[float, float]:
    """Returns the shortest processor time of an export in this process, in seconds, and the peak
    memory of the process in MiB.
    """
    seconds = []
    for _ in range(repeats + 1):
        folder = Path(tempfile.mkdtemp(prefix="kts-export-"))
        started = time.process_time()
        export(dict(options), export_settings(str(folder)), LocalExecutor(1))
        seconds.append(time.process_time() - started)
        shutil.rmtree(folder)
    # getrusage includes the parent process.
    status = Path("/proc/self/status").read_text()
    return min(seconds[1:]), int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _against_spark(tiers: list[Tier], parts: list[ExportParts], repeats: int) -> list[Row]:
    from benchmarks.sparks import EmptySource, start_spark
    from kts_source import register

    spark = start_spark(cores=_CORES)
    register(spark)
    spark.dataSource.register(EmptySource)
    try:
        pairs = zip(tiers, parts, strict=True)
        return [
            row
            for tier, tier_parts in pairs
            for row in _one_against_spark(spark, tier, tier_parts, repeats)
        ]
    finally:
        spark.stop()


def _one_against_spark(
    spark: SparkSession, tier: Tier, parts: ExportParts, repeats: int
) -> list[Row]:
    from kts_source import backfill

    options = {**tier.options, "targetPartitionBytes": "32m"}
    ours, sparks, empty = [], [], []
    for number in range(repeats + 1):
        folder = Path(tempfile.mkdtemp(prefix="kts-export-"))
        started = time.perf_counter()
        backfill(spark, source=options, target=str(folder / "ours"), progress=False)
        middle = time.perf_counter()
        frame = spark.read.format("tiered-kafka").options(**options).load()
        writer = frame.write.option("compression", PARQUET_CODEC)
        writer.option(ZSTD_LEVEL_OPTION, str(ZSTD_LEVEL)).parquet(str(folder / "sparks"))
        ended = time.perf_counter()
        spark.read.format("empty-tasks").option("tasks", str(_CORES)).load().collect()
        if number:  # the first round is a warm-up
            ours.append(middle - started)
            sparks.append(ended - middle)
            empty.append(time.perf_counter() - ended)
        shutil.rmtree(folder)
    ratio = statistics.median(theirs / mine for mine, theirs in zip(ours, sparks, strict=True))
    codecs = (parts.compress + parts.decompress) / _CORES
    nothing = statistics.median(empty)
    written = parts.write / _CORES
    theirs_took = statistics.median(sparks)
    note = (
        f"a Python data source that yields nothing takes {nothing:.2f} s; on {_CORES} cores the"
        f" codecs alone {codecs:.2f} s, writing the rows from memory {written:.2f} s. The"
        f" codecs alone would allow {theirs_took / (codecs + nothing):.2g} ×, the writer alone"
        f" {theirs_took / (written + nothing):.2g} ×"
    )
    label = f"{tier.shape.value_bytes} B records"
    speed = tier.records / statistics.median(ours) / 1e6
    theirs = tier.records / statistics.median(sparks) / 1e6
    return [
        Row(f"backfill in Spark, {label}", speed, "M records/s"),
        Row(f"df.write.parquet, {label}", theirs, "M records/s"),
        at_least(f"backfill against df.write.parquet, {label}", ratio, "×", AGAINST_SPARK).noted(
            note
        ),
    ]
