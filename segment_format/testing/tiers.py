"""Writes closed segments as remote objects in the layouts of the plugin and LocalTieredStorage.

    Aiven  <prefix><topic>-<topic id>/<partition>/<base offset, 20 digits>-<segment id>.<suffix>
           with the suffixes log, indexes, rsm-manifest, written in this order
    Local  kafka-tiered-storage/<topic>-<partition>-<topic id>/<base offset>-<segment id>.<suffix>
           with one file for each file of the segment

Without compression the chunk index is `fixed`: all transformed chunks except the last have the same
size. With compression it is `variable`: it contains the list of transformed sizes as base64 of a
zstd frame that states its content size:

    list of sizes   i32 count; for 1 size: i32 size; for more sizes: i32 base, i8 width, then
                    (size - base) in `width` bytes for each size except the last, i32 last size

Encryption uses a data key per segment, wrapped with an RSA public key:

    message      12-byte IV, ciphertext, 16-byte tag: AES-256-GCM with the segment's AAD
    wrapped key  RSA-OAEP of the 32-byte data key; SHA3-512 for the label hash and for MGF1;
                 no label

OAEP (RFC 8017 §7.1.1) is implemented here because `cryptography` refuses it with SHA-3.

Source: `RemoteStorageManager`, `ObjectKeyFactory`, `SegmentManifestV1`, `ChunkSizesBinaryCodec`,
`RsaEncryptionProvider`, `AesEncryptionProvider` in `io.aiven.kafka.tieredstorage`;
`org.apache.kafka.server.log.remote.storage.LocalTieredStorage`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import struct
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from segment_format.kafka_uuid import uuid_from_text, uuid_to_text

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping, Sequence

    from segment_format.testing.segment import SegmentFiles

    Sink = Callable[[str, bytes], object] | MutableMapping[str, bytes] | Path | str


_INT_MAX = (1 << 31) - 1
_ZSTD_LEVEL = 3


def write_chunk_sizes(sizes: Sequence[int]) -> bytes:
    """Returns the binary list of transformed chunk sizes, before zstd and base64.

    Raises:
        ValueError: A size is below 0 or above 2^31 - 1.
    """
    if any(not 0 <= size <= _INT_MAX for size in sizes):
        raise ValueError("a chunk size is outside [0, 2^31 - 1]")
    if len(sizes) < 2:
        return struct.pack(f">i{len(sizes)}i", len(sizes), *sizes)
    *others, last = sizes
    base = min(others)
    width = max(1, ((max(others) - base).bit_length() + 7) // 8)
    return b"".join(
        [
            struct.pack(">iib", len(sizes), base, width),
            *((size - base).to_bytes(width, "big") for size in others),
            struct.pack(">i", last),
        ]
    )


def transform_log(
    log: bytes,
    *,
    chunk_size: int,
    compression: bool,
    encrypt: Callable[[bytes], bytes] | None,
) -> tuple[bytes, dict[str, object]]:
    """Returns two values: the stored `.log` object of a segment, and `chunkIndex` for its manifest.

    Args:
        log: The segment file.
        chunk_size: Size of the original chunks in bytes; the last chunk may be smaller.
        compression: True to compress each chunk to a zstd frame that states its content size.
        encrypt: Encrypts a chunk, which adds 28 bytes; None to store chunks without encryption.
    """
    from segment_format.testing import zstd

    chunks = [log[start : start + chunk_size] for start in range(0, len(log), chunk_size)]
    stored = chunks
    if compression:
        stored = [zstd.compress(chunk, _ZSTD_LEVEL) for chunk in stored]
    if encrypt is not None:
        stored = [encrypt(chunk) for chunk in stored]
    index: dict[str, object] = {
        "type": "variable" if compression else "fixed",
        "originalChunkSize": chunk_size,
        "originalFileSize": len(log),
    }
    sizes = [len(chunk) for chunk in stored]
    if compression:
        frame = zstd.compress(write_chunk_sizes(sizes), _ZSTD_LEVEL)
        index["transformedChunks"] = base64.b64encode(frame).decode()
    else:
        overhead = len(stored[0]) - len(chunks[0]) if stored else 0
        index["transformedChunkSize"] = chunk_size + overhead
        index["finalTransformedChunkSize"] = sizes[-1] if sizes else 0
    return b"".join(stored), index


_DATA_KEY_BYTES = 32
_AAD_BYTES = 32
_IV_BYTES = 12
_HASH_BYTES = 64


class SegmentCipher:
    """Encrypts the chunks and side files of one segment with a new data key.

    Args:
        key: Public key that encrypts the data key.
        random_bytes: Returns a given number of random bytes. Called for the data key, the AAD, the
            OAEP seed and the IV of each message, in this order. A deterministic function makes the
            output repeatable.
    """

    def __init__(self, key: EncryptionKey, random_bytes: Callable[[int], bytes]) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._random_bytes = random_bytes
        data_key = random_bytes(_DATA_KEY_BYTES)
        self._aad = random_bytes(_AAD_BYTES)
        self._aes = AESGCM(data_key)
        wrapped = wrap_data_key(data_key, key.public_key_pem, seed=random_bytes(_HASH_BYTES))
        self._data_key_text = f"{key.key_id}:{base64.b64encode(wrapped).decode()}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def manifest_member(self) -> dict[str, str]:
        """Returns the manifest's `encryption` object."""
        return {"dataKey": self._data_key_text, "aad": base64.b64encode(self._aad).decode()}

    def encrypt(self, plain: bytes) -> bytes:
        """Encrypts `plain` and returns the message: IV, ciphertext and tag. It is 28 bytes longer
        than `plain`.
        """
        iv = self._random_bytes(_IV_BYTES)
        return iv + self._aes.encrypt(iv, plain, self._aad)


