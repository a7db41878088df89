from __future__ import annotations

import copy
import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segment_format.errors import InvalidManifestError, SegmentFormatError
from segment_format.index.checkpoints import EpochEntry
from segment_format.kafka_uuid import uuid_from_text
from segment_format.manifest.chunk_index import FixedChunkIndex, VariableChunkIndex
from segment_format.manifest.encryption import Encryption, WrappedDataKey
from segment_format.manifest.segment_manifest import (
    MAX_MANIFEST_BYTES,
    IndexRange,
    SegmentManifest,
)
from segment_format.metadata.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from tests.golden_data import VECTORS
from tests.segment_format.manifest.writers import index_ranges, manifest_json, variable_index
from tests.segment_format.outcomes import value_or_error

if TYPE_CHECKING:
    from collections.abc import Callable

OBJECTS = VECTORS / "aiven_vectors" / "objects"
CASES = sorted(path.name for path in OBJECTS.iterdir())
Document = dict[str, Any]

METADATA = RemoteLogSegmentMetadata(
    RemoteLogSegmentId(
        TopicIdPartition("my.topic-1", uuid_from_text("lZ6vvmajTWKDBUTV6SQAtQ"), 7),
        uuid_from_text("adh9f8BMS4anaUnD8KWfWg"),
    ),
    start_offset=1234,
    end_offset=1299,
    max_timestamp_ms=1700000000000,
    broker_id=3,
    event_timestamp_ms=1700000001000,
    segment_leader_epochs=(EpochEntry(0, 1234), EpochEntry(3, 1250)),
    segment_size_in_bytes=10000,
)
# For each case of the vectors: chunk sizes, and positions and sizes of the side files.
PLAIN_INDEXES = [(0, 80), (80, 120), (200, 10), (210, 15), (225, 34)]
AES_INDEXES = [(0, 108), (108, 148), (256, 38), (294, 43), (337, 62)]
EXPECTED: dict[str, tuple[list[int], list[tuple[int, int]], int]] = {
    "plain": ([4096, 4096, 1808], PLAIN_INDEXES, 743),
    "plain-bigchunk": ([10000], PLAIN_INDEXES, 750),
    "plain-notxn-emptyidx": ([4096, 4096, 1808], [(0, 0), (0, 0), (0, 10), (10, 15)], 714),
    "zstd": ([2033, 2051, 937], PLAIN_INDEXES, 739),
    "aes": ([4124, 4124, 1836], AES_INDEXES, 1175),
    "aes-exact": ([2528] * 4, AES_INDEXES, 1175),
    "zstd-aes": ([2061, 2079, 965], AES_INDEXES, 1171),
}


def manifest_bytes(case: str) -> bytes:
    (path,) = (OBJECTS / case).rglob("*.rsm-manifest")
    return path.read_bytes()


def document_of(case: str) -> Document:
    document: Document = json.loads(manifest_bytes(case))
    return document


def parse(document: object) -> SegmentManifest:
    return SegmentManifest.from_json(json.dumps(document).encode())


def manifest_with(case: str, change: Callable[[Document], object]) -> Document:
    document = copy.deepcopy(document_of(case))
    change(document)
    return document


def test_every_vector_is_tested() -> None:
    assert set(CASES) == set(EXPECTED)


@pytest.mark.parametrize("case", CASES)
def test_manifest_of_vector_parses(case: str) -> None:
    data = manifest_bytes(case)
    sizes, ranges, length = EXPECTED[case]
    manifest = SegmentManifest.from_json(data)
    assert len(data) == length
    assert manifest_json(manifest) == data
    assert [chunk.transformed_size for chunk in manifest.chunk_index.chunks()] == sizes
    assert isinstance(manifest.chunk_index, VariableChunkIndex) == ("zstd" in case)
    assert manifest.compression == ("zstd" in case)
    assert manifest.segment_indexes.ranges == tuple(IndexRange(*pair) for pair in ranges)
    assert (manifest.segment_indexes.transaction is None) == ("notxn" in case)
    assert (manifest.encryption is not None) == ("aes" in case)
    if manifest.encryption is not None:
        assert manifest.encryption.data_key.key_id == "key1"
        assert len(manifest.encryption.aad) == 32
    assert manifest.metadata == METADATA
    assert METADATA.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED


