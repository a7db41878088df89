"""The batches of a whole segment, from its first byte to its last: header facts and checksums."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kts_source.read.segment_source import SegmentSpan
from segment_format.errors import CorruptRecordError, SegmentFormatError, TruncatedBatchError
from segment_format.index.transaction_replay import marker_of
from segment_format.record.batch_header import CRC_START, MAGIC_2, RecordBatchHeader
from segment_format.record.checksum import crc32c
from segment_format.record.framing import ENTRY_PREFIX_SIZE, read_prefix
from segment_format.record.records import iter_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kts_source.layout.remote_segment import RemoteSegment
    from kts_source.read.fetch import ReadAhead
    from kts_source.read.segment_source import SegmentSource
    from segment_format.record.control_record import ControlRecordType
    from segment_format.record.framing import Entry


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """A batch of any format, as far as an audit goes.

    Attributes:
        position: First byte in the original segment.
        base_offset: First offset of the original batch.
        last_offset: Its last.
        leader_epoch: −1 for none.
        crc: As stored.
        is_sound: Whether that is the checksum of the bytes.
        max_timestamp: Largest timestamp of its records in ms.
        records: How many there are, markers included.
        producer_id: −1 for none.
        is_transactional: Whether a transaction decides about it.
        is_control: Whether it holds a marker.
        marker: How that ends its transaction.
        data: All bytes of the batch, valid until the next batch is taken.
    """

    position: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int
    is_sound: bool
    max_timestamp: int
    records: int
    producer_id: int
    is_transactional: bool
    is_control: bool
    marker: ControlRecordType | None
    data: memoryview


def segment_batches(
    segment: RemoteSegment, source: SegmentSource, read_ahead: ReadAhead, *, max_batch_bytes: int
) -> Iterator[BatchFacts]:
    """Every batch of a segment, in order. Memory is bounded by the read-ahead, one window of it and
    one batch.

    Args:
        segment: Which.
        source: What reads it.
        read_ahead: How much to have under way.
        max_batch_bytes: Bound on one batch.

    Raises:
        SegmentFormatError: Bytes that are no batch, at a position in the segment.
        TieredKafkaError: See `SegmentSource.windows`.
    """
    size = segment.objects.size_in_bytes
    place = segment.topic, segment.partition, segment.start_offset
    span = SegmentSpan(*place, segment.objects, 0, size)
    held: list[memoryview] = []
    held_bytes, position, wanted = 0, 0, 1
    with closing(source.windows([span], read_ahead=read_ahead)) as windows:
        for _, window in windows:
            held.append(window)
            held_bytes += len(window)
            if held_bytes < wanted:
                held[-1] = memoryview(bytes(window))  # the next window may have this memory
                continue
            data = held[0] if len(held) == 1 else memoryview(b"".join(held))
            at = 0
            wanted = ENTRY_PREFIX_SIZE
            while len(data) - at >= ENTRY_PREFIX_SIZE:
                entry = read_prefix(data[at : at + ENTRY_PREFIX_SIZE], at=position)
                _check_size(entry, size - position, max_batch_bytes)
                if entry.size > len(data) - at:
                    wanted = entry.size
                    break
                yield _facts(data[at : at + entry.size], position, entry.magic)
                at += entry.size
                position += entry.size
            rest = memoryview(bytes(data[at:]))
            held, held_bytes = [rest] if rest else [], len(rest)
            del data, window
    if position != size:
        raise TruncatedBatchError(f"{size - position} bytes are no batch", position=position)


def _check_size(entry: Entry, left: int, max_batch_bytes: int) -> None:
    if entry.size > left:
        text = f"a batch of {entry.size} bytes, of which {left} are there"
        raise TruncatedBatchError(text, position=entry.position, offset=entry.offset)
    if entry.size > max_batch_bytes:
        text = f"a batch of {entry.size} bytes; option maxBatchBytes allows {max_batch_bytes}"
        raise CorruptRecordError(text, position=entry.position, offset=entry.offset)


def _facts(data: memoryview, position: int, magic: int) -> BatchFacts:
    if magic != MAGIC_2:
        return _of_old_format(data, position)
    try:
        header = RecordBatchHeader.from_bytes(data)
    except SegmentFormatError as error:
        raise error.at(position, -1 if error.offset is None else error.offset) from None
    is_sound = crc32c(data[CRC_START:]) == header.crc
    marker = None
    if header.is_control_batch and is_sound:
        marker = marker_of(next(iter_batches(data, check_crcs=False)))
    return BatchFacts(
        position,
        header.base_offset,
        header.last_offset,
        header.partition_leader_epoch,
        header.crc,
        is_sound,
        header.max_timestamp,
        header.record_count,
        header.producer_id,
        header.is_transactional,
        header.is_control_batch,
        marker,
        data,
    )


def _of_old_format(data: memoryview, position: int) -> BatchFacts:
    """A message of format 0 or 1, alone or compressed with others; the checksum is checked."""
    is_sound = True
    try:
        batch = next(iter_batches(data))
    except SegmentFormatError as error:
        try:
            batch = next(iter_batches(data, check_crcs=False))
        except SegmentFormatError:
            raise error.at(position, -1 if error.offset is None else error.offset) from None
        is_sound = False
    times = [record.timestamp for record in batch.records]
    return BatchFacts(
        position,
        batch.base_offset,
        batch.last_offset,
        -1,
        int.from_bytes(data[12:16], "big"),
        is_sound,
        max(times, default=-1),
        len(batch.records),
        -1,
        False,
        False,
        None,
        data,
    )


def records_from(batch: BatchFacts, start: int) -> int:
    """How many records of a batch stand at `start` or behind it."""
    if batch.base_offset >= start:
        return batch.records
    decoded = next(iter_batches(batch.data, check_crcs=False))
    return sum(record.offset >= start for record in decoded.records)
