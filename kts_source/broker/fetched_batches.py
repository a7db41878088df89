"""What is in one answer to a fetch: whole batches, and which of their transactions were aborted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from segment_format.errors import SegmentFormatError
from segment_format.index.transaction_index import AbortedTxn
from segment_format.isolation import AbortedIntervals
from segment_format.record.batch_header import MAGIC_2, RecordBatchHeader
from segment_format.record.control_record import ControlRecordType, batch_control_type
from segment_format.record.framing import iter_entries, read_entry
from segment_format.record.records import iter_batches

_MAX_OFFSET: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Whole batches of one answer.

    Attributes:
        data: Their bytes; valid until the next answer is asked for.
        start_offset: What was asked for: rows below it are not wanted.
        next_offset: One past the last offset of the last batch.
        aborted: Transactions among them to leave out, when only committed rows are wanted.
        listed: Producer id and first offset of the aborted transactions that the broker lists.
    """

    data: memoryview
    start_offset: int
    next_offset: int
    aborted: AbortedIntervals
    listed: frozenset[tuple[int, int]]


def whole_batches(data: memoryview) -> tuple[int, int]:
    """Bytes at the front of an answer that are whole entries, and one past their last offset.

    Raises:
        CorruptRecordError: They are no entries, or their offsets do not ascend.
    """
    from segment_format.arrow import RecordDecoder

    # Nothing is wanted of any entry, so the kernel walks their headers alone.
    walk = RecordDecoder(
        columns=(),
        start_offset=_MAX_OFFSET - 1,
        offset_bounds=(0, _MAX_OFFSET),
        check_crcs=False,
        max_rows=1,
    )
    for _ in walk.feed(data):
        pass
    return walk.counters.bytes, walk.next_offset


def begins_at_or_after(data: memoryview, offset: int) -> bool:
    """Whether the first entry of an answer holds no record below an offset.

    The offset field of a compressed message set (formats 0 and 1) is that of its last record, so
    only the records in it tell where it begins. Returns `False` where the entry cannot be read.
    """
    try:
        entry = read_entry(data, 0)
        if entry.magic == MAGIC_2:
            return entry.offset >= offset
        (message_set,) = iter_batches(data[: entry.size])
        return message_set.base_offset >= offset
    except SegmentFormatError:
        return False


def aborted_intervals(
    listed: frozenset[tuple[int, int]], data: memoryview, next_offset: int
) -> AbortedIntervals:
    """The intervals that the aborted transactions of an answer have in its batches.

    Args:
        listed: Producer id and first offset, as brokers list them: without an end.
        data: Whole batches.
        next_offset: One past their last offset.
    """
    producers = {producer for producer, _ in listed}
    markers: list[tuple[int, int]] = []
    for entry in iter_entries(data):
        if entry.magic != MAGIC_2:
            continue
        header = RecordBatchHeader.from_bytes(data, entry.position)
        if header.is_control_batch and header.producer_id in producers:
            (batch,) = iter_batches(data[entry.position : entry.stop])
            if batch_control_type(batch) is ControlRecordType.ABORT:
                markers.append((batch.producer_id, batch.base_offset))
    txns = []
    for producer, first in listed:
        ends = (at for one, at in markers if one == producer and at > first)
        last = min(ends, default=next_offset)
        txns.append(AbortedTxn(producer, first, last, last))
    return AbortedIntervals.from_txns(txns, start_offset=0, stop_offset=_MAX_OFFSET)
