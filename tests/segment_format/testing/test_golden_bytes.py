"""Compares the bytes of the test writer with those of Kafka and of the storage plugin.

Covers only content that the formats allow to be written in exactly one way.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from segment_format.testing import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    AbortedTransaction,
    AivenTierWriter,
    EncryptionKey,
    ProducerEntry,
    SegmentFiles,
    SimpleRecord,
    write_batch,
    write_control_batch,
    write_empty_batch,
    write_leader_epoch_checkpoint,
    write_message_set,
    write_offset_index,
    write_producer_snapshot,
    write_time_index,
    write_transaction_index,
)
from segment_format.testing.batches import write_varint, write_varlong
from segment_format.testing.tiers import write_chunk_sizes

VECTORS = Path(__file__).parents[2] / "golden" / "vectors"
KAFKA: dict[str, Any] = json.loads((VECTORS / "kafka-vectors.json").read_text())
AIVEN = VECTORS / "aiven_vectors"
BATCHES = {batch["name"]: batch for batch in KAFKA["batches"]}
FILES = {name: bytes.fromhex(text) for name, text in KAFKA["files"].items()}
STEM = "some-prefix/my.topic-1-lZ6vvmajTWKDBUTV6SQAtQ/7/00000000000000001234-adh9f8BMS4anaUnD8KWfWg"


def octets(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def records_of(batch: dict[str, Any]) -> list[SimpleRecord]:
    return [
        SimpleRecord(
            key=octets(record["key"]),
            value=octets(record["value"]),
            headers=tuple((key, octets(value)) for key, value in record["headers"]),
            timestamp=record["ts"],
            offset=record["offset"],
        )
        for record in batch["records"]
    ]


DATA_BATCHES = ["v2-none-createtime", "v2-min", "v2-txn", "delete-horizon"]


@pytest.mark.parametrize("name", DATA_BATCHES)
def test_uncompressed_batch_matches_kafka(name: str) -> None:
    (batch,) = BATCHES[name]["batches"]
    transactional = batch["transactional"]
    written = write_batch(
        records_of(batch),
        base_offset=batch["base"],
        leader_epoch=batch["leader_epoch"],
        max_timestamp=batch["max_ts"],
        producer_id=batch["producer_id"],
        producer_epoch=3 if transactional else -1,
        base_sequence=10 if transactional else -1,
        transactional=transactional,
        last_offset_delta=batch["last"] - batch["base"],
        delete_horizon=batch["delete_horizon"],
    )
    assert written.hex() == BATCHES[name]["hex"]


def test_log_append_time_batch_matches_kafka() -> None:
    (produced,) = BATCHES["v2-none-createtime"]["batches"]
    written = write_batch(
        records_of(produced),
        base_offset=100,
        leader_epoch=7,
        timestamp_type=LOG_APPEND_TIME,
        max_timestamp=1700000009999,
    )
    assert written.hex() == BATCHES["v2-logappendtime"]["hex"]


@pytest.mark.parametrize("kind", ["abort", "commit"])
def test_marker_matches_kafka(kind: str) -> None:
    (batch,) = BATCHES[kind]["batches"]
    written = write_control_batch(
        kind,
        base_offset=batch["base"],
        producer_id=4242,
        producer_epoch=3,
        coordinator_epoch=5,
        timestamp=batch["max_ts"],
        leader_epoch=7,
    )
    assert written.hex() == BATCHES[kind]["hex"]


def test_empty_batch_matches_kafka() -> None:
    written = write_empty_batch(
        base_offset=300,
        last_offset=304,
        max_timestamp=1700000000300,
        leader_epoch=7,
        producer_id=4242,
        producer_epoch=3,
        base_sequence=10,
        transactional=True,
    )
    assert written.hex() == BATCHES["empty"]["hex"]


@pytest.mark.parametrize("magic", [0, 1])
def test_plain_message_set_matches_kafka(magic: int) -> None:
    expected = BATCHES[f"v{magic}-none"]
    records = [record for batch in expected["batches"] for record in records_of(batch)]
    assert write_message_set(records, base_offset=100, magic=magic).hex() == expected["hex"]


@pytest.mark.parametrize("name", ["v0-lz4", "v1-lz4", "v1-lz4-logappend"])
def test_wrapper_of_kafka_payload_matches_kafka(name: str) -> None:
    expected = bytes.fromhex(BATCHES[name]["hex"])
    magic = int(name[1])
    stored = expected[12 + (22 if magic else 14) :]
    appended = name.endswith("logappend")
    (batch,) = BATCHES["v1-lz4" if magic else name]["batches"]
    inner: list[bytes] = []

    def kafkas(payload: bytes) -> bytes:
        inner.append(payload)
        return stored

    written = write_message_set(
        records_of(batch),
        base_offset=100,
        magic=magic,
        codec="lz4",
        timestamp_type=LOG_APPEND_TIME if appended else CREATE_TIME,
        log_append_time=1700000009999,
        compressor=kafkas,
    )
    assert written == expected
    import lz4.block

    # One block follows a header of 7 bytes. It must contain the inner entries written here.
    (size,) = struct.unpack_from("<I", stored, 7)
    unpacked = lz4.block.decompress(stored[11 : 11 + size], uncompressed_size=len(inner[0]))
    assert unpacked == inner[0]


def test_varints_match_kafka() -> None:
    assert [write_varint(value).hex() for value, _ in KAFKA["varint"]] == [
        text for _, text in KAFKA["varint"]
    ]
    assert [write_varlong(value).hex() for value, _ in KAFKA["varlong"]] == [
        text for _, text in KAFKA["varlong"]
    ]


def test_indexes_match_kafka() -> None:
    offsets = write_offset_index([(137, 4096), (190, 8300)], base_offset=100)
    assert offsets == FILES["offsetindex base100"]
    times = write_time_index([(1700000000000, 137), (1700000000500, 190)], base_offset=100)
    assert times == FILES["timeindex base100"]
    aborted = [
        AbortedTransaction(4242, 200, 201, 202),
        AbortedTransaction(7, 150, 230, 210),
    ]
    assert write_transaction_index(aborted) == FILES["txnindex"]
    assert write_leader_epoch_checkpoint([(0, 0), (2, 80)]) == FILES["leader-epoch"]


def test_producer_snapshots_match_kafka() -> None:
    entries = [
        ProducerEntry(4242, 3, 10, 200, 0, 1700000000000, 5, 200),
        ProducerEntry(7, 0, 41, 321, 2, 1700000000100, -1, -1),
    ]
    assert write_producer_snapshot(entries) == FILES["snapshot"]
    assert write_producer_snapshot([]) == FILES["snapshot-empty"]
    marker_only = [ProducerEntry(7, 1, -1, -1, 0, 1700000000100, 9, -1)]
    assert write_producer_snapshot(marker_only) == FILES["snapshot-marker-only"]


def test_chunk_sizes_match_plugin() -> None:
    cases = json.loads((AIVEN / "chunk_sizes.json").read_text())
    assert [write_chunk_sizes(case["sizes"]).hex() for case in cases] == [
        case["codec_hex"] for case in cases
    ]


@pytest.mark.parametrize(
    ("sizes", "width"),
    [
        ([0, 1000, 2, 44002, 369], 2),
        ([2147483647, 2147483646, 2147483645, 10], 1),
        ([1073741823, 1073741822, 1073741821, 10], 1),
        (list(range(0, 2147481647, 1000)), 4),
        ([1, 2, 3, 2147483647], 1),
        ([1, 265, 275, 285, 2147483647], 2),
        ([1, 65545, 65555, 65565, 2147483647], 3),
        ([1, 16777225, 16777235, 16777245, 2147483647], 4),
    ],
)
def test_width_of_chunk_sizes_fits_the_largest_value(sizes: list[int], width: int) -> None:
    assert len(write_chunk_sizes(sizes)) == 4 + 4 + 1 + (len(sizes) - 1) * width + 4


@pytest.mark.parametrize("sizes", [[-1], [1, -1, 2], [1, 2, -1], [1 << 31, 0]])
def test_impossible_chunk_sizes_raise(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="chunk size"):
        write_chunk_sizes(sizes)


def plugin_input(*, empty: bool = False) -> SegmentFiles:
    folder = AIVEN / "original"

    def read(pattern: str) -> bytes:
        (path,) = folder.glob(pattern)
        return path.read_bytes()

    return SegmentFiles(
        base_offset=1234,
        next_offset=1300,
        log=read("*.log"),
        index=b"" if empty else read("*.index"),
        timeindex=b"" if empty else read("*.timeindex"),
        txnindex=None if empty else read("*.txnindex"),
        snapshot=read("*.snapshot"),
        leader_epoch_checkpoint=read("leader-epoch-checkpoint"),
        max_timestamp_ms=1700000000000,
        epochs=((0, 1234), (3, 1250)),
    )


class ReplayedRandomness:
    """Returns the random bytes (keys and IVs) of a segment of the plugin, in the plugin's order."""

    def __init__(self, objects: Path) -> None:
        manifest = json.loads((objects / f"{STEM}.rsm-manifest").read_text())
        encryption = manifest["encryption"]
        wrapped = base64.b64decode(encryption["dataKey"].split(":")[1])
        data_key, seed = open_oaep(wrapped)
        self.data_key = data_key
        log = (objects / f"{STEM}.log").read_bytes()
        indexes = (objects / f"{STEM}.indexes").read_bytes()
        chunk_index = manifest["chunkIndex"]
        if chunk_index["type"] == "variable":
            import zstandard

            packed = zstandard.decompress(base64.b64decode(chunk_index["transformedChunks"]))
            base = int.from_bytes(packed[4:8], "big")
            sizes = [base + byte for byte in packed[9:-4]]
        else:
            sizes = [chunk_index["transformedChunkSize"]] * (
                len(log) // chunk_index["transformedChunkSize"]
            )
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + size)
        ivs = [log[start : start + 12] for start in starts if start < len(log)]
        ivs += [
            indexes[section["position"] : section["position"] + 12]
            for section in manifest["segmentIndexes"].values()
        ]
        self._answers = [data_key, base64.b64decode(encryption["aad"]), seed, *ivs]

    def __call__(self, count: int) -> bytes:
        answer = self._answers.pop(0)
        assert len(answer) == count
        return answer

    @property
    def exhausted(self) -> bool:
        return not self._answers


