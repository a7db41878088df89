"""Generates a tier of any size in a store with latency.

Nothing is stored: the store computes listings, manifests, indexes and chunks from the numbers of
partition and segment. Readers accept them like the bytes of a real tier: manifests parse, chunks
decompress, and batches have valid checksums.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import struct
import threading
import time
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

import google_crc32c
import numpy as np

from kts_source.store.object_store import ObjectInfo, StoreCounters, key_order
from segment_format.kafka_uuid import uuid_from_text
from segment_format.testing.batches import SimpleRecord, write_batch
from segment_format.testing.segment import (
    AbortedTransaction,
    write_leader_epoch_checkpoint,
    write_producer_snapshot,
    write_transaction_index,
)
from tests.segment_format.manifest.writers import encode_chunk_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOPIC: Final = "events"
TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAQ"
FOLDER: Final = f"{TOPIC}-{TOPIC_ID}/"
CHUNK_BYTES: Final = 256 << 10
BATCH_BYTES: Final = 16 << 10
BATCHES_PER_CHUNK: Final = CHUNK_BYTES // BATCH_BYTES
BATCH_RECORDS: Final = 16
FIRST_MS: Final = 1_700_000_000_000
DAYS: Final = 30
_MANIFEST_BYTES: Final = 2048
_KEPT_CHUNKS: Final = 8
_PAGE_KEYS: Final = 1000
_SHAPES: Final = 16
assert uuid_from_text(TOPIC_ID)


@dataclass(frozen=True, slots=True)
class Shape:
    """Properties that segments of equal size share.

    Attributes:
        chunks: Number of chunks.
        extra_blocks: Number of empty zstd blocks in each chunk, which makes stored chunks larger.
        text: `transformedChunks` of the manifest.
    """

    chunks: int
    extra_blocks: tuple[int, ...]
    text: str

    @property
    def batches(self) -> int:
        """Returns the number of record batches of the segment."""
        return self.chunks * BATCHES_PER_CHUNK

    @property
    def stored_sizes(self) -> list[int]:
        """Returns the stored size of each chunk."""
        return [_frame_size(extra) for extra in self.extra_blocks]


@functools.cache
def shape(number: int) -> Shape:
    """Returns the shape with number `number`. Segment n has the shape with the number n modulo the
    number of shapes.
    """
    random = np.random.default_rng(number)
    chunks = 64 + 12 * number
    extra = tuple(int(value) for value in random.integers(0, 200, chunks))
    return Shape(chunks, extra, encode_chunk_sizes([_frame_size(value) for value in extra]))


class SimulatedTier:
    """`ObjectStore` over a generated topic.

    Args:
        partitions: Number of partitions.
        segments: Segments of each partition; together they span 30 days.
        latency_seconds: Duration of every request and every page of a listing.
        aborted_share: One in `aborted_share` segments contains an aborted transaction.

    Attributes:
        listed_segments: Number of segments of each partition in listings; all by default.
    """

    def __init__(
        self,
        partitions: int,
        segments: int,
        *,
        latency_seconds: float = 0.02,
        aborted_share: int = 100,
    ) -> None:
        self.partitions = partitions
        self.segments = segments
        self.listed_segments = [segments] * partitions
        self.segment_ms = DAYS * 86_400_000 // segments
        self._latency_seconds = latency_seconds
        self._aborted_share = aborted_share
        self._lock = threading.Lock()
        self._counters = StoreCounters()
        self._stored: dict[tuple[int, int], bytes] = {}
        self._listed: dict[int, list[ObjectInfo]] = {}

    pinning = "as the test does"
    remarks = ()
    is_near = False
    lists_in_pages = True

    @property
    def counters(self) -> StoreCounters:
        """Returns the numbers of requests and bytes since the start."""
        return self._counters

    @functools.cached_property
    def _bases(self) -> list[int]:
        bases = [0]
        for number in range(self.segments):
            bases.append(bases[-1] + shape(number % _SHAPES).batches * BATCH_RECORDS)
        return bases

    def base_offset(self, number: int) -> int:
        """Returns the first offset of segment `number`, or the end of the log if `number` is the
        number of segments.
        """
        return self._bases[number]

    def start_ms(self, number: int) -> int:
        """Returns the timestamp of a segment's first record."""
        return FIRST_MS + number * self.segment_ms

    # -- ObjectStore

    def uri(self, key: str) -> str:
        """See `ObjectStore.uri`."""
        return f"simulated://tier/{key}"

    def list_folders(self, prefix: str) -> list[str]:
        """See `ObjectStore.list_folders`."""
        self._pages(1)
        if FOLDER.startswith(prefix) and prefix != FOLDER:
            return [FOLDER]
        return sorted(f"{FOLDER}{number}/" for number in range(self.partitions))

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectInfo]:
        """See `ObjectStore.list_objects`. Lists one partition or all partitions, page by page."""
        partitions = sorted(range(self.partitions), key=lambda number: f"{number}/")
        if prefix != FOLDER:
            partitions = [int(prefix[len(FOLDER) : -1])]
        remaining = 0
        for partition in partitions:
            listed = self._listed.get(partition) or list(self._objects(partition))
            first = 0
            if after is not None:
                first = bisect_right(
                    listed, key_order(after), key=lambda entry: key_order(entry.key)
                )
            for info in islice(listed, first, 3 * self.listed_segments[partition]):
                if not remaining:
                    self._pages(1)
                    remaining = _PAGE_KEYS
                remaining -= 1
                yield info
        if not remaining:  # the listing is empty, or its last page is full
            self._pages(1)

    def prepare(self) -> None:
        """Computes all listings in advance, so that they cost no time later."""
        for partition in range(self.partitions):
            self._listed[partition] = list(self._objects(partition))

    def _objects(self, partition: int) -> Iterator[ObjectInfo]:
        for number in range(self.segments):
            stem = self._stem(partition, number)
            written = self.start_ms(number + 1) + 10_000
            version = f'"{partition:016x}{number:016x}"'
            sizes = {
                "indexes": self._index_ends(partition, number)[-1],
                "log": _stored_total(number % _SHAPES),
                "rsm-manifest": _MANIFEST_BYTES,
            }
            for suffix, size in sizes.items():
                yield ObjectInfo(f"{stem}.{suffix}", size, version, written, "STANDARD")

    def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        self._wait()
        prefix = key[: key.rindex("/") + 1]
        return next(info for info in self.list_objects(prefix) if info.key == key)

    def get_range(self, key: str, start: int, stop: int, *, version: str | None = None) -> bytes:
        """See `ObjectStore.get_range`."""
        if start == stop:
            return b""
        self._wait(stop - start)
        partition, number, suffix = self._parsed(key)
        if suffix == "rsm-manifest":
            return self._manifest(partition, number)[start:stop]
        if suffix == "indexes":
            return self._index_part(partition, number, start, stop)
        return self._log(number, start, stop)

    def close(self) -> None:
        """Does nothing, because the store has no connections."""

    # -- content

    def _stem(self, partition: int, number: int) -> str:
        return f"{FOLDER}{partition}/{self._bases[number]:020d}-{_segment_id(partition, number)}"

    def _parsed(self, key: str) -> tuple[int, int, str]:
        partition, name = key[len(FOLDER) :].split("/")
        digits, suffix = name[:20], name[44:]
        return int(partition), bisect_left(self._bases, int(digits)), suffix

    def _manifest(self, partition: int, number: int) -> bytes:
        form = shape(number % _SHAPES)
        ends = self._index_ends(partition, number)
        starts = [0, *ends[:-1]]
        offset, timestamp, snapshot, epoch, txn = (
            f'{{"position":{low},"size":{high - low}}}'
            for low, high in zip(starts, ends, strict=True)
        )
        if ends[-1] == ends[-2]:
            txn = "null"
        last = self._batch_ms(number, form.batches - 1)
        text = (
            '{"version":"1","chunkIndex":{"type":"variable",'
            f'"originalChunkSize":{CHUNK_BYTES},"originalFileSize":{form.chunks * CHUNK_BYTES},'
            f'"transformedChunks":"{form.text}"}},"segmentIndexes":{{"offset":{offset},'
            f'"timestamp":{timestamp},"producerSnapshot":{snapshot},"leaderEpoch":{epoch},'
            f'"transaction":{txn}}},"compression":true,"remoteLogSegmentMetadata":'
            f'{{"remoteLogSegmentId":{{"topicIdPartition":{{"topicId":"{TOPIC_ID}",'
            f'"topicPartition":{{"topic":"{TOPIC}","partition":{partition}}}}},'
            f'"id":"{_segment_id(partition, number)}"}},"startOffset":{self._bases[number]},'
            f'"endOffset":{self._bases[number + 1] - 1},"maxTimestampMs":{last},"brokerId":1,'
            f'"eventTimestampMs":{last + 5000},"segmentLeaderEpochs":{{"0":{self._bases[number]}}},'
            f'"txnIdxEmpty":{"true" if txn == "null" else "false"}}}}}'
        )
        return text.encode().ljust(_MANIFEST_BYTES)

    def _aborts(self, partition: int, number: int) -> bool:
        # Never the first segment: tests and `limit` read it, and its log has no marker.
        return (partition * self.segments + number + 1) * 7919 % self._aborted_share == 0

    def _index_ends(self, partition: int, number: int) -> tuple[int, ...]:
        """Returns the end position of each of the five files in the `.indexes` object."""
        batches = shape(number % _SHAPES).batches
        ends = (8 * batches, 20 * batches)
        snapshot = ends[1] + len(_snapshot())
        epoch = snapshot + len(_checkpoint())
        aborted = len(self._aborted(number)) if self._aborts(partition, number) else 0
        return (*ends, snapshot, epoch, epoch + aborted)

    def _index_part(self, partition: int, number: int, start: int, stop: int) -> bytes:
        """Returns bytes [start, stop) of an `.indexes` object. Generates only the files in this
        range, because measurements must not include much time of the store.
        """
        ends = self._index_ends(partition, number)
        makers: list[Callable[[int], bytes]] = [self._offsets, self._times]
        makers += [lambda _: _snapshot(), lambda _: _checkpoint(), self._aborted]
        pieces = []
        for low, high, made in zip((0, *ends[:-1]), ends, makers, strict=True):
            if low < stop and high > start:
                content = made(number)
                assert len(content) == high - low
                pieces.append(content[max(start - low, 0) : stop - low])
        return b"".join(pieces)

    def _offsets(self, number: int) -> bytes:
        batches = np.arange(shape(number % _SHAPES).batches, dtype=np.int64)
        offsets = np.empty((len(batches), 2), ">i4")
        offsets[:, 0], offsets[:, 1] = (batches + 1) * BATCH_RECORDS - 1, batches * BATCH_BYTES
        return offsets.tobytes()

    def _times(self, number: int) -> bytes:
        batches = np.arange(shape(number % _SHAPES).batches, dtype=np.int64)
        times = np.empty(len(batches), [("t", ">i8"), ("o", ">i4")])
        times["t"] = self.start_ms(number) + batches * self.segment_ms // len(batches)
        times["o"] = (batches + 1) * BATCH_RECORDS - 1
        return times.tobytes()

    def _aborted(self, number: int) -> bytes:
        first = self._bases[number] + BATCH_RECORDS
        last = first + 2 * BATCH_RECORDS
        return write_transaction_index([AbortedTransaction(1, first, last, last + 1)])

    def _batch_ms(self, number: int, batch: int) -> int:
        batches = shape(number % _SHAPES).batches
        return self.start_ms(number) + batch * self.segment_ms // batches

    def _log(self, number: int, start: int, stop: int) -> bytes:
        form = shape(number % _SHAPES)
        pieces, position = [], 0
        for chunk, extra in enumerate(form.extra_blocks):
            size = _frame_size(extra)
            if position < stop and position + size > start:
                frame = self._stored_chunk(number, chunk, extra)
                pieces.append(frame[max(start - position, 0) : stop - position])
            position += size
        return b"".join(pieces)

    def _stored_chunk(self, number: int, chunk: int, extra: int) -> bytes:
        """Returns a chunk as stored, which does not depend on the partition. Keeps up to
        `_KEPT_CHUNKS` generated chunks, so that measurements contain little of the simulated
        store's own work.
        """
        stored = self._stored.get((number, chunk))
        if stored is None:
            stored = _frame(self._chunk(number, chunk), extra)
            if len(self._stored) < _KEPT_CHUNKS:
                self._stored[number, chunk] = stored
        return stored

    def _chunk(self, number: int, chunk: int) -> bytes:
        first = chunk * BATCHES_PER_CHUNK
        return b"".join(
            _batch(self._bases[number] + batch * BATCH_RECORDS, self._batch_ms(number, batch))
            for batch in range(first, first + BATCHES_PER_CHUNK)
        )

    # -- latency

    def _pages(self, count: int) -> None:
        with self._lock:
            self._counters += StoreCounters(list_requests=count)
        time.sleep(count * self._latency_seconds)

    def _wait(self, received: int = 0) -> None:
        with self._lock:
            self._counters += StoreCounters(requests=1, bytes=received)
        time.sleep(self._latency_seconds)


