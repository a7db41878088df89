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

Reading a JSON object member by member: errors name the path, leftovers are listed.

The copy of the broker's segment metadata in a manifest: member `remoteLogSegmentMetadata`.

    remoteLogSegmentId: {topicIdPartition: {topicId, topicPartition: {topic, partition}}, id}
    startOffset, endOffset (inclusive), maxTimestampMs, brokerId, eventTimestampMs
    segmentLeaderEpochs: {"<epoch>": <start offset>, …}
    txnIdxEmpty: only from Kafka 4 on

It was made when the copy began: no custom metadata, no size, state COPY_SEGMENT_STARTED.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from typing import Final, NoReturn

from segment_format.errors import InvalidManifestError
from segment_format.index.checkpoints import EpochEntry
from segment_format.kafka_uuid import uuid_from_text, uuid_to_text
from segment_format.manifest.chunk_index import ChunkIndex, FixedChunkIndex, VariableChunkIndex
from segment_format.manifest.encryption import AES_OVERHEAD, Encryption, WrappedDataKey
from segment_format.metadata.remote_log_segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
    check_offsets_and_epochs,
)

MAX_INT32 = 2**31 - 1
MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1


def parse_json_object(data: bytes, what: str) -> dict[str, object]:
    """One JSON object from UTF-8 bytes; NaN and Infinity are refused.

    Raises:
        InvalidManifestError: Not that.
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
        raise InvalidManifestError(f"{what} is not JSON that can be read") from error
    if not isinstance(value, dict):
        raise InvalidManifestError(f"{what} is not a JSON object")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


class Members:
    """The members of one JSON object; those never asked for are reported as unknown.

    Args:
        members: The parsed object.
        path: Names that lead to the object, from the document on.
    """

    __slots__ = ("_asked", "_children", "_members", "_path")

    def __init__(self, members: dict[str, object], path: tuple[str, ...] = ()) -> None:
        self._members = members
        self._path = path
        self._asked: set[str] = set()
        self._children: list[Members] = []

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def path(self, name: str) -> str:
        """Path of a member in the document."""
        return ".".join((*self._path, name))

    def fail(self, name: str, problem: str) -> InvalidManifestError:
        """The error to raise about a member."""
        return InvalidManifestError(f"{self.path(name)} {problem}")

    def value(self, name: str) -> object:
        """A required member of any type, null included."""
        self._asked.add(name)
        if name not in self._members:
            raise self.fail(name, "is missing")
        return self._members[name]

    def optional(self, name: str) -> object:
        """A member of any type; None for null and for absent."""
        self._asked.add(name)
        return self._members.get(name)

    def integer(self, name: str, *, low: int = 0, high: int = MAX_INT32) -> int:
        """A required whole number from `low` to `high`, both inclusive."""
        value = self.value(name)
        if type(value) is not int:
            raise self.fail(name, "is not a whole number")
        if not low <= value <= high:
            raise self.fail(name, f"is outside {low} … {high}")
        return value

    def text(self, name: str) -> str:
        """A required text that can be written as UTF-8."""
        value = self.value(name)
        if not isinstance(value, str):
            raise self.fail(name, "is not a text")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise self.fail(name, "holds half of a surrogate pair") from error
        return value

    def boolean(self, name: str) -> bool:
        """A required true or false."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise self.fail(name, "is neither true nor false")
        return value

    def base64_bytes(self, name: str) -> bytes:
        """A required text of standard base64 with padding."""
        text = self.text(name)
        try:
            return base64.b64decode(text, validate=True)
        except ValueError as error:  # binascii.Error is one
            raise self.fail(name, "is not base64") from error

    def members(self, name: str) -> Members:
        """A required JSON object."""
        value = self.value(name)
        if not isinstance(value, dict):
            raise self.fail(name, "is not a JSON object")
        child = Members(value, (*self._path, name))
        self._children.append(child)
        return child

    def optional_members(self, name: str) -> Members | None:
        """A JSON object; None for null and for absent."""
        return None if self.optional(name) is None else self.members(name)

    def items(self) -> dict[str, object]:
        """All members; asks for every one."""
        self._asked.update(self._members)
        return self._members

    def unknown(self) -> tuple[str, ...]:
        """Paths of the members that nobody asked for, here and in the objects asked for."""
        own: tuple[str, ...] = ()
        if not self._asked.issuperset(self._members):
            own = tuple(self.path(name) for name in self._members if name not in self._asked)
        for child in self._children:
            own += child.unknown()
        return own


_EPOCH = re.compile(r"0|[1-9][0-9]{0,9}")
_MIN_INT32, _MAX_INT32 = -(2**31), 2**31 - 1


def metadata_from_members(members: Members, *, segment_size: int) -> RemoteLogSegmentMetadata:
    """The metadata in a manifest.

    Args:
        members: Member `remoteLogSegmentMetadata`.
        segment_size: `originalFileSize` of the chunk index, which stands for the size that this
            copy lacks.

    Raises:
        InvalidManifestError: A member is missing or not what a broker writes.
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


def metadata_to_members(metadata: RemoteLogSegmentMetadata) -> dict[str, object]:
    """The member's value, in the order the plugin writes."""
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


def _epochs(members: Members) -> tuple[EpochEntry, ...]:
    epochs = members.members("segmentLeaderEpochs")
    entries: list[EpochEntry] = []
    for name in epochs.items():
        if not _EPOCH.fullmatch(name) or int(name) > _MAX_INT32:
            raise epochs.fail(name[:40], "is not a leader epoch")
        entries.append(EpochEntry(int(name), epochs.integer(name, high=MAX_INT64)))
    return tuple(sorted(entries, key=lambda entry: entry.epoch))


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