def wrap_data_key(data_key: bytes, public_key_pem: bytes, *, seed: bytes) -> bytes:
    """Encrypts a data key with RSA-OAEP. The result has as many bytes as the RSA modulus.

    Args:
        data_key: 32 bytes.
        public_key_pem: SubjectPublicKeyInfo in PEM with any label.
        seed: 64 random bytes.

    Raises:
        ValueError: The public key is not an RSA key, or is too small to encrypt the data key.
    """
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    armour = re.search(rb"-----BEGIN[^-]*-----(.+?)-----END", public_key_pem, re.DOTALL)
    if armour is None:
        raise ValueError("the public key is not a PEM file")
    key = load_der_public_key(base64.b64decode(b"".join(armour[1].split())))
    if not isinstance(key, RSAPublicKey):
        raise ValueError("the public key is not an RSA key")
    numbers = key.public_numbers()
    size = (key.key_size + 7) // 8
    padding = size - len(data_key) - 2 * _HASH_BYTES - 2
    if padding < 0:
        raise ValueError(f"an RSA key of {key.key_size} bits is too small for OAEP with SHA3-512")
    block = hashlib.sha3_512(b"").digest() + bytes(padding) + b"\x01" + data_key
    masked_block = _xor(block, _mgf1(seed, len(block)))
    masked_seed = _xor(seed, _mgf1(masked_block, _HASH_BYTES))
    message = int.from_bytes(b"\x00" + masked_seed + masked_block, "big")
    return pow(message, numbers.e, numbers.n).to_bytes(size, "big")


