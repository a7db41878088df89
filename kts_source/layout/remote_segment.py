"""A remote segment as the tier describes it: facts about its offsets, and where its bytes are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from segment_format.manifest.chunk_index import FixedChunkIndex

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kts_source.store.object_store import ObjectInfo
    from segment_format.index.leader_epoch_checkpoint import EpochEntry
    from segment_format.manifest.chunk_index import ChunkIndex
    from segment_format.manifest.encryption import Encryption

_PLAIN_CHUNK_BYTES: Final = 4 << 20
"""Files that are stored as they are have no chunks; they are read and cut in these."""


class IndexType(Enum):
    """The side files of a segment (`RemoteStorageManager.IndexType`)."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    PRODUCER_SNAPSHOT = "producerSnapshot"
    LEADER_EPOCH = "leaderEpoch"
    TRANSACTION = "transaction"

    # The default hashes the name, in Python; members are single.
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One version of one object.

    Attributes:
        key: Key below the store's root.
        size: Length in bytes, as listed.
        version: ETag, generation or the like; a read of another version fails.
        storage_class: As the listing reports it, for the cost and for what cannot be read.
    """

    key: str
    size: int
    version: str | None
    storage_class: str | None = None

    @classmethod
    def of(cls, info: ObjectInfo) -> ObjectRef:
        """The listed version."""
        return cls(info.key, info.size, info.version, info.storage_class)


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """Where a side file stands: bytes [start, stop) of an object, encrypted if the segment is.

    Attributes:
        content: The file itself, where a layout has worked it out: it stands nowhere, and `source`
            is the log it was worked out from.
    """

    source: ObjectRef
    start: int
    stop: int
    content: bytes | None = None

    @classmethod
    def rebuilt(cls, log: ObjectRef, content: bytes) -> StoredIndex:
        """A side file worked out from the log."""
        return cls(log, 0, len(content), content)

    @property
    def size(self) -> int:
        """Stored bytes."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class SegmentObjects:
    """The stored form of a segment: all that a reader of its bytes needs, and no secret.

    Attributes:
        log: The object that holds the transformed chunks.
        chunk_index: From positions in the original segment to positions in the object.
        compression: Whether chunks are zstd frames.
        encryption: Present when chunks and side files are AES-GCM messages.
        indexes: The side files there are; a transaction index is absent when no transaction was
            aborted.
    """

    log: ObjectRef
    chunk_index: ChunkIndex
    compression: bool
    encryption: Encryption | None
    indexes: Mapping[IndexType, StoredIndex]

    @property
    def size_in_bytes(self) -> int:
        """Length of the original segment file."""
        return self.chunk_index.original_file_size


@dataclass(frozen=True, slots=True)
class RemoteSegment:
    """One uploaded segment (`RemoteLogSegmentMetadata`) and its objects.

    Attributes:
        start_offset: First offset, inclusive.
        end_offset: Last offset, inclusive; may lie above the last batch's.
        max_timestamp_ms: Largest timestamp of any batch, markers included; −1 when unknown.
        event_timestamp_ms: When the copy began; `None` where the layout does not tell.
        leader_epochs: Epochs of this segment with their first offset in it, ascending.
        end_is_exact: Whether the next segment of the same lineage must begin right behind
            `end_offset`; otherwise the broker's end may be higher, with no record in between.
    """

    topic: str
    topic_id: str
    partition: int
    segment_id: str
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    event_timestamp_ms: int | None
    leader_epochs: tuple[EpochEntry, ...]
    objects: SegmentObjects
    end_is_exact: bool = True

    def is_dated_before(self, timestamp_ms: int) -> bool:
        """Whether `max_timestamp_ms` proves that all records are dated before a timestamp.

        Some clients leave the largest timestamp of batch headers at −1 or 0, and brokers copy it,
        so those values prove nothing.
        """
        return 0 < self.max_timestamp_ms < timestamp_ms

    @property
    def stop_offset(self) -> int:
        """One past the last offset."""
        return self.end_offset + 1


def plain_chunks(size: int) -> FixedChunkIndex:
    """The chunk table of a log of `size` bytes that is stored as it is: cut so that reads of it are
    bounded.
    """
    step = max(min(_PLAIN_CHUNK_BYTES, size), 1)
    last = size - (-(-size // step) - 1) * step if size else 0
    return FixedChunkIndex(
        original_chunk_size=step,
        original_file_size=size,
        transformed_chunk_size=step,
        final_transformed_chunk_size=last,
    )


def epochs_between(
    lineage: Sequence[EpochEntry], start_offset: int, end_offset: int
) -> tuple[EpochEntry, ...]:
    """The epochs that own some of the offsets, each with its first offset among them.

    Args:
        lineage: Entries of a leader-epoch checkpoint.
        start_offset: First offset, inclusive.
        end_offset: Last offset, inclusive.
    """
    stops = [entry.start_offset for entry in lineage[1:]]
    return tuple(
        entry if entry.start_offset >= start_offset else replace(entry, start_offset=start_offset)
        for entry, stop in zip_longest(lineage, stops)
        if entry.start_offset <= end_offset and (stop is None or stop > start_offset)
    )
