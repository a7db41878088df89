"""The latest record of every key, as Kafka's cleaner would leave a compacted topic.

Two rounds of tasks. The first reads the segments and spreads the records over buckets by their key,
keeping only the latest of what it holds in memory; the second reads one bucket each and writes what
is left. Memory is bounded in both: what does not fit is spilled, and a bucket that does not fit is
read several times, each time for a part of its keys.

Source: `org.apache.kafka.storage.internals.log.Cleaner` (latest offset per key wins; tombstones go
once they are older than `delete.retention.ms`; records without a key are not allowed).
"""

from __future__ import annotations

import time
import uuid
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kts_source.export.dead_letters import DeadLetters
from kts_source.export.errors import ExportError
from kts_source.export.files import SpillFile, TaskReport, encode_schema
from kts_source.export.parquet_file import ParquetFile
from kts_source.export.settings import KEEP, REMOVE_OLD
from kts_source.export.target_store import open_target
from kts_source.export.task import TOPIC_ID
from kts_source.export.task_writer import OFFSET, TaskWriter
from kts_source.table import PARTITION, TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kts_source.export.settings import Compaction
    from kts_source.export.target_store import TargetStore
    from kts_source.export.task import ExportJob
    from kts_source.scan.task import ScanTask

KEY: Final = "key"
NEEDED: Final = (KEY, "value", TOPIC, PARTITION, OFFSET, "timestamp")

BUCKET_BYTES: Final = 256 << 20
"""Original bytes of segments per bucket, about."""
HELD_BYTES: Final = 64 << 20
"""Records held in memory before they are spilled, or a bucket is read in more parts."""
MAX_BUCKETS: Final = 1024
_ROWS: Final = 4096
_MAX_MODULUS: Final = 1 << 20  # beyond it, single keys fill the memory


@dataclass(frozen=True, slots=True)
class SpreadTask:
    """First round: records of some slices into buckets."""

    number: int
    scan: ScanTask
    topic_ids: Mapping[tuple[str, int], str]
    buckets: int

    def run(self, job: ExportJob) -> TaskReport:
        """Reads, spreads and spills."""
        return _spread(self, job)


@dataclass(frozen=True, slots=True)
class BucketTask:
    """Second round: the latest records of one bucket.

    Attributes:
        buckets: How many there are in all.
        spills: Keys of the bucket's files.
        newest_ms: (Topic id, partition) to the timestamp of its newest record.
    """

    number: int
    topic_ids: Mapping[tuple[str, int], str]
    buckets: int
    spills: tuple[str, ...]
    newest_ms: Mapping[tuple[str, int], int]
    compaction: Compaction

    def run(self, job: ExportJob) -> TaskReport:
        """Merges and writes."""
        return _merge(self, job)


def bucket_tasks(
    reports: Sequence[TaskReport],
    first: int,
    topic_ids: Mapping[tuple[str, int], str],
    buckets: int,
    compaction: Compaction,
) -> list[BucketTask]:
    """The second round, from what the first one reports."""
    spills: dict[int, list[str]] = {}
    newest: dict[tuple[str, int], int] = {}
    for report in reports:
        for spill in report.spills:
            spills.setdefault(spill.bucket, []).append(spill.key)
        for topic_id, partition, time_ms in report.newest_ms:
            owner = (topic_id, partition)
            newest[owner] = max(time_ms, newest.get(owner, time_ms))
    return [
        BucketTask(first + number, topic_ids, buckets, tuple(sorted(keys)), newest, compaction)
        for number, (_, keys) in enumerate(sorted(spills.items()))
    ]


