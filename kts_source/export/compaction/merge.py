"""What a compacted table holds already, on its way into the next compaction.

A run with new records does not read the old ones from the tier again: the files of the table take
part in the first round as they are, by the same buckets, and what the second round leaves replaces
them in the one step that moves the ranges. So a table that was compacted run by run is the table
that one compaction makes.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from kts_source.columns import PARTITION
from kts_source.errors import ExportError, RangeGapError
from kts_source.export.compaction.buckets import NEEDED, Buckets
from kts_source.export.files import TaskReport
from kts_source.export.job import OFFSET, TOPIC_ID
from kts_source.export.ranges import PartitionKey
from kts_source.export.row_schema import compacted_schema
from kts_source.export.settings import PARQUET, REMOVE_OLD
from kts_source.export.tables.open_target import open_target
from kts_source.export.tables.table_files import open_parquet

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from kts_source.export.job import ExportJob
    from kts_source.export.ranges import CommittedRanges
    from kts_source.export.settings import ExportSettings
    from kts_source.export.tables.export_table import BaseFile, WritePlace
    from kts_source.options import ScanOptions

TASK_BYTES: Final = 64 << 20
BASE_RATIO: Final = 4
"""Original bytes of a record per byte of the table, about."""
_ROWS: Final = 4096
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
