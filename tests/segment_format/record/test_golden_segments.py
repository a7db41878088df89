"""Compares segments of a real broker with the rows that a real consumer read.

Covers only segments whose `.log` object is neither compressed nor encrypted.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from segment_format.index.checkpoints import LeaderEpochCheckpoint
from segment_format.index.producer_snapshot import parse_producer_snapshot
from segment_format.index.sparse_indexes import OffsetIndex, TimeIndex
from segment_format.index.transaction_index import parse_transaction_index
from segment_format.isolation import AbortedIntervals
from segment_format.record.control_record import ControlRecordType, batch_control_type
from segment_format.record.records import DecodedBatch, iter_batches
from tests.golden_data import LOCAL_TIER, TIER, expected_records, summary
from tests.segment_format.undecided import last_stable_offset, open_transactions

if TYPE_CHECKING:
    from pathlib import Path

    from segment_format.record.records import Record

Segment = dict[str, Any]


PARTITION_FACTS: dict[tuple[str, int], dict[str, Any]] = {
    (
        topic["topic"] + ("-previous" if topic.get("previous_incarnation") else ""),
        partition["partition"],
    ): partition
    for topic in summary()["topics"]
    for partition in topic["partitions"]
}
"""Entries of partitions in `summary.json`, by the name of the Parquet file and the partition
number.
"""


def plain_segments(topic: str, partition: int) -> list[Segment]:
    return [
        segment
        for segment in PARTITION_FACTS[topic, partition]["remote_segments"]
        if not segment["compression"] and segment["key_id"] is None
    ]


PARTITIONS = [key for key in PARTITION_FACTS if plain_segments(*key)]
every_partition = pytest.mark.parametrize(("topic", "partition"), PARTITIONS)


def log_of(segment: Segment) -> bytes:
    return (TIER / f"{segment['object_stem']}.log").read_bytes()


def side_files(segment: Segment) -> dict[str, bytes]:
    """Returns the side files in an uncompressed `.indexes` object, by their manifest names."""
    stem = segment["object_stem"]
    manifest = json.loads((TIER / f"{stem}.rsm-manifest").read_bytes())
    joined = (TIER / f"{stem}.indexes").read_bytes()
    return {
        name: joined[section["position"] : section["position"] + section["size"]]
        for name, section in manifest["segmentIndexes"].items()
        if section is not None
    }


def expected_rows(topic: str, partition: int) -> dict[int, dict[str, Any]]:
    return {
        row["offset"]: row
        for row in expected_records(topic).to_pylist()
        if row["partition"] == partition
    }


def as_row(record: Record) -> tuple[object, ...]:
    return (
        record.offset,
        record.timestamp,
        int(record.timestamp_type),
        record.key,
        record.value,
        list(record.headers),
        record.leader_epoch,
    )


def expected_row(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        row["offset"],
        row["timestamp_ms"],
        row["timestamp_type"],
        row["key"],
        row["value"],
        [(header["key"], header["value"]) for header in row["headers"]],
        row["leader_epoch"],
    )


def test_golden_tier_has_uncompressed_segments_of_every_listed_topic() -> None:
    assert {topic for topic, _ in PARTITIONS} >= {
        "appendtime",
        "codecs",
        "compacted",
        "epochs",
        "timeline",
        "trimmed",
        "txn",
        "wide",
    }


@every_partition
def test_records_match_consumer(topic: str, partition: int) -> None:
    rows = expected_rows(topic, partition)
    log_start = PARTITION_FACTS[topic, partition]["log_start_offset"]
    for segment in plain_segments(topic, partition):
        decoded = [
            as_row(record)
            for batch in iter_batches(log_of(segment))
            if not batch.is_control_batch
            for record in batch.records
            if record.offset >= log_start
        ]
        expected = [
            expected_row(row)
            for offset, row in rows.items()
            if max(segment["base_offset"], log_start) <= offset <= segment["end_offset"]
        ]
        assert decoded == expected


@every_partition
def test_markers_match_broker(topic: str, partition: int) -> None:
    partition_facts = PARTITION_FACTS[topic, partition]
    for segment in plain_segments(topic, partition):
        markers = []
        for batch in iter_batches(log_of(segment)):
            kind = batch_control_type(batch)
            if kind is not None:
                markers.append((batch.base_offset, batch.producer_id, kind.name))
        if topic == "compacted":
            # Compaction removes some markers; the remaining ones must be real.
            assert all(kind in ("ABORT", "COMMIT") for _, _, kind in markers)
            continue
        assert markers == [
            (marker["offset"], marker["producerId"], marker["type"])
            for marker in partition_facts["markers"]
            if segment["base_offset"] <= marker["offset"] <= segment["end_offset"]
        ]


def check_side_files(
    log: bytes,
    *,
    base_offset: int,
    end_offset: int | None,
    files: dict[str, bytes],
    compacted: bool = False,
) -> None:
    batches = list(iter_batches(log))
    check_offset_index(batches, files["OFFSET"], base_offset)
    check_time_index(batches, files["TIMESTAMP"], base_offset)
    checkpoint = LeaderEpochCheckpoint.from_bytes(files["LEADER_EPOCH"])
    assert checkpoint.to_bytes() == files["LEADER_EPOCH"]
    for batch in batches:
        if checkpoint.entries[0].start_offset <= batch.base_offset:
            assert checkpoint.epoch_for_offset(batch.base_offset) == batch.leader_epoch
    markers = {
        (batch.producer_id, batch.base_offset)
        for batch in batches
        if batch_control_type(batch) is ControlRecordType.ABORT
    }
    txns = parse_transaction_index(files.get("TRANSACTION", b""))
    assert {(txn.producer_id, txn.last_offset) for txn in txns} <= markers
    entries = parse_producer_snapshot(files["PRODUCER_SNAPSHOT"])
    last_data = {
        batch.producer_id: batch
        for batch in batches
        if batch.producer_id >= 0 and not batch.is_control_batch
    }
    for entry in entries:
        data = last_data.get(entry.producer_id)
        if data is not None and data.producer_epoch == entry.producer_epoch:
            # Compaction removes batches, but keeps the state of their producers.
            later = compacted and entry.last_offset > data.last_offset
            assert later or entry.last_offset in (data.last_offset, -1)
    if end_offset is not None:
        assert all(entry.last_offset <= end_offset for entry in entries)


def check_offset_index(batches: list[DecodedBatch], data: bytes, base_offset: int) -> None:
    index = OffsetIndex.from_bytes(data, base_offset=base_offset)
    assert index.to_bytes() == data
    starts = {batch.position: batch for batch in batches}
    for offset, position in zip(index.offsets.tolist(), index.positions.tolist(), strict=True):
        assert starts[position].base_offset <= offset
        assert offset in {batch.last_offset for batch in batches if batch.position >= position}
        # All batches before the entry's position end before its offset.
        assert all(batch.last_offset < offset for batch in batches if batch.position < position)
    for batch in batches:
        for offset in (batch.base_offset, batch.last_offset):
            assert index.lookup(offset).position <= batch.position


def check_time_index(batches: list[DecodedBatch], data: bytes, base_offset: int) -> None:
    index = TimeIndex.from_bytes(data, base_offset=base_offset)
    assert index.to_bytes() == data
    for timestamp, offset in zip(index.timestamps.tolist(), index.offsets.tolist(), strict=True):
        so_far = [batch for batch in batches if batch.base_offset <= offset]
        assert max(batch.max_timestamp for batch in so_far) == timestamp
    if len(index):
        assert int(index.timestamps[-1]) == max(batch.max_timestamp for batch in batches)
    for batch in batches:
        for record in batch.records:
            assert index.lookup(record.timestamp).offset <= batch.last_offset or (
                index.lookup(record.timestamp).timestamp == record.timestamp
            )


MANIFEST_NAMES = {
    "offset": "OFFSET",
    "timestamp": "TIMESTAMP",
    "producerSnapshot": "PRODUCER_SNAPSHOT",
    "leaderEpoch": "LEADER_EPOCH",
    "transaction": "TRANSACTION",
}


@every_partition
def test_side_files_match_log(topic: str, partition: int) -> None:
    for segment in plain_segments(topic, partition):
        check_side_files(
            log_of(segment),
            base_offset=segment["base_offset"],
            end_offset=segment["end_offset"],
            compacted=topic == "compacted",
            files={MANIFEST_NAMES[name]: data for name, data in side_files(segment).items()},
        )


LOCAL_SEGMENTS = sorted((LOCAL_TIER / "tier").rglob("*.log"))


@pytest.mark.parametrize(
    "log", LOCAL_SEGMENTS, ids=lambda path: f"{path.parent.name[:6]}/{path.name[:24]}"
)
def test_side_files_of_local_layout_match_log(log: Path) -> None:
    def side_file(suffix: str) -> bytes | None:
        path = log.with_suffix(suffix)
        return path.read_bytes() if path.exists() else None

    files = {
        "OFFSET": side_file(".index"),
        "TIMESTAMP": side_file(".timeindex"),
        "TRANSACTION": side_file(".txnindex"),
        "LEADER_EPOCH": side_file(".leader_epoch_checkpoint"),
        "PRODUCER_SNAPSHOT": side_file(".snapshot"),
    }
    check_side_files(
        log.read_bytes(),
        base_offset=int(log.name[:20]),
        end_offset=None,
        files={name: data for name, data in files.items() if data is not None},
    )


@pytest.mark.parametrize("partition", [0, 1])
def test_read_committed_matches_broker_transactions(partition: int) -> None:
    partition_facts = PARTITION_FACTS["txn", partition]
    segments = plain_segments("txn", partition)
    stop = partition_facts["tier_end_offset"]
    txns = [
        txn
        for segment in segments
        for txn in parse_transaction_index(side_files(segment).get("transaction", b""))
    ]
    undecided = open_transactions(
        parse_producer_snapshot(side_files(segments[-1])["producerSnapshot"]), below=stop
    )
    stable = last_stable_offset(undecided, end_offset=stop)
    aborted = AbortedIntervals.from_txns(txns, start_offset=0, stop_offset=stop)

    visible = [
        record.offset
        for segment in segments
        for batch in iter_batches(log_of(segment))
        if not batch.is_control_batch
        and not (
            batch.is_transactional and aborted.is_aborted(batch.producer_id, batch.base_offset)
        )
        for record in batch.records
        if record.offset < stable
    ]

    assert stable == partition_facts["tier_last_stable_offset"]
    assert {(txn.producer_id, txn.first_offset) for txn in undecided} == {
        (txn["producerId"], txn["first"]) for txn in partition_facts["undecided_in_tier"]
    }
    assert visible == [
        offset
        for offset, row in expected_rows("txn", partition).items()
        if row["visible_read_committed_offline"]
    ]
