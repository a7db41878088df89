"""Computes digests of the rows of partitions, independent of the sizes of batches and tasks."""

from __future__ import annotations

import hashlib
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kts_source.engines.scan import scan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

COLUMNS: Final = "topic,partition,offset,timestamp,timestampType,leaderEpoch,key,value,headers"
_NUMBERS: Final = ("offset", "timestamp", "timestampType", "leaderEpoch")


class _Digest:
    """Digest of one partition: a hash for each stream of values."""

    def __init__(self) -> None:
        self.rows = 0
        self._hashes: dict[str, Any] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        for name in _NUMBERS:
            self._add(name, np.asarray(batch[name].cast(pa.int64())).tobytes())
        for name in ("key", "value"):
            self._add_texts(name, batch[name])
        headers = batch["headers"]
        self._add("headers", _lengths(pc.list_value_length(headers)))
        pairs = pc.list_flatten(headers)
        for number, name in enumerate(("key", "value")):
            self._add_texts(f"headers.{name}", pc.struct_field(pairs, number).cast(pa.binary()))

    def hexdigest(self) -> str:
        parts = "".join(f"{name}:{h.hexdigest()};" for name, h in sorted(self._hashes.items()))
        return f"{self.rows} rows {hashlib.sha256(parts.encode()).hexdigest()}"

    def _add_texts(self, name: str, column: pa.Array) -> None:
        self._add(f"{name}.lengths", _lengths(pc.binary_length(column)))
        present = column.drop_null()
        if len(present):
            _, offsets, data = present.buffers()
            ends = np.frombuffer(offsets, np.int32)[
                present.offset : present.offset + len(present) + 1
            ]
            if ends[0] < ends[-1]:
                self._add(f"{name}.bytes", memoryview(data)[ends[0] : ends[-1]])

    def _add(self, name: str, data: bytes | memoryview) -> None:
        self._hashes.setdefault(name, hashlib.sha256()).update(data)


def row_digests(
    options: Mapping[str, str], *, stops: Mapping[str, int] | None = None
) -> dict[str, str]:
    """Returns the number and the digest of the rows of each partition that has rows, by topic and
    partition, such as `orders-3`.

    The digest covers offset, timestamp and its type, leader epoch, key, value and headers.

    Args:
        options: Options of a scan, without columns.
        stops: One past the last offset to consider, by topic and partition; by default, all rows.

    Raises:
        TieredKafkaError: See `kts_source.scan`.
    """
    digests: dict[str, _Digest] = {}
    with closing(scan({**options, "columns": COLUMNS}).batches()) as batches:
        for batch in batches:
            for name, part in _by_partition(batch):
                if stops is not None and name in stops:
                    part = part.filter(pc.less(part["offset"], stops[name]))
                if part.num_rows:
                    digests.setdefault(name, _Digest()).add(part)
    return {name: digest.hexdigest() for name, digest in digests.items()}


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    topics = pc.run_end_encode(batch["topic"].cast(pa.string()))
    numbers = pc.run_end_encode(batch["partition"])
    ends = sorted({*topics.run_ends.to_pylist(), *numbers.run_ends.to_pylist()})
    start = 0
    for end in ends:
        part = batch.slice(start, end - start)
        yield f"{part['topic'][0].as_py()}-{part['partition'][0].as_py()}", part
        start = end


def _lengths(lengths: pa.Array) -> bytes:
    return np.asarray(pc.fill_null(lengths.cast(pa.int64()), -1)).tobytes()
