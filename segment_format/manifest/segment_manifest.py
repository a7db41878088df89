"""The segment manifest `<stem>.rsm-manifest`: one line of JSON, never compressed or encrypted.

    version                    "1"
    chunkIndex                 {type, …}, see `chunk_index`
    segmentIndexes             {offset, timestamp, producerSnapshot, leaderEpoch, transaction |
                               null}, each {position, size} in the stored `.indexes` object
    compression                true when the chunks are zstd frames
    encryption                 {dataKey, aad}, see `encryption`; absent when not encrypted
    remoteLogSegmentMetadata   see `segment_metadata_json`; may be absent

Members this code does not know are accepted and reported, unlike in the plugin. An unknown version
or chunk index type is refused.

Source: `io.aiven.kafka.tieredstorage.manifest.SegmentManifestV1`, `SegmentIndexesV1`.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from segment_format.errors import InvalidManifestError
from segment_format.manifest.chunk_index import ChunkIndex, FixedChunkIndex, VariableChunkIndex
from segment_format.manifest.encryption import AES_OVERHEAD, Encryption, WrappedDataKey
from segment_format.manifest.json_members import MAX_INT32, Members, parse_json_object
from segment_format.manifest.segment_metadata_json import (
    metadata_from_members,
    metadata_to_members,
)

if TYPE_CHECKING:
    from segment_format.metadata.remote_log_segment_metadata import RemoteLogSegmentMetadata

MANIFEST_VERSION = "1"
# The longest chunk list the codec admits, in base64, and room for everything else.
MAX_MANIFEST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class IndexRange:
    """Where a side file is in the stored `.indexes` object: bytes [position, position + size).

    Attributes:
        position: First byte.
        size: Stored bytes (with encryption: of the AES-GCM message); 0 for an empty file.
    """

    position: int
    size: int

    @property
    def stop(self) -> int:
        """End of the range, exclusive."""
        return self.position + self.size


@dataclass(frozen=True, slots=True)
class SegmentIndexes:
    """The side files of a segment.

    Attributes:
        offset: Offset index (`.index`).
        timestamp: Time index (`.timeindex`).
        producer_snapshot: Producer state at the segment's end (`.snapshot`).
        leader_epoch: Leader epoch checkpoint from the log's start to the segment's end.
        transaction: Transaction index (`.txnindex`), or None: no transaction was aborted in the
            segment.
    """

    offset: IndexRange
    timestamp: IndexRange
    producer_snapshot: IndexRange
    leader_epoch: IndexRange
    transaction: IndexRange | None = None

    @classmethod
    def from_sizes(
        cls,
        *,
        offset: int,
        timestamp: int,
        producer_snapshot: int,
        leader_epoch: int,
        transaction: int | None = None,
    ) -> SegmentIndexes:
        """The ranges of blobs of these stored sizes, in the plugin's order, without gaps."""
        ranges: list[IndexRange] = []
        position = 0
        for size in (offset, timestamp, producer_snapshot, leader_epoch, transaction or 0):
            ranges.append(IndexRange(position, size))
            position += size
        return cls(
            ranges[0],
            ranges[1],
            ranges[2],
            ranges[3],
            None if transaction is None else ranges[4],
        )

    @property
    def ranges(self) -> tuple[IndexRange, ...]:
        """The ranges that exist, in the plugin's order."""
        mandatory = (self.offset, self.timestamp, self.producer_snapshot, self.leader_epoch)
        return mandatory if self.transaction is None else (*mandatory, self.transaction)

    @property
    def transformed_size(self) -> int:
        """Bytes that the stored `.indexes` object must have."""
        return max(index_range.stop for index_range in self.ranges)