def bucket_count(nominal_bytes: int) -> int:
    """Buckets for so many original bytes."""
    return max(1, min(MAX_BUCKETS, -(-nominal_bytes // BUCKET_BYTES)))


def bucket_of(key: bytes, buckets: int) -> int:
    """The same in every process."""
    return zlib.crc32(key) % buckets


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


class _Buckets:
    """Records on their way into the buckets' files."""

    def __init__(self, task: SpreadTask, job: ExportJob, target: TargetStore) -> None:
        self._task = task
        self._job = job
        self._target = target
        self._attempt = uuid.uuid4().hex
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0
        self._count = 0
        self.spills: list[SpillFile] = []
        self.newest: dict[tuple[str, int], int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        topic, partition = batch.column(TOPIC)[0].as_py(), batch.column(PARTITION)[0].as_py()
        keys = batch.column(KEY)
        if keys.null_count:
            row = keys.is_null().index(pa.scalar(True)).as_py()
            raise ExportError(
                "a record without a key cannot be compacted",
                topic=topic,
                partition=partition,
                offset=batch.column(OFFSET)[row].as_py(),
            )
        topic_id = self._task.topic_ids[topic, partition]
        times = batch.column("timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
        newest = int(times.max()) // 1000
        owner = (topic_id, partition)
        self.newest[owner] = max(newest, self.newest.get(owner, newest))
        ids = pa.repeat(pa.scalar(topic_id), batch.num_rows)
        batch = pa.RecordBatch.from_arrays(
            [*batch.columns, ids], names=[*batch.schema.names, TOPIC_ID]
        )
        self._held.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= HELD_BYTES:
            self.spill()

    def spill(self) -> None:
        """Writes the latest of what is held, a file per bucket."""
        if not self._held:
            return
        table = latest(pa.Table.from_batches(self._held))
        self._held, self._bytes = [], 0
        buckets = self._task.buckets
        numbers = np.fromiter(
            (bucket_of(key, buckets) for key in table[KEY].to_pylist()),
            dtype=np.int64,
            count=table.num_rows,
        )
        for number in np.unique(numbers):
            part = table.filter(pa.array(numbers == number))
            key = (
                f"{spill_folder(self._job)}{self._task.number:06d}-{self._attempt}"
                f"-{self._count:06d}.part"
            )
            self._count += 1
            file = ParquetFile(
                self._target.open_output(key),
                part.schema,
                compression="zstd",
                row_group_rows=1 << 16,
                sort_by=(),
            )
            for batch in part.to_batches(_ROWS):
                file.add(batch)
            file.close()
            self.spills.append(SpillFile(int(number), key))


def spill_folder(job: ExportJob) -> str:
    """Where a run spills."""
    return f"_kts/attempts/{job.run_id}/spill/"


def _spread(task: SpreadTask, job: ExportJob) -> TaskReport:
    from kts_source.remote.segment_reader import SegmentReader
    from kts_source.remote.store import open_store
    from kts_source.scan.execute import ReadSettings, read_task

    started = time.monotonic()
    options = job.options
    columns = (*options.columns, *(name for name in NEEDED if name not in options.columns))
    store = open_store(options.path, options.storage)
    target = open_target(job.place.path, job.place.storage)
    buckets = _Buckets(task, job, target)
    rows = 0
    try:
        settings = ReadSettings.of(replace(options, columns=columns))
        for batch in read_task(task.scan, SegmentReader(store, options.key_ring), settings):
            rows += batch.num_rows
            buckets.add(batch)
        buckets.spill()
    finally:
        work = store.counters
        store.close()
        target.close()
    return TaskReport(
        number=task.number,
        files=(),
        schema=None,
        rows_read=rows,
        rejected=0,
        dead_letters=None,
        segment_bytes=task.scan.nominal_bytes,
        requests=work.requests,
        bytes_read=work.bytes,
        retries=work.retries,
        seconds=time.monotonic() - started,
        seconds_writing=0.0,
        spills=tuple(buckets.spills),
        newest_ms=tuple((*owner, newest) for owner, newest in sorted(buckets.newest.items())),
    )


def _merge(task: BucketTask, job: ExportJob) -> TaskReport:
    started = time.monotonic()
    target = open_target(job.place.path, job.place.storage)
    writer = TaskWriter(task, job, target, DeadLetters(job))
    # Keys whose hash has a remainder by a modulus; halved until a share fits into memory.
    shares = [(1, 0)]
    try:
        while shares:
            modulus, remainder = shares.pop()
            table = _latest_of_share(task, target, modulus, remainder)
            if table is None:
                shares += [(2 * modulus, remainder), (2 * modulus, remainder + modulus)]
                continue
            for ordered in _by_owner(_without_tombstones(table, task)):
                for batch in ordered.to_batches(_ROWS):
                    writer.write(batch)
        files = writer.close()
    except BaseException:
        writer.abandon()
        raise
    finally:
        target.close()
    return TaskReport(
        number=task.number,
        files=files,
        schema=None if writer.schema is None else encode_schema(writer.schema),
        rows_read=0,
        rejected=0,
        dead_letters=None,
        segment_bytes=0,
        requests=0,
        bytes_read=0,
        retries=0,
        seconds=time.monotonic() - started,
        seconds_writing=time.monotonic() - started,
    )


def _latest_of_share(
    task: BucketTask, target: TargetStore, modulus: int, remainder: int
) -> pa.Table | None:
    """The latest records of some of the bucket's keys; `None` when they do not fit into memory."""
    best: pa.Table | None = None
    for spill in task.spills:
        table = pq.read_table(pa.BufferReader(target.read(spill)))
        if modulus > 1:
            chosen = [
                zlib.crc32(key) // task.buckets % modulus == remainder
                for key in table[KEY].to_pylist()
            ]
            table = table.filter(pa.array(chosen))
        best = table if best is None else latest(pa.concat_tables([best, table]))
        if best.nbytes > HELD_BYTES and modulus < _MAX_MODULUS:
            return None
    assert best is not None
    return latest(best)


def _without_tombstones(table: pa.Table, task: BucketTask) -> pa.Table:
    how = task.compaction
    if how.tombstones == KEEP:
        return table
    gone = pc.is_null(table["value"])
    if how.tombstones == REMOVE_OLD:
        horizons = pa.array(
            [
                task.newest_ms[owner] - how.delete_retention_ms
                for owner in zip(
                    table[TOPIC_ID].to_pylist(), table[PARTITION].to_pylist(), strict=True
                )
            ],
            pa.int64(),
        )
        times = pc.divide(table["timestamp"].cast(pa.int64()), 1000)
        gone = pc.and_(gone, pc.less(times, horizons))
    return table.filter(pc.invert(gone))


def _by_owner(table: pa.Table) -> Iterator[pa.Table]:
    """The rows of each topic id and partition, in offset order."""
    table = table.sort_by(
        [(TOPIC_ID, "ascending"), (PARTITION, "ascending"), (OFFSET, "ascending")]
    )
    owners = list(zip(table[TOPIC_ID].to_pylist(), table[PARTITION].to_pylist(), strict=True))
    start = 0
    for row in range(1, len(owners) + 1):
        if row == len(owners) or owners[row] != owners[start]:
            yield table.slice(start, row - start)
            start = row