@pytest.mark.parametrize("case", CASES)
def test_manifest_pickles(case: str) -> None:
    manifest = SegmentManifest.from_json(manifest_bytes(case))
    copied = pickle.loads(pickle.dumps(manifest))
    assert copied == manifest
    assert manifest_json(copied) == manifest_bytes(case)


@pytest.mark.parametrize("case", CASES)
def test_object_sizes_match_manifest(case: str) -> None:
    manifest = SegmentManifest.from_json(manifest_bytes(case))
    (log,) = (OBJECTS / case).rglob("*.log")
    (indexes,) = (OBJECTS / case).rglob("*.indexes")
    manifest.chunk_index.check_object_size(log.stat().st_size)
    assert manifest.segment_indexes.transformed_size == indexes.stat().st_size


def test_manifest_has_the_same_length_as_the_manifest_of_the_plugin() -> None:
    # From the plugin's own test: a segment of 10 bytes, chunks of 123, four indexes of 10 bytes.
    manifest = SegmentManifest(
        FixedChunkIndex(123, 10, 123, 10),
        index_ranges(offset=10, timestamp=10, producer_snapshot=10, leader_epoch=10),
        compression=False,
        metadata=RemoteLogSegmentMetadata(
            RemoteLogSegmentId(
                TopicIdPartition("topic", uuid_from_text("AAAAAAAAAAAAAAAAAAAAAA"), 0),
                uuid_from_text("AAAAAAAAAAAAAAAAAAAAAA"),
            ),
            start_offset=1,
            end_offset=100,
            max_timestamp_ms=-1,
            broker_id=-1,
            event_timestamp_ms=1,
            segment_leader_epochs=(EpochEntry(1, 100),),
            segment_size_in_bytes=10,
        ),
    )
    data = manifest_json(manifest)
    assert len(data) == 670
    assert SegmentManifest.from_json(data) == manifest


@pytest.mark.parametrize(
    ("sizes", "positions"),
    [((1, 1, 1, 1, 1), [0, 1, 2, 3, 4]), ((0, 1, 0, 1, 0), [0, 0, 1, 1, 2])],
)
def test_index_ranges_are_contiguous(
    sizes: tuple[int, int, int, int, int], positions: list[int]
) -> None:
    offset, timestamp, snapshot, epoch, transaction = sizes
    indexes = index_ranges(
        offset=offset,
        timestamp=timestamp,
        producer_snapshot=snapshot,
        leader_epoch=epoch,
        transaction=transaction,
    )
    assert [index_range.position for index_range in indexes.ranges] == positions
    assert [index_range.size for index_range in indexes.ranges] == list(sizes)
    assert indexes.transformed_size == sum(sizes)


def test_manifest_accepted_by_plugin_parses() -> None:
    plain = SegmentManifest.from_json(manifest_bytes("plain"))
    as_number = manifest_with("plain", lambda d: d.update(version=1))
    assert parse(as_number) == plain
    assert parse(manifest_with("plain", lambda d: d.update(encryption=None))) == plain
    last = document_of("plain")
    last["chunkIndex"]["type"] = last["chunkIndex"].pop("type")
    assert list(last["chunkIndex"])[-1] == "type"
    assert parse(dict(reversed(last.items()))) == plain
    bare = parse(manifest_with("plain", lambda d: d.pop("remoteLogSegmentMetadata")))
    assert bare.metadata is None
    assert b"remoteLogSegmentMetadata" not in manifest_json(bare)
    assert parse(manifest_with("plain", lambda d: d.update(remoteLogSegmentMetadata=None))) == bare


