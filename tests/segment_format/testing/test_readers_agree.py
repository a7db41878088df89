"""The readers of `segment_format` find in the writer's bytes what the writer meant."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format.errors import SegmentFormatError
from segment_format.index.leader_epoch_checkpoint import LeaderEpochCheckpoint
from segment_format.index.offset_index import OffsetIndex
from segment_format.index.producer_snapshot import parse_producer_snapshot
from segment_format.index.time_index import TimeIndex
from segment_format.index.transaction_index import parse_transaction_index
from segment_format.isolation import AbortedIntervals, last_stable_offset, open_transactions
from segment_format.manifest.encryption import unwrap_data_key
from segment_format.manifest.local_key import (
    parse_local_file_name,
    parse_local_partition_directory,
)
from segment_format.manifest.object_key import parse_object_key
from segment_format.manifest.private_key import load_private_key
from segment_format.manifest.segment_manifest import SegmentManifest
from segment_format.manifest.transform import restore_chunk, restore_index
from segment_format.record.batch_header import TimestampType
from segment_format.record.records import iter_batches
from segment_format.testing import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    AivenTierWriter,
    BuiltLog,
    EncryptionKey,
    LocalTierWriter,
    LogBuilder,
    SegmentFiles,
    SimpleRecord,
    write_batch,
    write_message_set,
)
from segment_format.testing.foreign import foreign_compressors
from segment_format.testing.strategies import (
    BatchCase,
    batches,
    logs,
    message_sets,
    mutations,
    records,
    segments,
)
from tests.golden_data import CHUNK_SIZE, KEY_PREFIX, KEYS, LOCAL_TIER, TIER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from segment_format.record.decoded import DecodedBatch
    from segment_format.testing import ExpectedRow

KEY = EncryptionKey("key1", (KEYS / "key1.public.pem").read_bytes())


def read_facts(batch: DecodedBatch) -> list[tuple[object, ...]]:
    return [
        (
            record.offset,
            record.timestamp,
            int(record.timestamp_type),
            record.key,
            record.value,
            record.headers,
            -1 if record.leader_epoch is None else record.leader_epoch,
            record.sequence,
            batch.producer_id,
            batch.producer_epoch,
            batch.is_transactional,
            batch.compression_type.name.lower(),
        )
        for record in batch.records
        if not batch.is_control_batch
    ]


def meant_facts(rows: Sequence[ExpectedRow]) -> list[tuple[object, ...]]:
    return [
        (
            row.offset,
            row.timestamp,
            row.timestamp_type,
            row.key,
            row.value,
            row.headers,
            row.leader_epoch,
            row.sequence,
            row.producer_id,
            row.producer_epoch,
            row.transactional,
            row.codec,
        )
        for row in rows
    ]


@settings(max_examples=200, deadline=None)
@given(batches() | message_sets())
def test_entries_decode_to_the_rows_meant(case: BatchCase) -> None:
    decoded = list(iter_batches(case.data))
    assert [fact for batch in decoded for fact in read_facts(batch)] == meant_facts(case.rows)
    assert decoded[0].base_offset == case.base_offset
    assert decoded[-1].last_offset + 1 == case.next_offset


def read_offsets(log: BuiltLog, isolation: str, start: int, stop: int, count: int) -> list[int]:
    """What a reader of the first `count` segments returns, by the rules for tiered storage."""
    tier = log.segments[:count]
    end = min(stop, tier[-1].next_offset)
    aborted = AbortedIntervals.from_txns((), start_offset=0, stop_offset=0)
    if isolation == READ_COMMITTED:
        first_behind = next(
            (number for number, segment in enumerate(tier) if segment.next_offset >= end), 0
        )
        for segment in tier[first_behind:]:
            undecided = open_transactions(parse_producer_snapshot(segment.snapshot), below=end)
            if not undecided:
                break
        aborted = AbortedIntervals.from_txns(
            (txn for one in tier for txn in parse_transaction_index(one.txnindex or b"")),
            start_offset=start,
            stop_offset=end,
        )
        end = last_stable_offset(undecided, end_offset=end)
    return [
        record.offset
        for segment in tier
        for batch in iter_batches(segment.log)
        if not batch.is_control_batch
        and not (
            batch.is_transactional and aborted.is_aborted(batch.producer_id, batch.base_offset)
        )
        for record in batch.records
        if start <= record.offset < end
    ]


@settings(max_examples=150, deadline=None)
@given(st.booleans().flatmap(lambda legacy: logs(legacy=legacy, codec=st.just("none"))), st.data())
def test_isolation_levels_give_the_rows_meant(log: BuiltLog, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(log.segments)))
    first, end = log.segments[0].base_offset, log.end_offset(count)
    start = data.draw(st.integers(first, end))
    stop = data.draw(st.integers(start, end))
    for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
        read = read_offsets(log, isolation, start, stop, count)
        meant = log.rows(isolation, start=start, stop=stop, segment_count=count)
        assert read == [row.offset for row in meant]


@settings(max_examples=100, deadline=None)
@given(logs())
def test_side_files_describe_the_log(log: BuiltLog) -> None:
    following = log.segments[0].base_offset
    for segment in log.segments:
        assert segment.base_offset == following
        following = segment.next_offset
        decoded = list(iter_batches(segment.log))
        borders = {batch.position: batch.last_offset for batch in decoded}
        index = OffsetIndex.from_bytes(segment.index, base_offset=segment.base_offset)
        for offset, position in zip(index.offsets, index.positions, strict=True):
            assert borders[position] == offset
        times = TimeIndex.from_bytes(segment.timeindex, base_offset=segment.base_offset)
        newest = max(batch.max_timestamp for batch in decoded)
        assert segment.max_timestamp_ms == newest
        assert (int(times.timestamps[-1]) if len(times) else -1) == newest
        lineage = LeaderEpochCheckpoint.from_bytes(segment.leader_epoch_checkpoint)
        for batch in decoded:
            assert lineage.epoch_for_offset(batch.base_offset) == batch.leader_epoch
        assert segment.epochs[0][1] == segment.base_offset
        assert {batch.leader_epoch for batch in decoded} <= {epoch for epoch, _ in segment.epochs}


@settings(max_examples=60, deadline=None)
@given(
    segment=segments(),
    chunk_size=st.sampled_from([50, 61, 300, 1 << 20]),
    compression=st.booleans(),
    encryption=st.sampled_from([None, KEY]),
    key_prefix=st.sampled_from(["", "tiered/", "no-slash"]),
)
def test_aiven_objects_hold_the_segment(
    segment: SegmentFiles,
    chunk_size: int,
    compression: bool,
    encryption: EncryptionKey | None,
    key_prefix: str,
) -> None:
    objects: dict[str, bytes] = {}
    writer = AivenTierWriter(
        objects,
        topic="my-topic.1",
        partition=3,
        key_prefix=key_prefix,
        chunk_size=chunk_size,
        compression=compression,
        encryption=encryption,
    )
    written = writer.write_segment(segment)
    assert list(objects) == list(written.keys)
    log, indexes, manifest_json = objects.values()
    for key in written.keys:
        parsed = parse_object_key(key, prefix=key_prefix)
        assert parsed is not None
        assert (parsed.topic, parsed.partition) == ("my-topic.1", 3)
        assert parsed.base_offset == segment.base_offset
    assert restore(log, indexes, manifest_json) == (
        segment.log,
        [
            segment.index,
            segment.timeindex,
            segment.snapshot,
            segment.leader_epoch_checkpoint,
            segment.txnindex,
        ],
    )
    manifest = SegmentManifest.from_json(manifest_json)
    assert manifest.metadata is not None
    assert manifest.metadata.end_offset == segment.end_offset
    assert manifest.metadata.event_timestamp_ms == written.event_timestamp_ms
    assert segment.epochs == tuple(
        (entry.epoch, entry.start_offset) for entry in manifest.metadata.segment_leader_epochs
    )


def restore(log: bytes, indexes: bytes, manifest_json: bytes) -> tuple[bytes, list[bytes | None]]:
    """The segment's log and its side files, in the order of the `.indexes` object."""
    manifest = SegmentManifest.from_json(manifest_json)
    data_key = aad = None
    if manifest.encryption is not None:
        private = load_private_key((KEYS / "key1.private.pem").read_bytes())
        data_key = unwrap_data_key(manifest.encryption.data_key, private)
        aad = manifest.encryption.aad
    assert manifest.chunk_index.transformed_size == len(log)
    assert manifest.segment_indexes.transformed_size == len(indexes)
    restored = b"".join(
        restore_chunk(
            log[chunk.transformed_position : chunk.transformed_stop],
            chunk,
            compression=manifest.compression,
            data_key=data_key,
            aad=aad,
        )
        for chunk in manifest.chunk_index.chunks()
    )
    parts = manifest.segment_indexes
    blobs = (
        parts.offset,
        parts.timestamp,
        parts.producer_snapshot,
        parts.leader_epoch,
        parts.transaction,
    )
    return restored, [
        None
        if part is None
        else bytes(
            restore_index(indexes[part.position : part.stop], part, data_key=data_key, aad=aad)
        )
        for part in blobs
    ]


