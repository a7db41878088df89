from __future__ import annotations

import base64
import json
import pickle
import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format._cursor import MessageReader, TaggedField, write_uvarint, write_varlong
from segment_format.errors import InvalidMetadataError
from segment_format.index.checkpoints import EpochEntry
from segment_format.kafka_uuid import uuid_from_text, uuid_to_text
from segment_format.metadata.model import (
    MetadataRecord,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataSnapshot,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDelete,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from segment_format.metadata.remote_log_segment_metadata import (
    parse_metadata_record,
    write_segment_event,
)
from tests.golden_data import GOLDEN, LOCAL_TIER, VECTORS
from tests.segment_format.metadata.any_records import (
    Written,
    int64s,
    written_records,
    written_values,
)
from tests.segment_format.metadata.writers import WireDetails, write_metadata_record
from tests.segment_format.outcomes import assert_value_or_positioned_error

KAFKA: dict[str, Any] = json.loads((VECTORS / "kafka-vectors.json").read_text())
VALUES = {name: bytes.fromhex(text) for name, text in KAFKA["metadata_topic"].items()}
RECORDS = [
    json.loads(line)
    for folder in (GOLDEN, LOCAL_TIER)
    for line in (folder / "metadata-topic" / "records.jsonl").read_text().splitlines()
]

FOO_1 = TopicIdPartition("foo", uuid_from_text("LWgrMmVrT0a__7a4SasuPA"), 1)
SEGMENT = RemoteLogSegmentId(FOO_1, uuid.UUID("6c2a97f5-4fbe-4bee-94f1-750cf48236e5"))
COPY_STARTED = RemoteLogSegmentMetadata(
    SEGMENT,
    start_offset=0,
    end_offset=99,
    max_timestamp_ms=1700000000000,
    broker_id=1,
    event_timestamp_ms=1700000001000,
    segment_leader_epochs=(EpochEntry(0, 0), EpochEntry(2, 80)),
    segment_size_in_bytes=1 << 20,
)
COPY_FINISHED = RemoteLogSegmentMetadataUpdate(
    SEGMENT, 1, 1700000002000, b"\1\2\3", RemoteLogSegmentState.COPY_SEGMENT_FINISHED
)
EXPECTED: dict[str, MetadataRecord] = {
    "type0": COPY_STARTED,
    "type1": COPY_FINISHED,
    "type1-nocustom": replace(
        COPY_FINISHED, custom_metadata=None, state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED
    ),
    "type2": RemotePartitionDelete(
        FOO_1, 1, 1700000003000, RemotePartitionDeleteState.DELETE_PARTITION_MARKED
    ),
    "type3": RemoteLogSegmentMetadataSnapshot(
        SEGMENT.id,
        start_offset=0,
        end_offset=99,
        max_timestamp_ms=1700000000000,
        broker_id=1,
        event_timestamp_ms=1700000001000,
        segment_leader_epochs=(EpochEntry(0, 0), EpochEntry(2, 80)),
        segment_size_in_bytes=1 << 20,
    ),
    "type0+txnIndexEmpty": replace(COPY_STARTED, txn_index_empty=True),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_record_matches_kafka_vectors(name: str) -> None:
    record = parse_metadata_record(VALUES[name])
    assert record == EXPECTED[name]
    assert write_metadata_record(EXPECTED[name]) == VALUES[name]


def test_every_vector_is_tested() -> None:
    assert set(EXPECTED) == set(VALUES)


def as_kafka_decodes(record: MetadataRecord) -> dict[str, object]:
    assert isinstance(record, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate)
    partition = record.segment_id.topic_id_partition
    custom = record.custom_metadata
    decoded: dict[str, object] = {
        "type": type(record).__name__,
        "topic": partition.topic,
        "topicId": uuid_to_text(partition.topic_id),
        "topicPartition": partition.partition,
        "segmentId": uuid_to_text(record.segment_id.id),
        "brokerId": record.broker_id,
        "eventTimestampMs": record.event_timestamp_ms,
        "state": record.state.name,
        "customMetadata": None if custom is None else base64.b64encode(custom).decode(),
    }
    if isinstance(record, RemoteLogSegmentMetadata):
        decoded |= {
            "startOffset": record.start_offset,
            "endOffset": record.end_offset,
            "maxTimestampMs": record.max_timestamp_ms,
            "segmentSizeInBytes": record.segment_size_in_bytes,
            "segmentLeaderEpochs": {
                str(entry.epoch): entry.start_offset for entry in record.segment_leader_epochs
            },
            "txnIndexEmpty": bool(record.txn_index_empty),
        }
    return decoded


def test_records_of_broker_match_kafka_decoder() -> None:
    assert len(RECORDS) > 250
    for line in RECORDS:
        record = parse_metadata_record(base64.b64decode(line["value"]))
        assert as_kafka_decodes(record) == line["decoded"]


def test_written_events_equal_bytes_of_broker() -> None:
    """Brokers write several leader epochs in hash order, so such events are only parsed again."""
    events = [(base64.b64decode(line["value"]), line["decoded"]) for line in RECORDS]
    assert any(len(decoded.get("segmentLeaderEpochs", ())) > 1 for _, decoded in events)
    for value, _ in events:
        record = parse_metadata_record(value)
        assert isinstance(record, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate)
        written = write_segment_event(record)
        assert parse_metadata_record(written) == record
        epochs = getattr(record, "segment_leader_epochs", ())
        assert len(epochs) > 1 or written == value
        assert len(written) == len(value)


@settings(deadline=None)
@given(written_records)
def test_record_round_trips(written: Written) -> None:
    record, value = written
    parsed = parse_metadata_record(value)
    assert parsed == record
    assert pickle.loads(pickle.dumps(parsed)) == record


def test_unknown_tagged_fields_are_skipped_in_every_structure() -> None:
    field = TaggedField(7, b"later")
    wire = WireDetails(1, (field,), (field,), (field,), ((2, (field,)), (0, ())))
    value = write_metadata_record(COPY_STARTED, wire)
    assert value.count(b"\1\7\5later") == 4
    assert parse_metadata_record(value) == COPY_STARTED


def test_leader_epochs_in_hash_order_are_sorted() -> None:
    value = VALUES["type0"]
    first, second = (
        bytes.fromhex("00000000" + "00" * 8 + "00"),
        bytes.fromhex("00000002" + "00" * 7 + "5000"),
    )
    assert value.count(first + second) == 1
    swapped = value.replace(first + second, second + first)
    parsed = parse_metadata_record(swapped)
    assert parsed == COPY_STARTED


def test_txn_index_empty_with_value_false_is_not_parsed_as_missing() -> None:
    said_no = VALUES["type0+txnIndexEmpty"][:-1] + b"\0"
    parsed = parse_metadata_record(said_no)
    assert parsed == replace(COPY_STARTED, txn_index_empty=False)
    assert write_metadata_record(parsed) == said_no
    assert parse_metadata_record(VALUES["type0"]) == replace(COPY_STARTED, txn_index_empty=None)


def test_record_version_1_parses() -> None:
    for name, value in VALUES.items():
        newer = value[:2] + b"\1" + value[3:]
        assert parse_metadata_record(newer) == EXPECTED[name]


TYPE0 = VALUES["type0"]
SEGMENT_END = 3 + 4 + 16 + 4 + 1 + 16 + 1
EPOCHS_AT = SEGMENT_END + 8 + 8 + 4 + 8 + 8


def patched(value: bytes, position: int, new: str) -> bytes:
    data = bytes.fromhex(new)
    return value[:position] + data + value[position + len(data) :]


REFUSED = {
    "empty": (b"", "frame version: the varint runs past the end"),
    "frame version 0": (patched(TYPE0, 0, "00"), "frame version 0 is not supported; supported: 1"),
    "record type 4": (
        patched(TYPE0, 1, "04"),
        "record type 4 is not supported; supported: 0, 1, 2, 3",
    ),
    "record version 2": (
        patched(TYPE0, 2, "02"),
        "version 2 of record type 0 is not supported; supported: 0, 1",
    ),
    "bytes behind": (TYPE0 + b"\0", "1 bytes after the end"),
    "truncated": (TYPE0[:-1], "tagged fields: the varint runs past the end"),
    "null topic": (patched(TYPE0, 3, "00"), "null where text"),
    "topic longer than the record": (patched(TYPE0, 3, "ff7f"), "topic: 16382 bytes wanted"),
    "topic not UTF-8": (patched(TYPE0, 4, "ff"), "invalid UTF-8"),
    "negative partition": (patched(TYPE0, 23, "ffffffff"), "partition is negative: -1"),
    "negative start": (patched(TYPE0, SEGMENT_END, "ff" * 8), "invalid offsets -1 to"),
    "end before start": (patched(TYPE0, SEGMENT_END, "00" * 7 + "64"), "invalid offsets 100 to 99"),
    "null epochs": (patched(TYPE0, EPOCHS_AT, "00"), "null where an array"),
    "more epochs than bytes": (
        patched(TYPE0, EPOCHS_AT, "ffffffff07"),
        "2147483646 items do not fit",
    ),
    "epoch twice": (patched(TYPE0, EPOCHS_AT + 14, "00000000"), "epoch 0 occurs twice"),
    "epochs out of order": (patched(TYPE0, EPOCHS_AT + 5, "00" * 7 + "51"), "2 starts before"),
    "negative epoch": (patched(TYPE0, EPOCHS_AT + 1, "ffffffff"), "start offset is negative"),
    "negative size": (patched(TYPE0, EPOCHS_AT + 27, "ffffffff"), "segment size is negative: -1"),
    "unknown state": (patched(TYPE0, EPOCHS_AT + 32, "04"), "segment state 4"),
    "no epochs": (
        TYPE0[:EPOCHS_AT] + b"\1" + TYPE0[EPOCHS_AT + 27 :],
        "has no leader epochs",
    ),
    "unknown delete state": (VALUES["type2"][:-2] + b"\3\0", "partition delete state 3"),
    "remark of two bytes": (TYPE0[:-1] + bytes.fromhex("0100020001"), "not a boolean"),
    "remark 2": (TYPE0[:-1] + bytes.fromhex("01000102"), "not a boolean"),
    "tags descending": (TYPE0[:-1] + bytes.fromhex("0205000400"), "tag 4 follows tag 5"),
    "number of six bytes": (b"\x81" * 5 + b"\0", "longer than 5 bytes"),
    "number beyond 31 bits": (b"\xff\xff\xff\xff\x0f", "larger than"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_value_raises(name: str) -> None:
    value, reason = REFUSED[name]
    with pytest.raises(InvalidMetadataError, match=reason) as caught:
        parse_metadata_record(value)
    assert caught.value.position is not None


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_parse_or_raise(data: bytes) -> None:
    assert_value_or_positioned_error(lambda: parse_metadata_record(data), size=len(data))


@settings(deadline=None)
@given(st.integers(0, 3), st.integers(0, 1), st.binary(max_size=120))
def test_record_with_any_body_parses_or_raises(kind: int, version: int, body: bytes) -> None:
    data = bytes([1, kind, version]) + body
    assert_value_or_positioned_error(lambda: parse_metadata_record(data), size=len(data))


@settings(deadline=None)
@given(
    written_values | st.sampled_from(list(VALUES.values())),
    st.data(),
)
def test_changed_record_parses_or_raises(value: bytes, data: st.DataObject) -> None:
    changed = bytearray(value)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    changed = (
        changed[: data.draw(st.integers(0, len(changed)))] if data.draw(st.booleans()) else changed
    )
    assert_value_or_positioned_error(
        lambda: parse_metadata_record(bytes(changed)), size=len(changed)
    )


@settings(deadline=None)
@given(st.integers(0, 2**31 - 1))
def test_uvarint_round_trips(number: int) -> None:
    assert MessageReader(write_uvarint(number), InvalidMetadataError).uvarint("number") == number


@pytest.mark.parametrize(("number", "text"), KAFKA["varlong"])
def test_varlong_matches_kafka_vectors(number: int, text: str) -> None:
    data = bytes.fromhex(text)
    assert write_varlong(number) == data
    assert MessageReader(data, InvalidMetadataError).varlong("number") == number


@settings(deadline=None)
@given(int64s)
def test_varlong_round_trips(number: int) -> None:
    data = write_varlong(number)
    assert MessageReader(data, InvalidMetadataError).varlong("number") == number
    assert len(data) <= 10
