"""Reads every object of the golden tier, which the plugin of a real broker wrote."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from segment_format.index.checkpoints import EpochEntry, LeaderEpochCheckpoint
from segment_format.index.transaction_index import parse_transaction_index
from segment_format.kafka_uuid import uuid_to_text
from segment_format.manifest.chunk_index import VariableChunkIndex
from segment_format.manifest.encryption import load_private_key, unwrap_data_key
from segment_format.manifest.object_names import parse_custom_metadata
from segment_format.manifest.segment_manifest import IndexRange, SegmentManifest
from segment_format.manifest.transform import restore_chunk, restore_index
from segment_format.record.framing import iter_entries
from tests.golden_data import CHUNK_SIZE, KEY_PREFIX, KEYS, TIER, VECTORS, summary
from tests.object_names import parse_object_key
from tests.segment_format.manifest.writers import encode_chunk_sizes, manifest_json

PRIVATE_KEYS = {"key1": load_private_key((KEYS / "key1.private.pem").read_bytes())}
VECTOR_KEYS = {
    "key1": load_private_key((VECTORS / "aiven_vectors" / "keys" / "priv.pem").read_bytes())
}
STEMS = sorted(
    path.relative_to(TIER).as_posix().removesuffix(".rsm-manifest")
    for path in TIER.rglob("*.rsm-manifest")
)
OBJECTS = VECTORS / "aiven_vectors" / "objects"
ORIGINAL = VECTORS / "aiven_vectors" / "original"
CASES = sorted(path.name for path in OBJECTS.iterdir())
SEGMENTS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    segment["object_stem"]: (topic, partition, segment)
    for topic in summary()["topics"]
    for partition in topic["partitions"]
    for segment in partition["remote_segments"]
}


class Stored:
    """Contains the three objects of a segment and the data key that decrypts them."""

    def __init__(self, stem: Path, keys: Any = PRIVATE_KEYS) -> None:  # noqa: ANN401 - a dict
        self.raw = Path(f"{stem}.rsm-manifest").read_bytes()
        self.manifest = SegmentManifest.from_json(self.raw)
        self._log = Path(f"{stem}.log").read_bytes()
        self._indexes = Path(f"{stem}.indexes").read_bytes()
        encryption = self.manifest.encryption
        self._aad = None if encryption is None else encryption.aad
        self._data_key = (
            None
            if encryption is None
            else unwrap_data_key(encryption.data_key, keys[encryption.data_key.key_id])
        )

    def log(self) -> bytes:
        index = self.manifest.chunk_index
        index.check_object_size(len(self._log))
        view = memoryview(self._log)
        return b"".join(
            restore_chunk(
                view[chunk.transformed_position : chunk.transformed_stop],
                chunk,
                compression=self.manifest.compression,
                data_key=self._data_key,
                aad=self._aad,
            )
            for chunk in index.chunks()
        )

    def index(self, index_range: IndexRange) -> bytes:
        assert self.manifest.segment_indexes.transformed_size == len(self._indexes)
        stored = self._indexes[index_range.position : index_range.stop]
        return bytes(restore_index(stored, index_range, data_key=self._data_key, aad=self._aad))

    @property
    def is_plain(self) -> bool:
        return not self.manifest.compression and self.manifest.encryption is None

    @property
    def stored_log(self) -> bytes:
        return self._log


def test_golden_tier_has_segments_with_each_compression_and_encryption() -> None:
    kinds = {
        (manifest.compression, manifest.encryption is not None)
        for manifest in (Stored(TIER / stem).manifest for stem in STEMS)
    }
    assert kinds == {(False, False), (False, True), (True, False), (True, True)}
    assert len(STEMS) > 100
    assert set(SEGMENTS) <= set(STEMS)


@pytest.mark.parametrize("stem", STEMS)
def test_manifest_written_by_broker_parses(stem: str) -> None:
    stored = Stored(TIER / stem)
    manifest = stored.manifest
    assert manifest_json(manifest) == stored.raw

    key = parse_object_key(f"{stem}.rsm-manifest", prefix=KEY_PREFIX)
    metadata = manifest.metadata
    assert metadata is not None
    partition = metadata.segment_id.topic_id_partition
    assert (partition.topic, partition.topic_id, partition.partition) == (
        key.topic,
        key.topic_id,
        key.partition,
    )
    assert metadata.segment_id.id == key.segment_id
    assert metadata.start_offset == key.base_offset

    log = stored.log()
    assert len(log) == manifest.chunk_index.original_file_size == metadata.segment_size_in_bytes
    if stored.is_plain:
        assert log == stored.stored_log
    # With a framing error or a lost or moved chunk, the batches would not reach the end offset.
    entries = list(iter_entries(log))
    assert entries[0].offset >= metadata.start_offset
    assert metadata.start_offset <= entries[-1].offset <= metadata.end_offset
    assert sum(entry.size for entry in entries) == len(log)


@pytest.mark.parametrize("stem", STEMS)
def test_side_files_of_broker_parse(stem: str) -> None:
    stored = Stored(TIER / stem)
    indexes = stored.manifest.segment_indexes
    metadata = stored.manifest.metadata
    assert metadata is not None
    assert len(stored.index(indexes.offset)) % 8 == 0
    assert len(stored.index(indexes.timestamp)) % 12 == 0
    assert stored.index(indexes.producer_snapshot)[:2] == b"\0\1"
    checkpoint = LeaderEpochCheckpoint.from_bytes(stored.index(indexes.leader_epoch))
    last = metadata.segment_leader_epochs[-1]
    assert checkpoint.entries[-1].epoch == last.epoch
    assert checkpoint.epoch_for_offset(metadata.end_offset) == last.epoch
    assert metadata.txn_index_empty is (indexes.transaction is None)
    if indexes.transaction is not None:
        assert parse_transaction_index(stored.index(indexes.transaction))


@pytest.mark.parametrize("stem", SEGMENTS)
def test_offsets_and_sizes_of_manifest_match_broker(stem: str) -> None:
    topic, partition, expected = SEGMENTS[stem]
    manifest = SegmentManifest.from_json((TIER / f"{stem}.rsm-manifest").read_bytes())
    metadata = manifest.metadata
    assert metadata is not None
    names = metadata.segment_id.topic_id_partition
    assert (names.topic, names.partition) == (topic["topic"], partition["partition"])
    assert uuid_to_text(names.topic_id) == topic["topicId"]
    assert uuid_to_text(metadata.segment_id.id) == expected["id"]
    assert metadata.start_offset == expected["base_offset"]
    assert metadata.end_offset == expected["end_offset"]
    assert metadata.segment_size_in_bytes == expected["size"]
    assert metadata.max_timestamp_ms == expected["max_timestamp_ms"]
    assert metadata.txn_index_empty == expected["txn_index_empty"]
    assert metadata.segment_leader_epochs == tuple(
        EpochEntry(int(epoch), start) for epoch, start in expected["leader_epochs"].items()
    )
    assert manifest.compression == expected["compression"]
    key_id = None if manifest.encryption is None else manifest.encryption.data_key.key_id
    assert key_id == expected["key_id"]
    kind = "variable" if isinstance(manifest.chunk_index, VariableChunkIndex) else "fixed"
    assert kind == expected["chunk_index_type"]
    assert manifest.chunk_index.original_chunk_size == expected["original_chunk_size"] == CHUNK_SIZE


@pytest.mark.parametrize("stem", SEGMENTS)
def test_custom_metadata_of_broker_parses(stem: str) -> None:
    data = base64.b64decode(SEGMENTS[stem][2]["custom_metadata_base64"])
    metadata = parse_custom_metadata(data)
    assert metadata.object_prefix == KEY_PREFIX
    assert metadata.object_key == stem.removeprefix(KEY_PREFIX)
    assert metadata.remote_size == sum(
        (TIER / f"{stem}.{suffix}").stat().st_size for suffix in ("log", "indexes", "rsm-manifest")
    )
    assert metadata.to_bytes() == data


@pytest.mark.parametrize("stem", STEMS)
def test_chunk_sizes_are_written_like_the_plugin(stem: str) -> None:
    index = SegmentManifest.from_json((TIER / f"{stem}.rsm-manifest").read_bytes()).chunk_index
    if isinstance(index, VariableChunkIndex):
        text = json.loads((TIER / f"{stem}.rsm-manifest").read_bytes())["chunkIndex"]
        assert encode_chunk_sizes(index.transformed_sizes) == text["transformedChunks"]
    else:
        assert not SegmentManifest.from_json(
            (TIER / f"{stem}.rsm-manifest").read_bytes()
        ).compression


def vector_segment(case: str) -> Stored:
    (path,) = (OBJECTS / case).rglob("*.rsm-manifest")
    return Stored(path.with_name(path.name.removesuffix(".rsm-manifest")), VECTOR_KEYS)


@pytest.mark.parametrize("case", CASES)
def test_segment_of_each_test_vector_decodes_to_original_files(case: str) -> None:
    stored = vector_segment(case)
    original = (ORIGINAL / "00000000000000001234.log").read_bytes()
    assert stored.log() == original
    assert stored.log()[4000:8201] == original[4000:8201]
    indexes = stored.manifest.segment_indexes
    empty = "emptyidx" in case
    for index_range, name in (
        (indexes.offset, "empty" if empty else "00000000000000001234.index"),
        (indexes.timestamp, "empty" if empty else "00000000000000001234.timeindex"),
        (indexes.producer_snapshot, "00000000000000001300.snapshot"),
        (indexes.leader_epoch, "leader-epoch-checkpoint"),
    ):
        assert stored.index(index_range) == (ORIGINAL / name).read_bytes()
    if indexes.transaction is not None:
        txnindex = (ORIGINAL / "00000000000000001234.txnindex").read_bytes()
        assert stored.index(indexes.transaction) == txnindex
