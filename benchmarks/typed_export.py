"""Compares the typed backfill of an Avro topic to zstd Parquet with its two main parts.

These parts are decoding the values from memory, and `write_table` with the rows. An export also
fetches and checks the batches, and finds the records in them. The figure is the processor time of
one task, as on one core.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

import kts_source
from benchmarks.export import measure_export
from benchmarks.export_bounds import PARQUET_CODEC, in_a_process
from benchmarks.report import Row, at_least, best_seconds
from benchmarks.session import ZSTD_LEVEL
from segment_format.testing import AivenTierWriter, LogBuilder, SimpleRecord
from segment_format.values.avro.decoder import AvroDecoder
from segment_format.values.avro.schema import parse_avro

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SHARE: Final = 0.8
_BATCH: Final = 16_384
"""Rows per batch in an export."""
_IN_A_BATCH: Final = 200
TOPIC: Final = "typed"


def run(schema: str, values: Sequence[bytes], *, repeats: int) -> list[Row]:
    """Returns the speed of the export, and the share of its time that the two parts take.

    Args:
        schema: Avro schema of the values.
        values: Values of the topic, about 60 bytes each.
        repeats: Number of measurements of each part.
    """
    with tempfile.TemporaryDirectory(prefix="kts-typed-") as folder:
        rows = write_tier(Path(folder), values)
        options = {
            "path": folder,
            "subscribe": TOPIC,
            "cache": "false",
            "value.format": "avro",
            "value.schema": schema,
        }
        decode, write = in_a_process(measure_parts, options, schema, repeats)
        seconds, _ = in_a_process(measure_export, options, repeats)
    alone = decode + write
    label = "typed backfill, Avro, ten fields → zstd Parquet"
    return [
        Row(f"{label}, one core", rows / seconds / 1e6, "M records/s"),
        at_least(f"{label}: share of decode + write_table", alone / seconds, "×", _SHARE).noted(
            f"decode alone {rows / decode / 1e6:.1f}, write_table alone {rows / write / 1e6:.1f} M"
            " records/s"
        ),
    ]


def measure_parts(options: Mapping[str, str], schema: str, repeats: int) -> tuple[float, float]:
    """Returns the shortest processor time to decode all values, and to write the rows with
    `write_table`.
    """
    stored = {name: text for name, text in options.items() if not name.startswith("value.")}
    values = kts_source.scan(stored).to_table(threads=1)["value"].combine_chunks()
    batches = [values.slice(start, _BATCH) for start in range(0, len(values), _BATCH)]
    table = kts_source.scan(dict(options)).to_table(threads=1)
    decoder = AvroDecoder(parse_avro(schema))
    # Processor time of the process, because writers may use threads.
    decode, write = best_seconds(
        lambda: [decoder.decode(batch) for batch in batches],
        lambda: _write_table(table),
        repeats=repeats,
        clock=time.process_time,
    )
    return decode, write


def _write_table(table: pa.Table) -> None:
    with tempfile.NamedTemporaryFile() as file:
        pq.write_table(table, file, compression=PARQUET_CODEC, compression_level=ZSTD_LEVEL)


def write_tier(folder: Path, values: Sequence[bytes]) -> int:
    """Writes one partition with these values. Returns the number of records."""
    log = LogBuilder()
    for start in range(0, len(values), _IN_A_BATCH):
        some = values[start : start + _IN_A_BATCH]
        log.append([SimpleRecord(value, b"%d" % start) for value in some])
    writer = AivenTierWriter(str(folder), topic=TOPIC)
    for segment in log.build().segments:
        writer.write_segment(segment)
    return len(values)
