"""Reads bytes of original segments and of their side files from the objects of a tier.

Fetches the chunks that contain the wanted bytes, decrypts and decompresses them, and returns only
the wanted bytes.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from kts_source.errors import CorruptSegmentError, TieredKafkaError, UnknownKeyError
from kts_source.layout.remote_segment import IndexType, ObjectRef
from kts_source.read.fetch import NO_READ_AHEAD, ReadAhead, fetch_ranges
from kts_source.read.task_metrics import Stopwatch
from kts_source.store.joined_store import is_in_additional_store, mirror_of
from segment_format.errors import ChunkError, DecryptionError, SegmentFormatError
from segment_format.manifest.chunk_index import Chunk
from segment_format.manifest.transform import RestoreTimes, restore_chunk, restore_index

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from kts_source.cache.packs import SideFilePack
    from kts_source.keyring import KeyRing
    from kts_source.layout.remote_segment import SegmentObjects, StoredIndex
    from kts_source.store.object_store import Data
    from kts_source.tier import Tier
    from segment_format.manifest.encryption import Encryption, WrappedDataKey

# Object stores serve ranges of 8-16 MB at full speed. A request ends with the first chunk that
# brings it to ENOUGH_REQUEST_BYTES.
ENOUGH_REQUEST_BYTES = 8 << 20
MAX_REQUEST_BYTES = 16 << 20
FIRST_REQUEST_BYTES = 1 << 20  # of a task: often enough for a LIMIT
MAX_INDEX_BYTES = 64 << 20  # far above segment.index.bytes (10 MiB)

MAX_TOGETHER_BYTES: Final = 64 << 10
"""Adjacent side files up to this total size are read with one request. A second request costs more
than the additional bytes.
"""
_STATE: Final = (IndexType.PRODUCER_SNAPSHOT, IndexType.LEADER_EPOCH, IndexType.TRANSACTION)
_ALL: Final = (IndexType.OFFSET, IndexType.TIMESTAMP, *_STATE)
_READ_TOGETHER: Final = {
    IndexType.PRODUCER_SNAPSHOT: _STATE,
    IndexType.LEADER_EPOCH: _STATE,
    # A search by timestamp needs the offset index next, to look up a position.
    IndexType.TIMESTAMP: _ALL,
}
"""Side files that are usually needed together. Offset and transaction indexes are read alone."""


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """Bytes [start, stop) of an original segment. Topic, partition and offset are for error
    messages.
    """

    topic: str
    partition: int
    offset: int
    objects: SegmentObjects
    start: int
    stop: int


S = TypeVar("S", bound=SegmentSpan)


class SegmentSource:
    """Reads original segment bytes from the objects of one tier.

    `pack` caches the side files of a partition. A source with a pack is not thread-safe.
    """

    def __init__(self, tier: Tier, key_ring: KeyRing, *, pack: SideFilePack | None = None) -> None:
        self.store = tier.store
        self._tier = tier
        self._pack = pack
        self._key_ring = key_ring
        # Cache data keys, because the key ring may read the private key from a file at every use.
        self._data_keys: dict[WrappedDataKey, bytes] = {}
        self.stopwatch = Stopwatch()

    def index(
        self, objects: SegmentObjects, kind: IndexType, *, is_cut: bool = False
    ) -> bytes | None:
        """Returns the original bytes of a side file; `None` if the segment has no such file.

        Pass `is_cut=True` if the wanted offsets begin or end inside the segment. All side files of
        the segment are then needed, so they are read together.

        Raises:
            CorruptSegmentError: The file is too large, or cannot be decrypted.
        """
        stored = objects.indexes.get(kind)
        if stored is None or stored.size == 0:
            return None if stored is None else b""
        if stored.content is not None:
            return stored.content
        if stored.size > MAX_INDEX_BYTES:
            uri = self.store.uri(stored.source.key)
            raise CorruptSegmentError(
                f"the {kind.value} index in {uri} has {stored.size} bytes, more than the limit of"
                f" {MAX_INDEX_BYTES} bytes"
            )
        data = read_side_file(self._tier, self._pack, objects, kind, is_cut=is_cut)
        if objects.encryption is None and len(data) == stored.size:
            return data
        return self._restored_index(objects, kind, stored, data)

    def _restored_index(
        self, objects: SegmentObjects, kind: IndexType, stored: StoredIndex, data: bytes
    ) -> bytes:
        from segment_format.manifest.segment_manifest import IndexRange  # imports the JSON parser

        data_key, aad = self._keys(objects)
        stored_range = IndexRange(stored.start, stored.size)
        try:
            return bytes(restore_index(data, stored_range, data_key=data_key, aad=aad))
        except SegmentFormatError as error:
            uri = self.store.uri(stored.source.key)
            raise CorruptSegmentError(
                f"the {kind.value} index in bytes [{stored.start}, {stored.stop}) of {uri} cannot"
                f" be restored: {error}"
            ) from error

    def reads_parts(self, objects: SegmentObjects) -> bool:
        """Returns whether a part of a chunk can be read without the rest. This is possible if
        chunks are stored unchanged, and no cache stores whole chunks.
        """
        is_plain = not objects.compression and objects.encryption is None
        return is_plain and self._tier.caches.chunks is None

    def mirrored(
        self, objects: SegmentObjects, error: TieredKafkaError, *, with_indexes: bool
    ) -> SegmentObjects | None:
        """Returns the mirror's copy of a segment that cannot be read because of `error`. Returns
        `None` if there is no mirror, or if it has none of the wanted objects in the same size.
        `with_indexes` is False to replace only the log.
        """
        mirror = mirror_of(self.store)
        if mirror is None:
            return None
        indexes = objects.indexes.values() if with_indexes else ()
        sources = {index.source.key: index.source for index in indexes}
        sources[objects.log.key] = objects.log
        copies = {}
        for key, ref in sources.items():
            if is_in_additional_store(key):
                return None
            is_damaged = error.uri in (None, self.store.uri(key))
            reason = error.message if is_damaged else ""
            info = mirror.in_mirror(key, ref.version, reason, size=ref.size)
            copies[key] = ref if info is None else ObjectRef.of(info)
        if copies == sources:
            return None
        own_indexes = {
            kind: replace(index, source=copies.get(index.source.key, index.source))
            for kind, index in objects.indexes.items()
        }
        return replace(objects, log=copies[objects.log.key], indexes=own_indexes)

    def windows(
        self,
        spans: Iterable[S],
        *,
        read_ahead: ReadAhead = NO_READ_AHEAD,
        while_waiting: Callable[[], object] | None = None,
    ) -> Generator[tuple[S, memoryview]]:
        """Yields the original bytes of all spans in order. The bytes of a span may come in several
        pieces, which end at chunk borders.

        Reads ahead, also in following spans. Close the generator to cancel pending requests.

        Args:
            spans: Byte ranges to read. The iterator advances when the read-ahead needs the next
                span.
            read_ahead: Limits of the read-ahead.
            while_waiting: See `fetch_ranges`.

        Yields:
            The span, and the next piece of its bytes.

        Raises:
            TieredKafkaError: A span failed; attribute `span` of the error is the failed span. All
                bytes of earlier spans were yielded before.
            ObjectNotFoundError: The segment's object does not exist.
            ObjectChangedError: The object is not the planned version.
            CorruptSegmentError: A chunk does not match the manifest, fails authentication, or its
                key is missing.
        """
        pending: deque[S] = deque()
        answers = fetch_ranges(
            self._fetch,
            self._chunk_runs(spans, pending, is_first_small=read_ahead.prefetch_bytes > 0),
            read_ahead,
            near=self.store.is_near and self._tier.caches.chunks is None,
            while_waiting=while_waiting,
        )
        with closing(answers):
            try:
                while True:
                    with self.stopwatch.waiting():
                        answer = next(answers, None)
                    if answer is None:
                        return
                    span, run = pending[0], answer.request
                    for chunk, data in run.split(memoryview(answer.data)):
                        if not run.is_restored:
                            data = self._restore(run.objects, chunk, data)
                        low = max(span.start - chunk.original_position, 0)
                        yield span, data[low : span.stop - chunk.original_position]
                        # Release the memory now: it is still in the CPU cache, and the next chunk
                        # may reuse it.
                        del data
                    pending.popleft()
                    del answer
            except TieredKafkaError as error:
                if error.span is not None or not pending:
                    raise
                raise self.error_in_span(error, pending[0]) from error.__cause__

    def error_in_span(self, error: TieredKafkaError, span: SegmentSpan) -> TieredKafkaError:
        """Returns a copy of an error that contains the failed span, and its topic, partition,
        offset and object.
        """
        return error.in_span(
            span,
            topic=span.topic,
            partition=span.partition,
            offset=span.offset,
            uri=self.store.uri(span.objects.log.key),
        )

    def _chunk_runs(
        self, spans: Iterable[S], pending: deque[S], *, is_first_small: bool
    ) -> Iterator[_ChunkRun]:
        """Yields the requests that read the spans. For each request, appends its span to
        `pending`.
        """
        for span in spans:
            chunks = span.objects.chunk_index.chunks(span.start, span.stop)
            is_plain = self.reads_parts(span.objects)
            if is_plain:
                chunks = tuple(_trim(chunk, span) for chunk in chunks)
            for group in request_groups(chunks, is_first_small):
                is_first_small = False
                pending.append(span)
                # Join unchanged chunks, because large windows decode faster than small ones.
                run = (_join(group),) if is_plain else group
                yield _ChunkRun(span.objects, run, is_restored=self._tier.caches.plaintext)

    def _fetch(self, run: _ChunkRun) -> Data:
        """Reads a run of chunks from a cache, or with one request from the store. Called from any
        thread.
        """
        began = time.perf_counter()
        spans = [(chunk.transformed_position, chunk.transformed_stop) for chunk in run.chunks]

        def restore(number: int, stored: memoryview) -> memoryview:
            return self._restore(run.objects, run.chunks[number], stored)

        try:
            return self._tier.caches.chunk_run(
                self.store, run.objects.log, spans, restore if run.is_restored else None
            )
        finally:
            self.stopwatch.fetched(time.perf_counter() - began)

    def _restore(self, objects: SegmentObjects, chunk: Chunk, stored: memoryview) -> memoryview:
        """Decrypts and decompresses a chunk."""
        data_key, aad = self._keys(objects)
        zstd, times = objects.compression, RestoreTimes()
        try:
            return memoryview(
                restore_chunk(
                    stored, chunk, compression=zstd, data_key=data_key, aad=aad, times=times
                )
            )
        except ChunkError as error:
            raise CorruptSegmentError(
                f"chunk {chunk.id}: {error}{_key_hint(error, objects.encryption)}",
                uri=self.store.uri(objects.log.key),
                position=chunk.transformed_position,
            ) from error
        finally:
            self.stopwatch.restored(times)

    def _keys(self, objects: SegmentObjects) -> tuple[bytes | None, bytes | None]:
        """Returns the data key and the additional authenticated data (AAD) of a segment; two times
        `None` if the segment is not encrypted.
        """
        encryption = objects.encryption
        if encryption is None:
            return None, None
        data_key = self._data_keys.get(encryption.data_key)
        if data_key is None:
            try:
                data_key = self._key_ring.unwrap(encryption.data_key)
            except UnknownKeyError as error:
                raise error.located(uri=self.store.uri(objects.log.key)) from None
            except DecryptionError as error:
                raise UnknownKeyError(str(error), uri=self.store.uri(objects.log.key)) from error
            except SegmentFormatError as error:
                uri = self.store.uri(objects.log.key)
                raise CorruptSegmentError(str(error), uri=uri) from error
            self._data_keys[encryption.data_key] = data_key
        return data_key, encryption.aad


class _ChunkRun(NamedTuple):
    """A request for adjacent chunks of one segment.

    Attributes:
        is_restored: True if the response has the original bytes. False if it has the stored bytes,
            which must be decrypted and decompressed.
    """

    objects: SegmentObjects
    chunks: tuple[Chunk, ...]
    is_restored: bool

    @property
    def size(self) -> int:
        """Number of bytes in the response."""
        first, last = self.chunks[0], self.chunks[-1]
        if self.is_restored:
            return last.original_stop - first.original_position
        return last.transformed_stop - first.transformed_position

    def split(self, answer: memoryview) -> Iterator[tuple[Chunk, memoryview]]:
        """Yields each chunk together with its part of the response."""
        start = 0
        for chunk in self.chunks:
            size = chunk.original_size if self.is_restored else chunk.transformed_size
            yield chunk, answer[start : start + size]
            start += size


def _key_hint(error: SegmentFormatError, encryption: Encryption | None) -> str:
    if encryption is None:
        return ""
    key_id = encryption.data_key.key_id
    if isinstance(error, DecryptionError):
        # Unwrapping a data key checks its padding, so the data key is correct.
        return (
            f" (the private key of key id {key_id!r} opened the segment's data key, so the stored"
            f" bytes were changed)"
        )
    return f" (encrypted with key id {key_id!r})"


def _trim(chunk: Chunk, span: SegmentSpan) -> Chunk:
    """Returns the part of a chunk that is in the span. The chunk must be neither compressed nor
    encrypted.
    """
    low = max(span.start, chunk.original_position)
    size = min(span.stop, chunk.original_stop) - low
    stored = chunk.transformed_position + low - chunk.original_position
    return Chunk(chunk.id, low, size, stored, size)


def _join(chunks: tuple[Chunk, ...]) -> Chunk:
    """Joins adjacent chunks, which must be neither compressed nor encrypted, into one chunk."""
    first, size = chunks[0], chunks[-1].original_stop - chunks[0].original_position
    return Chunk(first.id, first.original_position, size, first.transformed_position, size)


def request_groups(chunks: tuple[Chunk, ...], first_is_small: bool) -> Iterator[tuple[Chunk, ...]]:
    """Yields groups of adjacent chunks. Each group is read with one request.

    A group ends with the chunk that brings it to `ENOUGH_REQUEST_BYTES`. It has at most
    `MAX_REQUEST_BYTES`, unless a single chunk is larger. With `first_is_small`, the first group has
    at most `FIRST_REQUEST_BYTES`, or is a single larger chunk.
    """
    limit = FIRST_REQUEST_BYTES if first_is_small else MAX_REQUEST_BYTES
    group: list[Chunk] = []
    for chunk in chunks:
        start = group[0].transformed_position if group else chunk.transformed_position
        is_enough = chunk.transformed_position - start >= ENOUGH_REQUEST_BYTES
        if group and (is_enough or chunk.transformed_stop - start > limit):
            yield tuple(group)
            group, limit = [], MAX_REQUEST_BYTES
        group.append(chunk)
    if group:
        yield tuple(group)


def read_side_file(
    tier: Tier,
    pack: SideFilePack | None,
    objects: SegmentObjects,
    kind: IndexType,
    *,
    is_cut: bool = False,
) -> bytes:
    """Returns the stored bytes of a side file, from a cache or the store.

    The storage plugin of Kafka stores all side files of a segment in one object. With a pack, one
    request reads the side file and small adjacent side files that will probably be needed, and
    stores all of them in the pack. If `is_cut` is True, these are all side files of the segment.

    Without a pack, or if these files do not fit into it, only the side file is read, through the
    cache of the tier.

    Raises:
        TieredKafkaError: See `ObjectStore.get_range`.
    """
    wanted = objects.indexes[kind]
    source = wanted.source
    if pack is not None:
        data = pack.find(source, wanted.start, wanted.stop)
        if data is not None:
            return data
        kinds = _ALL if is_cut else _READ_TOGETHER.get(kind, ())
        start, stop = _common_range(objects, kind, kinds)
        # Two planners rarely read the same file at the same time, so this needs no lock (see
        # `SideFilePack`).
        if stop - start <= MAX_TOGETHER_BYTES and pack.has_room(stop - start):
            data = bytes(tier.store.get_range(source.key, start, stop, version=source.version))
            pack.add(source, start, data)
            return data[wanted.start - start : wanted.stop - start]
    return bytes(tier.caches.side_file(tier.store, source, wanted.start, wanted.stop))


def _common_range(
    objects: SegmentObjects, kind: IndexType, kinds: tuple[IndexType, ...]
) -> tuple[int, int]:
    """Returns the byte range of a side file, extended by adjacent side files of the kinds in
    `kinds` while the range has at most `MAX_TOGETHER_BYTES`.
    """
    wanted = objects.indexes[kind]
    start, stop = wanted.start, wanted.stop
    candidates = [index for name in kinds if (index := objects.indexes.get(name)) is not None]
    neighbors = sorted(
        (index.start, index.stop)
        for index in candidates
        if index.source == wanted.source and index.size
    )
    for low, high in neighbors:
        if low == stop and high - start <= MAX_TOGETHER_BYTES:
            stop = high
    for low, high in reversed(neighbors):
        if high == start and stop - low <= MAX_TOGETHER_BYTES:
            start = low
    return start, stop
