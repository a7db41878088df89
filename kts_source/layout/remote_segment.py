"""Describes remote segments: their offsets, and the location of their bytes. Encodes a description
as JSON values for caches and plan files.

An encoded segment (its facts) is a list with these items, in this order:

    first offset, last offset, largest timestamp in ms, event timestamp in ms or null,
    whether the last offset is exact, [[leader epoch, its first offset], …],
    name of the log object, whether chunks are compressed,
    chunks: [chunk size, file size, stored chunk size, stored size of the last chunk], or
        [chunk size, file size, the manifest's text of all stored sizes, their sum],
    null or [wrapped data key, AAD in base64],
    side files: [[kind, name of the object, first byte, stop byte], …]; a side file that a layout
        rebuilt from the log has its bytes in base64 as a fifth item

The caller chooses a name for each object, and stores its key, size and version separately. Data
keys stay wrapped, as in manifests.
"""

from __future__ import annotations

import base64
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from segment_format.index.checkpoints import EpochEntry
from segment_format.manifest.chunk_index import FixedChunkIndex, VariableChunkIndex
from segment_format.manifest.encryption import Encryption, WrappedDataKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kts_source.store.object_store import ObjectInfo
    from segment_format.manifest.chunk_index import ChunkIndex


_PLAIN_CHUNK_BYTES: Final = 4 << 20
"""Chunk size of files that are stored without chunks."""


class IndexType(Enum):
    """The kinds of side files of a segment (`RemoteStorageManager.IndexType`)."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    PRODUCER_SNAPSHOT = "producerSnapshot"
    LEADER_EPOCH = "leaderEpoch"
    TRANSACTION = "transaction"

    # This is faster than the hash of `Enum`, which hashes the name in Python.
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One version of one object.

    Attributes:
        key: Key relative to the store's root.
        size: Length in bytes, as listed.
        version: ETag, generation or similar. Reads fail if the object now has another version.
        storage_class: Storage class in the listing, for costs and archived objects.
    """

    key: str
    size: int
    version: str | None
    storage_class: str | None = None

    @classmethod
    def of(cls, info: ObjectInfo) -> ObjectRef:
        """Returns a reference to the listed version of an object."""
        return cls(info.key, info.size, info.version, info.storage_class)


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """The location of a side file: bytes [start, stop) of an object. The bytes are encrypted if the
    segment is encrypted.

    Attributes:
        content: Bytes of a side file that a layout rebuilt from the log, else `None`. If set,
            `source` is the log.
    """

    source: ObjectRef
    start: int
    stop: int
    content: bytes | None = None

    @classmethod
    def rebuilt(cls, log: ObjectRef, content: bytes) -> StoredIndex:
        """Returns a side file that a layout rebuilt from the log. `content` is its bytes."""
        return cls(log, 0, len(content), content)

    @property
    def size(self) -> int:
        """Size in bytes, as stored."""
        return self.stop - self.start


_SMALL: Final = struct.Struct(f"<{2 * len(IndexType)}i")
_LARGE: Final = struct.Struct(f"<{2 * len(IndexType)}q")
_KINDS: Final = tuple(IndexType)
_NUMBERS: Final = {kind: 2 * number for number, kind in enumerate(_KINDS)}
_ABSENT: Final = -1