def test_tiers_in_folders_have_kafkas_names(tmp_path: Path) -> None:
    builder = LogBuilder()
    builder.send(7, [SimpleRecord(b"undone")])
    builder.abort(7)
    builder.roll()
    builder.append([SimpleRecord(b"kept")])
    writer = LocalTierWriter(tmp_path, topic="my-topic", partition=12)
    log = builder.build()
    written = [writer.write_segment(segment) for segment in log.segments]
    (root,) = tmp_path.iterdir()
    (folder,) = root.iterdir()
    assert root.name == "kafka-tiered-storage"
    partition = parse_local_partition_directory(folder.name)
    assert partition is not None
    assert (partition.topic, partition.partition) == ("my-topic", 12)
    names = [parse_local_file_name(path.name) for path in sorted(folder.iterdir())]
    assert [name.base_offset for name in names if name is not None] == [0] * 6 + [2] * 5
    assert {str(path.relative_to(tmp_path)) for path in folder.iterdir()} == {
        key for segment in written for key in segment.keys
    }
    first = folder / written[0].keys[0].rsplit("/", 1)[1]
    assert first.read_bytes() == log.segments[0].log


def rewritten(batch: DecodedBatch) -> bytes:
    """A batch of a real broker written anew from its decoded form, with its own sequence rules."""
    appended = batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    produced = [
        SimpleRecord(
            value=record.value,
            key=record.key,
            headers=record.headers,
            timestamp=record.timestamp,
            offset=record.offset,
        )
        for record in batch.records
    ]
    if batch.magic < 2:
        return write_message_set(produced, base_offset=batch.base_offset, magic=batch.magic)
    assert not appended, "the producer's own times are gone in the decoded form"
    return write_batch(
        produced,
        base_offset=batch.base_offset,
        leader_epoch=batch.leader_epoch,
        max_timestamp=batch.max_timestamp,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        transactional=batch.is_transactional,
        control=batch.is_control_batch,
        last_offset_delta=batch.last_offset - batch.base_offset,
        delete_horizon=batch.delete_horizon,
    )


