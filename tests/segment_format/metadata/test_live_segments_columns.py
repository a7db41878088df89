from __future__ import annotations

import base64
import itertools
import json
import tracemalloc
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format.index.checkpoints import EpochEntry
from segment_format.metadata import live_segments as fold_columns
from segment_format.metadata.columns import columns_of, metadata_records, parse_metadata_columns
from segment_format.metadata.live_segments import LiveSegments
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
from segment_format.metadata.remote_log_segment_metadata import parse_metadata_record
from tests.golden_data import GOLDEN, LOCAL_TIER
from tests.quick import examples
from tests.segment_format.metadata.readable_segments import known_segments, live_segments

if TYPE_CHECKING:
    from pathlib import Path

    from segment_format.metadata.model import MetadataRecord

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
PARTITIONS = [
    TopicIdPartition(topic, uuid.UUID(int=number << 64 | 7), partition)
    for topic, number, partition in [("b", 1, 0), ("b", 1, 1), ("b", 2, 0), ("a", 3, 0)]
]
segment_ids = st.builds(
    RemoteLogSegmentId,
    st.sampled_from(PARTITIONS),
    st.integers(1, 3).map(lambda n: uuid.UUID(int=n)),
)
custom = st.sampled_from([None, b"", b"custom"])
segments = st.builds(
    RemoteLogSegmentMetadata,
    segment_ids,
    st.integers(0, 3),
    st.integers(3, 9),
    st.just(5),
    st.integers(0, 3),
    st.just(0),
    st.sampled_from([(EpochEntry(0, 0),), (EpochEntry(1, 0), EpochEntry(4, 2))]),
    st.integers(0, 99),
    custom,
    st.sampled_from([STARTED, STARTED, STARTED, FINISHED, DELETED]),
    st.sampled_from([None, True, False]),
)
updates = st.builds(
    RemoteLogSegmentMetadataUpdate,
    segment_ids,
    st.integers(0, 3),
    st.just(0),
    custom,
    st.sampled_from(RemoteLogSegmentState),
)
deletes = st.builds(
    RemotePartitionDelete,
    st.sampled_from(PARTITIONS),
    st.just(1),
    st.just(0),
    st.sampled_from(RemotePartitionDeleteState),
)
snapshots = st.builds(
    RemoteLogSegmentMetadataSnapshot,
    st.just(uuid.UUID(int=1)),
    *map(st.just, (0, 9, 0, 1, 0, (EpochEntry(0, 0),), 1)),
)
histories = st.lists(
    segments | updates | updates | segments | updates | updates | deletes | snapshots, max_size=60
).map(lambda events: [replace(event, event_timestamp_ms=at) for at, event in enumerate(events)])


def folded(events: list[MetadataRecord], borders: list[int]) -> LiveSegments:
    live = LiveSegments()
    edges = [0, *sorted(borders), len(events)]
    for start, stop in itertools.pairwise(edges):
        live.add(columns_of(events[start:stop]))
    return live


@pytest.mark.parametrize("mixing", [fold_columns._ODD, 0], ids=["mixed", "all numbers alike"])
@settings(deadline=None, max_examples=examples(150))
@given(histories, st.lists(st.integers(0, 60), max_size=6), st.sampled_from([1, 5, 1000]))
def test_live_segments_of_any_history_match_readable_implementation(
    mixing: int, events: list[MetadataRecord], borders: list[int], at_once: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fold_columns, "_FOLDED_AT_ONCE", at_once)
        patch.setattr(fold_columns, "_ODD", np.uint64(mixing))
        live = folded(events, borders)
        known = known_segments(events)
        assert tuple(metadata_records(live.segments())) == known
    for state in RemoteLogSegmentState:
        segments = tuple(metadata_records(live.segments(state)))
        assert segments == tuple(segment for segment in known if segment.state is state)


@settings(deadline=None, max_examples=examples(100))
@given(histories, st.lists(st.integers(0, 60), max_size=3))
def test_dropped_events_are_counted(events: list[MetadataRecord], borders: list[int]) -> None:
    unknown: list[MetadataRecord] = []
    forbidden: list[MetadataRecord] = []
    deleted = 0
    for number, event in enumerate(events):  # different event times show a wrong assignment
        if not isinstance(event, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate):
            continue
        before, after = known_segments(events[:number]), known_segments(events[: number + 1])
        deleted += len(after) < len(before)
        if before == after:
            is_known = event.segment_id in [segment.segment_id for segment in before]
            is_update = isinstance(event, RemoteLogSegmentMetadataUpdate)
            (unknown if is_update and not is_known else forbidden).append(event)
    live = folded(events, borders)
    assert live.deleted == deleted
    assert live.dropped.unknown_segment == len(unknown)
    assert live.dropped.forbidden_transition == len(forbidden)
    first = sorted(unknown + forbidden, key=lambda event: event.event_timestamp_ms)[:10]
    assert list(metadata_records(live.dropped.first)) == first


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("folder", [GOLDEN, LOCAL_TIER], ids=["plugin", "local"])
def test_live_segments_match_broker(
    monkeypatch: pytest.MonkeyPatch, folder: Path, size: int
) -> None:
    monkeypatch.setattr(fold_columns, "_FOLDED_AT_ONCE", 20)
    lines = (folder / "metadata-topic" / "records.jsonl").read_text().splitlines()
    values = [base64.b64decode(json.loads(line)["value"]) for line in lines]
    events = [parse_metadata_record(value) for value in values]
    live = LiveSegments()
    for start in range(0, len(values), size):
        live.add(parse_metadata_columns(pa.array(values[start : start + size], pa.binary())))
    assert tuple(metadata_records(live.segments())) == known_segments(events)
    assert tuple(metadata_records(live.segments(FINISHED))) == live_segments(events)
    assert live.dropped.unknown_segment == live.dropped.forbidden_transition == 0
    assert live.deleted == sum('"DELETE_SEGMENT_FINISHED"' in line for line in lines)


def segment(number: int) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(PARTITIONS[0], uuid.UUID(int=number)),
        *(number, number, 5, 1, 10),
        segment_leader_epochs=(EpochEntry(0, 0),),
        segment_size_in_bytes=1000,
    )


def update(number: int, state: RemoteLogSegmentState) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(segment(number).segment_id, 1, 20, None, state)


def test_thousands_of_state_changes_of_one_segment_are_applied() -> None:
    again: list[MetadataRecord] = [update(1, FINISHED), update(1, STARTED), segment(1)] * 3000
    live = folded([segment(1), *again, update(1, DELETING)], [])
    (segments,) = metadata_records(live.segments())
    assert isinstance(segments, RemoteLogSegmentMetadata)
    assert segments.state is DELETING
    assert live.dropped.forbidden_transition == 6000
    assert len(live.dropped.first) == 10


def test_deleted_segments_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_columns, "_FOLDED_AT_ONCE", 1000)
    live = LiveSegments()
    states = (FINISHED, DELETING, DELETED)
    tracemalloc.start()
    for first in range(0, 4000, 100):
        numbers = range(first, first + 100)
        history = [update(number, state) for state in states for number in numbers]
        live.add(columns_of([*map(segment, numbers), *history]))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert live.deleted == 4000
    assert len(live.segments()) == 0
    assert kept < 1_000_000  # from 3 MB of columns


def test_segment_is_unknown_after_its_partition_was_deleted() -> None:
    delete = RemotePartitionDelete(
        PARTITIONS[0], 1, 15, RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
    )
    live = folded([segment(1), delete, update(1, FINISHED), segment(2)], [])
    assert list(metadata_records(live.segments())) == [segment(2)]
    assert live.dropped.unknown_segment == 1