def _mgf1(seed: bytes, length: int) -> bytes:
    rounds = -(-length // _HASH_BYTES)
    blocks = (hashlib.sha3_512(seed + count.to_bytes(4, "big")).digest() for count in range(rounds))
    return b"".join(blocks)[:length]


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


DEFAULT_CHUNK_SIZE = 4 << 20
LOCAL_ROOT = "kafka-tiered-storage"


@dataclass(frozen=True, slots=True)
class WrittenSegment:
    """The objects of one segment.

    Attributes:
        segment_id: Id of the segment, 22 characters.
        keys: Keys of its objects, in the order of the uploads.
        event_timestamp_ms: Time at which the copy started, ms since 1970.
    """

    segment_id: str
    keys: tuple[str, ...]
    event_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class EncryptionKey:
    """The public key that encrypts ("wraps") the data keys of segments.

    Attributes:
        key_id: Id of the key pair, written in every manifest.
        public_key_pem: SubjectPublicKeyInfo in PEM.
    """

    key_id: str
    public_key_pem: bytes


class AivenTierWriter:
    """Writes segments in the layout of the Aiven tiered storage plugin: objects `.log`, `.indexes`
    and `.rsm-manifest`.

    Args:
        sink: Destination of the objects: a folder, a dict from key to bytes, or a function that is
            called with key and bytes.
        topic_id: 22 characters or a UUID; None generates one.
        key_prefix: Prefix of every key; usually ends with "/".
        chunk_size: Size of the original chunks in bytes; the last chunk may be smaller.
        compression: True to compress each chunk to a zstd frame.
        encryption: Public key that encrypts the data key of each segment; None for no encryption.
        broker_id: Broker id that is written to manifests.
        write_txn_idx_empty: True to write the manifest's member `txnIdxEmpty`, as Kafka 4 does.
        random_bytes: Returns a given number of random bytes, for ids, keys and IVs. A deterministic
            function makes the output repeatable.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        topic: str = "topic",
        partition: int = 0,
        topic_id: str | uuid.UUID | None = None,
        key_prefix: str = "",
        chunk_size: int = DEFAULT_CHUNK_SIZE,
        compression: bool = False,
        encryption: EncryptionKey | None = None,
        broker_id: int = 1,
        write_txn_idx_empty: bool = True,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if chunk_size < 1:
            raise ValueError("chunk_size must be at least 1")
        self._put = _putter(sink)
        self._random_bytes = random_bytes
        self._topic = topic
        self._partition = partition
        self.topic_id = _id_text(topic_id, random_bytes)
        self._key_prefix = key_prefix
        self._chunk_size = chunk_size
        self._compression = compression
        self._encryption = encryption
        self._broker_id = broker_id
        self._write_txn_idx_empty = write_txn_idx_empty

    def write_segment(
        self,
        segment: SegmentFiles,
        *,
        segment_id: str | uuid.UUID | None = None,
        event_timestamp_ms: int | None = None,
    ) -> WrittenSegment:
        """Writes the three objects of one segment.

        Args:
            segment: Files of the segment on the broker.
            segment_id: 22 characters or a UUID; None generates one.
            event_timestamp_ms: Time at which the copy started, ms since 1970; None means one second
                after the segment's largest timestamp.
        """
        id_text = _id_text(segment_id, self._random_bytes)
        event = (
            segment.max_timestamp_ms + 1000 if event_timestamp_ms is None else event_timestamp_ms
        )
        cipher = SegmentCipher(self._encryption, self._random_bytes) if self._encryption else None
        encrypt = None if cipher is None else cipher.encrypt
        log, chunk_index = transform_log(
            segment.log,
            chunk_size=self._chunk_size,
            compression=self._compression,
            encrypt=encrypt,
        )
        indexes, segment_indexes = _join_indexes(segment, encrypt)
        manifest: dict[str, object] = {
            "version": "1",
            "chunkIndex": chunk_index,
            "segmentIndexes": segment_indexes,
            "compression": self._compression,
        }
        if cipher is not None:
            manifest["encryption"] = cipher.manifest_member()
        manifest["remoteLogSegmentMetadata"] = self._metadata(segment, id_text, event)
        stem = (
            f"{self._key_prefix}{self._topic}-{self.topic_id}/{self._partition}/"
            f"{segment.base_offset:020d}-{id_text}"
        )
        text = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False)
        objects = {
            f"{stem}.log": log,
            f"{stem}.indexes": indexes,
            f"{stem}.rsm-manifest": text.encode(),
        }
        for key, data in objects.items():
            self._put(key, data)
        return WrittenSegment(id_text, tuple(objects), event)

    def _metadata(self, segment: SegmentFiles, id_text: str, event: int) -> dict[str, object]:
        metadata: dict[str, object] = {
            "remoteLogSegmentId": {
                "topicIdPartition": {
                    "topicId": self.topic_id,
                    "topicPartition": {"topic": self._topic, "partition": self._partition},
                },
                "id": id_text,
            },
            "startOffset": segment.base_offset,
            "endOffset": segment.end_offset,
            "maxTimestampMs": segment.max_timestamp_ms,
            "brokerId": self._broker_id,
            "eventTimestampMs": event,
            "segmentLeaderEpochs": {str(epoch): start for epoch, start in segment.epochs},
        }
        if self._write_txn_idx_empty:
            metadata["txnIdxEmpty"] = segment.txnindex is None
        return metadata


class LocalTierWriter:
    """Writes segments in the layout of `LocalTieredStorage`, the storage of Kafka's own tests: the
    unchanged files of the broker.

    Args:
        sink: Destination of the files: a folder, a dict from key to bytes, or a function that is
            called with key and bytes.
        topic_id: 22 characters or a UUID; None generates one.
        random_bytes: Returns a given number of random bytes, for ids.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        topic: str = "topic",
        partition: int = 0,
        topic_id: str | uuid.UUID | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._put = _putter(sink)
        self._random_bytes = random_bytes
        self.topic_id = _id_text(topic_id, random_bytes)
        self._folder = f"{LOCAL_ROOT}/{topic}-{partition}-{self.topic_id}"

    def write_segment(
        self, segment: SegmentFiles, *, segment_id: str | uuid.UUID | None = None
    ) -> WrittenSegment:
        """Writes the files of one segment. Writes no transaction index if no transaction was
        aborted in the segment.
        """
        id_text = _id_text(segment_id, self._random_bytes)
        stem = f"{self._folder}/{segment.base_offset:020d}-{id_text}"
        files = {
            "log": segment.log,
            "index": segment.index,
            "timeindex": segment.timeindex,
            "txnindex": segment.txnindex,
            "leader_epoch_checkpoint": segment.leader_epoch_checkpoint,
            "snapshot": segment.snapshot,
        }
        objects = {f"{stem}.{suffix}": data for suffix, data in files.items() if data is not None}
        for key, data in objects.items():
            self._put(key, data)
        return WrittenSegment(id_text, tuple(objects), segment.max_timestamp_ms + 1000)


def _join_indexes(
    segment: SegmentFiles, encrypt: Callable[[bytes], bytes] | None
) -> tuple[bytes, dict[str, dict[str, int] | None]]:
    blobs = {
        "offset": segment.index,
        "timestamp": segment.timeindex,
        "producerSnapshot": segment.snapshot,
        "leaderEpoch": segment.leader_epoch_checkpoint,
        "transaction": segment.txnindex,
    }
    stored = bytearray()
    ranges: dict[str, dict[str, int] | None] = {}
    for name, plain in blobs.items():
        if plain is None:
            ranges[name] = None
            continue
        blob = encrypt(plain) if encrypt is not None and plain else plain
        ranges[name] = {"position": len(stored), "size": len(blob)}
        stored += blob
    return bytes(stored), ranges


def _id_text(value: str | uuid.UUID | None, random_bytes: Callable[[int], bytes]) -> str:
    if isinstance(value, str):
        return uuid_to_text(uuid_from_text(value))
    while value is None:
        made = uuid.UUID(bytes=random_bytes(16), version=4)
        # Kafka never makes ids that begin with a dash.
        value = None if uuid_to_text(made).startswith("-") else made
    return uuid_to_text(value)


def _putter(sink: Sink) -> Callable[[str, bytes], object]:
    if isinstance(sink, str | os.PathLike):
        root = Path(sink)

        def write_file(key: str, data: bytes) -> None:
            path = root / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

        return write_file
    return sink if callable(sink) else sink.__setitem__