def test_unknown_members_are_accepted() -> None:
    document = document_of("aes")
    document["future"] = {"deep": [1, 2]}
    document["chunkIndex"]["checksum"] = "x"
    document["segmentIndexes"]["bloom"] = None
    document["segmentIndexes"]["offset"]["crc"] = 1
    document["encryption"]["algorithm"] = "AES"
    document["remoteLogSegmentMetadata"]["newer"] = True
    manifest = parse(document)
    assert manifest == SegmentManifest.from_json(manifest_bytes("aes"))


@pytest.mark.parametrize("empty", [True, False])
def test_txn_idx_empty_of_newer_brokers_parses(empty: bool) -> None:
    document = manifest_with(
        "plain", lambda d: d["remoteLogSegmentMetadata"].update(txnIdxEmpty=empty)
    )
    manifest = parse(document)
    assert manifest.metadata is not None
    assert manifest.metadata.txn_index_empty is empty
    assert json.loads(manifest_json(manifest)) == document


def test_leader_epochs_are_sorted_by_number() -> None:
    epochs = {"10": 1290, "9": 1280, "2": 1234}
    document = manifest_with(
        "plain", lambda d: d["remoteLogSegmentMetadata"].update(segmentLeaderEpochs=epochs)
    )
    metadata = parse(document).metadata
    assert metadata is not None
    assert metadata.segment_leader_epochs == (
        EpochEntry(2, 1234),
        EpochEntry(9, 1280),
        EpochEntry(10, 1290),
    )


def set_at(*path: str, value: object) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        for name in path[:-1]:
            document = document[name]
        document[path[-1]] = value

    return change


def drop(*path: str) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        for name in path[:-1]:
            document = document[name]
        del document[path[-1]]

    return change


