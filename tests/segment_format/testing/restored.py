"""The bytes of a segment back out of its remote objects, by the readers."""

from __future__ import annotations

from segment_format.manifest.encryption import load_private_key, unwrap_data_key
from segment_format.manifest.segment_manifest import SegmentManifest
from segment_format.manifest.transform import restore_chunk, restore_index
from tests.golden_data import KEYS


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