class StoredIndexes(Mapping[IndexType, StoredIndex]):
    """The side files of a segment, if all of them are in one object.

    It equals a dict of the same side files, but takes a sixth of the memory, because plans have one
    for each segment.

    Args:
        source: The object that contains the side files.
        ranges: Kind, first byte and stop byte of each side file.
        log: The log of the segment. If both keys differ only in the suffix, only one is stored.

    Raises:
        ValueError: A position is not an integer of 64 bits.
    """

    __slots__ = ("_key", "_positions", "_size", "_storage_class", "_suffix", "_version")

    def __init__(
        self,
        source: ObjectRef,
        ranges: Iterable[tuple[IndexType, int, int]],
        log: ObjectRef | None = None,
    ) -> None:
        positions = [_ABSENT] * (2 * len(IndexType))
        for kind, start, stop in ranges:
            number = _NUMBERS[kind]
            positions[number], positions[number + 1] = start, stop
        self._key, self._suffix = source.key, ""
        if log is not None:
            dot = source.key.rfind(".")
            if dot >= 0 and log.key.rfind(".") == dot and log.key.startswith(source.key[:dot]):
                self._key, self._suffix = log.key, sys.intern(source.key[dot:])
        self._size, self._version = source.size, source.version
        self._storage_class = source.storage_class
        try:
            self._positions = _SMALL.pack(*positions)
        except struct.error:  # a position needs more than 32 bits, or is invalid
            try:
                self._positions = _LARGE.pack(*positions)
            except struct.error as error:
                raise ValueError(f"positions of side files: {error}") from None

    @property
    def source(self) -> ObjectRef:
        """The object that contains the side files."""
        key = self._key
        if self._suffix:
            key = key.rpartition(".")[0] + self._suffix
        return ObjectRef(key, self._size, self._version, self._storage_class)

    def _unpacked(self) -> tuple[int, ...]:
        is_small = len(self._positions) == _SMALL.size
        return (_SMALL if is_small else _LARGE).unpack(self._positions)

    def __getitem__(self, kind: IndexType) -> StoredIndex:
        number = _NUMBERS[kind]
        start, stop = self._unpacked()[number : number + 2]
        if start == _ABSENT:
            raise KeyError(kind)
        return StoredIndex(self.source, start, stop)

    def __iter__(self) -> Iterator[IndexType]:
        return (kind for kind, _, _ in self.ranges())

    def __len__(self) -> int:
        return len(self.ranges())

    def ranges(self) -> list[tuple[IndexType, int, int]]:
        """Returns kind, first byte and stop byte of each side file."""
        positions = self._unpacked()
        return [
            (kind, start, stop)
            for kind, start, stop in zip(_KINDS, positions[::2], positions[1::2], strict=True)
            if start != _ABSENT
        ]

    def __reduce__(self) -> tuple[object, ...]:
        return StoredIndexes, (self.source, self.ranges())

    def __repr__(self) -> str:
        return repr(dict(self))


@dataclass(frozen=True, slots=True)
class SegmentObjects:
    """The stored form of a segment: all information for reading its bytes, without secrets.

    Attributes:
        log: The object with the chunks, which may be compressed and encrypted.
        chunk_index: Maps positions in the original segment to positions in the object.
        compression: True if chunks are zstd frames.
        encryption: Encryption of chunks and side files, which are AES-GCM messages; `None` if they
            are not encrypted.
        indexes: Existing side files. A segment without aborted transactions has no transaction
            index.
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
        end_offset: Last offset, inclusive. It may be above the last offset of the last batch.
        max_timestamp_ms: Largest timestamp of any batch, including markers; −1 if unknown.
        event_timestamp_ms: Start of the upload in ms since 1970; `None` if the layout does not
            record it.
        leader_epochs: Leader epochs of this segment, each with its first offset in the segment, in
            ascending order.
        end_is_exact: True if the next segment of the same lineage must begin right after
            `end_offset`. If False, `end_offset` is only a lower bound: the segment may also cover
            later offsets, which have no records.
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
        """Returns whether `max_timestamp_ms` proves that all records are older than a timestamp.

        Values of −1 and 0 prove nothing, because some clients do not set the largest timestamp in
        batch headers.
        """
        return 0 < self.max_timestamp_ms < timestamp_ms

    @property
    def stop_offset(self) -> int:
        """One past the last offset of the segment."""
        return self.end_offset + 1


def plain_chunks(size: int) -> FixedChunkIndex:
    """Returns a table of equal chunks for a log that is stored without chunks. Readers read whole
    chunks, so the table limits the size of a read.
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
    """Returns the leader epochs of the offsets from `start_offset` to `end_offset` (inclusive),
    each with its first offset in this range. `lineage` has the entries of a leader-epoch
    checkpoint.
    """
    stops = [entry.start_offset for entry in lineage[1:]]
    return tuple(
        entry if entry.start_offset >= start_offset else replace(entry, start_offset=start_offset)
        for entry, stop in zip_longest(lineage, stops)
        if entry.start_offset <= end_offset and (stop is None or stop > start_offset)
    )


ObjectName: TypeAlias = str | int
SegmentPlace: TypeAlias = tuple[str, str, int, str]
"""Topic, topic id, partition and segment id."""

_KINDS_BY_NAME: Final = {kind.value: kind for kind in IndexType}


