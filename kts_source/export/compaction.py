"""Compacts a table: keeps only the latest record of every key, as Kafka's log cleaner does.

There are two rounds of tasks. In the first round, tasks read segments and distribute the records by
key to buckets. When the records in memory reach a limit, a task writes the latest record per key to
temporary files, one file per bucket. In the second round, each task reads the files of one bucket
and writes the latest record of each key into the table. If a bucket does not fit into memory, the
task reads the files several times, each time for a part of the keys.

Later runs read only new records from the tier. For old records, the first round reads the files of
the table. The commit replaces these files by the new files and records the new end offsets.

Source: `org.apache.kafka.storage.internals.log.Cleaner`. It keeps the record with the largest
offset of each key, drops tombstones that are older than `delete.retention.ms`, and does not allow
records without a key.
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
from kts_source.export.parquet_file import ParquetFile, open_parquet
from kts_source.export.ranges import PartitionKey
from kts_source.export.row_schema import compacted_schema
from kts_source.export.settings import KEEP, PARQUET, REMOVE_OLD
from kts_source.export.tables.target_store import open_target
from kts_source.export.task import OFFSET, TOPIC_ID, SpillFile, TaskReport
from kts_source.export.task_writer import TaskWriter, read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from kts_source.export.parquet_file import DataFile
    from kts_source.export.ranges import CommittedRanges
    from kts_source.export.settings import Compaction, ExportSettings
    from kts_source.export.tables.target_store import TargetStore
    from kts_source.export.task import ExportJob, WriteTarget
    from kts_source.options import ScanOptions
    from kts_source.read.task import ScanTask

KEY: Final = "key"
NEEDED: Final = (KEY, "value", TOPIC, PARTITION, OFFSET, "timestamp")
"""Columns that the table needs so that a compaction can merge new records into its files."""

HELD_BYTES: Final = 64 << 20
"""Maximum bytes of records in memory. If there are more, the first round writes them to files, and
the second round reads a smaller share of a bucket.
"""
BUCKET_BYTES: Final = 256 << 20
"""Approximate number of uncompressed segment bytes per bucket."""
MAX_BUCKETS: Final = 1024
BASE_RATIO: Final = 4
"""Approximate number of uncompressed record bytes per byte of the table."""
_TASK_BYTES: Final = 64 << 20
_MAX_MODULUS: Final = 1 << 20  # beyond it, single keys fill the memory
_MAX_PARTITIONS: Final = 4096
"""Number of partitions per topic whose offsets are looked up if rows have no partition column."""
_MAX_NAMED: Final = 5
_ROWS: Final = 4096


# -- first round: distributes records to buckets


def latest(table: pa.Table) -> pa.Table:
    """Returns one row for each combination of topic id, partition and key: the row with the largest
    offset. The result is not sorted.
    """
    if table.num_rows == 0:
        return table
    table = table.combine_chunks()
    codes = np.zeros(table.num_rows, dtype=np.int64)
    for name in (TOPIC_ID, PARTITION, KEY):
        encoded = table[name].combine_chunks().dictionary_encode()
        indices = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        _, codes = np.unique(codes * len(encoded.dictionary) + indices, return_inverse=True)
    newest_first = np.argsort(table[OFFSET].to_numpy(), kind="stable")[::-1]
    _, first = np.unique(codes[newest_first], return_index=True)
    return table.take(pa.array(newest_first[first]))


class Buckets:
    """Distributes the records of one task to buckets by key. Writes them to temporary files, each
    with records of one bucket.
    """

    def __init__(self, number: int, buckets: int, job: ExportJob) -> None:
        self._began = time.monotonic()
        self._buckets = buckets
        self._prefix = f"{spill_folder(job)}{number:06d}-{uuid.uuid4().hex}"
        self._target = open_target(job.target.path, job.target.storage)
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0
        self._spills: list[SpillFile] = []
        self._newest: dict[tuple[str, int], int] = {}

    def hold(self, batch: pa.RecordBatch) -> None:
        """Adds rows to the rows in memory. Writes temporary files if the rows in memory reach a
        limit. `batch` must have a column of topic ids.
        """
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
            owner, time_us = (row[TOPIC_ID], row[PARTITION]), row["time_max"]
            if time_us is not None:
                time_ms = time_us // 1000
                self._newest[owner] = max(time_ms, self._newest.get(owner, time_ms))

    def completed(self, report: TaskReport) -> TaskReport:
        """Writes the rows in memory to temporary files. Returns `report` with the keys of all
        temporary files of the task added.
        """
        self._spill()
        return replace(
            report,
            seconds=time.monotonic() - self._began,
            spills=tuple(self._spills),
            newest_ms=tuple((*owner, newest) for owner, newest in sorted(self._newest.items())),
        )

    def close(self) -> None:
        """Closes the connections to the target store."""
        self._target.close()

    def _spill(self) -> None:
        """Writes the latest record of each key in memory to temporary files, one per bucket."""
        if not self._held:
            return
        table = latest(pa.Table.from_batches(self._held))
        self._held, self._bytes = [], 0
        numbers = np.fromiter(
            (zlib.crc32(key) % self._buckets for key in table[KEY].to_pylist()),
            dtype=np.int64,
            count=table.num_rows,
        )
        for number in np.unique(numbers):
            rows = table.filter(pa.array(numbers == number))
            key = f"{self._prefix}-{len(self._spills):06d}.part"
            file = ParquetFile(self._target.open_output(key), rows.schema, compression="zstd")
            for batch in rows.to_batches(_ROWS):
                file.add(batch)
            file.close()
            self._spills.append(SpillFile(int(number), key))


def spill_folder(job: ExportJob) -> str:
    """Returns the folder in which a run stores its temporary files."""
    return f"_kts/attempts/{job.run_id}/spill/"


def bucket_count(nominal_bytes: int) -> int:
    """Returns the number of buckets. `nominal_bytes` are the original bytes of the segments to
    read, plus the estimated original bytes of the table's files to read.
    """
    return max(1, min(MAX_BUCKETS, -(-nominal_bytes // BUCKET_BYTES)))


@dataclass(frozen=True, slots=True)
class SpreadTask:
    """Task of the first round that reads records from the tier and distributes them to buckets.

    Attributes:
        scan: The slices to read.
        topic_ids: Topic id by topic and partition.
        buckets: Total number of buckets.
    """

    number: int
    scan: ScanTask
    topic_ids: Mapping[tuple[str, int], str]
    buckets: int

    def run(self, job: ExportJob) -> TaskReport:
        """See `RunnableTask.run`."""
        with closing(Buckets(self.number, self.buckets, job)) as records:

            def hold(batch: pa.RecordBatch) -> None:
                records.hold(_with_topic_id(batch, self.topic_ids))

            return records.completed(read_rows(self.number, self.scan, job, hold, NEEDED))


@dataclass(frozen=True, slots=True)
class BaseTask:
    """Task of the first round that reads records from files of the table and distributes them to
    buckets.

    Attributes:
        buckets: Total number of buckets.
    """

    number: int
    files: tuple[DataFile, ...]
    buckets: int

    def run(self, job: ExportJob) -> TaskReport:
        """See `RunnableTask.run`.

        Raises:
            ExportError: A file lacks a column of the table.
        """
        rows = _rows_of(job.target, self.files, compacted_schema(job.options.columns))
        with closing(rows) as batches, closing(Buckets(self.number, self.buckets, job)) as buckets:
            for batch in batches:
                buckets.hold(batch)
            return buckets.completed(TaskReport(number=self.number))


def base_tasks(files: Sequence[DataFile], first: int, buckets: int) -> list[BaseTask]:
    """Returns tasks of the first round that read all files of the table. The tasks are numbered
    from `first`.
    """
    groups: list[list[DataFile]] = []
    size = _TASK_BYTES
    for file in files:
        if size >= _TASK_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return [BaseTask(first + number, tuple(group), buckets) for number, group in enumerate(groups)]


def _with_topic_id(
    batch: pa.RecordBatch, topic_ids: Mapping[tuple[str, int], str]
) -> pa.RecordBatch:
    """Adds a column with the topic id to a batch of one partition. Raises `ExportError` if a record
    has no key.
    """
    if batch.num_rows == 0:
        return batch
    topic, partition = batch.column(TOPIC)[0].as_py(), batch.column(PARTITION)[0].as_py()
    keys = batch.column(KEY)
    if keys.null_count:
        row = keys.is_null().index(pa.scalar(True)).as_py()
        raise ExportError(
            "a record without a key cannot be compacted. Export without compact=True, or drop such"
            " records with option where",
            topic=topic,
            partition=partition,
            offset=batch.column(OFFSET)[row].as_py(),
        )
    ids = pa.repeat(pa.scalar(topic_ids[topic, partition]), batch.num_rows)
    return pa.RecordBatch.from_arrays([*batch.columns, ids], names=[*batch.schema.names, TOPIC_ID])


def _rows_of(
    target: WriteTarget, files: Sequence[DataFile], schema: pa.Schema
) -> Generator[pa.RecordBatch, None, None]:
    """Yields all rows of data files, with the columns of `schema`. If a file lacks a partition
    column, the column is filled with the file's partition value. Any other missing column raises
    `ExportError`.
    """
    with closing(open_target(target.path, target.storage)) as store:
        for entry in files:
            with open_parquet(store, entry) as file:
                names = [name for name in schema.names if name in file.schema_arrow.names]
                for batch in file.iter_batches(_ROWS, columns=names, use_threads=False):
                    yield _with_partition_values(batch, entry, schema, store.uri(entry.key))


def _with_partition_values(
    batch: pa.RecordBatch, file: DataFile, schema: pa.Schema, uri: str
) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        if field.name in batch.schema.names:
            arrays.append(batch.column(field.name).cast(field.type))
        elif field.name in file.values:
            value = pa.scalar(file.values[field.name], pa.string()).cast(field.type)
            arrays.append(pa.repeat(value, batch.num_rows))
        else:
            raise ExportError(
                f"a file of the table has no column {field.name!r}: another writer added it. Export"
                " into another table",
                uri=uri,
            )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# -- second round: writes the latest records of buckets


@dataclass(frozen=True, slots=True)
class BucketTask:
    """Task of the second round: reads the temporary files of one bucket and writes the latest
    record of each key into the table.

    Attributes:
        buckets: Total number of buckets.
        spills: Object keys of the temporary files of the bucket.
        newest_ms: Timestamp of the newest record of each partition, in ms since 1970.
    """

    number: int
    buckets: int
    spills: tuple[str, ...]
    newest_ms: Mapping[PartitionKey, int]
    compaction: Compaction

    def run(self, job: ExportJob) -> TaskReport:
        """See `RunnableTask.run`."""
        # A share is a pair (modulus, remainder): the keys whose hash has this remainder. A share
        # that does not fit into memory is split into two.
        shares = [(1, 0)]
        with TaskWriter(self.number, {}, job) as writer:
            while shares:
                modulus, remainder = shares.pop()
                table = self._latest_of_share(writer.target, modulus, remainder)
                if table is None:
                    shares += [(2 * modulus, remainder), (2 * modulus, remainder + modulus)]
                    continue
                for ordered in _split_by_owner(self._without_tombstones(table)):
                    for batch in ordered.to_batches(_ROWS):
                        writer.write(batch)
            return writer.completed(TaskReport(number=self.number))

    def _latest_of_share(
        self, target: TargetStore, modulus: int, remainder: int
    ) -> pa.Table | None:
        """Returns the latest records of those keys of the bucket whose hash modulo `modulus` is
        `remainder`. Returns `None` if the records do not fit into memory.
        """
        merged: pa.Table | None = None
        for spill in self.spills:
            table = pq.read_table(pa.BufferReader(target.read(spill)))
            if modulus > 1:
                is_in_share = [
                    zlib.crc32(key) // self.buckets % modulus == remainder
                    for key in table[KEY].to_pylist()
                ]
                table = table.filter(pa.array(is_in_share))
            if merged is None:
                merged = table
            else:  # files of the table may lack columns that tasks read but do not write
                merged = latest(pa.concat_tables([merged, table], promote_options="default"))
            if merged.nbytes > HELD_BYTES and modulus < _MAX_MODULUS:
                return None
        assert merged is not None
        return latest(merged)

    def _without_tombstones(self, table: pa.Table) -> pa.Table:
        if self.compaction.tombstones == KEEP:
            return table
        is_dropped = pc.is_null(table["value"])
        if self.compaction.tombstones == REMOVE_OLD:
            owners = zip(table[TOPIC_ID].to_pylist(), table[PARTITION].to_pylist(), strict=True)
            horizons = [
                self.newest_ms[PartitionKey(*owner)] - self.compaction.delete_retention_ms
                for owner in owners
            ]
            times = pc.divide(table["timestamp"].cast(pa.int64()), 1000)
            is_dropped = pc.and_(is_dropped, pc.less(times, pa.array(horizons, pa.int64())))
        return table.filter(pc.invert(is_dropped))


def bucket_tasks(
    reports: Sequence[TaskReport],
    first: int,
    buckets: int,
    compaction: Compaction,
    newest: Mapping[PartitionKey, int],
) -> list[BucketTask]:
    """Returns the tasks of the second round, one per bucket that has records. `reports` are the
    reports of the first round. The tasks are numbered from `first`.
    """
    spills: dict[int, list[str]] = {}
    for report in reports:
        for spill in report.spills:
            spills.setdefault(spill.bucket, []).append(spill.key)
    return [
        BucketTask(first + number, buckets, tuple(sorted(keys)), newest, compaction)
        for number, (_, keys) in enumerate(sorted(spills.items()))
    ]


def newest_timestamps(
    reports: Sequence[TaskReport], recorded: Callable[[PartitionKey], int | None]
) -> dict[PartitionKey, int]:
    """Returns the timestamp of the newest record of every partition that was read, in ms since
    1970: the maximum of the newest timestamp of this run (`reports`) and of earlier runs
    (`recorded`).
    """
    newest: dict[PartitionKey, int] = {}
    for report in reports:
        for topic_id, partition, time_ms in report.newest_ms:
            key = PartitionKey(topic_id, partition)
            before = recorded(key)
            newest[key] = max(
                time_ms, newest.get(key, time_ms), time_ms if before is None else before
            )
    return newest


def _split_by_owner(table: pa.Table) -> Iterator[pa.Table]:
    """Splits a table by topic id and partition. Yields a table for each partition, with its rows in
    offset order.
    """
    table = table.sort_by(
        [(TOPIC_ID, "ascending"), (PARTITION, "ascending"), (OFFSET, "ascending")]
    )
    owners = list(zip(table[TOPIC_ID].to_pylist(), table[PARTITION].to_pylist(), strict=True))
    start = 0
    for row in range(1, len(owners) + 1):
        if row == len(owners) or owners[row] != owners[start]:
            yield table.slice(start, row - start)
            start = row


# -- decides between merging with the table's files and rebuilding the table


def can_merge(options: ScanOptions, settings: ExportSettings) -> bool:
    """Returns True if the table has all columns that a later compaction needs to read old records
    from the table's files.

    If False, each compaction reads all records from the tier again and replaces the whole table.
    """
    if settings.compaction is None or settings.table_format == PARQUET:
        return False
    needed = set(NEEDED)
    if settings.compaction.tombstones != REMOVE_OLD:
        needed.remove("timestamp")
    return needed <= set(options.columns)


def check_rebuild(
    options: ScanOptions,
    target: WriteTarget,
    files: Sequence[DataFile],
    committed: CommittedRanges,
    planned: AbstractSet[PartitionKey],
) -> None:
    """Checks that a rebuild of the table from the tier reads every partition of which the table has
    rows. A rebuild would lose the rows of other partitions.

    Raises:
        RangeGapError: The table has rows of topics or partitions that are no longer in the tier.
        ExportError: A file lacks a column of the table.
    """
    schema = _table_columns(options, TOPIC_ID, PARTITION)
    owners: set[tuple[Any, ...]] = set()
    for rows in _rows_of(target, files, schema):
        distinct = pa.table(rows).group_by(schema.names).aggregate([]).to_pylist()
        owners.update(tuple(row[name] for name in schema.names) for row in distinct)
    keys: set[PartitionKey] = set()
    for topic_id, *partition in owners:
        # Without a partition column, assume rows of every partition for which the table has
        # committed offsets.
        numbers = partition or [
            number
            for number in range(_MAX_PARTITIONS)
            if (held := committed.get(PartitionKey(topic_id, number))) is not None
            and held.start < held.stop
        ]
        keys |= {PartitionKey(topic_id, number) for number in numbers or (0,)}
    if gone := [f"{key.topic_id}, partition {key.partition}" for key in sorted(keys - planned)]:
        raise RangeGapError(
            f"the table has rows of topic id {'; topic id '.join(gone[:_MAX_NAMED])}"
            f"{' and others' if len(gone) > _MAX_NAMED else ''}, which are no longer in the tier,"
            f" and a rebuild from the tier would lose them. {_ADVICE}"
        )


def check_lost(
    options: ScanOptions,
    target: WriteTarget,
    files: Sequence[DataFile],
    committed: CommittedRanges,
    lost: Mapping[PartitionKey, Sequence[tuple[int, int]]],
) -> None:
    """Checks that the table has no rows at offsets that cannot be read from the tier, because a
    rebuild would lose these rows.

    `lost` contains the unreadable offsets [start, stop) of each partition. The check does not
    depend on `failOnDataLoss`. Without an offset column, the check fails if the table has any row
    of the partition. Without a partition column, it fails if the table has any row of the topic.

    Raises:
        RangeGapError: The table has rows at unreadable offsets.
        ExportError: A file lacks a column of the table.
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
    schema = _table_columns(options, TOPIC_ID, PARTITION, OFFSET)
    for rows in _rows_of(target, files, schema):
        for key, start, stop in gaps:
            matches = pc.equal(rows[TOPIC_ID], key.topic_id)
            if PARTITION in schema.names:
                matches = pc.and_(matches, pc.equal(rows[PARTITION], key.partition))
            if OFFSET in schema.names:
                inside = pc.and_(pc.greater_equal(rows[OFFSET], start), pc.less(rows[OFFSET], stop))
                matches = pc.and_(matches, inside)
            if pc.any(matches).as_py():
                raise RangeGapError(
                    f"offsets [{start}, {stop}) of topic id {key.topic_id}, partition"
                    f" {key.partition}, are no longer in the tier, and a rebuild would lose rows"
                    f" that the table may have of them. {_ADVICE}",
                    partition=key.partition,
                    offset=start,
                )


_ADVICE: Final = (
    f"Export into another table; a table with the columns {','.join(NEEDED)} is merged instead of"
    " rebuilt, and keeps them"
)


def _table_columns(options: ScanOptions, *names: str) -> pa.Schema:
    """Returns the schema of the columns in `names` that the table has."""
    schema = compacted_schema(options.columns)
    return pa.schema([schema.field(name) for name in names if name in schema.names])