def golden_logs(topic: str) -> Iterator[bytes]:
    for manifest_path in sorted(TIER.glob(f"{KEY_PREFIX}{topic}-*/*/*.rsm-manifest")):
        log = manifest_path.with_suffix(".log")
        indexes = manifest_path.with_suffix(".indexes")
        yield restore(log.read_bytes(), indexes.read_bytes(), manifest_path.read_bytes())[0]


@pytest.mark.parametrize("topic", ["codecs", "compacted", "epochs", "txn", "encrypted"])
def test_a_brokers_plain_batches_come_out_byte_for_byte(topic: str) -> None:
    compared = 0
    for log in golden_logs(topic):
        for batch in iter_batches(log):
            # The base timestamp of a compacted batch may be that of a record that is gone.
            first = batch.records[0].timestamp if batch.records else -1
            stated = int.from_bytes(log[batch.position + 27 : batch.position + 35], "big")
            kept_base = batch.delete_horizon is not None or stated == first & ((1 << 64) - 1)
            if batch.compression_type.name == "NONE" and kept_base:
                original = log[batch.position : batch.position + batch.size]
                assert rewritten(batch) == original
                compared += 1
    assert compared >= 10


def test_a_brokers_manifests_come_out_byte_for_byte() -> None:
    """Plain segments: the same objects again from what the readers find in them."""
    compared = 0
    for path in sorted(TIER.glob(f"{KEY_PREFIX}*/*/*.rsm-manifest")):
        stored = path.read_bytes()
        document = json.loads(stored)
        metadata = document["remoteLogSegmentMetadata"]
        if "encryption" in document or not path.with_suffix(".log").exists():
            continue
        log, blobs = restore(
            path.with_suffix(".log").read_bytes(),
            path.with_suffix(".indexes").read_bytes(),
            stored,
        )
        index, timeindex, snapshot, checkpoint, txnindex = blobs
        assert index is not None
        assert timeindex is not None
        assert snapshot is not None
        assert checkpoint is not None
        segment = SegmentFiles(
            base_offset=metadata["startOffset"],
            next_offset=metadata["endOffset"] + 1,
            log=log,
            index=index,
            timeindex=timeindex,
            txnindex=txnindex,
            snapshot=snapshot,
            leader_epoch_checkpoint=checkpoint,
            max_timestamp_ms=metadata["maxTimestampMs"],
            epochs=tuple(
                (int(epoch), start) for epoch, start in metadata["segmentLeaderEpochs"].items()
            ),
        )
        partition = metadata["remoteLogSegmentId"]["topicIdPartition"]
        objects: dict[str, bytes] = {}
        AivenTierWriter(
            objects,
            topic=partition["topicPartition"]["topic"],
            partition=partition["topicPartition"]["partition"],
            topic_id=partition["topicId"],
            key_prefix=KEY_PREFIX,
            chunk_size=CHUNK_SIZE,
            compression=document["compression"],
            broker_id=metadata["brokerId"],
        ).write_segment(
            segment,
            segment_id=metadata["remoteLogSegmentId"]["id"],
            event_timestamp_ms=metadata["eventTimestampMs"],
        )
        compressed = document["compression"]
        for key, data in objects.items():
            # What zstd makes of a chunk depends on its version, and so does the list of sizes.
            if not compressed or key.endswith(".indexes"):
                assert data == (TIER / key).read_bytes(), key
            else:
                assert (TIER / key).exists()
        compared += not compressed
    assert compared >= 20


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
@settings(max_examples=30, deadline=None)
@given(produced=records(max_size=12))
def test_payloads_of_other_clients_are_read(codec: str, produced: list[SimpleRecord]) -> None:
    for compressor in foreign_compressors(codec).values():
        data = write_batch(produced, base_offset=5, codec=codec, compressor=compressor)
        (batch,) = iter_batches(data)
        assert [(record.key, record.value, record.headers) for record in batch.records] == [
            (record.key, record.value, record.headers) for record in produced
        ]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_mutated_batches_are_read_or_refused(data: st.DataObject) -> None:
    case = data.draw(batches())
    changed = data.draw(mutations(case.data))
    try:
        read = [fact for batch in iter_batches(changed) for fact in read_facts(batch)]
    except SegmentFormatError:
        return
    # Whatever is read still has the payload that the checksum vouches for, or is cut away.
    assert {fact[3:5] for fact in read} <= {(row.key, row.value) for row in case.rows}


