"""Decodes log bytes to Arrow on one core, including CRC checks. Compares the kernels with memcpy,
with CRC alone, with the codecs and with aiokafka.

Every ratio compares figures of the same run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zlib
from typing import TYPE_CHECKING, Any

import cramjam
import google_crc32c
import lz4.frame
import numpy as np
import pyarrow as pa
import zstandard
from aiokafka.record.memory_records import MemoryRecords

from benchmarks.log_bytes import LogBytes, make_log
from benchmarks.report import Row, at_least, at_most, best_seconds
from segment_format.arrow import RECORD_COLUMNS, iter_arrow, record_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_HEADER_SIZE = 61
_BATCH_BYTES = 16 << 10
_SMALL = 100
_LARGE = 1000
_GIGA = 1e9
_MEGA = 1e6


def run(*, quick: bool) -> list[Row]:
    """Returns the rows of the speed table: each measured speed and the bounds that it is compared
    with.
    """
    total = (8 << 20) if quick else (48 << 20)
    repeats = 5 if quick else 15
    small = _log(_SMALL, total)
    rows = [
        *_small_records(small, repeats, quick=quick),
        *_large_records(_log(_LARGE, total), repeats),
        *_tiny_batches(total, repeats),
        *_offsets_only(small, repeats),
    ]
    for codec in ("zstd", "lz4", "snappy", "gzip"):
        rows += _compressed(codec, total // 4, repeats)
    rows += _first_batch(small, 3 if quick else 5)
    return rows


def _log(value_bytes: int, total: int, codec: str = "none") -> LogBytes:
    per_batch = _BATCH_BYTES // (value_bytes + 10)
    return make_log(
        value_bytes=value_bytes,
        records_per_batch=per_batch,
        total_bytes=total,
        codec=codec,
        distinct=32,
    )


def _decode(log: LogBytes, columns: Sequence[str] = RECORD_COLUMNS) -> None:
    rows = 0
    for batch in iter_arrow(log.data, columns=columns):
        rows += batch.num_rows
    if rows != log.records:
        raise AssertionError(f"decoded {rows} of {log.records} records")


def _copying(log: LogBytes) -> Callable[[], object]:
    target = np.empty_like(log.data)
    return lambda: np.copyto(target, log.data)


def _crc(log: LogBytes) -> Callable[[], object]:
    return lambda: google_crc32c.value(log.data)


def _aiokafka(data: bytes) -> int:
    columns: tuple[list[Any], ...] = ([], [], [], [], [], [])
    key, value, offset, timestamp, timestamp_type, headers = columns
    records = MemoryRecords(data)
    while (batch := records.next_batch()) is not None:
        if not batch.validate_crc():
            raise AssertionError("a batch has a wrong CRC")
        for record in batch:
            key.append(record.key)
            value.append(record.value)
            offset.append(record.offset)
            timestamp.append(record.timestamp * 1000)
            timestamp_type.append(record.timestamp_type)
            headers.append(record.headers)
    schema = record_schema()
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return int(batch.num_rows)


def _small_records(log: LogBytes, repeats: int, *, quick: bool) -> list[Row]:
    decode, copying, crc = best_seconds(
        lambda: _decode(log), _copying(log), _crc(log), repeats=repeats
    )
    part_bytes = log.starts[min(len(log.starts) - 1, 50 if quick else 200)]
    part_batches = int(np.searchsorted(log.starts, part_bytes))
    part_records = part_batches * log.records // log.batches
    part_data = log.data[:part_bytes].tobytes()
    (other,) = best_seconds(lambda: _aiokafka(part_data), repeats=3)
    speed = log.records / decode
    other_speed = part_records / other
    name = f"{_SMALL} B records, all columns"
    return [
        at_least(name, speed / _MEGA, "M records/s", 30),
        Row(f"{name}: bytes", log.data.size / decode / _GIGA, "GB/s"),
        at_least(f"{name}: aiokafka + pyarrow", speed / other_speed, "×", 12),
        Row("memcpy of the same bytes", log.data.size / copying / _GIGA, "GB/s"),
        Row("CRC-32C of the same bytes", log.data.size / crc / _GIGA, "GB/s"),
        Row(f"{name}: of memcpy", copying / decode, "×"),
    ]


def _large_records(log: LogBytes, repeats: int) -> list[Row]:
    decode, copying, crc = best_seconds(
        lambda: _decode(log), _copying(log), _crc(log), repeats=repeats
    )
    name = f"{_LARGE} B records, all columns"
    return [
        at_least(name, log.data.size / decode / _GIGA, "GB/s", 6),
        Row(f"{name}: of memcpy", copying / decode, "×"),
        Row(f"{name}: of CRC and memcpy", (copying + crc) / decode, "×"),
    ]


def _tiny_batches(total: int, repeats: int) -> list[Row]:
    log = make_log(value_bytes=_SMALL, records_per_batch=1, total_bytes=total, distinct=256)
    decode, copying = best_seconds(lambda: _decode(log), _copying(log), repeats=repeats)
    name = f"one {_SMALL} B record per batch"
    return [
        at_least(name, log.batches / decode / _MEGA, "M batches/s", 8),
        Row(f"{name}: of memcpy", copying / decode, "×"),
    ]


def _offsets_only(log: LogBytes, repeats: int) -> list[Row]:
    everything, offsets, copying, crc = best_seconds(
        lambda: _decode(log),
        lambda: _decode(log, ("offset",)),
        _copying(log),
        _crc(log),
        repeats=repeats,
    )
    name = "offset column only"
    return [
        at_least(f"{name}: all columns", everything / offsets, "×", 3),
        Row(name, log.data.size / offsets / _GIGA, "GB/s"),
        Row(f"{name}: of CRC alone", crc / offsets, "×"),
        Row(f"{name}: of memcpy", copying / offsets, "×"),
    ]


def codec_alone(codec: str, payloads: list[bytes]) -> Callable[[], object]:
    """Returns a function that decompresses these payloads with the codec's library alone."""
    if codec == "zstd":
        decompressor = zstandard.ZstdDecompressor()
        return lambda: [
            decompressor.decompressobj(read_across_frames=True).decompress(payload)
            for payload in payloads
        ]
    if codec == "lz4":
        return lambda: [lz4.frame.decompress(payload) for payload in payloads]
    if codec == "gzip":
        return lambda: [zlib.decompress(payload, 31) for payload in payloads]
    # One raw block follows 16 bytes of stream header and 4 bytes of length.
    blocks = [payload[20:] for payload in payloads]
    return lambda: [cramjam.snappy.decompress_raw(block) for block in blocks]