def _segment_id(partition: int, number: int) -> str:
    digest = hashlib.blake2b(struct.pack(">II", partition, number), digest_size=16).digest()
    text = base64.urlsafe_b64encode(digest).decode()[:22]
    return "A" + text[1:]


@functools.cache
def _stored_total(number: int) -> int:
    return sum(shape(number).stored_sizes)


@functools.cache
def _snapshot() -> bytes:
    return write_producer_snapshot([])


@functools.cache
def _checkpoint() -> bytes:
    return write_leader_epoch_checkpoint([(0, 0)])


@functools.cache
def _template() -> bytes:
    """Returns a record batch of exactly `BATCH_BYTES` bytes."""
    filler = BATCH_BYTES // BATCH_RECORDS
    while True:
        records = [SimpleRecord(None, bytes(filler)) for _ in range(BATCH_RECORDS - 1)]
        short = write_batch([*records, SimpleRecord(None, b"")], base_offset=0)
        for size in range(BATCH_BYTES - len(short) - 8, BATCH_BYTES - len(short) + 1):
            batch = write_batch([*records, SimpleRecord(None, bytes(max(size, 0)))], base_offset=0)
            if len(batch) == BATCH_BYTES:
                return batch
        filler -= 16


def _batch(base_offset: int, timestamp_ms: int) -> bytes:
    batch = bytearray(_template())
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">qq", batch, 27, timestamp_ms, timestamp_ms)
    struct.pack_into(">I", batch, 17, google_crc32c.value(bytes(batch[21:])))
    return bytes(batch)


def _frame_size(extra_blocks: int) -> int:
    return 9 + 3 * (CHUNK_BYTES // (128 << 10) + extra_blocks) + CHUNK_BYTES


def _frame(chunk: bytes, extra_blocks: int) -> bytes:
    """Returns a zstd frame of raw blocks that contains the chunk, followed by `extra_blocks` empty
    blocks.
    """
    pieces = [b"\x28\xb5\x2f\xfd\xa0", struct.pack("<I", len(chunk)), bytes(3 * extra_blocks)]
    step = 128 << 10
    for start in range(0, len(chunk), step):
        block = chunk[start : start + step]
        is_last = start + step >= len(chunk)
        pieces += [(len(block) << 3 | is_last).to_bytes(3, "little"), block]
    return b"".join(pieces)
