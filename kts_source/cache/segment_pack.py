"""The facts of all described segments of one partition as one value in the index cache, so that
planning a topic of 100,000 segments a second time reads hundreds of files.

A line for each segment, ended by LF, its three parts separated by tabs:

    segment id
    base offset, then suffix, size and version of every listed object of the segment
    facts, as a JSON list (see `_facts`)

A line serves only a segment whose listed objects are exactly the same, so the listing alone decides
what exists, and a line is parsed only when its segment is asked for. Segments whose objects have no
version are not kept. Wrapped data keys are kept as manifests hold them; no key that opens anything.

Planners that start at once on one machine, with nothing kept, each read the manifests; who ends
last writes the pack, whole. A lock on each partition would save the second one's requests and next
to no time: it would end when the first does. Measured over a store of 20 ms with 32 partitions of
100 segments on two cores: 1.4 s alone, 1.8 s for each of two, 3,200 requests each, a tenth of a
cent. And it would cost time where the first is slow or stuck: up to the read time-out for every
round of partitions that are planned side by side. Tasks do hold such locks, on what they read: many
of them start at once, on megabytes; planning is one process a query.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kts_source.layout.remote_segment import (
    Envelope,
    IndexType,
    ObjectRef,
    RemoteSegment,
    SegmentObjects,
    StoredIndex,
)
from segment_format.errors import SegmentFormatError
from segment_format.index.leader_epoch_checkpoint import EpochEntry
from segment_format.manifest.chunk_index import FixedChunkIndex, VariableChunkIndex
from segment_format.manifest.encryption import WrappedDataKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kts_source.cache.bundle import CachedParts
    from kts_source.cache.disk_cache import DiskCache
    from kts_source.layout.layout import SegmentEntry
    from segment_format.manifest.chunk_index import ChunkIndex

log = logging.getLogger(__name__)

_DECODER: Final = json.JSONDecoder()
_KINDS: Final = {kind.value: kind for kind in IndexType}


class SegmentPack:
    """What is known of the segments of one partition. Used by one thread at a time.

    Args:
        cache: Where packs are; `None` keeps nothing.
        name: Of the pack.
    """

    def __init__(self, cache: DiskCache | CachedParts | None, name: str) -> None:
        self._cache = cache
        self._name = name
        self._lines: dict[str, str] | None = None
        self._changed = False

    def find(self, entry: SegmentEntry) -> RemoteSegment | None:
        """The segment as it was described before, if its objects are still the same."""
        if self._cache is None:
            return None
        if self._lines is None:
            self._lines = self._loaded(self._cache)
        line = self._lines.get(entry.segment_id)
        if line is None or not line.startswith(identity := _identity(entry)):
            return None
        try:
            return _segment(entry, _DECODER.raw_decode(line, len(identity))[0])
        except (ValueError, TypeError, LookupError, SegmentFormatError):
            log.warning("%s: a line that cannot be read; describing it anew", self._name)
            return None

    def add(self, entry: SegmentEntry, segment: RemoteSegment) -> None:
        """Keeps what was described just now."""
        facts = _facts(entry, segment) if _is_certain(entry) else None
        if self._cache is None or facts is None:
            return
        if self._lines is None:
            self._lines = self._loaded(self._cache)
        self._lines[entry.segment_id] = _identity(entry) + json.dumps(facts, separators=(",", ":"))
        self._changed = True

    def save(self, entries: Sequence[SegmentEntry]) -> None:
        """Writes the pack if it grew, without segments that are no longer listed."""
        if self._cache is None or self._lines is None or not self._changed:
            return
        self._changed = False
        listed = (entry.segment_id for entry in entries)
        lines = [f"{name}\t{self._lines[name]}\n" for name in listed if name in self._lines]
        self._cache.put(self._name, "".join(lines).encode())

    def _loaded(self, cache: DiskCache | CachedParts) -> dict[str, str]:
        data = cache.get(self._name)
        if data is None:
            return {}
        pairs = (line.split("\t", 1) for line in data.decode().splitlines())
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def _identity(entry: SegmentEntry) -> str:
    """The listed objects as text that ends in a tab."""
    parts = [f"{suffix} {info.size} {info.version}" for suffix, info in entry.objects]
    return f"{entry.base_offset}|{'|'.join(parts)}\t"


def _is_certain(entry: SegmentEntry) -> bool:
    """Whether every object has a version, and the texts keep the form of a line."""
    versions = [info.version for _, info in entry.objects]
    texts = [entry.segment_id, *(version for version in versions if version is not None)]
    return len(texts) == len(versions) + 1 and all(text.isprintable() for text in texts)


def _facts(entry: SegmentEntry, segment: RemoteSegment) -> list[Any] | None:
    """The description in JSON's types; `None` when it names an object that was not listed."""
    suffixes = {info.key: suffix for suffix, info in entry.objects}
    objects = segment.objects
    chunks = _chunk_facts(objects.chunk_index)
    sources = [objects.log, *(index.source for index in objects.indexes.values())]
    if chunks is None or any(source.key not in suffixes for source in sources):
        return None
    envelope = objects.encryption
    return [
        segment.start_offset,
        segment.end_offset,
        segment.max_timestamp_ms,
        segment.event_timestamp_ms,
        segment.end_is_exact,
        [[epoch.epoch, epoch.start_offset] for epoch in segment.leader_epochs],
        suffixes[objects.log.key],
        objects.compression,
        chunks,
        None
        if envelope is None
        else [envelope.wrapped_key.to_text(), base64.b64encode(envelope.aad).decode()],
        [
            [kind.value, suffixes[index.source.key], index.start, index.stop]
            for kind, index in objects.indexes.items()
        ],
    ]