def segment_facts(
    segment: RemoteSegment, name_of: Callable[[ObjectRef], ObjectName | None]
) -> list[Any] | None:
    """Encodes a segment as the list of facts that the module docstring describes.

    Args:
        segment: The segment.
        name_of: Returns the name of an object, or `None`.

    Returns:
        The facts; `None` if an object has no name, or the chunk table has an unsupported type.
    """
    objects = segment.objects
    chunks = _chunk_facts(objects.chunk_index)
    log = name_of(objects.log)
    indexes = _index_facts(objects.indexes, name_of)
    if chunks is None or log is None or any(index[1] is None for index in indexes):
        return None
    encryption = objects.encryption
    return [
        segment.start_offset,
        segment.end_offset,
        segment.max_timestamp_ms,
        segment.event_timestamp_ms,
        segment.end_is_exact,
        [[epoch.epoch, epoch.start_offset] for epoch in segment.leader_epochs],
        log,
        objects.compression,
        chunks,
        None
        if encryption is None
        else [encryption.data_key.to_text(), base64.b64encode(encryption.aad).decode()],
        indexes,
    ]


def segment_from_facts(
    identity: SegmentPlace, facts: list[Any], ref: Callable[[Any], ObjectRef]
) -> RemoteSegment:
    """Decodes a segment. Chunk sizes are parsed when they are first used, because most plans need
    them for few segments.

    Args:
        identity: Topic, topic id, partition and segment id.
        facts: Result of `segment_facts`. The number of items and their structure are checked, but
            not their values.
        ref: Returns the object for a name; raises LookupError if the name is unknown.

    Raises:
        LookupError: An object or the kind of a side file is unknown.
        TypeError, ValueError: The structure is wrong.
        SegmentFormatError: Chunks or a data key are invalid.
    """
    start, end, max_timestamp, event, exact, epochs, log, compression, chunks = facts[:9]
    encryption, indexes = facts[9:]
    stored = ref(log)
    return RemoteSegment(
        *identity,
        start,
        end,
        max_timestamp,
        event,
        # The first epoch usually begins with the segment. Sharing the number saves memory.
        tuple([EpochEntry(epoch, start if first == start else first) for epoch, first in epochs]),
        SegmentObjects(
            stored,
            _chunk_index(chunks, stored),
            compression,
            None
            if encryption is None
            else Encryption(
                WrappedDataKey.from_text(encryption[0]), base64.b64decode(encryption[1])
            ),
            _indexes(ref, indexes, stored),
        ),
        exact,
    )


def _chunk_facts(index: ChunkIndex) -> list[Any] | None:
    shape = [index.original_chunk_size, index.original_file_size]
    if isinstance(index, FixedChunkIndex):
        return [*shape, index.transformed_chunk_size, index.final_transformed_chunk_size]
    if isinstance(index, VariableChunkIndex):
        return [*shape, index.transformed_chunks, index.transformed_size]
    return None


def _chunk_index(facts: list[Any], log: ObjectRef) -> ChunkIndex:
    if not isinstance(facts[2], str):
        return FixedChunkIndex(*facts)
    chunk_size, file_size, text, stored_size = facts
    # The chunks fill the log. Sharing the number saves memory.
    shared = log.size if log.size == stored_size else stored_size
    return VariableChunkIndex(chunk_size, file_size, text, shared)


def _index_facts(
    indexes: Mapping[IndexType, StoredIndex], name_of: Callable[[ObjectRef], ObjectName | None]
) -> list[list[Any]]:
    if isinstance(indexes, StoredIndexes):
        name = name_of(indexes.source)
        return [[kind.value, name, start, stop] for kind, start, stop in indexes.ranges()]
    return [
        [
            kind.value,
            name_of(index.source),
            index.start,
            index.stop,
            *([] if index.content is None else [base64.b64encode(index.content).decode()]),
        ]
        for kind, index in indexes.items()
    ]


def _indexes(
    ref: Callable[[Any], ObjectRef], facts: list[Any], log: ObjectRef
) -> Mapping[IndexType, StoredIndex]:
    if facts and all(len(fact) == 4 and fact[1] == facts[0][1] for fact in facts):
        ranges = [(_KINDS_BY_NAME[kind], low, high) for kind, _, low, high in facts]
        return StoredIndexes(ref(facts[0][1]), ranges, log)
    return {
        _KINDS_BY_NAME[kind]: StoredIndex(
            ref(name), low, high, base64.b64decode(content[0]) if content else None
        )
        for kind, name, low, high, *content in facts
    }
