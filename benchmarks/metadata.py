"""Measures how fast one core converts records of `__remote_log_metadata` to columns, and computes
the live segments from them.
"""

from __future__ import annotations

import uuid

import pyarrow as pa

from benchmarks.report import Row, at_least, best_seconds
from segment_format.index.checkpoints import EpochEntry
from segment_format.metadata import model
from segment_format.metadata.columns import parse_metadata_columns
from segment_format.metadata.live_segments import LiveSegments
from segment_format.metadata.remote_log_segment_metadata import parse_metadata_record
from tests.segment_format.metadata.readable_segments import known_segments
from tests.segment_format.metadata.writers import write_metadata_record

_FINISHED = model.RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_ROWS = 8192


def run(*, quick: bool) -> list[Row]:
    """Measures the conversion of two records for each of 100,000 segments, or of 10,000 in a quick
    run. Measures the readable implementation with the first part of these records.
    """
    segments = 10_000 if quick else 100_000
    values = [value for number in range(segments) for value in _events(number)]
    starts = range(0, len(values), _ROWS)
    batches = [pa.array(values[start : start + _ROWS], pa.binary()) for start in starts]
    first_values = values[:4000]

    def fold() -> None:
        live = LiveSegments()
        for batch in batches:
            live.add(parse_metadata_columns(batch))
        if len(live.segments(_FINISHED)) != segments:
            raise AssertionError("the live segments are incomplete")

    columns, both, readable = best_seconds(
        lambda: [parse_metadata_columns(batch) for batch in batches],
        fold,
        lambda: known_segments(map(parse_metadata_record, first_values)),
        repeats=3 if quick else 7,
    )
    return [
        at_least("metadata records to columns", len(values) / columns / 1e3, "k records/s", 300),
        Row("metadata records to the live set", len(values) / both / 1e3, "k records/s"),
        Row(
            "the same by the readable parser and fold",
            len(first_values) / readable / 1e3,
            "k records/s",
        ),
    ]


def _events(number: int) -> tuple[bytes, bytes]:
    partition = model.TopicIdPartition(
        f"topic-{number % 30}", uuid.UUID(int=number % 30 + 1), number % 10
    )
    id_ = model.RemoteLogSegmentId(partition, uuid.uuid5(uuid.NAMESPACE_OID, str(number)))
    epochs = (EpochEntry(0, number),)
    begun = model.RemoteLogSegmentMetadata(id_, number, number + 9, 5, 1, 20, epochs, 1 << 30)
    ended = model.RemoteLogSegmentMetadataUpdate(id_, 1, 30, bytes(100), _FINISHED)
    return write_metadata_record(begun), write_metadata_record(ended)
