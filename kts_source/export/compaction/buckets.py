"""Records of a compaction's first round, spread over buckets by their key.

What is held in memory keeps only the latest of every key, and is spilled, a file per bucket, when
it is too much.
"""

from __future__ import annotations

import time
import uuid
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from kts_source.columns import PARTITION, TOPIC
from kts_source.export.files import SpillFile
from kts_source.export.job import OFFSET, TOPIC_ID
from kts_source.export.parquet_file import ParquetFile
from kts_source.export.tables.open_target import open_target

if TYPE_CHECKING:
    from kts_source.export.files import TaskReport
    from kts_source.export.job import ExportJob

KEY: Final = "key"
NEEDED: Final = (KEY, "value", TOPIC, PARTITION, OFFSET, "timestamp")
"""Columns that a compaction decides by."""

HELD_BYTES: Final = 64 << 20
"""Records held in memory before they are spilled, or a bucket is read in more parts."""
_ROWS: Final = 4096


def latest(table: pa.Table) -> pa.Table:
    """The row with the greatest offset of each (topic id, partition, key), in no given order."""
    if table.num_rows == 0:
        return table
    table = table.combine_chunks()
    codes = np.zeros(table.num_rows, dtype=np.int64)
    for name in (TOPIC_ID, PARTITION, KEY):
        encoded = table[name].combine_chunks().dictionary_encode()
        indices = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        _, codes = np.unique(codes * len(encoded.dictionary) + indices, return_inverse=True)
    by_offset = np.argsort(table[OFFSET].to_numpy(), kind="stable")
    # The first of the reversed order is the last written.
    newest_first = by_offset[::-1]
    _, first = np.unique(codes[newest_first], return_index=True)
    return table.take(pa.array(newest_first[first]))


class Buckets:
    """Records that one task takes on their way into the buckets' files."""

    def __init__(self, number: int, buckets: int, job: ExportJob) -> None:
        self._began = time.monotonic()
        self._buckets = buckets
        self._prefix = f"{spill_folder(job)}{number:06d}-{uuid.uuid4().hex}"
        self._target = open_target(job.place.path, job.place.storage)
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0
        self._spills: list[SpillFile] = []
        self._newest: dict[tuple[str, int], int] = {}

    def hold(self, batch: pa.RecordBatch) -> None:
        """Takes rows that know their topic ids."""
        if batch.num_rows == 0:
            return
        self._note_newest(batch)
        self._held.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= HELD_BYTES:
            self._spill()

    def _note_newest(self, batch: pa.RecordBatch) -> None:
        if "timestamp" not in batch.schema.names:
            return
        times = pa.table(
            {
                TOPIC_ID: batch.column(TOPIC_ID),
                PARTITION: batch.column(PARTITION),
                "time": batch.column("timestamp").cast(pa.int64()),
            }
        )
        newest = times.group_by([TOPIC_ID, PARTITION]).aggregate([("time", "max")])
        for row in newest.to_pylist():
            owner, found = (row[TOPIC_ID], row[PARTITION]), row["time_max"]
            if found is not None:
                self._newest[owner] = max(found // 1000, self._newest.get(owner, found // 1000))

    def completed(self, report: TaskReport) -> TaskReport:
        """Spills what is left, and adds what was spilled to a report."""
        self._spill()
        return replace(
            report,
            seconds=time.monotonic() - self._began,
            spills=tuple(self._spills),
            newest_ms=tuple((*owner, newest) for owner, newest in sorted(self._newest.items())),
        )

    def close(self) -> None:
        """Closes connections."""
        self._target.close()

    def _spill(self) -> None:
        """Writes the latest of what is held, a file per bucket."""
        if not self._held:
            return
        table = latest(pa.Table.from_batches(self._held))
        self._held, self._bytes = [], 0
        buckets = self._buckets
        numbers = np.fromiter(
            (zlib.crc32(key) % buckets for key in table[KEY].to_pylist()),
            dtype=np.int64,
            count=table.num_rows,
        )
        for number in np.unique(numbers):
            part = table.filter(pa.array(numbers == number))
            key = f"{self._prefix}-{len(self._spills):06d}.part"
            file = ParquetFile(self._target.open_output(key), part.schema, compression="zstd")
            for batch in part.to_batches(_ROWS):
                file.add(batch)
            file.close()
            self._spills.append(SpillFile(int(number), key))


def spill_folder(job: ExportJob) -> str:
    """Where a run spills."""
    return f"_kts/attempts/{job.run_id}/spill/"