METADATA_PATH = "remoteLogSegmentMetadata"
ID_PATH = (METADATA_PATH, "remoteLogSegmentId")
REFUSED: list[tuple[str, Callable[[Document], None], str]] = [
    ("plain", set_at("version", value="2"), r"version '2'; supported: \"1\""),
    ("plain", set_at("version", value=2), "version '2'; supported"),
    ("plain", set_at("version", value=True), "version 'True'; supported"),
    ("plain", set_at("version", value=1.0), "version '1.0'; supported"),
    ("plain", drop("version"), "without version; supported"),
    ("plain", drop("chunkIndex"), "chunkIndex is missing"),
    ("plain", drop("segmentIndexes"), "before October 2023"),
    ("plain", drop("compression"), "compression is missing"),
    ("plain", set_at("compression", value=0), "compression is neither"),
    ("plain", set_at("chunkIndex", value=[]), "chunkIndex is not a JSON object"),
    ("plain", set_at("chunkIndex", "type", value="other"), 'supported: "fixed", "variable"'),
    ("plain", drop("chunkIndex", "type"), "chunkIndex.type is missing"),
    ("plain", drop("chunkIndex", "originalChunkSize"), "originalChunkSize is missing"),
    ("plain", drop("chunkIndex", "originalFileSize"), "originalFileSize is missing"),
    ("plain", drop("chunkIndex", "transformedChunkSize"), "transformedChunkSize is missing"),
    ("plain", drop("chunkIndex", "finalTransformedChunkSize"), "TransformedChunkSize is missing"),
    ("zstd", drop("chunkIndex", "originalChunkSize"), "originalChunkSize is missing"),
    ("zstd", drop("chunkIndex", "originalFileSize"), "originalFileSize is missing"),
    ("zstd", drop("chunkIndex", "transformedChunks"), "transformedChunks is missing"),
    ("zstd", set_at("chunkIndex", "transformedChunks", value=[1]), "is not a string"),
    ("zstd", set_at("chunkIndex", "originalFileSize", value=12289), "3 transformed chunks where"),
    ("plain", set_at("chunkIndex", "originalChunkSize", value=0), "is outside .1"),
    ("plain", set_at("chunkIndex", "originalFileSize", value=-1), "is outside .0"),
    ("plain", set_at("chunkIndex", "originalFileSize", value=2**31), "is outside .0"),
    ("plain", set_at("chunkIndex", "originalFileSize", value="1"), "is not an integer"),
    ("plain", set_at("chunkIndex", "originalFileSize", value=1.0), "is not an integer"),
    ("plain", set_at("chunkIndex", "originalFileSize", value=True), "is not an integer"),
    ("plain", set_at("chunkIndex", "transformedChunkSize", value=4097), "is not compressed"),
    ("plain", set_at("chunkIndex", "finalTransformedChunkSize", value=9), "is not compressed"),
    ("aes", drop("encryption"), "is not compressed"),
    ("zstd", set_at("compression", value=False), "is not compressed"),
    ("plain", drop("segmentIndexes", "transaction"), "segmentIndexes.transaction is missing"),
    ("plain", drop("segmentIndexes", "offset"), "segmentIndexes.offset is missing"),
    ("plain", set_at("segmentIndexes", "timestamp", value=None), "is not a JSON object"),
    ("plain", drop("segmentIndexes", "leaderEpoch", "size"), "leaderEpoch.size is missing"),
    ("plain", set_at("segmentIndexes", "offset", "position", value=-1), "is outside .0"),
    ("plain", set_at("segmentIndexes", "offset", "size", value=2**31), "is outside .0"),
    ("aes", set_at("encryption", value={}), "encryption.dataKey is missing"),
    ("aes", drop("encryption", "aad"), "encryption.aad is missing"),
    ("aes", set_at("encryption", "aad", value="AA"), "encryption.aad is not base64"),
    ("aes", set_at("encryption", "aad", value="ÄÄ=="), "encryption.aad is not base64"),
    ("aes", set_at("encryption", "dataKey", value="AAECAw=="), "does not have the form"),
    ("aes", set_at("encryption", "dataKey", value="\ud800:AA=="), "surrogate"),
    ("plain", drop(*ID_PATH), "remoteLogSegmentId is missing"),
    ("plain", set_at(*ID_PATH, "id", value="x"), "not a Kafka id"),
    ("plain", drop(METADATA_PATH, "endOffset"), "endOffset is missing"),
    ("plain", set_at(METADATA_PATH, "endOffset", value=1233), "invalid offsets 1234 to 1233"),
    ("plain", set_at(METADATA_PATH, "startOffset", value=-1), "is outside .0"),
    ("plain", set_at(METADATA_PATH, "endOffset", value=2**63), "is outside .0"),
    ("plain", set_at(METADATA_PATH, "segmentLeaderEpochs", value={}), "has no leader epochs"),
    ("plain", set_at(METADATA_PATH, "segmentLeaderEpochs", value={"01": 1}), "not a leader epoch"),
    ("plain", set_at(METADATA_PATH, "segmentLeaderEpochs", value={"-1": 1}), "not a leader epoch"),
    ("plain", set_at(METADATA_PATH, "segmentLeaderEpochs", value={"1": -1}), "is outside .0"),
    (
        "plain",
        set_at(METADATA_PATH, "segmentLeaderEpochs", value={"1": 9, "2": 8}),
        "epoch 2 starts before epoch 1",
    ),
    ("plain", set_at(METADATA_PATH, "txnIdxEmpty", value=1), "txnIdxEmpty is neither"),
]


