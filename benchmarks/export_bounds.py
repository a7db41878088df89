"""Measures lower bounds for the time of an export: the codecs of log and table, and the Parquet
writer.

The bounds do not depend on the code of the export. They are measured with the exported bytes, on
one core.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.decode import codec_alone
from benchmarks.report import best_seconds
from benchmarks.session import ZSTD_LEVEL
from kts_source.columns import TOPIC
from kts_source.export.parquet_file import ParquetFile
from kts_source.export.settings import ExportSettings
from kts_source.options import parse_options
from kts_source.planning.planner import plan_scan
from kts_source.read.read_settings import ReadSettings
from kts_source.read.read_task import read_task
from kts_source.read.segment_source import SegmentSource
from kts_source.tier import open_tier
from segment_format.record.framing import iter_entries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_Result = TypeVar("_Result")

PARQUET_CODEC: Final = "zstd"
_HEADER_SIZE: Final = 61
_PAGE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ExportParts:
    """Shortest measured processor time of each part of an export of one tier, in seconds.

    Attributes:
        write_table: `pyarrow.parquet.write_table` with the exported batches, from memory to a file.
        decompress: Decompressing the batches of the log with the codec's library; 0 without a
            codec.
        compress: Compressing only the keys and values with zstd, in pieces of the size of a Parquet
            page.
        write: The export's own writer with the exported batches, from memory to a file.
        records: Number of records.
    """

    write_table: float
    decompress: float
    compress: float
    write: float
    records: int


def in_a_process(work: Callable[..., _Result], *arguments: object) -> _Result:
    """Calls `work` in a new process and returns its result, so that memory and caches of this
    process have no effect.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(work, *arguments).result()


def measure_parts(
    options: Mapping[str, str], codec: str, repeats: int, max_records: int = 1 << 62
) -> ExportParts:
    """Measures the parts of an export of a tier. The chunks of the tier must not be compressed.

    Args:
        options: Options of the data source.
        codec: Codec of the batches. It must be `none` if only the first records are exported.
        repeats: Number of measurements of each part.
        max_records: Approximate number of exported records, counted from the start of the tier.
    """
    table = _rows(options, max_records)
    write_table, compress, write = _writing(table, repeats)
    decompress = 0.0
    if codec != "none":
        payloads = [
            data[entry.position + _HEADER_SIZE : entry.position + entry.size]
            for data in (path.read_bytes() for path in Path(options["path"]).glob("*/*/*.log"))
            for entry in iter_entries(data)
        ]
        (decompress,) = best_seconds(
            codec_alone(codec, payloads), repeats=repeats, clock=time.process_time
        )
    return ExportParts(write_table, decompress, compress, write, table.num_rows)


def _writing(table: pa.Table, repeats: int) -> list[float]:
    compressor = pa.Codec(PARQUET_CODEC, compression_level=ZSTD_LEVEL)
    pieces = [piece for name in ("key", "value") for piece in _pieces(table, name)]
    actions = [
        lambda: _write_table(table),
        lambda: [compressor.compress(piece, asbytes=False) for piece in pieces],
        lambda: _write(table),
    ]
    # Processor time of the process, because writers may use threads.
    return best_seconds(*actions, repeats=repeats, clock=time.process_time)


def _rows(options: Mapping[str, str], most: int) -> pa.Table:
    parsed = parse_options(options)
    store = open_tier(parsed)
    reader = SegmentSource(store, parsed.key_ring)
    settings = ReadSettings.of(parsed)
    batches: list[pa.RecordBatch] = []
    rows = 0
    try:
        for task in plan_scan(parsed).tasks:
            for batch in read_task(task, reader, settings):
                batches.append(batch)
                rows += batch.num_rows
                if rows >= most:
                    break
            if rows >= most:
                break
    finally:
        store.close()
    return pa.Table.from_batches(batches)


def _write_table(table: pa.Table) -> None:
    with tempfile.NamedTemporaryFile() as file:
        pq.write_table(table, file, compression=PARQUET_CODEC, compression_level=ZSTD_LEVEL)


def _write(table: pa.Table) -> None:
    with tempfile.NamedTemporaryFile() as sink:
        file = ParquetFile(
            sink,
            table.schema,
            compression=PARQUET_CODEC,
            row_group_rows=ExportSettings("").row_group_rows,
            sort_by=(),
            constants={TOPIC: table.column(TOPIC)[0].as_py()},
        )
        for batch in table.to_batches():
            file.add(batch)
        file.close()


def _pieces(table: pa.Table, name: str) -> list[pa.Buffer]:
    data = pa.concat_arrays(table.column(name).chunks).buffers()[2]
    starts = range(0, data.size, _PAGE)
    return [data.slice(start, min(_PAGE, data.size - start)) for start in starts]
