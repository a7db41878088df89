"""Restores a segment from its remote objects with the readers of `segment_format`."""

from __future__ import annotations

from segment_format.manifest.encryption import load_private_key, unwrap_data_key
from segment_format.manifest.segment_manifest import SegmentManifest
from segment_format.manifest.transform import restore_chunk, restore_index
from tests.golden_data import KEYS


def restore(log: bytes, indexes: bytes, manifest_json: bytes) -> tuple[bytes, list[bytes | None]]:
    """Returns the segment's log and its side files, in the order of the `.indexes` object."""
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
    contents = manifest.segment_indexes
    blobs = (
        contents.offset,
        contents.timestamp,
        contents.producer_snapshot,
        contents.leader_epoch,
        contents.transaction,
    )
    return restored, [
        None
        if content is None
        else bytes(
            restore_index(
                indexes[content.position : content.stop], content, data_key=data_key, aad=aad
            )
        )
        for content in blobs
    ]
