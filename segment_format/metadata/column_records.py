"""Between columns of metadata records and the values of the model, record by record."""

from __future__ import annotations

import itertools
import uuid
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from segment_format.index.leader_epoch_checkpoint import EpochEntry
from segment_format.metadata.columns import PARTITION_DELETE, SEGMENT, UPDATE, MetadataColumns
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
    from collections.abc import Iterator, Sequence

    from segment_format.metadata.columns import Ids
    from segment_format.metadata.model import MetadataRecord

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
    """The rows as values, one at a time; what only `wire` held is gone.

    Args:
        columns: From `parse_metadata_columns` or `LiveSegments.segments`.
    """
    numbers = {name: getattr(columns, name).tolist() for name in (*_BODY, "state", "partition")}
    topic_ids, segment_ids = _uuids(columns.topic_id), _uuids(columns.segment_id)
    topics, customs = columns.topic.to_pylist(), columns.custom_metadata.to_pylist()
    counts, remarks = columns.epoch_count.tolist(), columns.txn_index_empty.tolist()
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
                None if remarks[row] < 0 else bool(remarks[row]),
            )
            if record_type == SEGMENT:
                segment_id = RemoteLogSegmentId(partition, segment_ids[row])
                yield RemoteLogSegmentMetadata(segment_id, *body)
            else:
                yield RemoteLogSegmentMetadataSnapshot(segment_ids[row], *body)


def columns_of(records: Sequence[MetadataRecord]) -> MetadataColumns:
    """Values as columns."""
    types = [
        RemoteLogSegmentMetadata,
        RemoteLogSegmentMetadataUpdate,
        RemotePartitionDelete,
        RemoteLogSegmentMetadataSnapshot,
    ]
    ids = [_ids_of(record) for record in records]
    epochs = [getattr(record, "segment_leader_epochs", ()) for record in records]
    remarks = [getattr(record, "txn_index_empty", None) for record in records]
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
        txn_index_empty=_numbers([-1 if remark is None else int(remark) for remark in remarks]),
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
    return np.array([(one.int >> _HALF, one.int & low) for one in ids], np.uint64).reshape(-1, 2)


def _uuids(ids: Ids) -> list[uuid.UUID]:
    return [uuid.UUID(int=high << _HALF | low) for high, low in ids.tolist()]
