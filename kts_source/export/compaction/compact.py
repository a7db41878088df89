"""The latest record of every key, as Kafka's cleaner would leave a compacted topic.

Two rounds of tasks. The first reads the segments and spreads the records over buckets by their key,
keeping only the latest of what it holds in memory; the second reads one bucket each and writes what
is left. Memory is bounded in both: what does not fit is spilled, and a bucket that does not fit is
read several times, each time for a part of its keys.

Source: `org.apache.kafka.storage.internals.log.Cleaner` (latest offset per key wins; tombstones go
once they are older than `delete.retention.ms`; records without a key are not allowed).
"""

from __future__ import annotations

import zlib
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kts_source.columns import PARTITION, TOPIC
from kts_source.errors import ExportError
from kts_source.export.compaction import buckets
from kts_source.export.compaction.buckets import KEY, NEEDED, Buckets, latest
from kts_source.export.files import TaskReport
from kts_source.export.job import OFFSET, TOPIC_ID
from kts_source.export.ranges import PartitionKey
from kts_source.export.settings import KEEP, REMOVE_OLD
from kts_source.export.task import read_rows
from kts_source.export.task_writer import TaskWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kts_source.export.job import ExportJob
    from kts_source.export.settings import Compaction
    from kts_source.export.tables.target_store import TargetStore
    from kts_source.read.task import ScanTask

BUCKET_BYTES: Final = 256 << 20
"""Original bytes of segments per bucket, about."""
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
        with closing(Buckets(self.number, self.buckets, job)) as buckets:

            def hold(batch: pa.RecordBatch) -> None:
                buckets.hold(_with_topic_id(batch, self.topic_ids))

            return buckets.completed(read_rows(self.number, self.scan, job, hold, NEEDED))


@dataclass(frozen=True, slots=True)
class BucketTask:
    """Second round: the latest records of one bucket.

    Attributes:
        buckets: How many there are in all.
        spills: Keys of the bucket's files.
        newest_ms: (Topic id, partition) to the timestamp of its newest record.
    """

    number: int
    buckets: int
    spills: tuple[str, ...]
    newest_ms: Mapping[PartitionKey, int]
    compaction: Compaction

    def run(self, job: ExportJob) -> TaskReport:
        """Merges and writes."""
        # Keys whose hash has a remainder by a modulus; halved until a share fits into memory.
        shares = [(1, 0)]
        with TaskWriter(self.number, {}, job) as writer:
            while shares:
                modulus, remainder = shares.pop()
                table = _latest_of_share(self, writer.target, modulus, remainder)
                if table is None:
                    shares += [(2 * modulus, remainder), (2 * modulus, remainder + modulus)]
                    continue
                for ordered in _by_owner(_without_tombstones(table, self)):
                    for batch in ordered.to_batches(_ROWS):
                        writer.write(batch)
            return writer.completed(TaskReport(number=self.number))


def bucket_tasks(
    reports: Sequence[TaskReport],
    first: int,
    buckets: int,
    compaction: Compaction,
    newest: Mapping[PartitionKey, int],
) -> list[BucketTask]:
    """The second round, from what the first one reports."""
    spills: dict[int, list[str]] = {}
    for report in reports:
        for spill in report.spills:
            spills.setdefault(spill.bucket, []).append(spill.key)
    return [
        BucketTask(first + number, buckets, tuple(sorted(keys)), newest, compaction)
        for number, (_, keys) in enumerate(sorted(spills.items()))
    ]


def newest_of(
    reports: Sequence[TaskReport], known: Callable[[PartitionKey], int | None]
) -> dict[PartitionKey, int]:
    """The timestamp of every partition's newest record, in ms: of those just read and of before."""
    newest: dict[PartitionKey, int] = {}
    for report in reports:
        for topic_id, partition, time_ms in report.newest_ms:
            key = PartitionKey(topic_id, partition)
            before = known(key)
            newest[key] = max(
                time_ms, newest.get(key, time_ms), time_ms if before is None else before
            )
    return newest


def bucket_count(nominal_bytes: int) -> int:
    """Buckets for so many original bytes, those of the table's own files among them."""
    return max(1, min(MAX_BUCKETS, -(-nominal_bytes // BUCKET_BYTES)))


def _with_topic_id(
    batch: pa.RecordBatch, topic_ids: Mapping[tuple[str, int], str]
) -> pa.RecordBatch:
    """Rows of one partition and the id of its topic.

    Raises:
        ExportError: A record without a key.
    """
    if batch.num_rows == 0:
        return batch
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
    ids = pa.repeat(pa.scalar(topic_ids[topic, partition]), batch.num_rows)
    return pa.RecordBatch.from_arrays([*batch.columns, ids], names=[*batch.schema.names, TOPIC_ID])


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
        if best is None:
            best = table
        else:  # files of the table may lack columns that are read but not written
            best = latest(pa.concat_tables([best, table], promote_options="default"))
        if best.nbytes > buckets.HELD_BYTES and modulus < _MAX_MODULUS:
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
                task.newest_ms[PartitionKey(*owner)] - how.delete_retention_ms
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
