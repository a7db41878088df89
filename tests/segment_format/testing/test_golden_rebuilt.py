"""Decodes the objects of a real broker and writes them again, byte for byte."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from segment_format.manifest.object_names import parse_local_partition_directory
from segment_format.record.batch_header import TimestampType
from segment_format.record.records import iter_batches
from segment_format.testing import (
    AivenTierWriter,
    LocalTierWriter,
    SegmentFiles,
    SimpleRecord,
    write_batch,
)
from tests.golden_data import CHUNK_SIZE, KEY_PREFIX, LOCAL_TIER, TIER
from tests.object_names import parse_local_file_name
from tests.segment_format.testing.restored import restore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from segment_format.record.records import DecodedBatch


def rewritten(batch: DecodedBatch) -> bytes:
    """Encodes a decoded batch of a real broker."""
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
    # With LogAppendTime, the decoded form lacks the producer's timestamps.
    assert batch.timestamp_type is TimestampType.CREATE_TIME
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
def test_plain_batches_of_broker_are_rebuilt_exactly(topic: str) -> None:
    compared = 0
    for log in golden_logs(topic):
        for batch in iter_batches(log):
            # The base timestamp of a compacted batch can belong to a removed record.
            first = batch.records[0].timestamp if batch.records else -1
            stated = int.from_bytes(log[batch.position + 27 : batch.position + 35], "big")
            kept_base = batch.delete_horizon is not None or stated == first & ((1 << 64) - 1)
            if batch.compression_type.name == "NONE" and kept_base:
                original = log[batch.position : batch.position + batch.size]
                assert rewritten(batch) == original
                compared += 1
    assert compared >= 10


def test_manifests_of_broker_are_rebuilt_exactly() -> None:
    """The objects of plain segments are written from the decoded content."""
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
            # The output of zstd depends on its version, and so does the list of chunk sizes.
            if not compressed or key.endswith(".indexes"):
                assert data == (TIER / key).read_bytes(), key
            else:
                assert (TIER / key).exists()
        compared += not compressed
    assert compared >= 20


def test_local_tier_names_match_broker() -> None:
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