@dataclass(frozen=True, slots=True)
class SegmentManifest:
    """Everything a reader has to know about a segment but the private key.

    Attributes:
        chunk_index: Which stored bytes hold which bytes of the segment file.
        segment_indexes: Where the side files are.
        compression: Whether every chunk is a zstd frame.
        encryption: Wrapped data key and AAD, or None.
        metadata: The broker's metadata of the segment, or None in manifests from before it was
            added.
        unknown_members: Paths of the members that were not understood, and are not written back.
            Those inside `remoteLogSegmentMetadata` come with newer brokers and need no warning.
    """

    chunk_index: FixedChunkIndex | VariableChunkIndex
    segment_indexes: SegmentIndexes
    compression: bool
    encryption: Encryption | None = None
    metadata: RemoteLogSegmentMetadata | None = None
    unknown_members: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def from_json(cls, data: bytes) -> SegmentManifest:
        """Parses a manifest.

        Args:
            data: The whole object, at most 16 MiB. Memory stays below 32 bytes a byte of JSON plus
                260 MB for the longest chunk list (10.5 million chunks); 12 bytes a chunk remain.

        Raises:
            InvalidManifestError: Not a manifest of version 1, or one that contradicts itself.
        """
        if len(data) > MAX_MANIFEST_BYTES:
            raise InvalidManifestError(
                f"manifest of {len(data)} bytes, at most {MAX_MANIFEST_BYTES} are allowed"
            )
        members = Members(parse_json_object(data, "manifest"))
        _check_version(members)
        if "segmentIndexes" not in members and "chunkIndex" in members:
            raise InvalidManifestError(
                "segmentIndexes is missing: this manifest was written before October 2023, when "
                "side files were separate objects; that layout is not supported"
            )
        chunk_index = _parse_chunk_index(members.members("chunkIndex"))
        segment_indexes = _parse_segment_indexes(members.members("segmentIndexes"))
        compression = members.boolean("compression")
        encryption = _parse_encryption(members.optional_members("encryption"))
        if not compression:
            _check_uncompressed_sizes(chunk_index, AES_OVERHEAD if encryption else 0)
        metadata = members.optional_members("remoteLogSegmentMetadata")
        return cls(
            chunk_index,
            segment_indexes,
            compression,
            encryption,
            None
            if metadata is None
            else metadata_from_members(metadata, segment_size=chunk_index.original_file_size),
            members.unknown(),
        )

    def to_json(self) -> bytes:
        """The bytes that the plugin writes for this manifest.

        A parsed manifest without unknown members gives back its own bytes.
        """
        members: dict[str, object] = {
            "version": MANIFEST_VERSION,
            "chunkIndex": _chunk_index_members(self.chunk_index),
            "segmentIndexes": {
                name: None
                if index_range is None
                else {"position": index_range.position, "size": index_range.size}
                for name, index_range in (
                    ("offset", self.segment_indexes.offset),
                    ("timestamp", self.segment_indexes.timestamp),
                    ("producerSnapshot", self.segment_indexes.producer_snapshot),
                    ("leaderEpoch", self.segment_indexes.leader_epoch),
                    ("transaction", self.segment_indexes.transaction),
                )
            },
            "compression": self.compression,
        }
        if self.encryption is not None:
            members["encryption"] = {
                "dataKey": self.encryption.data_key.to_text(),
                "aad": base64.b64encode(self.encryption.aad).decode("ascii"),
            }
        if self.metadata is not None:
            members["remoteLogSegmentMetadata"] = metadata_to_members(self.metadata)
        return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _check_version(members: Members) -> None:
    version = members.optional("version")
    if version == MANIFEST_VERSION or (type(version) is int and str(version) == MANIFEST_VERSION):
        return
    what = "without version" if version is None else f"of version {str(version)[:40]!r}"
    raise InvalidManifestError(f'manifest {what}; supported: "{MANIFEST_VERSION}"')


def _parse_chunk_index(members: Members) -> FixedChunkIndex | VariableChunkIndex:
    kind = members.text("type")
    if kind not in ("fixed", "variable"):
        raise members.fail("type", f'is {kind[:40]!r}; supported: "fixed", "variable"')
    chunk_size = members.integer("originalChunkSize", low=1)
    file_size = members.integer("originalFileSize")
    if kind == "fixed":
        return FixedChunkIndex(
            chunk_size,
            file_size,
            members.integer("transformedChunkSize"),
            members.integer("finalTransformedChunkSize"),
        )
    return VariableChunkIndex(chunk_size, file_size, members.text("transformedChunks"))


def _chunk_index_members(chunk_index: FixedChunkIndex | VariableChunkIndex) -> dict[str, object]:
    sizes: dict[str, object] = {
        "originalChunkSize": chunk_index.original_chunk_size,
        "originalFileSize": chunk_index.original_file_size,
    }
    if isinstance(chunk_index, VariableChunkIndex):
        return {
            "type": "variable",
            **sizes,
            "transformedChunks": chunk_index.transformed_chunks,
        }
    return {
        "type": "fixed",
        **sizes,
        "transformedChunkSize": chunk_index.transformed_chunk_size,
        "finalTransformedChunkSize": chunk_index.final_transformed_chunk_size,
    }


def _parse_segment_indexes(members: Members) -> SegmentIndexes:
    transaction = None if members.value("transaction") is None else _range(members, "transaction")
    return SegmentIndexes(
        _range(members, "offset"),
        _range(members, "timestamp"),
        _range(members, "producerSnapshot"),
        _range(members, "leaderEpoch"),
        transaction,
    )


def _range(members: Members, name: str) -> IndexRange:
    index_range = members.members(name)
    return IndexRange(index_range.integer("position"), index_range.integer("size", high=MAX_INT32))


def _parse_encryption(members: Members | None) -> Encryption | None:
    if members is None:
        return None
    return Encryption(
        WrappedDataKey.from_text(members.text("dataKey")), members.base64_bytes("aad")
    )


def _check_uncompressed_sizes(chunk_index: ChunkIndex, overhead: int) -> None:
    """Without compression every stored size follows from the original one."""
    if not chunk_index.chunk_count:
        return
    expected = chunk_index.original_file_size + overhead * chunk_index.chunk_count
    ends = chunk_index.chunk(0), chunk_index.chunk(chunk_index.chunk_count - 1)
    if chunk_index.transformed_size != expected or any(
        chunk.transformed_size != chunk.original_size + overhead for chunk in ends
    ):
        raise InvalidManifestError(
            f"chunks of {chunk_index.transformed_size} stored bytes; without compression "
            f"{chunk_index.original_file_size} bytes in {chunk_index.chunk_count} chunks "
            f"make {expected}"
        )