def _chunk_facts(index: ChunkIndex) -> list[Any] | None:
    shape = [index.original_chunk_size, index.original_file_size]
    if isinstance(index, FixedChunkIndex):
        return [*shape, index.transformed_chunk_size, index.final_transformed_chunk_size]
    if isinstance(index, VariableChunkIndex):
        return [*shape, index.transformed_chunks, index.transformed_size]
    return None


def _ref(entry: SegmentEntry, suffix: str) -> ObjectRef:
    for name, info in entry.objects:
        if name == suffix:
            return ObjectRef.of(info)
    raise KeyError(suffix)


class _PackedIndexes(Mapping[IndexType, StoredIndex]):
    """The side files of a segment, made of a line's facts when they are asked for: a plan looks at
    one or two of the five.

    Raises:
        LookupError: The facts name an object that is not listed.
        ValueError: They are not of the right shape.
    """

    __slots__ = ("_entry", "_facts")

    def __init__(self, entry: SegmentEntry, facts: list[Any]) -> None:
        self._entry = entry
        self._facts: dict[IndexType, tuple[str, int, int]] = {
            _KINDS[kind]: (suffix, low, high) for kind, suffix, low, high in facts
        }

    def __getitem__(self, kind: IndexType) -> StoredIndex:
        suffix, low, high = self._facts[kind]
        return StoredIndex(_ref(self._entry, suffix), low, high)

    def get(self, kind: IndexType, default: Any = None) -> Any:  # noqa: ANN401  # as Mapping's
        """See `Mapping.get`, without an exception for what is mostly not there."""
        return self[kind] if kind in self._facts else default

    def __iter__(self) -> Iterator[IndexType]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)


def _segment(entry: SegmentEntry, facts: list[Any]) -> RemoteSegment:
    start, end, max_timestamp, event, exact, epochs, log_suffix, compression, chunks = facts[:9]
    envelope, indexes = facts[9:]
    return RemoteSegment(
        entry.topic,
        entry.topic_id,
        entry.partition,
        entry.segment_id,
        start,
        end,
        max_timestamp,
        event,
        tuple([EpochEntry(epoch, first) for epoch, first in epochs]),
        SegmentObjects(
            _ref(entry, log_suffix),
            VariableChunkIndex.deferred(*chunks)
            if isinstance(chunks[2], str)
            else FixedChunkIndex(*chunks),
            compression,
            None
            if envelope is None
            else Envelope(WrappedDataKey.from_text(envelope[0]), base64.b64decode(envelope[1])),
            _PackedIndexes(entry, indexes),
        ),
        exact,
    )
