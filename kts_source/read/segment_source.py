"""Original segment bytes from stored objects: ranged reads of whole chunks, decrypted,
decompressed, trimmed.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from kts_source.errors import CorruptSegmentError, ObjectNotFoundError, TieredKafkaError
from kts_source.read.fetch import NO_READ_AHEAD, ReadAhead, fetch_ranges
from kts_source.read.side_file_reader import read_side_file
from kts_source.read.task_metrics import Stopwatch
from segment_format.errors import ChunkError, DecryptionError, SegmentFormatError
from segment_format.manifest.chunk_index import Chunk
from segment_format.manifest.transform import RestoreTimes, restore_chunk, restore_index

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from kts_source.cache.packs import SideFilePack
    from kts_source.keyring import KeyRing
    from kts_source.layout.remote_segment import IndexType, SegmentObjects, StoredIndex
    from kts_source.store.object_store import Data
    from kts_source.tier import Tier
    from segment_format.manifest.encryption import Encryption, WrappedDataKey

# Object stores serve ranges of 8-16 MB at full speed: a request ends with the chunk that makes it
# long enough, which is less than as much again.
ENOUGH_REQUEST_BYTES = 8 << 20
MAX_REQUEST_BYTES = 16 << 20
FIRST_REQUEST_BYTES = 1 << 20  # of a task: a LIMIT may need no more
MAX_INDEX_BYTES = 64 << 20  # far above segment.index.bytes (10 MiB); a bound, not an expectation


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """Original bytes [start, stop) of a segment.

    Attributes:
        topic: For error texts, as are `partition` and `offset`, the first wanted in the span.
    """

    topic: str
    partition: int
    offset: int
    objects: SegmentObjects
    start: int
    stop: int


S = TypeVar("S", bound=SegmentSpan)


class VanishedSpanError(ObjectNotFoundError):
    """The object of a span is not there any more.

    Attributes:
        span: The one whose bytes were wanted; those before it were read to their end.
    """

    span: SegmentSpan | None = None

    @classmethod
    def of(cls, span: SegmentSpan, error: ObjectNotFoundError) -> VanishedSpanError:
        """The error that a store gave for a span, with its place."""
        vanished = cls(error.message)
        vars(vanished).update(vars(error))
        vanished.span = span
        return vanished


class SegmentSource:
    """The bytes of original segments, as the broker wrote them, from the objects of one tier.

    Ranged reads of whole chunks, ahead of who wants them; from the cache of chunks where it has
    them; decrypted, decompressed, trimmed.

    Args:
        tier: Where the objects are.
        key_ring: Private keys for encrypted ones.
        pack: Where a plan of one partition keeps its side files. Only that plan's thread may use
            the source then.
    """

    def __init__(self, tier: Tier, key_ring: KeyRing, *, pack: SideFilePack | None = None) -> None:
        self.store = tier.store
        self._tier = tier
        self._pack = pack
        self._key_ring = key_ring
        # For every chunk the ring would look for the private key, which may be in a file.
        self._data_keys: dict[WrappedDataKey, bytes] = {}
        self.stopwatch = Stopwatch()

    def index(
        self, objects: SegmentObjects, kind: IndexType, *, is_cut: bool = False
    ) -> bytes | None:
        """The bytes of a side file as the broker wrote it; `None` when the segment has none.

        Args:
            objects: The segment.
            kind: Which.
            is_cut: Whether a bound cuts the segment, so that its indexes will be asked for too.

        Raises:
            CorruptSegmentError: It is too large, or cannot be decrypted.
        """
        stored = objects.indexes.get(kind)
        if stored is None or stored.size == 0:
            return None if stored is None else b""
        if stored.content is not None:
            return stored.content
        if stored.size > MAX_INDEX_BYTES:
            uri = self.store.uri(stored.source.key)
            raise CorruptSegmentError(
                f"{kind.value} index of {stored.size} bytes in {uri}: at most {MAX_INDEX_BYTES}"
                f" are read"
            )
        data = read_side_file(self._tier, self._pack, objects, kind, is_cut=is_cut)
        if objects.encryption is None and len(data) == stored.size:
            return data
        return self._restored_index(objects, kind, stored, data)

    def _restored_index(
        self, objects: SegmentObjects, kind: IndexType, stored: StoredIndex, data: bytes
    ) -> bytes:
        from segment_format.manifest.segment_manifest import IndexRange  # with all of a manifest

        data_key, aad = self._keys(objects)
        place = IndexRange(stored.start, stored.size)
        try:
            return bytes(restore_index(data, place, data_key=data_key, aad=aad))
        except SegmentFormatError as error:
            uri = self.store.uri(stored.source.key)
            raise CorruptSegmentError(
                f"{kind.value} index in {uri}, bytes [{stored.start}, {stored.stop}): {error}"
            ) from error

    def reads_parts(self, objects: SegmentObjects) -> bool:
        """Whether of a span's first and last chunks only its own bytes are read: where chunks are
        stored as they are, and no cache keeps them whole.
        """
        is_plain = not objects.compression and objects.encryption is None
        return is_plain and self._tier.caches.chunks is None

    def windows(
        self,
        spans: Iterable[S],
        *,
        read_ahead: ReadAhead = NO_READ_AHEAD,
        meanwhile: Callable[[], object] | None = None,
    ) -> Generator[tuple[S, memoryview]]:
        """The original bytes of spans, one span after the other, cut at chunk borders.

        Reads ahead across chunks and spans. Close the iterator to stop what is under way.

        Args:
            spans: What to read; taken one by one as the read-ahead gets to them.
            read_ahead: How much to have under way.
            meanwhile: What this thread may do while it waits for a slow start's first bytes.

        Yields:
            The span and its next bytes, in order.

        Raises:
            VanishedSpanError: A segment's object has gone.
            CorruptSegmentError: A chunk that is not what the manifest says, does not
                authenticate, or has no key.
            ObjectChangedError: A segment's object is not the version that was planned.
        """
        under_way: deque[S] = deque()

        def requests() -> Iterator[_ChunkRun]:
            first = read_ahead.prefetch_bytes > 0
            for span in spans:
                chunks = span.objects.chunk_index.chunks(span.start, span.stop)
                is_plain = self.reads_parts(span.objects)
                if is_plain:
                    chunks = tuple(_inside(span, chunk) for chunk in chunks)
                for group in request_groups(chunks, first):
                    first = False
                    if is_plain:
                        group = (_joined(group),)
                    under_way.append(span)
                    yield _ChunkRun(span.objects, group, is_restored=self._tier.caches.plaintext)

        near = self.store.is_near and self._tier.caches.chunks is None
        answers = fetch_ranges(
            self._fetched, requests(), read_ahead, near=near, meanwhile=meanwhile
        )
        with closing(answers):
            try:
                while True:
                    with self.stopwatch.waiting():
                        answer = next(answers, None)
                    if answer is None:
                        return
                    span, run = under_way[0], answer.request
                    for chunk, data in run.parts(memoryview(answer.data)):
                        window = (
                            data if run.is_restored else self._restore(run.objects, chunk, data)
                        )
                        low = max(span.start - chunk.original_position, 0)
                        yield span, window[low : span.stop - chunk.original_position]
                        # The next chunk may have this memory, which the cache still holds.
                        del window
                    under_way.popleft()
                    del answer, data  # and the next read that of this one
            except TieredKafkaError as error:
                if not under_way:
                    raise
                span = under_way[0]
                error.located(
                    topic=span.topic,
                    partition=span.partition,
                    offset=span.offset,
                    uri=self.store.uri(span.objects.log.key),
                )
                if isinstance(error, ObjectNotFoundError):
                    raise VanishedSpanError.of(span, error) from error
                raise

    def _fetched(self, run: _ChunkRun) -> Data:
        """The bytes of a run of chunks, as the run wants them. Called in any thread."""
        began = time.perf_counter()
        log = run.objects.log
        spans = [(chunk.transformed_position, chunk.transformed_stop) for chunk in run.chunks]

        def restore(number: int, stored: memoryview) -> memoryview:
            return self._restore(run.objects, run.chunks[number], stored)

        try:
            return self._tier.caches.chunk_run(
                self.store, log, spans, restore if run.is_restored else None
            )
        finally:
            self.stopwatch.fetched(time.perf_counter() - began)

    def _restore(self, objects: SegmentObjects, chunk: Chunk, stored: memoryview) -> memoryview:
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
        """Data key and additional authenticated data; `None` where nothing is encrypted."""
        encryption = objects.encryption
        if encryption is None:
            return None, None
        data_key = self._data_keys.get(encryption.data_key)
        if data_key is None:
            try:
                data_key = self._key_ring.unwrap(encryption.data_key)
            except SegmentFormatError as error:
                uri = self.store.uri(objects.log.key)
                raise CorruptSegmentError(str(error), uri=uri) from error
            self._data_keys[encryption.data_key] = data_key
        return data_key, encryption.aad


class _ChunkRun(NamedTuple):
    """Neighbouring chunks of one segment that are read together.

    Attributes:
        is_restored: Whether the answer holds original bytes, not those of the stored object.
    """

    objects: SegmentObjects
    chunks: tuple[Chunk, ...]
    is_restored: bool

    @property
    def size(self) -> int:
        """Bytes of the answer."""
        first, last = self.chunks[0], self.chunks[-1]
        if self.is_restored:
            return last.original_stop - first.original_position
        return last.transformed_stop - first.transformed_position

    def parts(self, answer: memoryview) -> Iterator[tuple[Chunk, memoryview]]:
        """Each chunk with its part of the answer."""
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
        # Unwrapping proves the data key by its padding: what does not open is not what was stored.
        return (
            f" (the private key of key id {key_id!r} opened the segment's data key, so the stored"
            f" bytes were changed)"
        )
    return f" (encrypted with key id {key_id!r})"


def _inside(span: SegmentSpan, chunk: Chunk) -> Chunk:
    """What of a chunk belongs to the span, where it is stored as it is."""
    low = max(span.start, chunk.original_position)
    size = min(span.stop, chunk.original_stop) - low
    stored = chunk.transformed_position + low - chunk.original_position
    return Chunk(chunk.id, low, size, stored, size)


def _joined(chunks: tuple[Chunk, ...]) -> Chunk:
    """Neighbouring chunks that are stored as they are, as one: whoever decodes takes fewer, larger
    pieces faster.
    """
    first, size = chunks[0], chunks[-1].original_stop - chunks[0].original_position
    return Chunk(first.id, first.original_position, size, first.transformed_position, size)


def request_groups(chunks: tuple[Chunk, ...], first_is_small: bool) -> Iterator[tuple[Chunk, ...]]:
    """Runs of neighbouring chunks, each a request.

    A run ends when it has `ENOUGH_REQUEST_BYTES`, and before it would have more than
    `MAX_REQUEST_BYTES`, unless one chunk alone has. The first may be small: at most
    `FIRST_REQUEST_BYTES`, or one chunk.
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
