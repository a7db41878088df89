"""Writes large segments of equal records with numpy instead of a loop over records.

`write_batch` writes one batch, and numpy repeats it. Numpy then sets the offsets, times, keys and
values of all batches at once. The result equals the output of `write_batch` for each batch.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from segment_format.testing.batches import (
    DEFAULT_TIMESTAMP_MS,
    SimpleRecord,
    codec_number,
    compress,
    crc32c,
    write_batch,
    write_varint,
    write_varlong,
)
from segment_format.testing.segment import (
    DEFAULT_INDEX_INTERVAL_BYTES,
    BatchFacts,
    IndexBuilder,
    SegmentFiles,
    write_leader_epoch_checkpoint,
    write_producer_snapshot,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes2d = npt.NDArray[np.uint8]

PAYLOADS = ("random", "json")

_HEADER_BYTES = 61
_CRC_AT = 17
_SLAB_BYTES = 2 << 20
_ATTRIBUTES_AT = 21
_TEXT = (
    b'{"id":"0000000000","user":"00000000","event":"page_view","country":"CH","amount":00000,'
    b'"session":"000000000000","path":"/catalogue/items/000000","agent":"Mozilla/5.0"},'
)


@dataclass(frozen=True, slots=True)
class UniformBatches:
    """Consecutive batches with equal numbers of records. All keys have one size, and all values
    have one size.

    Attributes:
        data: Bytes of all batches, in order.
        sizes: Size of each batch in bytes, int64.
        next_offset: The offset after the last record.
        max_timestamp: Largest timestamp in ms.
        records_per_batch: Number of records in each batch.
    """

    data: bytes
    sizes: npt.NDArray[np.int64]
    next_offset: int
    max_timestamp: int
    records_per_batch: int


def write_uniform_batches(
    *,
    batch_count: int,
    records_per_batch: int,
    value_size: int,
    key_size: int | None = None,
    base_offset: int = 0,
    base_timestamp: int = DEFAULT_TIMESTAMP_MS,
    leader_epoch: int = 0,
    codec: str = "none",
    payload: str = "random",
    seed: int = 0,
    headers: tuple[tuple[str, bytes | None], ...] = (),
) -> UniformBatches:
    """Writes batches of records of one size, without a codec about as fast as memory allows.
    Timestamps increase by 1 ms per record, across batches.

    Args:
        batch_count: Number of batches.
        records_per_batch: Number of records in each batch.
        value_size: Bytes of every value.
        key_size: Bytes of every key; None writes null keys. A key begins with the record's offset
            as 8 bytes, big-endian. A key of fewer bytes contains the last bytes of the offset.
        base_offset: Offset of the first record. The offsets have no gaps.
        base_timestamp: Timestamp of the first record, in milliseconds.
        leader_epoch: Leader epoch of every batch.
        codec: Codec of the records. Compression takes most of the time.
        payload: "random" bytes do not compress; "json" is text with random digits, which zstd
            compresses to about a quarter.
        seed: Seed of the random bytes.
        headers: Headers of every record.

    Raises:
        ValueError: The number of batches or of records is below one, or the payload or codec is
            unknown.
    """
    if batch_count < 1 or records_per_batch < 1:
        raise ValueError("at least one batch of at least one record")
    if payload not in PAYLOADS:
        raise ValueError(f"unknown payload {payload!r}, expected one of {', '.join(PAYLOADS)}")
    number = codec_number(codec)
    blank = SimpleRecord(bytes(value_size), None if key_size is None else bytes(key_size), headers)
    template = _template(records_per_batch, blank, leader_epoch)
    batches = np.tile(np.frombuffer(template, np.uint8), (batch_count, 1))
    numbers = np.arange(batch_count, dtype=np.int64) * records_per_batch
    _fill_int64(batches, 0, base_offset + numbers)
    _fill_int64(batches, 27, base_timestamp + numbers)
    _fill_int64(batches, 35, base_timestamp + numbers + records_per_batch - 1)
    _fill(batches, base_offset + numbers, records_per_batch, blank, payload, seed)
    next_offset = base_offset + batch_count * records_per_batch
    max_timestamp = base_timestamp + batch_count * records_per_batch - 1
    if codec == "none":
        _fill_checksums(batches)
        data, sizes = batches.tobytes(), np.full(batch_count, len(template), np.int64)
    else:
        batches[:, 22] |= number
        data, sizes = _compressed(codec, batches)
    return UniformBatches(data, sizes, next_offset, max_timestamp, records_per_batch)


def _template(records_per_batch: int, blank: SimpleRecord, leader_epoch: int) -> bytes:
    """Returns an uncompressed batch of records that equal `blank`. Its first offset and timestamp
    are 0.
    """
    return write_batch(
        [
            SimpleRecord(blank.value, blank.key, blank.headers, timestamp=index)
            for index in range(records_per_batch)
        ],
        base_offset=0,
        leader_epoch=leader_epoch,
    )


def _fill(
    batches: npt.NDArray[np.uint8],
    first_offsets: npt.NDArray[np.int64],
    records_per_batch: int,
    blank: SimpleRecord,
    payload: str,
    seed: int,
) -> None:
    """Writes the keys and values of all records into the batches."""
    random = np.random.Generator(np.random.SFC64(seed))
    groups = _groups(records_per_batch, blank)
    # Fills a few megabytes at a time, because allocating memory costs more than filling it.
    step = max(1, _SLAB_BYTES // batches.shape[1])
    for start in range(0, len(batches), step):
        rows = slice(start, start + step)
        for group in groups:
            _fill_group(batches[rows], group, blank, first_offsets[rows], payload, random)


def _compressed(codec: str, batches: npt.NDArray[np.uint8]) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Returns the compressed batches, and the size of each of them in bytes."""
    with ThreadPoolExecutor(2) as pool:  # the codecs release the GIL
        packed = list(pool.map(functools.partial(_pack, codec), batches))
    return b"".join(packed), np.array([len(batch) for batch in packed], np.int64)