def _compressed(codec: str, total: int, repeats: int) -> list[Row]:
    stored = _log(_SMALL, total, codec)
    per_batch = stored.records // stored.batches
    plain = make_log(
        value_bytes=_SMALL,
        records_per_batch=per_batch,
        total_bytes=1,
        codec="none",
        distinct=32,
    )
    # The same uncompressed records, as often as they occur in the compressed log.
    plain = make_log(
        value_bytes=_SMALL,
        records_per_batch=per_batch,
        total_bytes=plain.data.size * (stored.batches // plain.batches),
        codec="none",
        distinct=32,
    )
    stops = [*stored.starts[1:].tolist(), stored.data.size]
    payloads = [
        stored.data[start + _HEADER_SIZE : stop].tobytes()
        for start, stop in zip(stored.starts.tolist(), stops, strict=True)
    ]
    decode, plain_decode, alone = best_seconds(
        lambda: _decode(stored),
        lambda: _decode(plain),
        codec_alone(codec, payloads),
        repeats=max(3, repeats // 2),
    )
    if plain.records != stored.records:
        raise AssertionError(f"{plain.records} plain records, {stored.records} compressed")
    name = f"{codec}, {_SMALL} B records"
    return [
        at_least(f"{name}: of codec + plain decode", (alone + plain_decode) / decode, "×", 0.9),
        Row(name, stored.records / decode / _MEGA, "M records/s"),
        Row(f"{name}: codec alone", plain.data.size / alone / _GIGA, "GB/s out"),
    ]


_FRESH = """
import sys, time
import pyarrow
data = sys.stdin.buffer.read()
wall, processor = time.perf_counter(), time.process_time()
import segment_format
batch = next(segment_format.iter_arrow(data))
print(time.perf_counter() - wall, time.process_time() - processor, batch.num_rows)
"""


def _first_batch(log: LogBytes, repeats: int) -> list[Row]:
    """Measures the time from the import of pyarrow to the first batch, in new processes. Python's
    bytecode is already on disk, as in all runs after the first.
    """
    data = log.data[: log.starts[min(len(log.starts) - 1, 100)]].tobytes()
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(repeats + 1):
            output = subprocess.run(
                [sys.executable, "-c", _FRESH],
                input=data,
                capture_output=True,
                check=True,
                env=environment,
            ).stdout
            figures.append([float(word) for word in output.split()[:2]])
    wall, processor = (min(column) for column in zip(*figures[1:], strict=True))
    name = "first batch in a fresh process"
    return [
        at_most(f"{name}, processor time", processor, "s", 0.35),
        Row(f"{name}, by the clock", wall, "s"),
    ]
