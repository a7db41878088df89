"""Parses the segment manifest `<stem>.rsm-manifest`: one line of JSON, never encrypted.

    version                    "1"
    chunkIndex                 {type, …}, see `chunk_index`
    segmentIndexes             {offset, timestamp, producerSnapshot, leaderEpoch, transaction};
                               each is the {position, size} of a side file in the stored
                               `.indexes` object; only transaction can be null
    compression                true when the chunks are zstd frames
    encryption                 {dataKey, aad}, see `encryption`; absent when not encrypted
    remoteLogSegmentMetadata   the segment's metadata when the copy began; may be absent:
        remoteLogSegmentId: {topicIdPartition: {topicId, topicPartition: {topic, partition}}, id}
        startOffset, endOffset (inclusive), maxTimestampMs, brokerId, eventTimestampMs
        segmentLeaderEpochs: {"<epoch>": <start offset>, …}
        txnIdxEmpty: only from Kafka 4 on

Unlike the plugin, this parser accepts unknown members. It refuses an unknown version or chunk index
type.

Source: `io.aiven.kafka.tieredstorage.manifest.SegmentManifestV1`, `SegmentIndexesV1`.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from segment_format.errors import InvalidManifestError
from segment_format.index.checkpoints import EpochEntry
from segment_format.kafka_uuid import uuid_from_text
from segment_format.manifest.chunk_index import ChunkIndex, FixedChunkIndex, VariableChunkIndex
from segment_format.manifest.encryption import AES_OVERHEAD, Encryption, WrappedDataKey
from segment_format.metadata.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from segment_format.metadata.remote_log_segment_metadata import check_offsets_and_epochs

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_INT32 = 2**31 - 1
MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1


def _parse_json_object(data: bytes, what: str) -> dict[str, object]:
    """Parses UTF-8 bytes that contain one JSON object. Raises `InvalidManifestError` if they do
    not, or if the object contains NaN or Infinity.
    """
    try:
        text = bytes(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidManifestError(f"{what} is not UTF-8", position=error.start) from error
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        position = len(text[: error.pos].encode("utf-8"))
        raise InvalidManifestError(f"{what} is not JSON: {error.msg}", position=position) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, deep nesting
        raise InvalidManifestError(f"{what} is not JSON that can be read: {error}") from error
    if not isinstance(value, dict):
        raise InvalidManifestError(f"{what} is not a JSON object")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


class _Members:
    """Reads members of a JSON object and checks their types. Errors contain the path of the invalid
    member in the document.
    """

    __slots__ = ("_members", "_path")

    def __init__(self, members: dict[str, object], path: tuple[str, ...] = ()) -> None:
        self._members = members
        self._path = path

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def fail(self, name: str, problem: str) -> InvalidManifestError:
        path = ".".join((*self._path, name))
        return InvalidManifestError(f"manifest: {path} {problem}")

    def value(self, name: str) -> object:
        if name not in self._members:
            raise self.fail(name, "is missing")
        return self._members[name]

    def optional(self, name: str) -> object:
        """Returns a member of any type; `None` if it is null or absent."""
        return self._members.get(name)

    def integer(self, name: str, *, low: int = 0, high: int = MAX_INT32) -> int:
        """Returns a required integer from `low` to `high`, both inclusive."""
        value = self._members.get(name)
        if type(value) is not int:
            self.value(name)  # raises if it is missing
            raise self.fail(name, "is not an integer")
        if not low <= value <= high:
            raise self.fail(name, f"is outside [{low}, {high}]")
        return value

    def text(self, name: str) -> str:
        """Returns a required string. Raises an error for a string with half of a surrogate pair,
        because UTF-8 cannot encode it.
        """
        value = self.value(name)
        if not isinstance(value, str):
            raise self.fail(name, "is not a string")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise self.fail(name, "has half of a surrogate pair") from error
        return value

    def boolean(self, name: str) -> bool:
        value = self.value(name)
        if not isinstance(value, bool):
            raise self.fail(name, "is neither true nor false")
        return value

    def base64_bytes(self, name: str) -> bytes:
        """Returns the decoded bytes of a required member. The member must be a string in standard
        base64 with padding.
        """
        text = self.text(name)
        try:
            return base64.b64decode(text, validate=True)
        except ValueError as error:  # binascii.Error is one
            raise self.fail(name, "is not base64") from error

    def members(self, name: str) -> _Members:
        value = self.value(name)
        if not isinstance(value, dict):
            raise self.fail(name, "is not a JSON object")
        return _Members(value, (*self._path, name))

    def optional_members(self, name: str) -> _Members | None:
        """Returns a member that is a JSON object; `None` if it is null or absent."""
        return None if self.optional(name) is None else self.members(name)


_EPOCH = re.compile(r"0|[1-9][0-9]{0,9}")
_MIN_INT32 = -(2**31)


def _metadata_from_members(members: _Members, *, segment_size: int) -> RemoteLogSegmentMetadata:
    """Parses the segment's metadata, `remoteLogSegmentMetadata` of a manifest. The metadata does
    not contain `segment_size`, the size of the `.log` file; it is `originalFileSize` of the chunk
    index.

    Raises:
        InvalidManifestError: A member is missing or has a value that no broker writes.
    """
    segment = members.members("remoteLogSegmentId")
    topic_id_partition = segment.members("topicIdPartition")
    topic_partition = topic_id_partition.members("topicPartition")
    segment_id = RemoteLogSegmentId(
        TopicIdPartition(
            topic_partition.text("topic"),
            uuid_from_text(topic_id_partition.text("topicId")),
            topic_partition.integer("partition"),
        ),
        uuid_from_text(segment.text("id")),
    )
    start_offset = members.integer("startOffset", high=MAX_INT64)
    end_offset = members.integer("endOffset", high=MAX_INT64)
    epochs = _epochs(members)
    check_offsets_and_epochs(start_offset, end_offset, epochs, InvalidManifestError)
    empty = members.optional("txnIdxEmpty")
    if empty is not None and not isinstance(empty, bool):
        raise members.fail("txnIdxEmpty", "is neither true nor false")
    return RemoteLogSegmentMetadata(
        segment_id,
        start_offset,
        end_offset,
        max_timestamp_ms=members.integer("maxTimestampMs", low=MIN_INT64, high=MAX_INT64),
        broker_id=members.integer("brokerId", low=_MIN_INT32),
        event_timestamp_ms=members.integer("eventTimestampMs", low=MIN_INT64, high=MAX_INT64),
        segment_leader_epochs=epochs,
        segment_size_in_bytes=segment_size,
        txn_index_empty=empty,
    )


def _epochs(members: _Members) -> tuple[EpochEntry, ...]:
    epochs = members.members("segmentLeaderEpochs")
    entries: list[EpochEntry] = []
    for name in epochs:
        if not _EPOCH.fullmatch(name) or int(name) > MAX_INT32:
            raise epochs.fail(name[:40], "is not a leader epoch")
        entries.append(EpochEntry(int(name), epochs.integer(name, high=MAX_INT64)))
    return tuple(sorted(entries, key=lambda entry: entry.epoch))


MANIFEST_VERSION = "1"
# Enough for the longest chunk list in base64 and all other members.
MAX_MANIFEST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class IndexRange:
    """Location of one side file: bytes [position, position + size) of the stored `.indexes` object.

    Attributes:
        position: Position of the first byte.
        size: Number of stored bytes. In an encrypted segment, they include the 28 bytes that
            AES-GCM adds. 0 for an empty file.
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
        transaction: Transaction index (`.txnindex`); `None` if no transaction was aborted in the
            segment.
    """

    offset: IndexRange
    timestamp: IndexRange
    producer_snapshot: IndexRange
    leader_epoch: IndexRange
    transaction: IndexRange | None = None

    @property
    def ranges(self) -> tuple[IndexRange, ...]:
        """Ranges of the existing side files, in the order in which the plugin writes them."""
        mandatory = (self.offset, self.timestamp, self.producer_snapshot, self.leader_epoch)
        return mandatory if self.transaction is None else (*mandatory, self.transaction)

    @property
    def transformed_size(self) -> int:
        """Expected size of the stored `.indexes` object, in bytes."""
        return max(index_range.stop for index_range in self.ranges)


@dataclass(frozen=True, slots=True)
class SegmentManifest:
    """Describes how a segment is split into chunks, compressed and encrypted in its objects.

    Attributes:
        chunk_index: Maps bytes of the segment file to stored bytes.
        segment_indexes: Ranges of the side files.
        compression: True if every chunk is a zstd frame.
        encryption: Wrapped data key and AAD, or `None` if the segment is not encrypted.
        metadata: The broker's metadata, or `None` in manifests of older plugins.
    """

    chunk_index: FixedChunkIndex | VariableChunkIndex
    segment_indexes: SegmentIndexes
    compression: bool
    encryption: Encryption | None = None
    metadata: RemoteLogSegmentMetadata | None = None

    @classmethod
    def from_json(cls, data: bytes) -> SegmentManifest:
        """Parses a manifest.

        Args:
            data: The whole object, at most 16 MiB. Parsing takes less than 32 bytes of memory per
                byte of JSON, plus 260 MB for the longest chunk list (10.5 million chunks).

        Raises:
            InvalidManifestError: The data is not a manifest of version 1, or contradicts itself.
        """
        if len(data) > MAX_MANIFEST_BYTES:
            raise InvalidManifestError(
                f"the manifest has {len(data)} bytes; at most {MAX_MANIFEST_BYTES} are allowed"
            )
        members = _Members(_parse_json_object(data, "manifest"))
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
            else _metadata_from_members(metadata, segment_size=chunk_index.original_file_size),
        )


def _check_version(members: _Members) -> None:
    version = members.optional("version")
    if version == MANIFEST_VERSION or (type(version) is int and str(version) == MANIFEST_VERSION):
        return
    what = "without version" if version is None else f"of version {str(version)[:40]!r}"
    raise InvalidManifestError(f'manifest {what}; supported: "{MANIFEST_VERSION}"')


def _parse_chunk_index(members: _Members) -> FixedChunkIndex | VariableChunkIndex:
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


def _parse_segment_indexes(members: _Members) -> SegmentIndexes:
    transaction = None if members.value("transaction") is None else _range(members, "transaction")
    return SegmentIndexes(
        _range(members, "offset"),
        _range(members, "timestamp"),
        _range(members, "producerSnapshot"),
        _range(members, "leaderEpoch"),
        transaction,
    )


def _range(members: _Members, name: str) -> IndexRange:
    index_range = members.members(name)
    return IndexRange(index_range.integer("position"), index_range.integer("size", high=MAX_INT32))


def _parse_encryption(members: _Members | None) -> Encryption | None:
    if members is None:
        return None
    return Encryption(
        WrappedDataKey.from_text(members.text("dataKey")), members.base64_bytes("aad")
    )


def _check_uncompressed_sizes(chunk_index: ChunkIndex, overhead: int) -> None:
    """Raises `InvalidManifestError` if the stored chunk sizes of an uncompressed segment are wrong.

    The stored size of a chunk must be its original size plus `overhead`. Checks the sum of the
    stored sizes, and the sizes of the first and the last chunk.
    """
    if not chunk_index.chunk_count:
        return
    expected = chunk_index.original_file_size + overhead * chunk_index.chunk_count
    ends = chunk_index.chunk(0), chunk_index.chunk(chunk_index.chunk_count - 1)
    if chunk_index.transformed_size != expected or any(
        chunk.transformed_size != chunk.original_size + overhead for chunk in ends
    ):
        raise InvalidManifestError(
            f"the chunks have {chunk_index.transformed_size} stored bytes, but must have "
            f"{expected}, because the segment has {chunk_index.original_file_size} bytes in "
            f"{chunk_index.chunk_count} chunks and is not compressed"
        )
