"""Writes chunks, wrapped keys and manifests with the types of `segment_format.manifest`, so that
tests can read them back.

`segment_format.testing.tiers` writes the same formats without these types.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
from typing import TYPE_CHECKING

import numpy as np
import zstandard
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from segment_format.errors import InvalidManifestError
from segment_format.kafka_uuid import uuid_to_text
from segment_format.manifest.chunk_index import MAX_PAYLOAD_BYTES, VariableChunkIndex
from segment_format.manifest.encryption import PublicKey, WrappedDataKey
from segment_format.manifest.segment_manifest import IndexRange, SegmentIndexes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from segment_format.manifest.chunk_index import FixedChunkIndex
    from segment_format.manifest.segment_manifest import SegmentManifest
    from segment_format.metadata.model import RemoteLogSegmentMetadata


def encrypt(
    plaintext: bytes | memoryview, *, data_key: bytes, aad: bytes, iv: bytes | None = None
) -> bytes:
    """Returns one AES-GCM message: IV, ciphertext and tag."""
    nonce = os.urandom(12) if iv is None else iv
    return nonce + AESGCM(data_key).encrypt(nonce, plaintext, aad)


def load_public_key(pem: bytes) -> PublicKey:
    key = serialization.load_pem_public_key(pem)
    assert isinstance(key, rsa.RSAPublicKey)
    numbers = key.public_numbers()
    return PublicKey(numbers.n, numbers.e)


def wrap_data_key(data_key: bytes, *, key_id: str, public_key: PublicKey) -> WrappedDataKey:
    """Encrypts a data key with RSA-OAEP: SHA3-512 and an empty label."""
    size = public_key.size
    block = hashlib.sha3_512(b"").digest() + bytes(size - 130 - len(data_key)) + b"\1" + data_key
    seed = os.urandom(64)
    masked_block = _xor(block, _mgf1(seed, len(block)))
    masked_seed = _xor(seed, _mgf1(masked_block, 64))
    message = int.from_bytes(masked_seed + masked_block, "big")
    wrapped = pow(message, public_key.public_exponent, public_key.modulus)
    return WrappedDataKey(key_id, wrapped.to_bytes(size, "big"))


def _mgf1(seed: bytes, size: int) -> bytes:
    rounds = range(-(-size // 64))
    blocks = [hashlib.sha3_512(seed + number.to_bytes(4, "big")).digest() for number in rounds]
    return b"".join(blocks)[:size]


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def transform_chunk(
    original: bytes | memoryview,
    *,
    compression: bool,
    data_key: bytes | None = None,
    aad: bytes | None = None,
) -> bytes:
    """Returns the stored form of one chunk of a segment, as the plugin writes it."""
    data = bytes(original)
    if compression:
        data = zstandard.ZstdCompressor(level=3).compress(data)
    if data_key is None:
        return data
    assert aad is not None
    return encrypt(data, data_key=data_key, aad=aad)


def transform_index(
    original: bytes | memoryview, *, data_key: bytes | None = None, aad: bytes | None = None
) -> bytes:
    """Returns the stored form of one side file, as the plugin writes it."""
    if data_key is None or not original:
        return bytes(original)
    assert aad is not None
    return encrypt(original, data_key=data_key, aad=aad)


def encode_chunk_sizes(sizes: Sequence[int] | npt.NDArray[np.integer]) -> str:
    """Returns the text for a manifest's `transformedChunks`.

    The payload equals the plugin's, byte for byte. The zstd frame of a long list can differ between
    zstd versions.
    """
    payload = pack_chunk_sizes(sizes)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise InvalidManifestError(f"list of {len(sizes)} chunk sizes is too long for a manifest")
    frame = zstandard.ZstdCompressor(level=3).compress(payload)
    return base64.b64encode(frame).decode("ascii")


def pack_chunk_sizes(sizes: Sequence[int] | npt.NDArray[np.integer]) -> bytes:
    """Returns the uncompressed payload of a manifest's `transformedChunks`."""
    try:
        array = np.asarray(sizes, dtype=np.int64)
    except OverflowError as error:
        raise InvalidManifestError("chunk size larger than 2^31−1") from error
    if len(array) and (int(array.min()) < 0 or int(array.max()) > 2**31 - 1):
        raise InvalidManifestError("chunk size outside 0 … 2^31−1")
    count = len(array)
    if count < 2:
        return struct.pack(">i", count) + array.astype(">i4").tobytes()
    base = int(array[:-1].min())
    deltas = array[:-1] - base
    width = max(1, (int(deltas.max()).bit_length() + 7) // 8)
    packed = deltas.astype(">u4").view(np.uint8).reshape(count - 1, 4)[:, 4 - width :]
    return struct.pack(">iib", count, base, width) + packed.tobytes() + struct.pack(">i", array[-1])


def variable_index(
    chunk_size: int, file_size: int, sizes: Sequence[int] | npt.NDArray[np.integer]
) -> VariableChunkIndex:
    """Returns a chunk index for chunks whose stored sizes in bytes are `sizes`."""
    return VariableChunkIndex(chunk_size, file_size, encode_chunk_sizes(sizes))


def index_ranges(
    *,
    offset: int,
    timestamp: int,
    producer_snapshot: int,
    leader_epoch: int,
    transaction: int | None = None,
) -> SegmentIndexes:
    """Returns the ranges of the side files in an `.indexes` object, in the plugin's order and
    without gaps. Each argument is the stored size of a side file in bytes.
    """
    sizes = (offset, timestamp, producer_snapshot, leader_epoch, transaction or 0)
    stops = [sum(sizes[: number + 1]) for number in range(5)]
    ranges = [IndexRange(stop - size, size) for stop, size in zip(stops, sizes, strict=True)]
    if transaction is None:
        ranges.pop()
    return SegmentIndexes(*ranges)


def manifest_json(manifest: SegmentManifest) -> bytes:
    """Returns the bytes that the plugin writes for this manifest."""
    indexes = manifest.segment_indexes
    members: dict[str, object] = {
        "version": "1",
        "chunkIndex": _chunk_index_members(manifest.chunk_index),
        "segmentIndexes": {
            "offset": _range_members(indexes.offset),
            "timestamp": _range_members(indexes.timestamp),
            "producerSnapshot": _range_members(indexes.producer_snapshot),
            "leaderEpoch": _range_members(indexes.leader_epoch),
            "transaction": indexes.transaction and _range_members(indexes.transaction),
        },
        "compression": manifest.compression,
    }
    if manifest.encryption is not None:
        members["encryption"] = {
            "dataKey": manifest.encryption.data_key.to_text(),
            "aad": base64.b64encode(manifest.encryption.aad).decode("ascii"),
        }
    if manifest.metadata is not None:
        members["remoteLogSegmentMetadata"] = _metadata_members(manifest.metadata)
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _range_members(index_range: IndexRange) -> dict[str, int]:
    return {"position": index_range.position, "size": index_range.size}


def _chunk_index_members(chunk_index: FixedChunkIndex | VariableChunkIndex) -> dict[str, object]:
    variable = isinstance(chunk_index, VariableChunkIndex)
    members: dict[str, object] = {
        "type": "variable" if variable else "fixed",
        "originalChunkSize": chunk_index.original_chunk_size,
        "originalFileSize": chunk_index.original_file_size,
    }
    if isinstance(chunk_index, VariableChunkIndex):
        members["transformedChunks"] = chunk_index.transformed_chunks
    else:
        members["transformedChunkSize"] = chunk_index.transformed_chunk_size
        members["finalTransformedChunkSize"] = chunk_index.final_transformed_chunk_size
    return members


def _metadata_members(metadata: RemoteLogSegmentMetadata) -> dict[str, object]:
    """Returns the value of `remoteLogSegmentMetadata`, with keys in the plugin's order."""
    partition = metadata.segment_id.topic_id_partition
    members: dict[str, object] = {
        "remoteLogSegmentId": {
            "topicIdPartition": {
                "topicId": uuid_to_text(partition.topic_id),
                "topicPartition": {"topic": partition.topic, "partition": partition.partition},
            },
            "id": uuid_to_text(metadata.segment_id.id),
        },
        "startOffset": metadata.start_offset,
        "endOffset": metadata.end_offset,
        "maxTimestampMs": metadata.max_timestamp_ms,
        "brokerId": metadata.broker_id,
        "eventTimestampMs": metadata.event_timestamp_ms,
        "segmentLeaderEpochs": {
            str(entry.epoch): entry.start_offset for entry in metadata.segment_leader_epochs
        },
    }
    if metadata.txn_index_empty is not None:
        members["txnIdxEmpty"] = metadata.txn_index_empty
    return members
