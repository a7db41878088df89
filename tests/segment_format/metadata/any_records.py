"""Generates any metadata record that can be written, for property tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from segment_format._cursor import TaggedField
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
from tests.segment_format.metadata.writers import WireDetails, write_metadata_record

if TYPE_CHECKING:
    from segment_format.metadata.model import MetadataRecord

tags = st.lists(
    st.builds(TaggedField, st.integers(1, 2**31 - 1), st.binary(max_size=6)),
    max_size=2,
    unique_by=lambda field: field.tag,
).map(lambda fields: tuple(sorted(fields, key=lambda field: field.tag)))
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
partitions = st.builds(
    TopicIdPartition,
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.uuids(),
    st.integers(0, 2**31 - 1),
)
segments = st.builds(RemoteLogSegmentId, partitions, st.uuids())
custom = st.none() | st.binary(max_size=20)


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, object]:
    start, end = sorted(draw(st.tuples(*[st.integers(0, 2**63 - 1)] * 2)))
    epochs = draw(st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=4))
    starts = sorted(
        draw(st.lists(st.integers(0, 2**63 - 1), min_size=len(epochs), max_size=len(epochs)))
    )
    return {
        "start_offset": start,
        "end_offset": end,
        "max_timestamp_ms": draw(int64s),
        "broker_id": draw(int32s),
        "event_timestamp_ms": draw(int64s),
        "segment_leader_epochs": tuple(map(EpochEntry, sorted(epochs), starts)),
        "segment_size_in_bytes": draw(st.integers(0, 2**31 - 1)),
        "custom_metadata": draw(custom),
        "state": draw(st.sampled_from(RemoteLogSegmentState)),
        "txn_index_empty": draw(st.sampled_from([None, True, False])),
    }


Written = tuple["MetadataRecord", bytes]


@st.composite
def written_segments(draw: st.DrawFn) -> Written:
    body = draw(bodies())
    names = draw(st.permutations([entry.epoch for entry in body["segment_leader_epochs"]]))  # type: ignore[attr-defined]
    order = tuple((epoch, draw(tags)) for epoch in names)
    version = draw(st.sampled_from([0, 1]))
    record: MetadataRecord
    if draw(st.booleans()):
        record = RemoteLogSegmentMetadataSnapshot(draw(st.uuids()), **body)  # type: ignore[arg-type]
        return record, write_metadata_record(record, WireDetails(version, draw(tags), epochs=order))
    record = RemoteLogSegmentMetadata(draw(segments), **body)  # type: ignore[arg-type]
    wire = WireDetails(version, draw(tags), draw(tags), draw(tags), order)
    return record, write_metadata_record(record, wire)


def _written(record: MetadataRecord, wire: WireDetails) -> Written:
    return record, write_metadata_record(record, wire)


written_records: st.SearchStrategy[Written] = st.one_of(
    written_segments(),
    st.builds(
        _written,
        st.builds(
            RemoteLogSegmentMetadataUpdate,
            segments,
            int32s,
            int64s,
            custom,
            st.sampled_from(RemoteLogSegmentState),
        ),
        st.builds(WireDetails, st.sampled_from([0, 1]), tags, tags, tags),
    ),
    st.builds(
        _written,
        st.builds(
            RemotePartitionDelete,
            partitions,
            int32s,
            int64s,
            st.sampled_from(RemotePartitionDeleteState),
        ),
        st.builds(WireDetails, st.sampled_from([0, 1]), tags, topic_id_partition_tags=tags),
    ),
)
"""Records and their encoding choices."""
written_values = written_records.map(lambda written: written[1])