def open_oaep(wrapped: bytes) -> tuple[bytes, bytes]:
    """Returns two values: the data key and the OAEP seed of a wrapped key (RFC 8017 §7.1.2)."""
    key = load_pem_private_key((AIVEN / "keys" / "priv.pem").read_bytes(), None)
    assert isinstance(key, RSAPrivateKey)
    numbers = key.private_numbers()
    opened = pow(int.from_bytes(wrapped, "big"), numbers.d, numbers.public_numbers.n)
    message = opened.to_bytes(256, "big")

    def mask(data: bytes, length: int) -> bytes:
        out = b""
        while len(out) < length:
            out += hashlib.sha3_512(data + (len(out) // 64).to_bytes(4, "big")).digest()
        return out[:length]

    masked_seed, masked_block = message[1:65], message[65:]
    seed = bytes(a ^ b for a, b in zip(masked_seed, mask(masked_block, 64), strict=True))
    block = bytes(a ^ b for a, b in zip(masked_block, mask(seed, 191), strict=True))
    return block[-32:], seed


@pytest.mark.parametrize(
    ("case", "chunk_size", "compression"),
    [
        ("plain", 4096, False),
        ("plain-bigchunk", 4194304, False),
        ("plain-notxn-emptyidx", 4096, False),
        ("zstd", 4096, True),
        ("aes", 4096, False),
        ("aes-exact", 2500, False),
        ("zstd-aes", 4096, True),
    ],
)
def test_objects_match_plugin(case: str, chunk_size: int, compression: bool) -> None:
    folder = AIVEN / "objects" / case
    encrypted = "aes" in case
    randomness = ReplayedRandomness(folder) if encrypted else None
    objects: dict[str, bytes] = {}
    writer = AivenTierWriter(
        objects,
        topic="my.topic-1",
        partition=7,
        topic_id="lZ6vvmajTWKDBUTV6SQAtQ",
        key_prefix="some-prefix/",
        chunk_size=chunk_size,
        compression=compression,
        encryption=(
            EncryptionKey("key1", (AIVEN / "keys" / "pub.pem").read_bytes()) if encrypted else None
        ),
        broker_id=3,
        write_txn_idx_empty=False,
        **({} if randomness is None else {"random_bytes": randomness}),
    )
    written = writer.write_segment(
        plugin_input(empty="emptyidx" in case),
        segment_id="adh9f8BMS4anaUnD8KWfWg",
        event_timestamp_ms=1700000001000,
    )
    assert [key.rsplit(".", 1)[1] for key in written.keys] == ["log", "indexes", "rsm-manifest"]
    for suffix in ("log", "indexes", "rsm-manifest"):
        assert objects[f"{STEM}.{suffix}"] == (folder / f"{STEM}.{suffix}").read_bytes(), suffix
    assert randomness is None or randomness.exhausted


def test_small_plain_manifest_has_670_bytes() -> None:
    objects: dict[str, bytes] = {}
    ten = bytes(10)
    AivenTierWriter(
        objects, topic="topic", chunk_size=123, broker_id=-1, write_txn_idx_empty=False
    ).write_segment(
        SegmentFiles(1, 101, ten, ten, ten, None, ten, ten, -1, ((1, 100),)),
        event_timestamp_ms=1,
    )
    (manifest,) = [data for key, data in objects.items() if key.endswith("rsm-manifest")]
    assert len(manifest) == 670


def test_every_encryption_uses_new_keys_and_ivs() -> None:
    public = EncryptionKey("key1", (AIVEN / "keys" / "pub.pem").read_bytes())
    objects: dict[str, bytes] = {}
    writer = AivenTierWriter(objects, chunk_size=4096, encryption=public)
    first, second = (writer.write_segment(plugin_input()) for _ in range(2))
    messages = {
        objects[written.keys[0]][start : start + 12]
        for written in (first, second)
        for start in (0, 4124, 8248)
    }
    assert len(messages) == 6
    manifests = [json.loads(objects[written.keys[2]])["encryption"] for written in (first, second)]
    data_keys = [
        open_oaep(base64.b64decode(member["dataKey"].split(":")[1]))[0] for member in manifests
    ]
    assert data_keys[0] != data_keys[1]
    stored = objects[first.keys[0]][:4124]
    plain = AESGCM(data_keys[0]).decrypt(
        stored[:12], stored[12:], base64.b64decode(manifests[0]["aad"])
    )
    assert plain == plugin_input().log[:4096]
