"""What bounds an export whatever its code: the codecs of both sides alone, and the Parquet writer.

All of it is measured on the very bytes that are exported, on one core.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.decode import codec_alone
from benchmarks.report import best_seconds
from benchmarks.session import ZSTD_LEVEL
from kts_source.options import parse_options
from kts_source.remote.segment_reader import SegmentReader
from kts_source.remote.stores import open_store
from kts_source.scan.execute import ReadSettings, read_task
from kts_source.scan.planner import plan_scan
from segment_format.record.framing import iter_entries

if TYPE_CHECKING:
    from collections.abc import Mapping

PARQUET_CODEC: Final = "zstd"
_HEADER_SIZE: Final = 61
_PAGE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ExportParts:
    """Least processor seconds for one tier, each part by itself.

    Attributes:
        write_table: `pyarrow.parquet.write_table` with the same batches, from memory to a file.
        decompress: The codec's library with the batches of the log; 0 where they are not
            compressed.
        compress: zstd with keys and values alone, in pieces of a page.
    """

    write_table: float
    decompress: float
    compress: float


def measure_parts(options: Mapping[str, str], codec: str, repeats: int) -> ExportParts:
    """The parts of an export of all of a tier without chunk compression."""
    write, compress = _writing(_all_rows(options), repeats)
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
    return ExportParts(write, decompress, compress)


def _writing(table: pa.Table, repeats: int) -> list[float]:
    compressor = pa.Codec(PARQUET_CODEC, compression_level=ZSTD_LEVEL)
    pieces = [piece for name in ("key", "value") for piece in _pieces(table, name)]
    actions = [
        lambda: _write(table),
        lambda: [compressor.compress(piece, asbytes=False) for piece in pieces],
    ]
    # Of the process, since writers may use threads.
    return best_seconds(*actions, repeats=repeats, clock=time.process_time)


def _all_rows(options: Mapping[str, str]) -> pa.Table:
    parsed = parse_options(options)
    store = open_store(parsed.path, parsed.storage)
    reader = SegmentReader(store, parsed.key_ring)
    settings = ReadSettings.of(parsed)
    try:
        return pa.Table.from_batches(
            batch for task in plan_scan(parsed).tasks for batch in read_task(task, reader, settings)
        )
    finally:
        store.close()


def _write(table: pa.Table) -> None:
    with tempfile.NamedTemporaryFile() as file:
        pq.write_table(table, file, compression=PARQUET_CODEC, compression_level=ZSTD_LEVEL)


def _pieces(table: pa.Table, name: str) -> list[pa.Buffer]:
    data = pa.concat_arrays(table.column(name).chunks).buffers()[2]
    starts = range(0, data.size, _PAGE)
    return [data.slice(start, min(_PAGE, data.size - start)) for start in starts]
