"""Columns of many records of `__remote_log_metadata`, one row per record.

The fields are those of `segment_format.metadata.model`. Fields that a record type does not have are
−1 in columns of numbers, zero in ids, null in Arrow columns, and have no leader epochs.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from segment_format.index.checkpoints import EpochEntry
from segment_format.metadata.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataSnapshot,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDelete,
    RemotePartitionDeleteState,
    TopicIdPartition,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Integers: TypeAlias = NDArray[np.int64]
    Ids: TypeAlias = NDArray[np.uint64]
    from collections.abc import Iterator

    from segment_format.metadata.model import MetadataRecord


RECORD_TYPES = 4
SEGMENT, UPDATE, PARTITION_DELETE, SNAPSHOT = range(RECORD_TYPES)
"""Values of `MetadataColumns.record_type`: Kafka's api keys."""


@dataclass(frozen=True, slots=True, eq=False)
class MetadataColumns:
    """Columns of records, all of one length except those of the leader epochs.

    Attributes:
        record_type: 0 segment, 1 update, 2 partition delete, 3 snapshot.
        topic: Names, an Arrow `large_string` array.
        topic_id: Two unsigned halves per row, the most significant first, as in Kafka's `Uuid`.
        partition: Number of the partition.
        segment_id: Like `topic_id`.
        start_offset: Base offset of the segment.
        end_offset: Last offset, inclusive.
        max_timestamp_ms: Largest timestamp, ms since 1970.
        broker_id: Broker that wrote the record.
        event_timestamp_ms: Time of the event, ms since 1970.
        segment_size_in_bytes: Size of the `.log` file.
        state: Number of the segment's state; of the partition's for partition deletes.
        txn_index_empty: 1 or 0; −1 if the record does not state it.
        custom_metadata: Bytes of the storage plugin or null, an Arrow `large_binary` array.
        epoch_count: Number of leader epochs of the row.
        epoch: Leader epochs of all rows, row after row, ascending within a row.
        epoch_start_offset: First offset of each epoch within its segment.
    """

    record_type: Integers
    topic: pa.LargeStringArray
    topic_id: Ids
    partition: Integers
    segment_id: Ids
    start_offset: Integers
    end_offset: Integers
    max_timestamp_ms: Integers
    broker_id: Integers
    event_timestamp_ms: Integers
    segment_size_in_bytes: Integers
    state: Integers
    txn_index_empty: Integers
    custom_metadata: pa.LargeBinaryArray
    epoch_count: Integers
    epoch: Integers
    epoch_start_offset: Integers

    def __len__(self) -> int:
        return len(self.record_type)

    def rows(self, numbers: Integers) -> MetadataColumns:
        """Copies the rows with these numbers, in this order."""
        first_entry = np.cumsum(self.epoch_count) - self.epoch_count
        count = self.epoch_count[numbers]
        entries = ragged_ranges(first_entry[numbers], count)
        chosen: dict[str, object] = {"epoch": self.epoch[entries]}
        chosen["epoch_start_offset"] = self.epoch_start_offset[entries]
        indices = int64_array(numbers)
        for field in fields(self):
            column = getattr(self, field.name)
            if field.name not in chosen:
                arrow = isinstance(column, pa.Array)
                chosen[field.name] = column.take(indices) if arrow else column[numbers]
        return MetadataColumns(**chosen)  # type: ignore[arg-type]


def concatenated(parts: Sequence[MetadataColumns]) -> MetadataColumns:
    """Concatenates the rows of one or more parts."""
    joined: dict[str, object] = {}
    for field in fields(MetadataColumns):
        columns = [getattr(part, field.name) for part in parts]
        arrow = isinstance(columns[0], pa.Array)
        joined[field.name] = pa.concat_arrays(columns) if arrow else np.concatenate(columns)
    return MetadataColumns(**joined)  # type: ignore[arg-type]


def no_rows() -> MetadataColumns:
    """Returns columns of length 0."""
    empty: dict[str, object] = {
        field.name: np.empty(0, np.int64) for field in fields(MetadataColumns)
    }
    empty["topic_id"] = empty["segment_id"] = np.empty((0, 2), np.uint64)
    empty["topic"] = pa.nulls(0, pa.large_string())
    empty["custom_metadata"] = pa.nulls(0, pa.large_binary())
    return MetadataColumns(**empty)  # type: ignore[arg-type]


