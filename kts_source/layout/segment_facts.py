"""A described segment in JSON's types and back: the one encoding of what a cache keeps and a plan
file holds.

The facts of a segment are a list, in this order:

    first offset, last offset, largest timestamp in ms, event timestamp in ms or null,
    whether the last offset is exact, [[leader epoch, its first offset], …],
    name of the log object, whether chunks are compressed,
    chunks: [chunk size, file size, stored chunk size, stored size of the last chunk], or
        [chunk size, file size, the manifest's text of all stored sizes, their sum],
    null or [wrapped data key, AAD in base64],
    side files: [[kind, name of the object, first byte, stop byte], …], of those that a layout
        worked out from the log also their bytes in base64

Objects are named as the caller likes, who keeps their keys, sizes and versions. Data keys stay
wrapped, as manifests hold them; nothing that opens them is among the facts.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kts_source.layout.remote_segment import (
    IndexType,
    ObjectRef,
    RemoteSegment,
    SegmentObjects,
    StoredIndex,
)
from segment_format.index.leader_epoch_checkpoint import EpochEntry
from segment_format.manifest.chunk_index import FixedChunkIndex, VariableChunkIndex
from segment_format.manifest.encryption import Encryption, WrappedDataKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from segment_format.manifest.chunk_index import ChunkIndex

ObjectName: TypeAlias = str | int
SegmentPlace: TypeAlias = tuple[str, str, int, str]
"""Topic, topic id, partition and segment id."""

_KINDS: Final = {kind.value: kind for kind in IndexType}


def segment_facts(
    segment: RemoteSegment, name_of: Callable[[ObjectRef], ObjectName | None]
) -> list[Any] | None:
    """The facts of a segment, see above.

    Args:
        segment: What a layout described.
        name_of: The name of an object; `None` = it has none.

    Returns:
        `None` for a segment with an object that has no name, or with a chunk table of another kind.
    """
    objects = segment.objects
    chunks = _chunk_facts(objects.chunk_index)
    log = name_of(objects.log)
    indexes = [
        [
            kind.value,
            name_of(index.source),
            index.start,
            index.stop,
            *([] if index.content is None else [base64.b64encode(index.content).decode()]),
        ]
        for kind, index in objects.indexes.items()
    ]
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
    place: SegmentPlace, facts: list[Any], ref: Callable[[Any], ObjectRef]
) -> RemoteSegment:
    """The segment whose facts these are. Chunk sizes are looked at when they are asked for: a plan
    of many segments needs few of them.

    Args:
        place: Whose facts.
        facts: From `segment_facts`. Their number and shape are checked, numbers are not.
        ref: The object of a name; a `LookupError` where there is none.

    Raises:
        LookupError: They name an object that `ref` does not know, or another kind of side file.
        TypeError, ValueError: They are not of the right shape.
        SegmentFormatError: Chunks or a data key that cannot be.
    """
    start, end, max_timestamp, event, exact, epochs, log, compression, chunks = facts[:9]
    encryption, indexes = facts[9:]
    return RemoteSegment(
        *place,
        start,
        end,
        max_timestamp,
        event,
        tuple([EpochEntry(epoch, first) for epoch, first in epochs]),
        SegmentObjects(
            ref(log),
            VariableChunkIndex(*chunks) if isinstance(chunks[2], str) else FixedChunkIndex(*chunks),
            compression,
            None
            if encryption is None
            else Encryption(
                WrappedDataKey.from_text(encryption[0]), base64.b64decode(encryption[1])
            ),
            _indexes(ref, indexes),
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


def _indexes(ref: Callable[[Any], ObjectRef], facts: list[Any]) -> dict[IndexType, StoredIndex]:
    found = {}
    source = last = None
    for kind, name, low, high, *content in facts:
        if source is None or name != last:  # in most layouts one object holds them all
            source, last = ref(name), name
        data = base64.b64decode(content[0]) if content else None
        found[_KINDS[kind]] = StoredIndex(source, low, high, data)
    return found