def test_local_tier_of_a_broker_is_what_the_writer_would_name(tmp_path: Path) -> None:
    for path in sorted((LOCAL_TIER / "tier" / "kafka-tiered-storage").glob("*/*.log")):
        partition = parse_local_partition_directory(path.parent.name)
        name = parse_local_file_name(path.name)
        assert partition is not None
        assert name is not None
        files = {
            suffix: data.read_bytes() if (data := path.with_suffix(f".{suffix}")).exists() else None
            for suffix in ("index", "timeindex", "txnindex", "snapshot", "leader_epoch_checkpoint")
        }
        objects: dict[str, bytes] = {}
        LocalTierWriter(
            objects,
            topic=partition.topic,
            partition=partition.partition,
            topic_id=partition.topic_id,
        ).write_segment(
            SegmentFiles(
                base_offset=name.base_offset,
                next_offset=name.base_offset + 1,
                log=path.read_bytes(),
                index=files["index"] or b"",
                timeindex=files["timeindex"] or b"",
                txnindex=files["txnindex"],
                snapshot=files["snapshot"] or b"",
                leader_epoch_checkpoint=files["leader_epoch_checkpoint"] or b"",
                max_timestamp_ms=0,
                epochs=(),
            ),
            segment_id=name.segment_id,
        )
        stored = {
            str(file.relative_to(LOCAL_TIER / "tier")): file.read_bytes()
            for file in path.parent.glob(f"{path.stem}.*")
        }
        assert objects == stored