def _pack(codec: str, batch: npt.NDArray[np.uint8]) -> bytes:
    """Compresses the records of `batch`. Its attributes must already contain `codec`."""
    checked = batch[_ATTRIBUTES_AT:_HEADER_BYTES].tobytes() + compress(
        codec, batch[_HEADER_BYTES:].tobytes()
    )
    length = (len(checked) + _ATTRIBUTES_AT - 12).to_bytes(4, "big")
    head = batch[:8].tobytes() + length + batch[12:_CRC_AT].tobytes()
    return head + crc32c(checked).to_bytes(4, "big") + checked


def uniform_segment(
    batches: UniformBatches,
    *,
    leader_epoch: int = 0,
    log_start: int | None = None,
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
) -> SegmentFiles:
    """Builds the files of a segment that contains exactly these batches.

    Args:
        batches: Output of `write_uniform_batches`.
        leader_epoch: The leader epoch passed to `write_uniform_batches`.
        log_start: Start offset of the leader epoch. None means the first offset of the batches.
        index_interval_bytes: Kafka's `index.interval.bytes`.
    """
    count = len(batches.sizes)
    per_batch = batches.records_per_batch
    base_offset = batches.next_offset - count * per_batch
    first_timestamp = batches.max_timestamp + 1 - count * per_batch
    indexes = IndexBuilder(base_offset, index_interval_bytes)
    for position, size in enumerate(batches.sizes.tolist()):
        done = (position + 1) * per_batch - 1
        indexes.add_append([BatchFacts(size, base_offset + done, first_timestamp + done)])
    index, timeindex, _ = indexes.close()
    epochs = ((leader_epoch, base_offset),)
    return SegmentFiles(
        base_offset=base_offset,
        next_offset=batches.next_offset,
        log=batches.data,
        index=index,
        timeindex=timeindex,
        txnindex=None,
        snapshot=write_producer_snapshot([]),
        leader_epoch_checkpoint=write_leader_epoch_checkpoint(
            ((leader_epoch, base_offset if log_start is None else log_start),)
        ),
        max_timestamp_ms=batches.max_timestamp,
        epochs=epochs,
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """Neighboring records of a batch that have the same size.

    Attributes:
        first: Number of the first record in its batch.
        count: Number of records.
        position: Position of the first record in the batch.
        size: Bytes of each record.
        key_at: Position of the key in a record.
        value_at: Position of the value in a record.
    """

    first: int
    count: int
    position: int
    size: int
    key_at: int
    value_at: int


def _groups(records_per_batch: int, blank: SimpleRecord) -> list[_Group]:
    groups: list[_Group] = []
    position = _HEADER_BYTES
    first = 0
    # Records grow by a byte when the offset delta reaches 64, 8192, …, because it is a varint.
    for limit in (64, 8192, 1 << 20, 1 << 27, 1 << 31):
        count = min(records_per_batch, limit) - first
        if count <= 0:
            break
        key, value = blank.key or b"", blank.value or b""
        key_length = write_varint(-1 if blank.key is None else len(key))
        value_length = write_varint(len(value))
        before_key = 1 + len(write_varlong(first)) + len(write_varint(first)) + len(key_length)
        body = before_key + len(key) + len(value_length) + len(value) + _headers_size(blank)
        prefix = len(write_varint(body))
        groups.append(
            _Group(
                first=first,
                count=count,
                position=position,
                size=prefix + body,
                key_at=prefix + before_key,
                value_at=prefix + before_key + len(key) + len(value_length),
            )
        )
        position += count * (prefix + body)
        first += count
    return groups


def _headers_size(blank: SimpleRecord) -> int:
    size = len(write_varint(len(blank.headers)))
    for key, value in blank.headers:
        size += len(write_varint(len(key.encode()))) + len(key.encode())
        size += len(write_varint(-1 if value is None else len(value))) + len(value or b"")
    return size


def _fill_group(
    batches: Bytes2d,
    group: _Group,
    blank: SimpleRecord,
    base_offsets: npt.NDArray[np.int64],
    payload: str,
    random: np.random.Generator,
) -> None:
    stop = group.position + group.count * group.size
    records = np.lib.stride_tricks.as_strided(
        batches[:, group.position : stop],
        shape=(len(batches), group.count, group.size),
        strides=(batches.strides[0], group.size, 1),
    )
    if blank.key is not None:
        size = len(blank.key)
        numbers = base_offsets[:, None] + np.arange(group.first, group.first + group.count)
        digits = numbers.astype(">i8").view(np.uint8).reshape(*numbers.shape, 8)
        keys = records[:, :, group.key_at : group.key_at + size]
        keys[:, :, : min(size, 8)] = digits[:, :, max(0, 8 - size) :]
    if blank.value:
        size = len(blank.value)
        values = records[:, :, group.value_at : group.value_at + size]
        shape = (len(batches), group.count, size)
        values[...] = _random_bytes(shape, random) if payload == "random" else _text(shape, random)


def _random_bytes(shape: tuple[int, int, int], random: np.random.Generator) -> Bytes2d:
    length = shape[0] * shape[1] * shape[2]
    words = random.integers(0, 1 << 64, -(-length // 8), np.uint64, endpoint=False)
    return words.view(np.uint8)[:length].reshape(shape)


def _text(shape: tuple[int, int, int], random: np.random.Generator) -> Bytes2d:
    pattern = np.resize(np.frombuffer(_TEXT, np.uint8), shape[2])
    values = np.empty(shape, np.uint8)
    values[...] = pattern
    blanks = np.flatnonzero(pattern == ord("0"))
    digits = _random_bytes((shape[0], shape[1], len(blanks)), random) % 10 + ord("0")
    values[:, :, blanks] = digits
    return values


def _fill_int64(batches: Bytes2d, position: int, values: npt.NDArray[np.int64]) -> None:
    batches[:, position : position + 8] = values.astype(">i8").view(np.uint8).reshape(-1, 8)


def _fill_checksums(batches: Bytes2d) -> None:
    import google_crc32c

    checked = batches[:, _ATTRIBUTES_AT:]
    sums = np.array([google_crc32c.value(batch) for batch in checked], ">u4")
    batches[:, _CRC_AT : _CRC_AT + 4] = sums.view(np.uint8).reshape(-1, 4)