@pytest.mark.parametrize(("case", "change", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_invalid_manifest_raises(
    case: str, change: Callable[[Document], None], reason: str
) -> None:
    with pytest.raises(InvalidManifestError, match=reason):
        parse(manifest_with(case, change))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"version":"1"', "not JSON"),
        (b'{"version":"\xff"}', "not UTF-8"),
        ('{"version":"1"}'.encode("utf-16"), "not UTF-8"),
        (b'{"version":NaN}', "not JSON"),
        (b'{"version":-Infinity}', "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b'{"a":' * 200_000, "not JSON"),
        (b'{"version":' + b"1" * 10_000 + b"}", "not JSON"),
        (b'{"version":' + b"1" * 4000 + b"}", "supported"),
        (bytes(MAX_MANIFEST_BYTES + 1), "at most"),
    ],
    ids=range(14),
)
def test_invalid_manifest_bytes_raise(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidManifestError, match=reason) as caught:
        SegmentManifest.from_json(data)
    assert len(str(caught.value)) < 300


def test_json_error_has_byte_position() -> None:
    data = manifest_bytes("plain")
    with pytest.raises(InvalidManifestError) as caught:
        SegmentManifest.from_json('{"ä":'.encode() + b"?" + data)
    assert caught.value.position == 6


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_parse_or_raise(data: bytes) -> None:
    assert isinstance(value_or_error(lambda: SegmentManifest.from_json(data)), InvalidManifestError)


@settings(deadline=None)
@given(st.sampled_from(CASES), st.data())
def test_changed_bytes_parse_or_raise(case: str, data: st.DataObject) -> None:
    mutated = bytearray(manifest_bytes(case))
    for _ in range(data.draw(st.integers(1, 3))):
        mutated[data.draw(st.integers(0, len(mutated) - 1))] = data.draw(st.integers(0, 255))
    assert_manifest_or_error(bytes(mutated))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 0, 1, 2**31 - 1, 2**31, 2**63 - 1, 2**63])
    | st.floats()
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@settings(deadline=None)
@given(st.sampled_from(CASES), st.data())
def test_manifest_with_changed_member_parses_or_raises(case: str, data: st.DataObject) -> None:
    document: Document = document_of(case)
    for _ in range(data.draw(st.integers(1, 3))):
        target = document
        while True:
            name = data.draw(st.sampled_from(sorted(target)))
            if isinstance(target[name], dict) and target[name] and data.draw(st.booleans()):
                target = target[name]
                continue
            break
        target[name] = data.draw(json_values)
    assert_manifest_or_error(json.dumps(document).encode())


def assert_manifest_or_error(data: bytes) -> None:
    outcome = value_or_error(lambda: SegmentManifest.from_json(data))
    if isinstance(outcome, SegmentFormatError):
        assert isinstance(outcome, InvalidManifestError)
        return
    outcome.chunk_index.chunks(0, 20_000)
    written = manifest_json(outcome)
    assert SegmentManifest.from_json(written) == outcome
    assert manifest_json(SegmentManifest.from_json(written)) == written


@settings(deadline=None)
@given(
    st.integers(1, 5000),
    st.integers(0, 100_000),
    st.booleans(),
    st.none()
    | st.builds(
        Encryption,
        st.builds(WrappedDataKey, st.just('schlüssel "1"'), st.binary(min_size=1)),
        st.binary(),
    ),
    st.lists(st.integers(0, 1000), min_size=4, max_size=5),
)
def test_manifest_round_trips(
    chunk_size: int,
    file_size: int,
    compression: bool,
    encryption: Encryption | None,
    sizes: list[int],
) -> None:
    overhead = 0 if encryption is None else 28
    count = -(-file_size // chunk_size)
    last = file_size - (count - 1) * chunk_size if count else 0
    manifest = SegmentManifest(
        variable_index(chunk_size, file_size, list(range(29, 29 + count)))
        if compression
        else FixedChunkIndex(chunk_size, file_size, chunk_size + overhead, last + overhead),
        index_ranges(
            offset=sizes[0],
            timestamp=sizes[1],
            producer_snapshot=sizes[2],
            leader_epoch=sizes[3],
            transaction=sizes[4] if len(sizes) > 4 else None,
        ),
        compression,
        encryption,
    )
    assert SegmentManifest.from_json(manifest_json(manifest)) == manifest
