"""Original segment bytes from stored objects: ranged reads of whole chunks, decrypted,
decompressed, trimmed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from segment_format.manifest.segment_manifest import IndexRange
from segment_format.manifest.transform import restore_chunk, restore_index

from kts_source.errors import CorruptSegmentError
from segment_format.errors import ChunkError, SegmentFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.keyring import KeyRing
    from kts_source.remote.segment import Envelope, IndexType, SegmentObjects
    from kts_source.remote.store import RangeStore
    from segment_format.manifest.chunk_index import Chunk
    from segment_format.manifest.encryption import WrappedDataKey

MAX_REQUEST_BYTES = 8 << 20  # object stores serve ranges of 8-16 MB at full speed
MAX_INDEX_BYTES = 64 << 20  # far above segment.index.bytes (10 MiB); a bound, not an expectation


class SegmentReader:
    """Reads segments of one store.

    Args:
        store: Where the objects are.
        key_ring: What opens encrypted ones.
    """

    def __init__(self, store: RangeStore, key_ring: KeyRing) -> None:
        self.store = store
        self._key_ring = key_ring
        self._data_keys: dict[
            WrappedDataKey, bytes
        ] = {}  # one RSA operation a segment, about a millisecond

    def index(self, objects: SegmentObjects, kind: IndexType) -> bytes | None:
        """The bytes of a side file as the broker wrote it; `None` when the segment has none.

        Raises:
            CorruptSegmentError: It is too large, or cannot be decrypted.
        """
        stored = objects.indexes.get(kind)
        if stored is None or stored.size == 0:
            return None if stored is None else b""
        uri = self.store.uri(stored.source.key)
        if stored.size > MAX_INDEX_BYTES:
            raise CorruptSegmentError(
                f"{kind.value} index of {stored.size} bytes in {uri}: at most {MAX_INDEX_BYTES}"
                f" are read"
            )
        data = self.store.get_range(
            stored.source.key, stored.start, stored.stop, version=stored.source.version
        )
        try:
            return bytes(
                restore_index(
                    data,
                    IndexRange(stored.start, stored.size),
                    data_key=self._data_key(objects),
                    aad=_aad(objects),
                )
            )
        except SegmentFormatError as error:
            raise CorruptSegmentError(
                f"{kind.value} index in {uri}, bytes [{stored.start}, {stored.stop}): {error}"
            ) from error

    def windows(self, objects: SegmentObjects, start: int, stop: int) -> Iterator[memoryview]:
        """Original bytes [start, stop) in order, cut at chunk borders.

        Raises:
            CorruptSegmentError: A chunk that is not what the manifest says, does not authenticate,
                or has no key.
        """
        if start >= stop:
            return
        data_key = self._data_key(objects)
        chunks = objects.chunk_index.chunks(start, stop)
        for group in _requests(chunks):
            first, last = group[0], group[-1]
            base = first.transformed_position
            data = memoryview(
                self.store.get_range(
                    objects.log.key,
                    base,
                    last.transformed_position + last.transformed_size,
                    version=objects.log.version,
                )
            )
            for chunk in group:
                offset = chunk.transformed_position - base
                window = self._restore(
                    objects, chunk, data[offset : offset + chunk.transformed_size], data_key
                )
                low = max(start - chunk.original_position, 0)
                high = min(stop - chunk.original_position, chunk.original_size)
                yield window[low:high]

    def _restore(
        self, objects: SegmentObjects, chunk: Chunk, stored: memoryview, data_key: bytes | None
    ) -> memoryview:
        try:
            return memoryview(
                restore_chunk(
                    stored,
                    chunk,
                    compression=objects.compression,
                    data_key=data_key,
                    aad=_aad(objects),
                )
            )
        except ChunkError as error:
            raise CorruptSegmentError(
                f"chunk {chunk.id}: {error}{_key_hint(objects.encryption)}",
                uri=self.store.uri(objects.log.key),
                position=chunk.transformed_position,
            ) from error

    def _data_key(self, objects: SegmentObjects) -> bytes | None:
        if objects.encryption is None:
            return None
        wrapped = objects.encryption.wrapped_key
        if wrapped not in self._data_keys:
            try:
                self._data_keys[wrapped] = self._key_ring.unwrap(wrapped)
            except SegmentFormatError as error:
                raise CorruptSegmentError(
                    str(error), uri=self.store.uri(objects.log.key)
                ) from error
        return self._data_keys[wrapped]


def _aad(objects: SegmentObjects) -> bytes | None:
    return None if objects.encryption is None else objects.encryption.aad


def _key_hint(envelope: Envelope | None) -> str:
    return "" if envelope is None else f" (encrypted with key id {envelope.wrapped_key.key_id!r})"


def _requests(chunks: tuple[Chunk, ...]) -> Iterator[tuple[Chunk, ...]]:
    """Runs of neighbouring chunks of at most `MAX_REQUEST_BYTES`, or one chunk that is more."""
    group: list[Chunk] = []
    size = 0
    for chunk in chunks:
        if group and size + chunk.transformed_size > MAX_REQUEST_BYTES:
            yield tuple(group)
            group, size = [], 0
        group.append(chunk)
        size += chunk.transformed_size
    if group:
        yield tuple(group)
