"""What a compacted table holds already, on its way into the next compaction.

A run with new records does not read the old ones from the tier again: the files of the table take
part in the first round as they are, by the same buckets, and what the second round leaves replaces
them in the one step that moves the ranges. So a table that was compacted run by run is the table
that one compaction makes.

Records of a compaction's first round, spread over buckets by their key.

What is held in memory keeps only the latest of every key, and is spilled, a file per bucket, when
it is too much.

The latest record of every key, as Kafka's cleaner would leave a compacted topic.

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
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kts_source.columns import PARTITION, TOPIC
from kts_source.errors import ExportError, RangeGapError
from kts_source.export.files import SpillFile, TaskReport
from kts_source.export.job import OFFSET, TOPIC_ID
from kts_source.export.parquet_file import ParquetFile
from kts_source.export.ranges import PartitionKey
from kts_source.export.row_schema import compacted_schema
from kts_source.export.settings import KEEP, PARQUET, REMOVE_OLD
from kts_source.export.tables.open_target import open_target
from kts_source.export.tables.table_files import open_parquet
from kts_source.export.task_writer import TaskWriter, read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from kts_source.export.job import ExportJob
    from kts_source.export.ranges import CommittedRanges
    from kts_source.export.settings import Compaction, ExportSettings
    from kts_source.export.tables.export_table import BaseFile, WritePlace
    from kts_source.export.tables.target_store import TargetStore
    from kts_source.options import ScanOptions
    from kts_source.read.task import ScanTask


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


BUCKET_BYTES: Final = 256 << 20
"""Original bytes of segments per bucket, about."""
MAX_BUCKETS: Final = 1024
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
        with closing(Buckets(self.number, self.buckets, job)) as records:

            def hold(batch: pa.RecordBatch) -> None:
                records.hold(_with_topic_id(batch, self.topic_ids))

            return records.completed(read_rows(self.number, self.scan, job, hold, NEEDED))


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


TASK_BYTES: Final = 64 << 20
BASE_RATIO: Final = 4
"""Original bytes of a record per byte of the table, about."""
_NAMED: Final = 5
_MAX_PARTITIONS: Final = 4096
"""Of a topic, where only asking for each tells."""


def can_merge(options: ScanOptions, settings: ExportSettings) -> bool:
    """Whether a table that was begun holds all that its next compaction has to know.

    It does not where columns that decide are not among those written: then it is built anew, from
    the tier.
    """
    if settings.compaction is None or settings.table_format == PARQUET:
        return False
    needed = set(NEEDED)
    if settings.compaction.tombstones != REMOVE_OLD:
        needed.remove("timestamp")
    return needed <= set(options.columns)


def check_rebuild(
    options: ScanOptions,
    place: WritePlace,
    files: Sequence[BaseFile],
    committed: CommittedRanges,
    planned: AbstractSet[PartitionKey],
) -> None:
    """Makes sure that a table built anew from the tier, all that is `planned`, keeps all of its
    rows' partitions.

    Raises:
        RangeGapError: It has rows of topics or partitions that have left the tier.
        ExportError: A file does not have the table's columns.
    """
    schema = _columns_of(options, TOPIC_ID, PARTITION)
    owners: set[tuple[Any, ...]] = set()
    for rows in _rows_of(place, files, schema):
        found = pa.table(rows).group_by(schema.names).aggregate([]).to_pylist()
        owners.update(tuple(row[name] for name in schema.names) for row in found)
    keys: set[PartitionKey] = set()
    for topic_id, *partition in owners:
        # Tables without the column tell which partitions they were built from, if they are asked.
        numbers = partition or [
            number
            for number in range(_MAX_PARTITIONS)
            if (held := committed.get(PartitionKey(topic_id, number))) is not None
            and held.start < held.stop
        ]
        keys |= {PartitionKey(topic_id, number) for number in numbers or (0,)}
    if gone := [f"{key.topic_id}, partition {key.partition}" for key in sorted(keys - planned)]:
        needed = ",".join(NEEDED)
        raise RangeGapError(
            f"the table has rows of topic id {'; topic id '.join(gone[:_NAMED])}"
            f"{' and others' if len(gone) > _NAMED else ''}, which are no longer in the tier, and"
            f" it is built anew from the tier: they would be lost. Export into another table; with"
            f" columns {needed} among others it is merged, and keeps them",
        )


def check_lost(
    options: ScanOptions,
    place: WritePlace,
    files: Sequence[BaseFile],
    committed: CommittedRanges,
    lost: Mapping[PartitionKey, Sequence[tuple[int, int]]],
) -> None:
    """Makes sure that a table built anew has no rows at offsets that are missing there.

    Where its columns do not tell partitions or offsets of its rows, they may be any. `lost` are
    offsets [start, stop) that are not read, allowed or not.

    Raises:
        RangeGapError: It has such rows.
        ExportError: A file does not have the table's columns.
    """
    gaps = [
        (key, max(start, held.start), min(stop, held.stop))
        for key, spans in lost.items()
        if (held := committed.get(key)) is not None
        for start, stop in spans
        if start < held.stop and held.start < stop
    ]
    if not gaps:
        return
    schema = _columns_of(options, TOPIC_ID, PARTITION, OFFSET)
    for rows in _rows_of(place, files, schema):
        for key, start, stop in gaps:
            there = pc.equal(rows[TOPIC_ID], key.topic_id)
            if PARTITION in schema.names:
                there = pc.and_(there, pc.equal(rows[PARTITION], key.partition))
            if OFFSET in schema.names:
                inside = pc.and_(pc.greater_equal(rows[OFFSET], start), pc.less(rows[OFFSET], stop))
                there = pc.and_(there, inside)
            if pc.any(there).as_py():
                raise RangeGapError(
                    f"offsets [{start}, {stop}) of topic id {key.topic_id}, partition"
                    f" {key.partition}, are no longer in the tier, and the table may have rows of"
                    f" them: it is built anew, and they would be lost. Export into another table;"
                    f" with columns {','.join(NEEDED)} among others it is merged, and keeps them",
                    partition=key.partition,
                    offset=start,
                )


def _columns_of(options: ScanOptions, *names: str) -> pa.Schema:
    """Those of the columns that the table has."""
    schema = compacted_schema(options.columns)
    return pa.schema([schema.field(name) for name in names if name in schema.names])


def _rows_of(
    place: WritePlace, files: Sequence[BaseFile], schema: pa.Schema
) -> Generator[pa.RecordBatch, None, None]:
    """Some columns of all rows that files of a table hold."""
    with closing(open_target(place.path, place.storage)) as store:
        for base in files:
            with open_parquet(store, base) as file:
                there = [name for name in schema.names if name in file.schema_arrow.names]
                for batch in file.iter_batches(_ROWS, columns=there, use_threads=False):
                    yield _whole(batch, base.values, schema, store.uri(base.key))


@dataclass(frozen=True, slots=True)
class BaseTask:
    """First round, for files of the table.

    Attributes:
        number: Within the run.
        buckets: How many there are in all.
    """

    number: int
    files: tuple[BaseFile, ...]
    buckets: int

    def run(self, job: ExportJob) -> TaskReport:
        """Reads, spreads and spills.

        Raises:
            ExportError: A file does not have the table's columns.
        """
        rows = _rows_of(job.place, self.files, compacted_schema(job.options.columns))
        with closing(rows) as batches, closing(Buckets(self.number, self.buckets, job)) as buckets:
            for batch in batches:
                buckets.hold(batch)
            return buckets.completed(TaskReport(number=self.number))


def base_tasks(files: Sequence[BaseFile], first: int, buckets: int) -> list[BaseTask]:
    """The files in tasks of about `TASK_BYTES`."""
    groups: list[list[BaseFile]] = []
    held = TASK_BYTES
    for file in files:
        if held >= TASK_BYTES:
            groups.append([])
            held = 0
        groups[-1].append(file)
        held += file.size
    return [BaseTask(first + number, tuple(group), buckets) for number, group in enumerate(groups)]


def _whole(
    batch: pa.RecordBatch, values: Mapping[str, str | None], schema: pa.Schema, uri: str
) -> pa.RecordBatch:
    """The rows of a file with the partition columns that its name or the log holds for it."""
    arrays = []
    for field in schema:
        if field.name in batch.schema.names:
            arrays.append(batch.column(field.name).cast(field.type))
        elif field.name in values:
            value = pa.scalar(values[field.name], pa.string()).cast(field.type)
            arrays.append(pa.repeat(value, batch.num_rows))
        else:
            raise ExportError(f"a file of the table has no column {field.name!r}", uri=uri)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