def ragged_ranges(starts: Integers, counts: Integers, step: int = 1) -> Integers:
    """Concatenates the ranges of `counts[i]` numbers from `starts[i]` by `step`."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - step * (ends - counts), counts) + step * np.arange(total)


def int64_array(values: Integers, present: NDArray[np.bool_] | None = None) -> pa.Int64Array:
    """Returns an Arrow view of numbers; `pa.array` would import pandas."""
    valid = None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))
    data = pa.py_buffer(np.ascontiguousarray(values, np.int64))
    return pa.Array.from_buffers(pa.int64(), len(values), [valid, data])


_NO_ID = uuid.UUID(int=0)
_HALF = 64
_BODY = (
    "start_offset",
    "end_offset",
    "max_timestamp_ms",
    "broker_id",
    "event_timestamp_ms",
    "segment_size_in_bytes",
)


def metadata_records(columns: MetadataColumns) -> Iterator[MetadataRecord]:
    """Yields the rows as values.

    Args:
        columns: Result of `parse_metadata_columns` or `LiveSegments.segments`.
    """
    numbers = {name: getattr(columns, name).tolist() for name in (*_BODY, "state", "partition")}
    topic_ids, segment_ids = _uuids(columns.topic_id), _uuids(columns.segment_id)
    topics, customs = columns.topic.to_pylist(), columns.custom_metadata.to_pylist()
    counts, flags = columns.epoch_count.tolist(), columns.txn_index_empty.tolist()
    entries = map(EpochEntry, columns.epoch.tolist(), columns.epoch_start_offset.tolist())
    for row, record_type in enumerate(columns.record_type.tolist()):
        epochs = tuple(itertools.islice(entries, counts[row]))
        broker, event_time, state = (
            numbers[name][row] for name in ("broker_id", "event_timestamp_ms", "state")
        )
        partition = TopicIdPartition(topics[row], topic_ids[row], numbers["partition"][row])
        if record_type == UPDATE:
            yield RemoteLogSegmentMetadataUpdate(
                RemoteLogSegmentId(partition, segment_ids[row]),
                broker,
                event_time,
                customs[row],
                RemoteLogSegmentState(state),
            )
        elif record_type == PARTITION_DELETE:
            yield RemotePartitionDelete(
                partition, broker, event_time, RemotePartitionDeleteState(state)
            )
        else:
            body = (
                *(numbers[name][row] for name in _BODY[:5]),
                epochs,
                numbers["segment_size_in_bytes"][row],
                customs[row],
                RemoteLogSegmentState(state),
                None if flags[row] < 0 else bool(flags[row]),
            )
            if record_type == SEGMENT:
                segment_id = RemoteLogSegmentId(partition, segment_ids[row])
                yield RemoteLogSegmentMetadata(segment_id, *body)
            else:
                yield RemoteLogSegmentMetadataSnapshot(segment_ids[row], *body)


def columns_of(records: Sequence[MetadataRecord]) -> MetadataColumns:
    """Returns the columns of values."""
    types = [
        RemoteLogSegmentMetadata,
        RemoteLogSegmentMetadataUpdate,
        RemotePartitionDelete,
        RemoteLogSegmentMetadataSnapshot,
    ]
    ids = [_ids_of(record) for record in records]
    epochs = [getattr(record, "segment_leader_epochs", ()) for record in records]
    flags = [getattr(record, "txn_index_empty", None) for record in records]
    entries = [entry for row in epochs for entry in row]
    body = {
        name: _numbers([getattr(record, name, -1) for record in records])
        for name in (*_BODY, "state")
    }
    return MetadataColumns(
        record_type=_numbers([types.index(type(record)) for record in records]),
        topic=pa.array([topic for topic, *_ in ids], pa.large_string()),
        topic_id=_halves([topic_id for _, topic_id, *_ in ids]),
        partition=_numbers([partition for *_, partition, _ in ids]),
        segment_id=_halves([segment_id for *_, segment_id in ids]),
        txn_index_empty=_numbers([-1 if flag is None else int(flag) for flag in flags]),
        custom_metadata=pa.array(
            [getattr(record, "custom_metadata", None) for record in records], pa.large_binary()
        ),
        epoch_count=_numbers([len(row) for row in epochs]),
        epoch=_numbers([entry.epoch for entry in entries]),
        epoch_start_offset=_numbers([entry.start_offset for entry in entries]),
        **body,
    )


def _ids_of(record: MetadataRecord) -> tuple[str | None, uuid.UUID, int, uuid.UUID]:
    if isinstance(record, RemoteLogSegmentMetadataSnapshot):
        return None, _NO_ID, -1, record.id
    if isinstance(record, RemotePartitionDelete):
        partition, segment_id = record.topic_id_partition, _NO_ID
    else:
        partition, segment_id = record.segment_id.topic_id_partition, record.segment_id.id
    return partition.topic, partition.topic_id, partition.partition, segment_id


def _numbers(values: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def _halves(ids: Sequence[uuid.UUID]) -> Ids:
    low = (1 << _HALF) - 1
    return np.array([(value.int >> _HALF, value.int & low) for value in ids], np.uint64).reshape(
        -1, 2
    )


def _uuids(ids: Ids) -> list[uuid.UUID]:
    return [uuid.UUID(int=high << _HALF | low) for high, low in ids.tolist()]
