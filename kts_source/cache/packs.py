"""Two values in the index cache for each partition: a pack of side files and a pack of segment
facts.

A `SideFilePack` contains the small side files that plans of one partition read, as stored:

    a JSON list of [object key, version, first byte, one past the last byte], followed by LF
    the bytes of these ranges, concatenated

A pack contains at most `MAX_PACK_BYTES`. If not all side files fit, those of the last plan replace
those of earlier plans. Objects without a version are neither in the pack nor in the cache.

A `SegmentPack` contains the facts of all segments whose manifests were read. So the next plan of
100,000 segments reads some hundred packs instead of all manifests. A pack has one line per segment,
ended by LF, with three fields separated by tabs:

    segment id
    base offset, then suffix, size and version of every listed object of the segment
    facts, as a JSON list (see `layout.segment_facts`), which names objects by their suffixes

A line is used only if the listing has exactly the same objects of the segment. So only the listing
decides which segments exist. A line is parsed only when its segment is needed. Segments that have
an object without a version are not cached. Data keys stay encrypted, as in manifests.

If several planners start at the same time with an empty cache, each of them reads the manifests and
writes the pack. The last written pack remains. A lock would save few requests: for 32 partitions of
100 segments, 3,200 requests that cost a tenth of a cent. A lock would save hardly any time, and a
planner that hangs would block all other planners.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final

from kts_source.layout.remote_segment import ObjectRef, segment_facts, segment_from_facts
from segment_format.errors import SegmentFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kts_source.cache.caches import Bundle
    from kts_source.cache.disk_cache import DiskCache
    from kts_source.layout.layout import SegmentEntry
    from kts_source.layout.remote_segment import RemoteSegment


log = logging.getLogger(__name__)

_DECODER: Final = json.JSONDecoder()


class SegmentPack:
    """The facts about the segments of one partition that were read from manifests, stored in a
    cache. Used by one thread at a time.

    Args:
        cache: Cache that stores the pack; `None` = nothing is stored.
    """

    def __init__(self, cache: DiskCache | Bundle | None, name: str) -> None:
        self._cache = cache
        self._name = name
        self._lines: dict[str, str] | None = None
        self._changed = False

    def find(self, entry: SegmentEntry) -> RemoteSegment | None:
        """Returns the cached description of a segment. Returns `None` if the pack does not contain
        the segment, or its listed objects changed.
        """
        if self._cache is None:
            return None
        line = self._loaded(self._cache).get(entry.segment_id)
        if line is None or not line.startswith(identity := _identity(entry)):
            return None
        try:
            facts = _DECODER.raw_decode(line, len(identity))[0]
            segment = (entry.topic, entry.topic_id, entry.partition, entry.segment_id)
            objects = dict(entry.objects)
            return segment_from_facts(segment, facts, lambda name: ObjectRef.of(objects[name]))
        except (ValueError, TypeError, LookupError, SegmentFormatError):
            log.info("%s: a line is invalid; the segment is described again", self._name)
            return None

    def add(self, entry: SegmentEntry, segment: RemoteSegment) -> None:
        """Adds a segment after its manifest was read. Ignores the segment if one of its objects has
        no version, or if the listed objects do not suffice to restore the segment.
        """
        if self._cache is None or not _can_be_cached(entry):
            return
        # A segment that was described with the objects of a mirror has other versions.
        suffixes = {(info.key, info.version): suffix for suffix, info in entry.objects}
        facts = segment_facts(segment, lambda ref: suffixes.get((ref.key, ref.version)))
        if facts is None or any(len(index) > 4 for index in facts[-1]):
            return  # an index with content was rebuilt, also from other objects
        text = json.dumps(facts, separators=(",", ":"))
        self._loaded(self._cache)[entry.segment_id] = _identity(entry) + text
        self._changed = True

    def save(self, entries: Sequence[SegmentEntry]) -> None:
        """Writes the pack if segments were added. Drops segments that are not in `entries`, the
        current listing.
        """
        if self._cache is None or self._lines is None or not self._changed:
            return
        self._changed = False
        listed = (entry.segment_id for entry in entries)
        lines = [f"{name}\t{self._lines[name]}\n" for name in listed if name in self._lines]
        self._cache.put(self._name, "".join(lines).encode())

    def _loaded(self, cache: DiskCache | Bundle) -> dict[str, str]:
        if self._lines is None:
            lines = (cache.get(self._name) or b"").decode().splitlines()
            pairs = (line.split("\t", 1) for line in lines)
            self._lines = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
        return self._lines


def _identity(entry: SegmentEntry) -> str:
    """Returns the base offset and the listed objects of a segment as one text, which ends with a
    tab.
    """
    texts = [f"{suffix} {info.size} {info.version}" for suffix, info in entry.objects]
    return f"{entry.base_offset}|{'|'.join(texts)}\t"


def _can_be_cached(entry: SegmentEntry) -> bool:
    """Returns whether a segment can be stored in a pack: all its objects must have versions, and no
    text may contain a control character.
    """
    versions = [info.version for _, info in entry.objects]
    texts = [entry.segment_id, *(version for version in versions if version is not None)]
    return len(texts) == len(versions) + 1 and all(text.isprintable() for text in texts)


MAX_PACK_BYTES: Final = 1 << 20
_ObjectVersion = tuple[str, str]  # object key, version
_ByteRange = tuple[int, int, "bytes | memoryview"]  # first byte, one past the last, the bytes


class SideFilePack:
    """The side files of one partition as byte ranges of objects, stored in a cache. Used by one
    thread at a time.

    Args:
        cache: Cache that stores the pack; `None` = nothing is stored.
    """

    def __init__(self, cache: DiskCache | Bundle | None = None, name: str = "") -> None:
        self._cache = cache
        self._name = name
        self._earlier: dict[_ObjectVersion, list[_ByteRange]] | None = None
        self._used: dict[_ObjectVersion, list[_ByteRange]] = {}
        self._used_bytes = 0
        self._changed = False

    def find(self, source: ObjectRef, start: int, stop: int) -> bytes | None:
        """Returns bytes [`start`, `stop`) of an object; `None` if the pack does not contain them
        for this version of the object, or is full.
        """
        if source.version is None:
            return None
        object_version = source.key, source.version
        byte_range = _holding(self._used.get(object_version, []), start, stop)
        if byte_range is None:
            if self._earlier is None:
                self._earlier = self._loaded()
            byte_range = _holding(self._earlier.get(object_version, []), start, stop)
            if byte_range is None or not self._take(object_version, byte_range):
                return None
        return bytes(byte_range[2][start - byte_range[0] : stop - byte_range[0]])

    def add(self, source: ObjectRef, start: int, data: bytes) -> None:
        """Adds bytes of an object, which begin at position `start`. Does nothing if the pack is
        full or the object has no version.
        """
        if source.version is None:
            return
        self._changed |= self._take((source.key, source.version), (start, start + len(data), data))

    def has_room(self, size: int) -> bool:
        """Returns whether the pack can take `size` more bytes."""
        return self._used_bytes + size <= MAX_PACK_BYTES

    def save(self) -> None:
        """Writes the pack if ranges were added. Ranges that this plan used come first; ranges of
        earlier plans fill the remaining space.
        """
        if self._cache is None or not self._changed:
            return
        self._changed = False
        left = MAX_PACK_BYTES
        ranges_data: dict[tuple[str, str, int, int], bytes | memoryview] = {}
        for kept in (self._used, self._earlier or {}):
            for (key, version), ranges in kept.items():
                for start, stop, data in ranges:
                    if stop - start <= left and (key, version, start, stop) not in ranges_data:
                        ranges_data[key, version, start, stop] = data
                        left -= stop - start
        header = json.dumps(list(ranges_data), separators=(",", ":")).encode()
        self._cache.put(self._name, b"".join([header, b"\n", *ranges_data.values()]))

    def _take(self, object_version: _ObjectVersion, byte_range: _ByteRange) -> bool:
        if not self.has_room(byte_range[1] - byte_range[0]):
            return False
        self._used_bytes += byte_range[1] - byte_range[0]
        self._used.setdefault(object_version, []).append(byte_range)
        return True

    def _loaded(self) -> dict[_ObjectVersion, list[_ByteRange]]:
        data = self._cache.get(self._name) if self._cache is not None else None
        if data is None:
            return {}
        by_object: dict[_ObjectVersion, list[_ByteRange]] = {}
        try:
            low = data.index(b"\n") + 1
            for key, version, start, stop in json.loads(data[:low]):
                high = low + stop - start
                if not low <= high <= len(data) or start < 0:
                    raise ValueError("the size of a range exceeds the value")
                byte_range = start, stop, memoryview(data)[low:high]
                by_object.setdefault((key, version), []).append(byte_range)
                low = high
        except (ValueError, TypeError):
            log.info("%s: a value is invalid; side files are read again", self._name)
            return {}
        return by_object


def _holding(byte_ranges: list[_ByteRange], start: int, stop: int) -> _ByteRange | None:
    return next(
        (
            byte_range
            for byte_range in byte_ranges
            if byte_range[0] <= start and stop <= byte_range[1]
        ),
        None,
    )
